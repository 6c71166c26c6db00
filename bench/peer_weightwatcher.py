"""Worker: WeightWatcher on attention matrices. Arguments: an .npz file of them; anything more for all cores."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from bench.peers import serve, timed


def main(path: str, *all_cores: str) -> None:
    import torch
    import weightwatcher  # type: ignore[import-not-found]

    if not all_cores:
        torch.set_num_threads(1)
    model = torch.nn.ModuleDict()
    for name, matrix in np.load(path).items():
        model[name] = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        model[name].weight.data = torch.from_numpy(matrix)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        seconds, details = timed(lambda: weightwatcher.WeightWatcher(model=model).analyze())
        spectral = dict(zip(details.name, (float(value) for value in details.sv_max), strict=True))
        return {"seconds": seconds, "matrices": len(details), "largest": spectral}

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
