"""The shape of the house: who imports whom, how large the rooms are."""
