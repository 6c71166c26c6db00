"""The context a model claims against the context its encoding covers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.checks.rotary import groups
from toposcope.encodings.record import Encoding, Rotary

# turns of the slowest pair within what a layer sees: up to 10 by the defaults of released architectures
MOST_TURNS = 20.0
_CLAIMS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "block_size")


def context(model: Model) -> Iterator[Finding]:
    """Position tables, rotary wavelengths and windows, each against the claimed length."""
    yield from _table(model)
    for encoding, rotary, layers in groups(model):
        yield from _wavelengths(model, encoding, rotary, layers)
    yield from _windows(model)


def _table(model: Model) -> Iterator[Finding]:
    tables = {
        id(layer.encoding.input): layer.encoding
        for layer in model.layers
        if layer.encoding.input is not None and layer.spec.kind == "self"
    }
    stacks = {layer.spec.stack for layer in model.layers if layer.encoding.input is not None}
    if len(tables) != 1 or "vision" in stacks:
        return
    encoding = next(iter(tables.values()))
    length = encoding.input.length if encoding.input is not None else None
    key = next((key for key in _CLAIMS if isinstance(model.config.get(key), int)), None)
    if length is None or key is None:
        return
    claimed, reserved = int(model.config[key]), int(encoding.parameters.get("offset", 0))
    numbers = {"claimed": claimed, "rows": length + reserved, "reserved": reserved}
    if claimed > length + reserved:
        yield Finding(
            "context",
            "fault",
            "the model claims more positions than its table has",
            f"{key} is {claimed}; the table holds {length} positions{_reserved(reserved)}. Position {length} has no "
            "vector.",
            f"Set {key} to {length + reserved}, or use the checkpoint the configuration belongs to.",
            evidence=numbers,
        )
        return
    yield Finding(
        "context",
        "ok",
        "the position table covers the claimed context",
        f"{key} is {claimed}; the table holds {length} positions{_reserved(reserved)}.",
        evidence=numbers,
    )


def _reserved(rows: int) -> str:
    return f" after {rows} reserved rows" if rows else ""


def _wavelengths(model: Model, encoding: Encoding, rotary: Rotary, layers: tuple[int, ...]) -> Iterator[Finding]:
    claimed = model.spec.context
    if claimed is None or any(model.layers[n].spec.stack == "vision" for n in layers):
        return
    wave_F = 2 * np.pi / np.maximum(rotary.frequencies(claimed), 1e-300)
    turning, turned = float(np.mean(wave_F <= claimed)), int(np.sum(wave_F <= claimed))
    numbers = {"claimed": claimed, "longest_wavelength": float(wave_F.max()), "share_turning": turning}
    scaling = encoding.parameters.get("scaling")
    factor, original = encoding.parameters.get("factor"), encoding.parameters.get("original_context")
    if scaling == "yarn" and factor and original and claimed > 1.01 * factor * original:
        yield Finding(
            "context",
            "warning",
            "the model claims more than its scaling reaches",
            f"yarn by {factor:g} from {original} reaches {factor * original:,.0f} tokens; the configuration claims "
            f"{claimed:,}.",
            f"Raise the factor to {claimed / original:g}, or claim {factor * original:,.0f}.",
            layers=layers,
            evidence={**numbers, "reaches": factor * original},
        )
        return
    reaches = [model.layers[n].spec.reach for n in layers]
    seen = claimed if None in reaches else min(claimed, max(each + 1 for each in reaches if each is not None))
    where, turns = say_layers(layers, len(model.layers)), seen / float(wave_F.max())
    if turns > 1 and scaling != "proportional":  # which leaves the slow pairs out on purpose
        far = turns > MOST_TURNS
        yield Finding(
            "context",
            "warning" if far else "cannot_tell",
            f"even the slowest pair turns {turns:.3g} times within {seen:,} tokens",
            f"In {where} it needs {wave_F.max():,.0f} tokens for a turn: positions that far apart look alike to "
            "every pair, unless the model was trained to tell them apart by the fast ones.",
            "The base is too small for this context, or a scaling was lost."
            if far
            else "Right where the model was trained on texts of this length; the configuration does not say.",
            layers=layers,
            evidence={**numbers, "turns": turns},
        )
        return
    yield Finding(
        "context",
        "ok",
        f"{turned} of {len(wave_F)} channel pairs make a full turn within the claimed {claimed:,} tokens",
        f"In {where}. The slowest pair needs {wave_F.max():,.0f} tokens for a turn. Pairs that make none are common; "
        "what they limit in longer texts: 'toposcope spectrum'.",
        layers=layers,
        evidence=numbers,
    )


def _windows(model: Model) -> Iterator[Finding]:
    claimed = model.spec.context
    windowed = [layer for layer in model.layers if layer.spec.reach is not None and layer.spec.kind == "self"]
    if claimed is None or not windowed:
        return
    short = [layer for layer in windowed if layer.spec.reach is not None and layer.spec.reach + 1 < claimed]
    if not short:
        return
    reaches = sorted({layer.spec.reach for layer in short if layer.spec.reach is not None})
    numbers = tuple(layer.number for layer in short)
    everywhere = len(short) == sum(layer.spec.kind == "self" for layer in model.layers)
    through = sum(layer.spec.reach or 0 for layer in short)
    short_of_it = everywhere and through < 0.9 * claimed  # 32 layers of 4096 fall a few tokens short of 131072
    depth = (
        f" No layer sees farther: through all layers a token can be reached by {through:,} tokens at most."
        if everywhere
        else ""
    )
    yield Finding(
        "windows",
        "warning" if short_of_it else "ok",
        "layers with a sliding window see less than the claimed context",
        f"{say_layers(numbers, len(model.layers))}: {', '.join(str(r) for r in reaches)} tokens back, of "
        f"{claimed:,} claimed.{depth}",
        "Texts longer than that cannot be seen as a whole." if short_of_it else "",
        layers=numbers,
        evidence={"reach": reaches, "through": through, "claimed": claimed},
    )
