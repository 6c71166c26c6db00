"""Speed and memory, as ratios against a peer and against the limit, measured in one run: `python -m bench`."""
