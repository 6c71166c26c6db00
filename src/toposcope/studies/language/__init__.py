"""A small byte model on real text, and what holding a regime or adding a diagonal does to its bits per byte.

`sotu` and `texts` find the bytes, `cells` are the models that are compared, `config` is one run of them, `probe`
trains it and `measure` looks at what came out; `groups` says which runs are set beside which, `outcome` and `page`
what they say.
"""
