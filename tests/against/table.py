"""Run every plant through the judge, and put what came out into a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.against.plants import PLANTS, Plant, settings
from toposcope.live.engines.against import AgainstResult, compare_engines
from toposcope.live.engines.engine import Engine, Pair
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, read_text

STEP = 4000  # characters of the text from one seed to the next


@dataclass(frozen=True)
class Row:
    """One plant on the texts of one seed, and what was found."""

    plant: Plant
    seed: int
    result: AgainstResult

    @property
    def right(self) -> bool:
        if self.plant.bug == "":
            return self.result.outcome == "equal"
        if self.plant.bug is None:
            return self.result.outcome == "unknown"
        return self.result.outcome == "explained" and self.result.causes == (self.plant.bug,)

    @property
    def found(self) -> str:
        return " or ".join(self.result.causes) or self.result.outcome

    def line(self) -> str:
        best = self.result.hypotheses[0] if self.result.hypotheses else None
        shares = "" if best is None else f"best {best.bug} ({best.variant}) {best.explained:.6f} {best.held_out}"
        r = self.result
        return (
            f"{'ok ' if self.right else 'NO '} {self.plant.name} / {self.seed}: {self.found}; from {r.first_apart}, "
            f"rms {r.rms:.4g}, tolerance {r.floor.tolerance:.1e}, {shares}"
        )


def judged(layers: int | None, tokens: int, seeds: Sequence[int], plants: Sequence[Plant] = PLANTS) -> Iterator[Row]:
    """Every plant and seed; A's own numbers are computed once for all plants of the same settings."""
    base = load_reference("smollm2", head=True, attention="sdpa")
    for name, make in settings(base.model, layers).items():
        mine = [plant for plant in plants if plant.of == name]
        if not mine:
            continue
        model = make()
        for seed in seeds:
            engine = Engine(Reference(Path("smollm2"), model, base.tokenizer))
            texts = cut(base, read_text("wiki"), tokens=tokens, count=2, begin=STEP * seed).sequences
            given = [(texts[0], 0), (texts[1], 1)]
            given += [(text[: tokens // part], at) for at, text in enumerate(texts) for part in (2, 4)]
            for plant in mine:
                said = plant.says(model, [ids for ids, _ in given])
                pairs = [Pair(ids, values, at) for (ids, at), values in zip(given, said, strict=True)]
                yield Row(plant, seed, compare_engines(engine, pairs))


def markdown(rows: Sequence[Row], layers: int | None, tokens: int, seeds: int) -> str:
    """What was planted, down, and how often each answer was given."""
    lines = [
        f"Made by `python -m tests.against --tokens {tokens}` on "
        f"{'all 30' if layers is None else f'the first {layers}'} layers of SmolLM2-135M in float32, {seeds} seeds "
        "(texts of the wiki corpus), two texts each: the first chooses, the second judges.",
        "",
        "| planted | into | found (times) | share explained, least to most | next best, at most |",
        "|---|---|---|---|---|",
    ]
    for plant in dict.fromkeys(row.plant for row in rows):
        mine = [row for row in rows if row.plant is plant]
        counts: dict[str, int] = {}
        for row in mine:
            counts[row.found] = counts.get(row.found, 0) + 1
        said = ", ".join(f"{name} ({count})" for name, count in counts.items())
        shares = sorted(row.result.hypotheses[0].share for row in mine if row.result.hypotheses)
        second = [max(row.result.hypotheses[1].share, 0.0) for row in mine if len(row.result.hypotheses) > 1]
        span = f"{_share(shares[0])} to {_share(shares[-1])}" if shares else ""
        wanted = "equal" if plant.bug == "" else plant.bug or "unknown"
        lines.append(
            f"| {plant.name} (`{wanted}`) | {plant.of} | {said} | {span} | {_share(max(second)) if second else ''} |"
        )
    known, unknown, sound = (
        [row for row in rows if kind(row.plant)]
        for kind in (lambda p: bool(p.bug), lambda p: p.bug is None, lambda p: p.bug == "")
    )
    words = ", ".join(
        f"{sum(row.right for row in some)} of {len(some)} {what}"
        for some, what in (
            (known, "known bugs named"),
            (unknown, "unknown faults left open"),
            (sound, "sound runs equal"),
        )
        if some
    )
    return "\n".join([*lines, "", f"Together: {words}.", ""])


def _share(value: Any) -> str:
    return f"{100 * value:.1f} %" if value < 0.9995 else f"{100 * value:.4f} %"
