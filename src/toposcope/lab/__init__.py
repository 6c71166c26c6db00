"""Small Transformers, trained from nothing on tasks that need position or do not. Needs the [torch] extra."""
