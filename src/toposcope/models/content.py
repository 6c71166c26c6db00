"""Queries and keys of a running model before any position acts, with the encoding that then acts on them.

Models of the attention interface show queries and keys that are already turned; they are turned back, in float64, by
the model's own frequencies. How the channels of a pair lie in memory is found by running the model with all positions
at 0 and comparing; if no layout fits, the record of the encoding is not what the model does, and that is an error.
Models that compute attention by themselves show their input; queries and keys follow from it and the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer
from toposcope.checkpoints.view import Model as View
from toposcope.encodings.record import Encoding, Rotary
from toposcope.errors import BadConfig, UnknownFamily
from toposcope.models.instrument import Call, Instrument, dummy_inputs
from toposcope.models.sites import Site
from toposcope.models.view import view

Array = NDArray[np.float64]
FITS = 1e-4  # relative: float32 rotations differ by 1e-6


@dataclass(frozen=True, eq=False)
class Content:
    """What one attention of one sequence works on. H heads, N tokens, R head width, V value width.

    Keys and values are repeated for the heads that share them. `encoding` acts on these channels as they lie here.
    """

    site: Site
    layer: Layer
    encoding: Encoding
    q_HNR: Array
    k_HMR: Array
    v_HMV: Array
    scale: float


class ContentReader:
    """Turns what an instrument shows into content. Made once per model; `layers` are Toposcope's own view of it."""

    @classmethod
    def of(cls, instrument: Instrument) -> ContentReader:
        """The reader of an instrument, made when first asked for."""
        if instrument.reader is None:
            instrument.reader = cls(instrument)
        return instrument.reader

    def __init__(self, instrument: Instrument) -> None:
        self.instrument = instrument
        self.view = matched_view(instrument)
        self.layers = self.view.layers
        self._encodings = _as_they_lie(instrument, self.view)

    def encoding(self, site: Site) -> Encoding:
        """The encoding of a site, its pairs given by the channels as the running model holds them."""
        return self._encodings[site.number]

    def of_call(self, call: Call, sequence: int) -> Content:
        """The content of one sequence of a call that came through the attention interface."""
        site, encoding = call.site, self.encoding(call.site)
        q_HNR, k_GMR, v_GMV = (_double(x[sequence]) for x in (call.query_BHNR, call.key_BGMR, call.value_BGMV))
        if encoding.rotary is not None:
            positions = self._positions(sequence, q_HNR.shape[1])
            q_HNR = turned_back(encoding.rotary, q_HNR, positions, "query")
            k_GMR = turned_back(encoding.rotary, k_GMR, positions, "key")
        repeat = len(q_HNR) // len(k_GMR)
        k_HMR, v_HMV = np.repeat(k_GMR, repeat, axis=0), np.repeat(v_GMV, repeat, axis=0)
        return Content(site, self.layers[site.number], encoding, q_HNR, k_HMR, v_HMV, call.scaling)

    def of_input(self, site: Site, x_BND: Any, sequence: int) -> Content:
        """The content of one sequence, from the (normalised) input of an attention that hides its queries."""
        layer = self.layers[site.number]
        q_HNR, k_HMR, v_HMV = projected(layer, _double(x_BND[sequence]))
        return Content(site, layer, self.encoding(site), q_HNR, k_HMR, v_HMV, layer.spec.scale)

    def _positions(self, sequence: int, length: int) -> Array:
        given = self.instrument.position_ids
        if given is None:
            return np.arange(length, dtype=np.float64)
        rows = given if given.ndim == 2 else given[None]
        return np.asarray(rows[sequence % len(rows)].cpu().numpy(), dtype=np.float64)


def turned_back(rotary: Rotary, x_HNR: Array, positions_N: Array, side: Any) -> Array:
    """Undo a rotation: turn by the opposite angles, and take the factor out that both turns put in."""
    context = int(positions_N.max()) + 1
    back = rotary.rotate(x_HNR, -positions_N, side=side, context=context)
    if rotary.attention_factor == 1.0:
        return back
    channels = rotary.pairs_F2.ravel()
    back[..., channels] /= rotary.attention_factor**2
    return back


