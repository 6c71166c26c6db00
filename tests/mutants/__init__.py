"""Small changes of central modules, and whether their tests notice: python -m tests.mutants --help."""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported, and forked
