"""What could have turned these vectors: the configuration as it stands, and with one thing changed.

A rotation is named by competition. Each hypothesis says by what every pair turns at every position; what it leaves of
the vectors seen is its misfit. The one that leaves least is believed if it explains them as well as frequencies that
were fitted freely, and no hypothesis of another name comes near. Nothing is named by a tolerance alone.
Shapes: P positions, F channel pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import ToposcopeError
from toposcope.encodings.record import Array, Encoding, Pairing, Rotary, short
from toposcope.encodings.rotary import channel_pairs, rope
from toposcope.encodings.scalings import plain_frequencies

Complex = NDArray[np.complex128]
_ROPE = frozenset(inspect.signature(rope).parameters) - {"head_dim"}
LOST_BASE = 10000.0
_LOW = ("bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class TurnHypothesis:
    """By what each pair (of stored rows) is multiplied at each position, relative to the first position."""

    says: str
    bug: str | None
    pairs_F2: NDArray[np.intp]
    gain_PF: Complex
    frequency_F: Array | None = None  # where angles are proportional to position
    factor: float | None = None  # on turned vectors, where the hypothesis says so
    rounds: bool = False  # whether it differs from what is configured by rounding alone


@dataclass(frozen=True, eq=False)
class Asked:
    """What is expected of one side of one layer, and beside what other layers.

    `growth_P` is by what its length changes with position for reasons other than turning; `sliding` says that the
    layer sees a window only. `others` are the encodings of other layers, with the numbers of these.
    """

    encoding: Encoding
    positions_P: Array
    context: int
    head_dim: int
    growth_P: Array
    decay_sign: float  # -1 for queries, +1 for keys
    sliding: bool = False
    others: Sequence[tuple[str, Encoding]] = ()
    unturned_layers: bool = False  # whether the model has layers that should not turn

    @property
    def rotary(self) -> Rotary | None:
        return self.encoding.rotary

    def gain(self, frequency_F: Array, decay_F: Array | None = None) -> Complex:
        """By what pairs of these frequencies are multiplied."""
        step_P = self.positions_P - self.positions_P[0]
        size_PF = np.repeat(self.growth_P[:, None], len(frequency_F), axis=1)
        if decay_F is not None:
            size_PF = size_PF * np.exp(self.decay_sign * np.outer(step_P, decay_F))
        return np.asarray(size_PF * np.exp(1j * np.outer(step_P, frequency_F)))

    def made(self, says: str, bug: str | None, rotary: Rotary, context: int | None = None) -> TurnHypothesis:
        """The hypothesis that this rotation is in force."""
        frequency_F = rotary.frequencies(self.context if context is None else context)
        gain_PF = self.gain(frequency_F, rotary.decay_F)
        return TurnHypothesis(says, bug, rotary.pairs_F2, gain_PF, frequency_F, rotary.attention_factor)


def configured(asked: Asked) -> TurnHypothesis:
    """What the configuration says."""
    if asked.rotary is None:
        return still(asked, None)
    return asked.made(asked.encoding.title, None, asked.rotary)


def still(asked: Asked, bug: str | None) -> TurnHypothesis:
    """Nothing turns."""
    none = np.zeros((0, 2), dtype=np.intp)
    return TurnHypothesis(
        "nothing turns", bug, none, np.zeros((len(asked.positions_P), 0), dtype=complex), np.zeros(0)
    )


def changed(asked: Asked) -> Iterator[TurnHypothesis]:
    """Everything else that is known to happen, the more usual first."""
    yield from _other_layers(asked)
    rotary = asked.rotary
    if rotary is None:
        return
    yield from _settings(asked)
    w_F = rotary.frequencies(asked.context)

    def turned(says: str, bug: str | None, frequency_F: Array) -> TurnHypothesis:
        return TurnHypothesis(says, bug, rotary.pairs_F2, asked.gain(frequency_F, rotary.decay_F), frequency_F)

    yield still(asked, "no-position-layers-rotated" if asked.unturned_layers else None)
    yield turned("all pairs turn at twice their frequency", "rotated-twice", 2 * w_F)
    yield turned("all pairs turn the other way", None, -w_F)
    yield from _other_pairing(asked, rotary, w_F)
    yield from _other_lengths(asked, rotary)
    yield from _rounded(asked, rotary, w_F)


def _other_layers(asked: Asked) -> Iterator[TurnHypothesis]:
    own = asked.rotary
    for where, encoding in asked.others:
        if encoding.rotary is None:
            continue
        if own is None:
            yield asked.made(f"it turns as {where}", "no-position-layers-rotated", encoding.rotary)
            continue
        mine, theirs = _stated(asked.encoding), _stated(encoding)
        scaled_only = (
            asked.sliding
            and mine.get("scaling", "default") == "default" != theirs.get("scaling", "default")
            and mine.get("base") == theirs.get("base")
        )
        bug = "scaling-on-sliding-layers" if scaled_only else "layers-confused"
        yield asked.made(f"it has the frequencies of {where}", bug, encoding.rotary)
        if asked.sliding and mine.get("scaling", "default") == "default" and mine and theirs:
            kept = {key: theirs[key] for key in theirs if key not in ("base", "pairing", "rotary_dim", "head_dim")}
            says = f"its own frequencies with the scaling of {where}"
            yield from _rebuilt(asked, says, "scaling-on-sliding-layers", **kept)


def _settings(asked: Asked) -> Iterator[TurnHypothesis]:
    """The encoding's own parameters with one thing changed."""
    said = _stated(asked.encoding)
    if not said:
        return
    scaling, base = said.get("scaling", "default"), said.get("base")
    unscaled: dict[str, Any] = {"scaling": "default", "factor": None}
    if scaling == "proportional":
        unscaled = {"scaling": "proportional", "factor": None}
    if scaling != "default" and base is not None:
        yield from _rebuilt(
            asked,
            f"the frequencies of base {short(float(said['base']))} without scaling",
            "scaling-dropped",
            **unscaled,
        )
    if base != LOST_BASE:
        of_lost = f"the frequencies of base {short(LOST_BASE)}"
        yield from _rebuilt(asked, of_lost, "theta-lost", base=LOST_BASE)
        if scaling != "default":
            lost = {"base": LOST_BASE, **unscaled}
            yield from _rebuilt(asked, f"{of_lost} without scaling", "theta-lost", **lost)
    if scaling == "yarn":
        flipped = not said.get("truncate", True)
        yield from _rebuilt(asked, f"yarn with truncate={flipped}".lower(), "truncate-ignored", truncate=flipped)
    original, context = said.get("original_context"), said.get("context")
    if scaling in ("yarn", "longrope") and original and context and said.get("factor") is not None:
        ratio = context / original
        says = f"{scaling} with factor {ratio:g} (context / original context)"
        yield from _rebuilt(asked, says, "factor-ignored", factor=ratio)
    head, turning = asked.head_dim, said.get("rotary_dim", asked.head_dim)
    if turning < head and not said.get("channel_offset"):
        full: dict[str, Any] = {"rotary_dim": head, "frequency_dim": None}
        yield from _rebuilt(asked, f"all {head} channels turn", "partial-ignored", **full)
        says = f"the frequencies of {head} turning channels, on {turning}"
        yield from _rebuilt(asked, says, "partial-ignored", frequency_dim=head)


