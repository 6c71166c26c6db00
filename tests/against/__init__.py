"""Planted bugs, and what `check --against` makes of them; `python -m tests.against` writes it down."""
