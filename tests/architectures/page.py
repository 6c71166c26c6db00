"""The page docs/models.md: what became of every type, written from the comparison and read back by the tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.architectures.judge import Judged, Outcome
from tests.architectures.kinds import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_COLUMNS = ("type", "what became of it", "family", "layers", "attention", "output", "remarks")
_LONGEST = 150  # characters of a remark

_HEAD = """# Which models are read

<!-- written by `python -m tests.architectures` (make models); not by hand -->

Every model type of transformers {version} that its lists name, built tiny and at random, saved, read by Toposcope
and compared: on what really entered each layer, our attention (in NumPy, from the weights that were read) stands
beside the probabilities and the output projection's result of the running model. A type counts as read if all its
layers agree to 1e-4 (attention) and 1e-3 of the largest entry (output); two texts of 21 tokens, a window of 5, norm
gains, biases and sinks drawn at random, and once more with embeddings a thousand times smaller, where a norm's
epsilon counts.

"""
_BLIND = """
## What the comparison would not see

Right descriptions were broken in one place and compared again, on {count} types:

| broken | noticed |
|---|---|
{rows}
Beyond these:

- what a text of 21 tokens does not reach: an indexer's top-k (DeepSeek 3.2, GLM 5), the blocks of BigBird,
  frequencies that change with the length. Warnings of the layers say so where an adapter knows of it
- what follows the output projection: a norm, a factor, layer scale. `tests/reference/families` compares these
- clipped projections, which are off by default; dropout, caches, padding, attention given from outside
- images and sound: of models of several inputs the text stack is compared, given text alone
- settings that a tiny random model does not have: `tests/reference/families` has those of real files
- a norm without a gain may stand before or after rotation: that is the same
"""


def write(judged: Sequence[Judged], noticed: Mapping[str, tuple[int, int]], types: int, version: str) -> str:
    """The page as text."""
    rows = "".join(f"| {what} | {seen} of {tried} |\n" for what, (seen, tried) in noticed.items())
    return "".join(
        [
            _HEAD.format(version=version),
            *_summary(judged),
            _BLIND.format(count=types, rows=rows),
            *(part for group in GROUPS for part in _table(group, judged)),
        ]
    )


def read(text: str) -> dict[tuple[str, str], Outcome]:
    """What a page says of each group and type."""
    said: dict[tuple[str, str], Outcome] = {}
    group = None
    titles = {title: name for name, title in GROUPS.items()}
    for line in text.splitlines():
        if line.startswith("## "):
            group = titles.get(line.removeprefix("## "))
        found = re.match(r"\| `(?P<type>[^`]+)` \| (?P<outcome>[^|]+?) \|", line)
        if group is not None and found is not None:
            said[group, found["type"]] = Outcome(found["outcome"])
    return said


def _summary(judged: Sequence[Judged]) -> Iterator[str]:
    yield f"| | listed | built | {' | '.join(outcome for outcome in Outcome)} |\n"
    yield f"|---|---|---|{'---|' * len(Outcome)}\n"
    for group, title in GROUPS.items():
        found = Counter(each.outcome for each in judged if each.group == group)
        listed = found.total()
        built = listed - found[Outcome.NOT_BUILT]
        yield f"| {title} | {listed} | {built} | {' | '.join(str(found[outcome]) for outcome in Outcome)} |\n"


def _table(group: str, judged: Sequence[Judged]) -> Iterator[str]:
    yield f"\n## {GROUPS[group]}\n\n| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n"
    for each in sorted(judged, key=lambda one: one.model_type):
        if each.group == group:
            layers = f"{each.layers} of {each.calls}" if each.layers else ""
            cells = (
                f"`{each.model_type}`",
                str(each.outcome),
                each.family,
                layers,
                _number(each.attention),
                _number(each.output),
                _remark(each),
            )
            yield f"| {' | '.join(cells)} |\n"


def _number(value: float | None) -> str:
    """Rounded up to a power of ten: the last digits differ from machine to machine."""
    return "" if value is None else f"{value:.0e}" if value > 1e-5 else "< 1e-5"


def _remark(each: Judged) -> str:
    text = re.sub(r"; the tensors are called .*", "", each.why)
    text = re.sub(r"\s+", " ", text.replace("|", "/"))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} ..."
