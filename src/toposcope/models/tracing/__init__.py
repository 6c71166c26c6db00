"""What the heads of a real model do on a text: position in their logits, patterns in their attention, depth."""

TOKENS, SEQUENCES = 256, 4  # of a text, where nobody says; the positional heads of `ablate` are found on as many
