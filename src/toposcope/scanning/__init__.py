"""`toposcope scan` as work on layers: each gives a record of its own; a result is put together from records."""
