"""Worker: the flow of attention by torchdiffeq. The argument is a directory with one .npz file for each case."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import serve, timed


def main(where: Path) -> None:
    import torch
    from torchdiffeq import odeint  # type: ignore[import-not-found]

    torch.set_num_threads(1)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        given = {name: torch.from_numpy(array) for name, array in np.load(where / f"{request['case']}.npz").items()}
        start, k, v = given["start"], given["k"], given["v"]
        q, o = given.get("q"), given.get("o")
        mask = torch.full((len(start), len(start)), -math.inf, dtype=start.dtype).triu(1)
        calls = 0

        def field(t: Any, x: Any) -> Any:
            nonlocal calls
            calls += 1
            queries = x if q is None else x @ q.mT
            mixed = torch.softmax(queries @ (x @ k.mT).mT + mask, dim=-1) @ (x @ v.mT)
            return mixed if o is None else mixed @ o.mT

        times = torch.tensor([0.0, request["end"]], dtype=start.dtype)
        with torch.no_grad():
            seconds, states = timed(
                lambda: odeint(field, start, times, rtol=request["rtol"], atol=request["atol"], method="dopri5")
            )
        np.save(where / "torchdiffeq.npy", states[-1].numpy())
        return {"seconds": seconds, "evaluations": calls}

    serve(answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