def projected(layer: Layer, x_ND: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values of an input that has already passed the layer's norm."""
    from toposcope.checkpoints.attention import project

    weights = replace(layer.weights, input_norm=None)
    bare = Layer(layer.number, layer.spec, lambda spec: weights)
    return project(bare, x_ND)


def matched_view(instrument: Instrument) -> View:
    """Toposcope's own view of the running model, after a check that layers and heads are the same."""
    try:
        found = view(instrument.model)
    except UnknownFamily as error:
        raise BadConfig(
            f"{type(instrument.model).__name__} can be run and its heads removed, but its encoding is not known: "
            f"{error}"
        ) from error
    mine = [(layer.spec.heads, layer.spec.kind == "cross") for layer in found.layers]
    theirs = [(site.heads, site.cross) for site in instrument.sites]
    if mine != theirs:
        raise BadConfig(
            f"{type(instrument.model).__name__} ran {len(theirs)} attentions and its weights describe {len(mine)}, "
            "or other heads: their encodings cannot be told apart."
        )
    return found


# -------------------------------------------------------------------- inside
def _as_they_lie(instrument: Instrument, model: View) -> list[Encoding]:
    """The layers' encodings with the channel pairs of the running model."""
    encodings = [layer.encoding for layer in model.layers]
    turning = [site for site in instrument.sites if encodings[site.number].rotary is not None]
    if not turning or turning[0].route != "interface":
        return encodings
    first = turning[0]
    rotary = encodings[first.number].rotary
    assert rotary is not None
    still, moved = _probe(instrument, first)
    best, error = min(
        ((layout, _misfit(layout, still, moved)) for layout in (rotary, _halves(rotary))), key=lambda pair: pair[1]
    )
    if not error < FITS:
        raise BadConfig(
            f"layer {first.number} of {type(instrument.model).__name__} turns its queries otherwise than its "
            f"configuration says ({encodings[first.number].title}; off by {error:.1e}). Try 'toposcope check'."
        )
    if best is rotary:
        return encodings
    return [each if each.rotary is None else replace(each, rotary=_halves(each.rotary)) for each in encodings]


def _probe(instrument: Instrument, site: Site) -> tuple[Array, Array]:
    """The queries (H, N, R) of the first layer that turns them: with all positions 0, and as usual."""
    import torch

    seen: list[Array] = []

    def note(call: Call, output: Any) -> None:
        if call.site is site:
            seen.append(_double(call.query_BHNR[0]))

    inputs = dummy_inputs(instrument.model)
    length = inputs["input_ids"].shape[1]
    instrument.observers.append(note)
    kept, instrument.edits[:] = list(instrument.edits), []
    others, instrument.rewrites[:] = list(instrument.rewrites), []
    try:
        with torch.no_grad():
            for positions in (torch.zeros(1, length, dtype=torch.long), torch.arange(length)[None]):
                instrument.model(**inputs, position_ids=positions)
    finally:
        instrument.observers.remove(note)
        instrument.edits[:] = kept
        instrument.rewrites[:] = others
    return seen[0], seen[1]


def _misfit(rotary: Rotary, still_HNR: Array, moved_HNR: Array) -> float:
    length = still_HNR.shape[1]
    content = turned_back(rotary, still_HNR, np.zeros(length), "query")
    expected = rotary.rotate(content, np.arange(length), side="query", context=length)
    return float(np.abs(expected - moved_HNR).max() / max(np.abs(moved_HNR).max(), 1e-30))


def _halves(rotary: Rotary) -> Rotary:
    """The same pairs after the even channels have been put before the odd ones, as some models do when they turn."""
    first, count = int(rotary.pairs_F2.min()), len(rotary.pairs_F2)
    lower = np.arange(first, first + count)
    return replace(rotary, pairs_F2=np.stack([lower, lower + count], axis=1))


def _double(tensor: Any) -> Array:
    import torch

    array: Array = tensor.detach().to(torch.float64).cpu().numpy()
    return array