def _other_pairing(asked: Asked, rotary: Rotary, w_F: Array) -> Iterator[TurnHypothesis]:
    first, width = int(rotary.pairs_F2.min()), 2 * len(rotary.pairs_F2)
    if width < 4:
        return
    other: Pairing = "interleaved" if rotary.pairing == "half" else "half"
    names = {"half": "half-split", "interleaved": "interleaved"}
    pairs_F2 = channel_pairs(width, other, first)
    yield TurnHypothesis(
        f"{names[other]} pairs turn", "pairing-swapped", pairs_F2, asked.gain(w_F, rotary.decay_F), w_F
    )


def _other_lengths(asked: Asked, rotary: Rotary) -> Iterator[TurnHypothesis]:
    """Frequencies that belong to a text of another length."""
    if not rotary.by_length:
        return
    said = _stated(asked.encoding)
    original = said.get("original_context") or asked.context
    if said.get("scaling") == "longrope":
        for length, side in ((1, "short"), (2**40, "long")):
            yield asked.made(f"the {side} factors of longrope", "longrope-choice", rotary, length)
        return
    for times in (1, 2, 4, 8, 16):
        says = f"the frequencies for a text of {times} x {original} tokens"
        yield asked.made(says, "dynamic-not-reset", rotary, int(times * original))


