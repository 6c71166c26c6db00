"""A reader that measures: models of types that no adapter knows and that the installed transformers does.

What a model's attention does is measured on a small copy of it, written as a description, read back by our own code
and compared with the running copy. What does not agree is refused. Nothing of the model's own code is run.
"""
