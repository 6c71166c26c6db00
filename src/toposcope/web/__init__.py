"""The local web page: results and runs to look at, and the maths of the library on request. Needs the [web] extra."""
