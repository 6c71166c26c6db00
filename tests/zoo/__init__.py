"""The zoo: every bug of the catalogue, planted in sound tiny models of transformers.

`PLANTS` in plants.py lists them all; breaks.py holds what each bug changes; runs.py the ways of running a model by
which a plant proves that it is a bug of its kind, without any help of the check that is to find it. `python -m
tests.zoo` plants all, checks all, and writes the tables of docs/zoo.md.
"""
