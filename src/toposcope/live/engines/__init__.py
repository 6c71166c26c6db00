"""Two engines on the same tokens: where they part, and which known bug, put into the first, explains it."""
