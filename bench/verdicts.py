"""The verdict beside the simulation, for every certified head of the real models: `python -m bench.verdicts`.

Prints verdict x observed, runs that stayed stiff, and the rank correlations of the indices with simulated growth, for
two texts; writes everything to out/verdicts.json. Exit code 1 where a run contradicts its verdict.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import toposcope
from toposcope.cli.beside_words import print_verification
from toposcope.cli.common import console
from toposcope.core.files import write_json
from toposcope.core.results import plain
from toposcope.models.hidden import hidden_states
from toposcope.models.load import load_reference, read_text
from toposcope.models.verify import Verification, verify


def main() -> int:
    # Matrices are small and heads run in processes side by side: those are not to start threads as well.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(prog="bench.verdicts", description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2", "minilm"], metavar="MODEL")
    parser.add_argument("--texts", nargs="+", default=["wiki", "c4"], metavar="TEXT")
    parser.add_argument("--begin", type=int, default=1000, help="the character at which a text begins")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("out/verdicts.json"))
    chosen = parser.parse_args()
    screen = console()
    results: list[Verification] = []
    for name in chosen.models:
        reference = load_reference(name)
        for text in chosen.texts:
            began = time.perf_counter()
            hidden = hidden_states(reference, read_text(text), tokens=chosen.tokens, name=text, begin=chosen.begin)
            with toposcope.load(reference.path) as model:
                results.append(verify(model, hidden, workers=chosen.workers))
            print_verification(screen, results[-1])
            screen.print(f"{time.perf_counter() - began:.0f} s\n")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.json, {"schema": "toposcope/verdicts/1", "results": plain([r.as_dict() for r in results])})
    print(f"Written: {chosen.json}")
    return 1 if any(result.contradictions for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
