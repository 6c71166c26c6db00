"""What a model loses with each of its heads: one removed at a time, measured, proved."""
