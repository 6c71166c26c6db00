"""The verdict beside the simulation, for every certified head of the real models: `python -m bench.verdicts`.

Prints what `toposcope trace --verify` finds on two texts, and writes everything to out/verdicts.json. Exit code 1
where a run contradicts its verdict.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import toposcope
from toposcope.core.fields import plain
from toposcope.core.files import write_json
from toposcope.models.corpus import cut
from toposcope.models.load import load_reference, read_text
from toposcope.models.tracing.hidden import hidden_states
from toposcope.models.tracing.verify import verify


def main() -> int:
    # Matrices are small and heads run in processes side by side: those are not to start threads as well.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(prog="bench.verdicts", description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2", "minilm"], metavar="MODEL")
    parser.add_argument("--texts", nargs="+", default=["wiki", "c4"], metavar="TEXT")
    parser.add_argument("--begin", type=int, default=1000, help="the character at which a text begins")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("out/verdicts.json"))
    chosen = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in chosen.models:
        reference = load_reference(name)
        for text in chosen.texts:
            began = time.perf_counter()
            corpus = cut(reference, read_text(text), tokens=chosen.tokens, name=text, begin=chosen.begin)
            hidden = hidden_states(reference.model, corpus)
            with toposcope.load(reference.path) as model:
                runs, verdicts = verify(model, hidden, jobs=chosen.jobs)
            results.append({"model": name, "text": hidden.cut, **plain(verdicts), "runs": plain(runs)})
            print(f"{name} on {hidden.cut}: {time.perf_counter() - began:.0f} s")
            for verdict, words in verdicts.words.items():
                print(f"  {verdict}: {', '.join(f'{count} {word}' for word, count in words.items())}")
            for each in verdicts.correlations:
                print(f"  {each.predicted} with {each.measured}: {'-' if each.rho is None else f'{each.rho:+.2f}'}")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.json, {"schema": "toposcope/verdicts/2", "results": results})
    print(f"Written: {chosen.json}")
    return 1 if any(result["contradictions"] for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