def _rounded(asked: Asked, rotary: Rotary, w_F: Array) -> Iterator[TurnHypothesis]:
    """Frequencies, positions, angles, or their cosine and sine, kept in half precision."""
    at_P = asked.positions_P
    growth_P1 = asked.growth_P[:, None]
    if rotary.decay_F is not None:
        return

    def with_angles(says: str, bug: str | None, angle_PF: Array) -> TurnHypothesis:
        gain_PF = growth_P1 * np.exp(1j * (angle_PF - angle_PF[0]))
        return TurnHypothesis(says, bug, rotary.pairs_F2, gain_PF, rounds=True)

    for kind in _LOW:
        rounded = _rounding(kind)
        for says, low_F in (
            (f"frequencies rounded to {kind}", rounded(w_F)),
            (f"frequencies computed in {kind}", _computed_low(asked, rotary, kind)),
        ):
            if low_F is not None:
                gain_PF = asked.gain(low_F)
                yield TurnHypothesis(says, "frequencies-rounded", rotary.pairs_F2, gain_PF, low_F, rounds=True)
                low_angles = rounded(np.outer(at_P, low_F))
                yield with_angles(f"{says}, and angles too", "frequencies-rounded", low_angles)
                both = rounded(np.outer(rounded(at_P), low_F))
                yield with_angles(f"{says}, positions and angles too", "frequencies-rounded", both)
        yield with_angles(f"positions rounded to {kind}", None, np.outer(rounded(at_P), w_F))
        angle_PF = np.outer(at_P, w_F)
        yield with_angles(f"angles rounded to {kind}", None, rounded(angle_PF))
        yield with_angles(f"positions and angles rounded to {kind}", None, rounded(np.outer(rounded(at_P), w_F)))
        wave_PF = rounded(np.cos(angle_PF)) + 1j * rounded(np.sin(angle_PF))
        says = f"cosine and sine rounded to {kind}"
        yield TurnHypothesis(says, None, rotary.pairs_F2, growth_P1 * wave_PF / wave_PF[0], rounds=True)


def _computed_low(asked: Asked, rotary: Rotary, kind: str) -> Array | None:
    """base^-(2f/d) with every step in half precision; only where the frequencies are plain ones."""
    said = _stated(asked.encoding)
    if not said or said.get("scaling", "default") != "default":
        return None
    import torch

    dtype = getattr(torch, kind)
    width = said.get("frequency_dim") or 2 * len(rotary.pairs_F2)
    exponent_F = (torch.arange(0, width, 2).to(torch.float32) / width).to(dtype)
    power_F = torch.tensor(float(said["base"])).to(torch.float32).pow(exponent_F.float()).to(dtype)
    low_F = (1.0 / power_F).to(dtype).double().numpy()
    return low_F[: len(rotary.pairs_F2)] if np.isfinite(low_F).all() else None


def _rounding(kind: str) -> Callable[[Array], Array]:
    import torch

    def rounded(values: Array) -> Array:
        low: Array = torch.from_numpy(np.asarray(values, dtype=np.float32)).to(getattr(torch, kind)).double().numpy()
        return np.where(np.isfinite(low), low, values)  # beyond float16's range a rounding is no rounding

    return rounded


def _stated(encoding: Encoding) -> Mapping[str, Any]:
    """The parameters of the rotation, as `rope` takes them; empty where it was not built from such."""
    said: Mapping[str, Any] = encoding.parameters
    if encoding.rotary is None:
        return {}
    if "base" not in said:
        said = next((each for each in said.values() if isinstance(each, Mapping) and "base" in each), {})
    return {key: value for key, value in said.items() if key in _ROPE and key != "attention_factor"}


def _rebuilt(asked: Asked, says: str, bug: str, **changes: Any) -> Iterator[TurnHypothesis]:
    """The encoding with other parameters, where building it from its own gives what it is."""
    said, own = _stated(asked.encoding), asked.rotary
    if own is None or not said:
        return
    try:
        same = rope(asked.head_dim, **said).rotary
        other = rope(asked.head_dim, **{**said, **changes}).rotary
    except (ToposcopeError, TypeError, ValueError):
        return
    if same is None or other is None or not np.array_equal(same.pairs_F2, own.pairs_F2):
        return
    if not np.allclose(same.frequencies(asked.context), own.frequencies(asked.context), rtol=1e-9):
        return
    yield asked.made(says, bug, other)


def free_base(frequency_F: Array, width: int) -> float | None:
    """The base of which these are the plain frequencies, or None: for what no hypothesis names."""
    if len(frequency_F) < 3 or (frequency_F <= 0).any():
        return None
    number_F = np.arange(len(frequency_F)) * 2.0 / width
    slope = float((number_F @ np.log(frequency_F)) / (number_F @ number_F))
    base = float(np.exp(-slope))
    near = base > 1 and np.allclose(frequency_F, plain_frequencies(width, base)[: len(frequency_F)], rtol=2e-3)
    return base if near else None
