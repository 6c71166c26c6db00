"""What position does in a model that runs, against what its configuration and its files say."""
