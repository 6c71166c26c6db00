"""Run every row, print the table, write it as JSON: `python -m bench [ROW ...] [--json FILE] [--page FILE]`.

Groups that are not named keep what an earlier run of the same version has written of them; each group is one run.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

from bench import (
    ablation,
    flow,
    giant,
    head_spectra,
    kernels,
    lens,
    logits,
    refine,
    scaling,
    scanning,
    startup,
    streaming,
    tracing,
    training,
    watcher,
    web,
)
from bench.page import page
from bench.row import Row, spread_since, table
from toposcope._version import __version__
from toposcope.core.fields import plain
from toposcope.core.files import write_json, write_text

ROWS = {
    "startup": startup.measure,
    "streaming": streaming.measure,
    "head_spectra": head_spectra.measure,
    "scanning": scanning.measure,
    "scaling": scaling.measure,
    "kernels": kernels.measure,
    "logits": logits.measure,
    "flow": flow.measure,
    "tracing": tracing.measure,
    "training": training.measure,
    "ablation": ablation.measure,
    "transformer_lens": lens.measure,
    "weightwatcher": watcher.measure,
    "refine": refine.measure,
    "web": web.measure,
    "giant": giant.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(ROWS)}; all by default")
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    chosen = parser.parse_args()
    unknown = set(chosen.rows) - set(ROWS)
    if unknown:
        parser.error(f"unknown row {sorted(unknown)[0]!r}; known: {', '.join(ROWS)}")
    groups = _earlier(chosen.json)
    for name in chosen.rows or ROWS:
        print(f"measuring {name} ...", flush=True)
        spread_since()
        rows = ROWS[name]()
        groups[name] = {"name": name, "rows": rows, "spread": spread_since()}
        print(table(rows), flush=True)
        _keep(groups, chosen.json, chosen.page)  # after each group: a run that is stopped has kept the others


def _keep(groups: dict[str, dict[str, Any]], file: Path, shown: Path | None) -> None:
    measured = {
        "toposcope": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "groups": [groups[name] for name in ROWS if name in groups],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, plain(measured))
    if shown:
        write_text(shown, page(measured))


def _earlier(path: Path) -> dict[str, dict[str, Any]]:
    """The groups of an earlier run of this version, by name."""
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("toposcope") != __version__:
        return {}
    return {group["name"]: {**group, "rows": [Row(**row) for row in group["rows"]]} for group in found["groups"]}


if __name__ == "__main__":
    main()
