"""Queries and keys of a running model before any position acts, with the encoding that then acts on them.

Models of the attention interface show queries and keys that are already turned; they are turned back, in float64, by
the model's own frequencies. How the channels of a pair lie in memory is found by running the model with all positions
at 0 and comparing; if no layout fits, up to the rounding of the model's precision, the record of the encoding is not
what the model does, and that is an error.
Models that compute attention by themselves show their input; queries and keys follow from it and the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.live import view
from toposcope.checkpoints.view import Layer
from toposcope.checkpoints.view import Model as View
from toposcope.core.errors import BadConfig, BadValue, UnknownFamily
from toposcope.encodings.record import Encoding, Rotary
from toposcope.models.instrument import Call, Instrument, dummy_inputs
from toposcope.models.positions import one_length
from toposcope.models.sites import Site

Array = NDArray[np.float64]
FITS = 1e-4  # relative: float32 rotations differ by 1e-6
ROUNDINGS = 4  # of a rotation in half precision: sine and cosine, their factor, two products, and their sum


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

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return self.q_HNR.nbytes + self.k_HMR.nbytes + self.v_HMV.nbytes


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
        self._rotations: dict[int, Rotary] = {}  # as layers turned last: they keep their tables from pass to pass

    def encoding(self, site: Site) -> Encoding:
        """The encoding of a site, its pairs given by the channels as the running model holds them."""
        return self._encodings[site.number]

    def of_call(self, call: Call, sequence: int) -> Content:
        """The content of one sequence of a call that came through the attention interface."""
        site, encoding = call.site, self.encoding(call.site)
        self._require_tables(site, call.query_BHNR.shape[2])
        q_HNR, k_GMR, v_GMV = (_double(x[sequence]) for x in (call.query_BHNR, call.key_BGMR, call.value_BGMV))
        if encoding.rotary is not None:
            queries, keys = self.instrument.places(call)
            turning = self._turning(site, encoding.rotary, keys.own_lengths)
            at_N, at_M = (rows[sequence % len(rows)] for rows in (queries.own_BM, keys.own_BM))
            q_HNR = turned_back(turning, q_HNR, at_N, "query")
            k_GMR = turned_back(turning, k_GMR, at_M, "key")
        repeat = len(q_HNR) // len(k_GMR)
        k_HMR, v_HMV = np.repeat(k_GMR, repeat, axis=0), np.repeat(v_GMV, repeat, axis=0)
        return Content(site, self.layers[site.number], encoding, q_HNR, k_HMR, v_HMV, call.scaling)

    def of_input(self, site: Site, x_BND: Any, sequence: int) -> Content:
        """The content of one sequence, from the (normalised) input of an attention that hides its queries."""
        if self.instrument.known_past():
            raise BadValue("keys in a cache are hidden by this model. Run the whole text without one.")
        self._require_tables(site, x_BND.shape[1])
        layer = self.layers[site.number]
        q_HNR, k_HMR, v_HMV = projected(layer, _double(x_BND[sequence]))
        return Content(site, layer, self.encoding(site), q_HNR, k_HMR, v_HMV, layer.spec.scale)

    def _require_tables(self, site: Site, length: int) -> None:
        """Complain of a layer whose queries and keys, before position acts, cannot be had from what is shown."""
        beside = self.layers[site.number].spec.logit_path(length)
        if beside:
            raise BadConfig(
                f"queries and keys of layer {site.number} of {type(self.instrument.model).__name__}, as they were "
                f"before position acted, cannot be told from a text of {length} tokens "
                f"({', '.join(beside).replace('_', ' ')})."
            )

    def _turning(self, site: Site, rotary: Rotary, lengths: tuple[int, int]) -> Rotary:
        """The rotation of a layer in the pass that is running, by the frequencies that it has there."""
        frequencies_F = self.own_frequencies(rotary, lengths)
        known = self._rotations.get(site.number)
        if known is None or not np.array_equal(known.frequencies(), frequencies_F):
            known = replace(rotary, frequencies_at=lambda context: frequencies_F)
            self._rotations[site.number] = known
        return known

    def own_frequencies(self, rotary: Rotary, lengths: tuple[int, int]) -> Array:
        """What the model turns by in the pass that is running, for texts of these lengths (see `one_length`).

        Some models keep the frequencies of the longest text they have met, and use them for shorter ones.
        """
        found = one_length(rotary, lengths)
        if rotary.by_length:
            held = _held_frequencies(self.instrument.model, len(found))
            if held and not any(np.allclose(each, found, rtol=1e-4) for each in held):
                raise BadConfig(
                    f"{type(self.instrument.model).__name__} turns queries by frequencies that are not those of a "
                    f"text of {lengths[1]} tokens: it keeps those of a longer one, or has rounded them. Load it "
                    "again, in its precision (dtype=), and run texts of one length."
                )
        return found


def rounding(dtype: Any) -> float:
    """How far a model of this precision turns a vector from where it should, relative to the largest entry.

    In half precision sine, cosine, their factor, the products and the sum are rounded: 5 halves of eps on the length
    of a pair, which is at most sqrt 2 times its larger entry, 3.6 eps. In float32 the angles' own rounding is larger.
    """
    import torch

    return max(FITS, ROUNDINGS * torch.finfo(dtype).eps)


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
    encodings = [_as_held(instrument.model, layer.encoding) for layer in model.layers]
    turning = [site for site in instrument.sites if encodings[site.number].rotary is not None]
    if not turning or turning[0].route != "interface":
        return encodings
    first = turning[0]
    rotary = encodings[first.number].rotary
    assert rotary is not None
    still, moved, dtype = _probe(instrument, first)
    allowed = rounding(dtype)
    best, error = min(
        ((layout, _misfit(layout, still, moved)) for layout in (rotary, _halves(rotary))), key=lambda pair: pair[1]
    )
    if not error < allowed:
        raise BadConfig(
            f"layer {first.number} of {type(instrument.model).__name__} turns its queries otherwise than its "
            f"configuration says ({encodings[first.number].title}; off by {error:.1e}, of which its "
            f"{precision(dtype)} explains {allowed:.1e}). Try 'toposcope check'."
        )
    if best is rotary:
        return encodings
    return [each if each.rotary is None else replace(each, rotary=_halves(each.rotary)) for each in encodings]


def precision(dtype: Any) -> str:
    """A torch dtype by its name."""
    return str(dtype).removeprefix("torch.")


def _as_held(model: Any, encoding: Encoding) -> Encoding:
    """The encoding with the frequencies that the model holds, where they were rounded to half precision.

    `model.to(torch.bfloat16)` does that to them; loading with dtype= does not.
    """
    rotary = encoding.rotary
    if rotary is None or rotary.by_length:
        return encoding
    exact = rotary.frequencies()
    held = _held_frequencies(model, len(exact))
    nearest = min(held, key=lambda each: float(np.abs(each - exact).max()), default=exact)
    off = np.abs(nearest - exact)
    if (off <= 1e-6 * exact).all() or (off > 2**-8 * exact + 2**-25).any():  # bfloat16's, and float16's smallest
        return encoding
    return replace(encoding, rotary=replace(rotary, frequencies_at=lambda context: nearest.copy()))


def _held_frequencies(model: Any, count: int) -> list[Array]:
    """The frequencies that the modules of a model hold."""
    buffers = model.named_buffers()
    return [_double(each) for name, each in buffers if name.endswith("inv_freq") and each.shape == (count,)]


def _probe(instrument: Instrument, site: Site) -> tuple[Array, Array, Any]:
    """The queries (H, N, R) of the first layer that turns them: all at position 0, and as usual; and their dtype."""
    import torch

    seen: list[Array] = []
    dtypes: list[Any] = []

    def note(call: Call, output: Any) -> None:
        if call.site is site:
            seen.append(_double(call.query_BHNR[0]))
            dtypes.append(call.query_BHNR.dtype)

    inputs = dummy_inputs(instrument.model)
    length = inputs["input_ids"].shape[1]
    instrument.observers.append(note)
    kept, instrument.edits[:] = list(instrument.edits), []
    others, instrument.rewrites[:] = list(instrument.rewrites), []
    try:
        with torch.no_grad():
            at_N = torch.arange(length, device=inputs["input_ids"].device)[None]
            for positions in (torch.zeros_like(at_N), at_N):
                instrument.model(**inputs, position_ids=positions)
    finally:
        instrument.observers.remove(note)
        instrument.edits[:] = kept
        instrument.rewrites[:] = others
    return seen[0], seen[1], dtypes[0]


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
    """A tensor at home in float64; it comes in its own precision, of half the size or less."""
    array: Array = tensor.detach().cpu().double().numpy()
    return array
