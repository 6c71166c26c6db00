"""How well `trace --text random` and the fast share of `scan` find the heads that `trace` names on a real text.

python -m bench.patterns [--models DIR ...] [--json FILE] prints the tables of docs/trace.md: SmolLM2 on wiki, and
models of the laboratory (directories that `toposcope train` wrote) on sentences of their own task.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import toposcope
from toposcope.checkpoints.fold import fold
from toposcope.core.files import write_json
from toposcope.models.rank import area_under_curve
from toposcope.models.tracing.patterns import THRESHOLDS
from toposcope.models.tracing.result import TraceResult
from toposcope.spectra.of_heads import FAST_ON_SMOLLM2, fast_share

TOKENS, SEQUENCES, SENTENCES = 256, 4, 64


@dataclass(frozen=True)
class Found:
    """One pattern: how many heads are named for it on the text, on random tokens, in both.

    `auc`: the chance that a head named on the text scores higher on random tokens than another head.
    """

    model: str
    pattern: str
    text: int
    random: int
    both: int
    auc: float | None

    @property
    def precision(self) -> float | None:
        return self.both / self.random if self.random else None

    @property
    def recall(self) -> float | None:
        return self.both / self.text if self.text else None


def against(model: str, text: TraceResult, random: TraceResult) -> list[Found]:
    """Every pattern that some head is named for, on the text or on random tokens."""
    rows = []
    for pattern in THRESHOLDS:
        right, given = ({head.name for head in found.named(pattern)} for found in (text, random))
        if right | given:
            scores = [head.score(pattern) for head in random.heads]
            area = area_under_curve(scores, [head.name in right for head in random.heads])
            rows.append(Found(model, pattern, len(right), len(given), len(right & given), area))
    return rows


def ranking(path: str | Path, text: TraceResult, top: int = FAST_ON_SMOLLM2.top) -> dict[str, float | int | None]:
    """How the fast share ranks the heads that look at the previous token of a text."""
    right = {head.name for head in text.named("previous")}
    shares: dict[str, float | None] = {}
    with toposcope.load(path) as model:
        for layer in model.layers:
            for head in layer.heads:
                own = fold(layer, head)
                shares[f"{head.layer}.{head.head}"] = fast_share(
                    own.q, own.k, layer.encoding.rotary, head=head.head, context=TOKENS
                )
    first = sorted(shares, key=lambda name: -(shares[name] or 0.0))[:top]
    return {
        "heads": len(shares),
        "previous": len(right),
        "auc": area_under_curve(list(shares.values()), [name in right for name in shares]),
        "top": top,
        "hits": len(right & set(first)),
    }


def smollm2(seed: int = 0) -> tuple[TraceResult, TraceResult]:
    """SmolLM2 on wiki, and on random tokens."""
    from toposcope.models.corpus import cut, drawn
    from toposcope.models.load import load_reference, read_text
    from toposcope.models.tracing.measure import trace_corpus

    reference = load_reference("smollm2", attention="sdpa")
    text = cut(reference, read_text("wiki"), tokens=TOKENS, count=SEQUENCES)
    random = drawn(reference, tokens=TOKENS, count=SEQUENCES, seed=seed)
    return trace_corpus(reference, text, only="patterns"), trace_corpus(reference, random, only="patterns")


def laboratory(directory: Path, seed: int = 0) -> tuple[TraceResult, TraceResult]:
    """A trained small model on sentences of its task, and on random tokens."""
    from toposcope.lab import running
    from toposcope.models.tracing.measure import trace_corpus

    model = running.load_running(directory)
    task = running.own_task(directory, model.inner)
    made = (running.corpus(task, SENTENCES, seed), running.random_corpus(task, SENTENCES, seed))
    first, second = (trace_corpus(model, corpus, only="patterns") for corpus in made)
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.patterns", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", type=Path, default=[], help="models that 'toposcope train' wrote")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    text, random = smollm2()
    ranked = ranking("smollm2", text)
    rows = against("SmolLM2", text, random)
    for directory in given.models:
        rows += against(directory.resolve().parent.name, *laboratory(directory))
    print("| model | pattern | on the text | on random tokens | both | precision | recall | AUC |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        cells = (
            row.model,
            row.pattern,
            row.text,
            row.random,
            row.both,
            *map(_short, (row.precision, row.recall, row.auc)),
        )
        print(f"| {' | '.join(map(str, cells))} |")
    print("\nThe fast share's order of SmolLM2's heads against the previous-token heads on the text:", _plain(ranked))
    if given.json:
        write_json(given.json, {"patterns": [asdict(row) for row in rows], "fast_share": ranked})


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _plain(found: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items()
    )


if __name__ == "__main__":
    main()
