"""A real model and a text: its hidden states, and what the theory says of them. Needs the [hf] extra.

torch and transformers are imported inside the functions that need them.
"""
