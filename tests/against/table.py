"""Run every plant through the judge, and put what came out into a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.against.plants import PLANTS, Plant, settings
from toposcope.live.engines.against import AgainstResult, compare_engines
from toposcope.live.engines.engine import Engine, Pair
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, read_text

STEP = 4000  # characters of the text from one seed to the next
EQUAL, UNKNOWN = "equal", "unknown"


@dataclass(frozen=True)
class Row:
    """One plant on the texts of one seed, and what was found."""

    plant: str
    of: str
    wanted: str  # a bug's key, EQUAL or UNKNOWN
    seed: int
    found: str
    first_apart: int | None
    rms: float
    best: str | None = None
    share: float | None = None
    second: float | None = None  # the next bug's share, or 0

    @classmethod
    def of_result(cls, plant: Plant, seed: int, result: AgainstResult) -> Row:
        wanted = EQUAL if plant.bug == "" else plant.bug or UNKNOWN
        row = cls(
            plant.name, plant.of, wanted, seed, " or ".join(result.causes) or result.outcome, result.first_apart,
            result.rms,
        )  # fmt: skip
        if not result.hypotheses:
            return row
        best, *others = result.hypotheses
        second = max([each.share for each in others] + [0.0])
        return cls(*list(vars(row).values())[:7], f"{best.bug} ({best.variant})", best.share, second)

    @property
    def right(self) -> bool:
        return self.found == self.wanted

    def line(self) -> str:
        return f"{'ok' if self.right else 'NO'} {self}"


def judged(layers: int | None, tokens: int, seeds: Sequence[int], plants: Sequence[Plant] = PLANTS) -> Iterator[Row]:
    """Every plant and seed on SmolLM2; A's own numbers are computed once for all plants of the same settings."""
    base = load_reference("smollm2", head=True, attention="sdpa")
    for name, make in settings(base.model, layers).items():
        mine = [plant for plant in plants if plant.of == name]
        if not mine:
            continue
        model = make()
        for seed in seeds:
            engine = Engine(Reference(Path("smollm2"), model, base.tokenizer))
            texts = cut(base, read_text("wiki"), tokens=tokens, count=2, begin=STEP * seed).sequences
            for plant in mine:
                yield Row.of_result(plant, seed, against_plant(engine, plant, texts))


def against_plant(engine: Engine, plant: Plant, texts: Sequence[object]) -> AgainstResult:
    """The judge on two texts, and then on a half and a quarter of each, as the plant runs them."""
    given = [*enumerate(texts)]
    given += [(at, text[: len(text) // part]) for at, text in enumerate(texts) for part in (2, 4)]  # type: ignore[index,arg-type]
    said = plant.says(engine.reference.model, [ids for _, ids in given])
    return compare_engines(engine, [Pair(ids, values, at) for (at, ids), values in zip(given, said, strict=True)])  # type: ignore[arg-type]


def markdown(rows: Sequence[Row], layers: int | None, tokens: int) -> str:
    """What was planted, and how often each answer was given; then the sums."""
    seeds = len({row.seed for row in rows})
    kept = "all 30" if layers is None else f"the first {layers}"
    lines = [
        f"Made by `python -m tests.against`: {kept} layers of SmolLM2-135M in float32, {seeds} seeds (two texts of "
        f"{tokens} tokens of the wiki corpus each: the first chooses, the second judges).",
        "",
        "| planted in B | A | should be found | found (times) | share explained | next best |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row.plant for row in rows):
        mine = [row for row in rows if row.plant == name]
        counts = {
            found: sum(row.found == found for row in mine) for found in dict.fromkeys(row.found for row in mine)
        }
        said = ", ".join(f"{found} ({count})" for found, count in counts.items())
        shares = sorted(row.share for row in mine if row.share is not None)
        span = f"{_share(shares[0])} to {_share(shares[-1])}" if shares else "–"
        second = max((row.second for row in mine if row.second is not None), default=None)
        next_best = "–" if second is None else _share(second)
        lines.append(f"| {name} | {mine[0].of} | {mine[0].wanted} | {said} | {span} | {next_best} |")
    kinds = (("unknown faults left open", UNKNOWN), ("sound runs found equal", EQUAL), ("known bugs named", None))
    sums = []
    for words, wanted in kinds:
        some = [row for row in rows if (row.wanted if row.wanted in (UNKNOWN, EQUAL) else None) == wanted]
        if some:
            sums.append(f"{sum(row.right for row in some)} of {len(some)} {words}")
    return "\n".join([*lines, "", f"Together: {', '.join(reversed(sums))}.", ""])


def _share(value: float) -> str:
    return f"{100 * max(value, 0.0):.1f} %" if value < 0.9995 else f"{100 * value:.4f} %"
