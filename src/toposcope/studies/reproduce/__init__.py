"""The papers' claims put to the test: which runs they need, rules fixed beforehand, and what came out."""
