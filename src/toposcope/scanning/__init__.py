"""One scan for the command, the library, the web page and compare: layers make records, records a result."""
