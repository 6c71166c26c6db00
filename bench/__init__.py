"""Speed and memory, as ratios against a peer and against the limit, measured in one run: `python -m bench`.

One thread throughout, for ours and the peer: threads of a library that wait for one another count as work.
"""

import os

for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")  # read when NumPy is imported, which comes after this
