"""What a model loses with each of its heads: one removed at a time, measured, proved."""

TOKENS, SEQUENCES = 128, 4  # of a text, where nobody says
