"""Run every row, print the table, write it as JSON: `python -m bench [startup|streaming ...] [--json FILE]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import ablation, giant, head_spectra, kernels, logits, refine, scanning, startup, streaming, training, web
from bench.row import Row, table
from toposcope.files import write_json
from toposcope.results import plain

ROWS = {
    "startup": startup.measure,
    "streaming": streaming.measure,
    "head_spectra": head_spectra.measure,
    "scanning": scanning.measure,
    "kernels": kernels.measure,
    "logits": logits.measure,
    "training": training.measure,
    "ablation": ablation.measure,
    "refine": refine.measure,
    "web": web.measure,
    "giant": giant.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(ROWS)}; all by default")
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"))
    chosen = parser.parse_args()
    unknown = set(chosen.rows) - set(ROWS)
    if unknown:
        parser.error(f"unknown row {sorted(unknown)[0]!r}; known: {', '.join(ROWS)}")
    rows: list[Row] = []
    for name in chosen.rows or ROWS:
        print(f"measuring {name} ...", flush=True)
        rows += ROWS[name]()
    print("\n" + table(rows))
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.json, plain(rows))


if __name__ == "__main__":
    main()
