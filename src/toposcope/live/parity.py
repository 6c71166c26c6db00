"""Probe: do tokens stand where they should, however the text is run?

The whole text, token by token, in chunks, padded, batched and by `generate`: in each way every query and key is asked
where it stands, at the hand of vectors of the same content at known positions. Outputs are not compared: in half
precision they differ by more than a wrong position changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.live import view
from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.core.progress import Progress, steps
from toposcope.live.gauge import Gauge, Kind, gauges
from toposcope.live.reference import fresh
from toposcope.live.running import Running
from toposcope.live.stands import Stood
from toposcope.live.subject import LiveSubject
from toposcope.live.ways import NoCache, Unreadable, Way, ways_of

TOKENS, PADDING = 20, 5
KNOWN = 48  # positions of the rulers: room for twice the tokens, and padding
_LEAST = 12  # tokens; with fewer, ways cannot be told apart
_CURES = {
    "rotated-twice": "Turn each key once: before it enters the cache, or after it was read, not both.",
    "cache-offset": "Count positions of new tokens from the number of tokens in the cache, for queries and keys.",
    "left-padding": "Count positions by the attention mask (its cumulative sum less 1), in prefill and decoding.",
}


@dataclass(frozen=True, eq=False)
class Astray:
    """A way in which tokens stand elsewhere: the layers where, and one row of the first of them."""

    way: Way
    kind: Kind
    layers: tuple[int, ...]
    example: Stood
    rows: tuple[Stood, ...]  # all that stand elsewhere, in the first of the layers
    known: int  # positions that could be read

    @property
    def bug(self) -> str:
        if self.way.cache == "none" or all(row.padded for row in self.rows):
            return "left-padding"
        again = self.kind == "rotary" and self.example.turned_again
        return "rotated-twice" if again else "cache-offset"

    def __str__(self) -> str:
        text = f"{self.way.name}: {self.example}"
        return text if self.example.together else f"{text}; elsewhere from position {self.example.first} on"


def parity(running: Running, model: Model, progress: Progress | None = None) -> list[Finding]:
    """Where queries and keys stand in every way of running the model, as findings."""
    subject = LiveSubject.of(running, model)
    layers = subject.layers
    if not layers:
        return [
            _open(
                f"{len(subject.modules)} attentions run and {len(model.layers)} are described: "
                "which layer is which cannot be told"
            )
        ]
    known = _room(layers.values(), model.spec.context)
    tokens = min(TOKENS, known - PADDING - 1)
    if tokens < _LEAST:
        return [_open(f"the context of {known} tokens is too short to run a text in several ways.")]
    found = gauges(subject, known)
    if not any(gauge.rulers for gauge in found):
        return [_open("nothing that position moves was seen, so where tokens stand cannot be read.")] * bool(found)
    ways, skipped = ways_of(running, tokens, PADDING, causal=any(layer.spec.causal for layer in layers.values()))
    step = steps(progress, "ways of running", len(ways) * len(found))
    astray: list[Astray] = []
    shifted: dict[str, int] = {}
    broken: dict[str, str] = {}
    for gauge in found:
        for way in ways:
            try:
                seen = gauge.look(subject, way, _concerned(subject, way))
            except NoCache as error:
                skipped[way.name] = str(error)
            except Unreadable as error:
                broken[way.name] = str(error)
            except Exception as error:  # noqa: BLE001 - whatever the model says to this way of running it
                reason = f"the model raised {type(error).__name__}: {str(error).strip()[:160]}"
                (skipped if way.cache == "static" else broken)[way.name] = reason
            else:
                new = list(_astray(subject, gauge, way, seen, known))
                if new and way is ways[0]:  # the text by which all others are read
                    broken[way.name] = f"the same text stands elsewhere in a second run ({new[0].example})"
                    break
                if not any(seen.values()):
                    skipped[way.name] = "nothing was seen that tells positions"
                astray += new
                shifts = {abs(row.shift) for rows in seen.values() for row in rows if row.together}
                if max(shifts, default=0):
                    shifted[way.name] = max(shifts)
            step()
    ran = [way.name for way in ways if way.name not in broken and way.name not in skipped]
    return list(_findings(running, model, astray, ran, skipped, broken, shifted))


def _concerned(subject: LiveSubject, way: Way) -> set[int]:
    """The attentions that a way concerns: an encoder beside a cache reads each piece as a text of its own."""
    all_of_them = not subject.running.two_stacks or way.cache == "none"
    return {number for number, layer in subject.layers.items() if all_of_them or layer.spec.stack == "decoder"}


def _room(layers: Iterable[Layer], context: int | None) -> int:
    """How many positions can be read: those of the context, and where frequencies go by length, of the original."""
    room = [KNOWN, context or KNOWN]
    for layer in layers:
        if layer.encoding.input is not None and layer.encoding.input.length is not None:
            room.append(layer.encoding.input.length)
        rotary = layer.encoding.rotary
        if rotary is not None and rotary.by_length:
            original = int(layer.encoding.parameters.get("original_context") or context or KNOWN)
            room.append(original - 2)  # clear of where frequencies change, and of one token early
    return min(room)


def _astray(
    subject: LiveSubject, gauge: Gauge, way: Way, seen: dict[int, list[Stood]], known: int
) -> Iterator[Astray]:
    """Which layers have tokens elsewhere."""
    relative = gauge.kind != "input" and not way.exact
    wrong = {
        subject.layers[number].number: rows
        for number, each in seen.items()
        if (rows := tuple(row for row in each if not row.together or (row.shift and not relative)))
    }
    if wrong:
        first = min(wrong)
        yield Astray(way, gauge.kind, tuple(sorted(wrong)), wrong[first][0], wrong[first], known)


def _findings(
    running: Running,
    model: Model,
    astray: Sequence[Astray],
    ran: Sequence[str],
    skipped: dict[str, str],
    broken: dict[str, str],
    shifted: dict[str, int],
) -> Iterator[Finding]:
    reference = _as_reference(running, astray)
    for bug in _CURES:
        same = [each for each in astray if each.bug == bug and each not in reference]
        if same:
            yield _fault(model, bug, same)
    if reference:
        yield _known(model, reference)
    if broken:
        yield _open("; ".join(f"{name}: {reason}" for name, reason in broken.items()), ways=tuple(broken))
    ran = [name for name in ran if name not in {each.way.name for each in reference}]
    if ran and len(reference) == len(astray):
        notes = [f"Not run: {name} ({reason})." for name, reason in skipped.items()]
        if shifted:
            most = ", ".join(f"{name}: {count}" for name, count in shifted.items())
            notes.append(f"Padding moves all tokens of a row alike, which this encoding does not notice ({most}).")
        yield Finding(
            "parity",
            "ok",
            "tokens stand where they should, however the text is run",
            " ".join([f"Every query and key was read in {len(ran)} ways: {'; '.join(ran)}.", *notes]),
            evidence=_evidence(None, ways=tuple(ran), skipped=dict(skipped), shifted=dict(shifted)),
        )


def _fault(model: Model, bug: str, same: Sequence[Astray]) -> Finding:
    layers = tuple(sorted({number for each in same for number in each.layers}))
    told = ". ".join(f"In layer {each.layers[0]}, {each}" for each in same[:3])
    more = f". So it is in {len(same) - 3} more ways" if len(same) > 3 else ""
    return Finding(
        "parity",
        "fault",
        {
            "rotated-twice": "queries or keys turn a second time",
            "cache-offset": "tokens behind a cache stand elsewhere than in the whole text",
            "left-padding": "padding or given positions are not followed",
        }[bug],
        f"In {say_layers(layers, len(model.layers))} tokens stand at other positions than in the whole text. "
        f"{told}{more}.",
        _CURES[bug],
        layers,
        _evidence(
            bug,
            ways=tuple(each.way.name for each in same),
            layer=same[0].layers[0],
            position=same[0].example.first,
            expected=_told(same[0].example, "places_N"),
            seen=_told(same[0].example, "seen_N"),
        ),
    )


def _known(model: Model, same: Sequence[Astray]) -> Finding:
    return Finding(
        "parity",
        "warning",
        "tokens stand elsewhere in some ways of running, as in transformers' own class",
        f"{'. '.join(str(each) for each in same[:3])}. Such a text is read at other positions than alone and whole; "
        "a fresh copy of the class does the same.",
        "Give position_ids, counted as the class counts them, with caches and padded texts; or use generate, where "
        "it is not listed here.",
        None,
        _evidence(same[0].bug, reference_behaviour=True, ways=tuple(each.way.name for each in same)),
    )


def _as_reference(running: Running, astray: Sequence[Astray]) -> list[Astray]:
    """What a fresh copy of transformers' class does as well.

    Some that add position to the input count padding, or take position ids for rows of a table that begins with the
    padding's own; Bamba (5.22) forgets its cache where it is given no position ids.
    """
    copy = fresh(running) if astray else None
    if copy is None:
        return []
    other = LiveSubject.of(copy, view(copy.model))
    return [each for each in astray if _does_so(other, each)]


def _does_so(other: LiveSubject, each: Astray) -> bool:
    """Whether tokens of another model stand at the same places in the same way of running."""
    try:
        theirs = [
            found
            for gauge in gauges(other, each.known)
            if gauge.kind == each.kind
            for found in _astray(other, gauge, each.way, gauge.look(other, each.way), each.known)
        ]
    except Exception:  # noqa: BLE001 - then it does not do the same
        return False
    return any(_told(found.example, "seen_N") == _told(each.example, "seen_N") for found in theirs)


def _told(row: Stood, name: str) -> dict[str, list[int]]:
    return {
        "queries": [int(x) for placed in row.queries for x in getattr(placed, name)],
        "keys": [int(x) for x in getattr(row.keys[-1], name)],
    }


def _evidence(bug: str | None, **more: Any) -> dict[str, Any]:
    return {"probe": "parity", "bug": bug, **more}


def _open(why: str, **more: Any) -> Finding:
    return Finding(
        "parity",
        "cannot_tell",
        "where tokens stand could not be read in every way of running",
        f"{why[0].upper()}{why[1:].rstrip('.')}.",
        evidence=_evidence(None, **more),
    )
