"""What plain state dicts share: tensors that carry position, or may, and that no adapter understands, are named.

A state dict is all there is: the code that uses it may add a bias to the logits, rotate, or look up an embedding of
something else. What such a tensor does is not guessed; that it is there is said.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped, claimed
from toposcope.encodings import NONE

SPEAKS_OF_POSITION = "its name speaks of position, and what the model's code does with it is not known"
MAY_CARRY_POSITION = "no positional encoding was found, and this may carry one"

_SPEAKS = re.compile(
    r"(^|[._])(w?pe|rpe\w*|pos(?!t)\w*|\w*_pos|\w*_pos(?!t)\w*|(\w+_)?position\w*|rel(ative)?(_\w+)?|alibi\w*|(\w+_)?slopes?"
    r"|rotary\w*|rope\w*|inv_freq|freqs?(_\w+)?|(cos|sin)(_\w+)?|sinusoid\w*|xpos\w*|timing\w*|distance_\w+)([._]|$)",
    re.IGNORECASE,
)
_NOT_POSITION = re.compile(r"position_?wise|pos_?ffn?\b|positive", re.IGNORECASE)
_MAY = re.compile(r"enc(od|[._]|$)|emb|degree|spatial|central|edge|bias_table|time", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def with_unknown_positions(spec: ModelSpec, source: TensorSource, inside: Iterable[str] = ()) -> ModelSpec:
    """The description with an entry for each kind of tensor that carries position, or may, and is not understood.

    `inside` are the prefixes of layers, whose tensors are not taken for embeddings.
    """
    used = claimed(spec) | {name for skipped in spec.skipped for name in skipped.tensors}
    left = sorted(set(source.names()) - used - set(source.ledger.lines))
    speaks = [name for name in left if _SPEAKS.search(name) and not _NOT_POSITION.search(name)]
    entries = _entries(speaks, SPEAKS_OF_POSITION)
    layers = spec.layers
    if entries:
        words = f"'{entries[0].what}' speaks of position and is not understood: what it does is left out."
        layers = tuple(replace(layer, warnings=(*layer.warnings, words)) for layer in layers)
    elif all(layer.encoding is NONE for layer in layers if layer.kind == "self"):
        frames = tuple(inside)
        entries = _entries(
            [name for name in left if not name.startswith(frames or ("\0",)) and _is_lookup(source, name, layers)],
            MAY_CARRY_POSITION,
        )
    return replace(spec, layers=layers, skipped=(*spec.skipped, *entries))


def _is_lookup(source: TensorSource, name: str, layers: Collection[LayerSpec]) -> bool:
    """Whether a tensor can be a table with a row, or a number for each head, for something else than a token."""
    shape = source.info(name).shape
    sizes = {layer.width for layer in layers} | {layer.heads for layer in layers}
    return len(shape) >= 2 and shape[-1] in sizes and _MAY.search(name) is not None


def _entries(names: Iterable[str], why: str) -> tuple[Skipped, ...]:
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in names:
        kinds[_NUMBER.sub("N", name)].append(name)
    return tuple(Skipped(kind, why, tuple(found)) for kind, found in kinds.items())
