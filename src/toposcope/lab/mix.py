"""Mixtures of encodings over heads and layers, as a user writes them.

    rope                       every head of every layer turns
    rope@heads:0-1,none        heads 0 and 1 turn, the others do not ('rope@heads:0-1' alone means the same)
    rope@heads:0,alibi         head 0 turns, the others have ALiBi's bias
    rope@layers:1-             position enters from layer 1 on; rope@layers:-0 only in layer 0
    rope:base=500@layers:0     parameters come before '@'

An encoding without @heads takes the heads that no other one claims. Heads are interchangeable before training, so the
turning heads are always the first ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toposcope.checkpoints.families.lab import Acting
from toposcope.core.errors import BadEncoding, did_you_mean
from toposcope.encodings import EncodingSpec, parse

_PLACES = ("heads", "layers")
_CONTINUED = re.compile(r"\s*(\w+\s*=.*|\d*\s*-?\s*\d*)\s*")  # a parameter, or one more range
_RANGE = re.compile(r"(\d*)(-?)(\d*)")


@dataclass(frozen=True)
class MixItem:
    """One encoding and where it acts; `heads` and `layers` are ranges as written, None: wherever no other one is."""

    spec: EncodingSpec
    heads: str | None = None
    layers: str | None = None

    def __str__(self) -> str:
        places = [f"@{name}:{getattr(self, name)}" for name in _PLACES if getattr(self, name) is not None]
        return f"{self.spec}{''.join(places)}"


@dataclass(frozen=True)
class Mix:
    """Several encodings that share a model. Its `str` is read back by `parse_mix` as the same mixture."""

    items: tuple[MixItem, ...]

    def __str__(self) -> str:
        return ",".join(str(item) for item in self.items)

    @property
    def names(self) -> tuple[str, ...]:
        """The encodings in it, each once."""
        return tuple(dict.fromkeys(item.spec.name for item in self.items))

    @property
    def added_to_input(self) -> EncodingSpec | None:
        """The encoding that is added to the input, if there is one: it acts on the whole model."""
        return next((item.spec for item in self.items if item.spec.kind.mechanism == "input"), None)

    def in_layer(self, layer: int, *, layers: int, heads: int, kv_heads: int | None = None) -> tuple[Acting, ...]:
        """What acts inside attention in one layer of a model of these sizes; empty: no position."""
        here = [item for item in self.items if item.layers is None or layer in _chosen(item.layers, layers, "layer")]
        claimed: dict[int, str] = {}
        for item in here:
            for head in () if item.heads is None else _chosen(item.heads, heads, "head"):
                if head in claimed:
                    raise BadEncoding(
                        f"head {head} is claimed twice in '{self}': by {claimed[head]} and {item.spec}."
                    )
                claimed[head] = str(item.spec)
        rest = [item for item in here if item.heads is None]
        if len(rest) > 1:
            raise BadEncoding(
                f"'{rest[0]}' and '{rest[1]}' both claim the same heads of layer {layer}. "
                "Say which heads each one takes: rope@heads:0-1,alibi."
            )
        parts = []
        for item in here:
            if item.spec.kind.mechanism in ("none", "input"):
                continue
            chosen = (
                _chosen(item.heads, heads, "head")
                if item.heads is not None
                else [head for head in range(heads) if head not in claimed]
            )
            if chosen:
                parts.append(Acting(item.spec, None if len(chosen) == heads else tuple(chosen)))
        for number, part in enumerate(parts):
            same = [other for other in parts[:number] if other.spec.kind.mechanism == part.spec.kind.mechanism]
            if same:
                raise BadEncoding(
                    f"'{same[0].spec}' and '{part.spec}' in '{self}' act in the same way on different heads of "
                    f"layer {layer}: a layer can have one encoding that turns and one that biases."
                )
            _check_heads(part, heads, kv_heads or heads)
        return tuple(parts)


def parse_mix(text: str) -> Mix:
    """Read `encoding[@heads:range][@layers:range],...`; see the head of this file."""
    pieces: list[str] = []
    for piece in text.split(","):
        if pieces and _CONTINUED.fullmatch(piece) and piece.strip():
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    mix = Mix(tuple(_item(piece, text) for piece in pieces))
    added = [item for item in mix.items if item.spec.kind.mechanism == "input"]
    if added and (len(mix.items) > 1 or added[0].heads is not None or added[0].layers is not None):
        raise BadEncoding(
            f"'{added[0].spec.name}' is added to the input, which all heads and layers read: it cannot be limited to "
            f"some of them, as '{text}' asks. Use rope, alibi, t5, kerple, fire or xpos."
        )
    return mix


def _item(text: str, whole: str) -> MixItem:
    spec, *places = text.split("@")
    found: dict[str, str] = {}
    for place in places:
        name, colon, written = place.partition(":")
        name, written = name.strip().lower(), written.replace(" ", "")
        if name not in _PLACES:
            raise BadEncoding(f"'@{place}' in '{whole}' is no place of an encoding. {did_you_mean(name, _PLACES)}")
        if not colon or not written:
            raise BadEncoding(
                f"'@{place}' in '{whole}' names no {name}. Write @{name}:0-1, @{name}:1- or @{name}:-0."
            )
        if name in found:
            raise BadEncoding(f"'@{name}' is given twice in '{text}'. Keep one of them.")
        for part in written.split(","):
            if part in ("", "-") or not _RANGE.fullmatch(part):
                raise BadEncoding(f"'{part}' in '{whole}' is no range of {name}. Write 0-1, 1-, -0 or 3.")
        found[name] = written
    return MixItem(parse(spec), found.get("heads"), found.get("layers"))


def _chosen(written: str, size: int, what: str) -> list[int]:
    chosen: set[int] = set()
    for part in written.split(","):
        first, dash, last = _RANGE.fullmatch(part).groups()  # type: ignore[union-attr]
        start = int(first or 0)
        stop = int(last) if last else (size - 1 if dash else start)
        if stop < start or stop >= size:
            raise BadEncoding(f"'{part}' names a {what} that does not exist: there are {size}, 0 to {size - 1}.")
        chosen.update(range(start, stop + 1))
    return sorted(chosen)


def _check_heads(part: Acting, heads: int, kv_heads: int) -> None:
    name, chosen = part.spec.name, part.heads
    if chosen is None:
        return
    if name in ("mla", "cope", "pope"):
        raise BadEncoding(
            f"'{name}' changes how a whole layer attends: it cannot be limited to heads, only to layers."
        )
    if name == "rope-partial" and "heads" in part.spec.parameters:
        raise BadEncoding("'rope-partial' with heads= says already which heads turn. Leave out one of the two.")
    if part.spec.kind.mechanism == "rotary":
        if chosen != tuple(range(len(chosen))):
            raise BadEncoding(
                f"heads {', '.join(map(str, chosen))} are to turn. Heads are interchangeable, and those that turn "
                f"come first: write {name}@heads:0{f'-{len(chosen) - 1}' if len(chosen) > 1 else ''}."
            )
        if len(chosen) % (heads // kv_heads):
            raise BadEncoding(
                f"{len(chosen)} heads are to turn, but {heads // kv_heads} share a key: turn a multiple of that."
            )
