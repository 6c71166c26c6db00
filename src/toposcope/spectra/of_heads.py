"""The spectral half of `toposcope scan`: from the weights alone, which frequencies a head uses, and its kernel.

All of it is a heuristic. The kernel is that of a token with its like, E[z^f conj(w^f)] for x = x' with E[x x^T] = C,
and C is taken from the token embedding (of a large one, from 2048 tokens of it; without one it is the identity):
deeper layers see other vectors. The split of layer 0 is exact for tokens of the vocabulary, since nothing stands
between embedding and attention there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.attention import project
from toposcope.checkpoints.source import usable
from toposcope.checkpoints.view import Head, Layer, Model
from toposcope.encodings import Encoding
from toposcope.encodings.record import Rotary
from toposcope.spectra.anova import decompose
from toposcope.spectra.head_kernel import Projected, TokenRows, from_seen, seen_through
from toposcope.spectra.rotary_kernel import kernel_spectrum

Array = NDArray[np.float64]
OFFSETS = 128  # how far the kernel is looked at for its peak
KEPT = 64  # how far it is kept, for pictures
NO_KERNEL = "no kernel over offsets"
FAST = 8  # a pair of channels that turns by a radian or more in so many tokens is fast
LARGEST_TABLE = 1 << 26  # numbers of an embedding that is read whole (half a gigabyte in float64)
BLOCK = 4096  # tokens that are squared at once, in float32; their sums are added in float64
DRAWN = 2048  # tokens that stand for the vocabulary of a larger one
TOKENS, POSITIONS = 16, 32  # the factorial design of layer 0
_EMBEDDING_NORM = re.compile(r"emb(ed)?(d|ding|dings)?[._].*norm", re.IGNORECASE)  # BLOOM, ModernBERT, GGUF, ...


@dataclass(frozen=True)
class Measured:
    """How well the fast share put the previous-token heads of a real model first, as `command` measured it.

    `auc`: the chance that such a head stands before another one. `hits` of the first `top` heads were such heads.
    """

    model: str
    text: str
    heads: int
    previous: int
    auc: float
    top: int
    hits: int
    command: str


# tests/real/test_patterns.py measures these numbers again; docs/trace.md shows them beside others.
FAST_ON_SMOLLM2 = Measured(
    model="SmolLM2",
    text="4 x 256 tokens of wiki",
    heads=270,
    previous=7,
    auc=0.963,
    top=10,
    hits=3,
    command="python -m bench.patterns",
)


@dataclass(frozen=True, kw_only=True)
class HeadSpectra:
    """Where one head's kernel peaks, which frequencies it uses, and how far its kernel contracts (heuristics).

    `fast_share` says how much of Q and K lies in fast pairs of channels (see `fast_share`): heads with much of it can
    tell neighbours apart. `peak_offset` is the t = i - j at which the kernel is largest, `looks` the same in words;
    it does not say what the head attends to. `peak_share` is the kernel's value there over sum_f a_f.
    `lambda_max_over_n` is sigma_max(T_n(g)) / (n sum_f a_f) at the scanned context. `query_energy` and `key_energy`
    are the shares of each frequency, fastest first. `kernel` is g(t) plus the bias, over sum_f a_f (as it is where
    nothing turns), at t = `kernel_from`, `kernel_from` + 1, ..., to four digits.
    """

    layer: int
    head: int
    looks: str = NO_KERNEL
    peak_offset: int | None = None
    peak_share: float | None = None
    lambda_max_over_n: float | None = None
    fast_share: float | None = None
    query_energy: tuple[float, ...] = ()
    key_energy: tuple[float, ...] = ()
    kernel_from: int = 0
    kernel: tuple[float, ...] = ()


@dataclass(frozen=True)
class LogitShares:
    """Of one head of layer 0: the shares of the logits' variance in content, in position, and in both together."""

    content: float | None
    position: float | None
    coupling: float | None


def head_spectra(
    layer: Layer,
    head: Head,
    *,
    second_moment: Array | TokenRows | None,
    context: int,
    encoding: Encoding | None = None,
    seen: tuple[Projected, Projected] | None = None,
) -> HeadSpectra:
    """The kernel of one head with its norms folded in, under its own encoding or under another one.

    `seen` are its queries and keys through the second moment, where they are known.
    """
    used = layer.encoding if encoding is None else encoding
    if used.mechanisms == ("input",) or (used.bias is not None and not used.bias.toeplitz):
        return HeadSpectra(layer=head.layer, head=head.head)
    queries, keys = seen or (seen_through(second_moment, head.q), seen_through(second_moment, head.k))
    found = from_seen(
        queries,
        keys,
        used,
        context=min(OFFSETS, context),
        causal=layer.spec.causal,
        scale=head.scale,
        head=head.head,
    )
    total = float(found.a_F.sum())
    top = kernel_spectrum(found.frequencies_F, found.a_F, context, found.phi_F).top if total > 0 else None
    shape_T = found.g_T if found.bias_T is None else found.g_T + found.bias_T
    near_T = np.abs(found.offsets_T) < KEPT
    return HeadSpectra(
        layer=head.layer,
        head=head.head,
        looks=str(found),
        peak_offset=found.peak_offset,
        peak_share=None if found.peak_value is None or total == 0 else found.peak_value / total,
        lambda_max_over_n=None if top is None else top / (context * total),
        query_energy=_shares(found.query_energy_F),
        key_energy=_shares(found.key_energy_F),
        kernel_from=int(found.offsets_T[near_T][0]),
        kernel=tuple(float(f"{value:.4g}") for value in shape_T[near_T] / (total or 1.0)),
        fast_share=fast_share(head.q, head.k, used.rotary, head=head.head, context=context),
    )


def fast_share(
    q_RD: Array, k_RD: Array, rotary: Rotary | None, *, head: int = 0, context: int | None = None
) -> float | None:
    """How much of Q and K lies in pairs of channels that turn by a radian or more in 8 tokens; None where none turns.

    The geometric mean of their shares in |Q|^2 and in |K|^2. It needs no idea of what tokens look like: no head can
    tell neighbours apart by position without such pairs.
    """
    if rotary is None or (rotary.turning_heads is not None and head >= rotary.turning_heads):
        return None
    quick_P = rotary.pairs_F2[rotary.frequencies(context) * FAST >= 1].ravel()
    energies = [(weights_RD**2).sum(axis=1) for weights_RD in (q_RD, k_RD)]
    if any(not energy_R.sum() > 0 for energy_R in energies):
        return None
    return float(np.sqrt(np.prod([energy_R[quick_P].sum() / energy_R.sum() for energy_R in energies])))


def second_moment(model: Model) -> Array | TokenRows | None:
    """E[x x^T] over the vocabulary, in units of its mean square; None (the identity) where there is no embedding.

    A table of more than `LARGEST_TABLE` numbers would outgrow the layers that are read beside it, and so would the
    moment: of such a vocabulary 2048 tokens are drawn, always the same ones, and nothing else of it is read.
    """
    name = model.spec.embedding
    shape = None if name is None else model.source.info(name).shape
    if name is None or shape is None or not model.layers or shape[1:] != (model.layers[0].spec.width,):
        return None
    if shape[0] * shape[1] > LARGEST_TABLE:
        drawn = np.sort(np.random.default_rng(0).choice(shape[0], min(DRAWN, shape[0]), replace=False))
        rows_TD = usable(model.source.read_rows(name, drawn), name, model.path).astype(np.float32)
        return TokenRows(rows_TD / np.float32(_root_mean_square(rows_TD)), shape[0])
    table = usable(model.source.read(name), name, model.path)
    moment = np.zeros((shape[1], shape[1]))
    for start in range(0, len(table), BLOCK):
        rows = table[start : start + BLOCK].astype(np.float32, copy=False)
        moment += rows.T @ rows
    return moment * len(moment) / (float(np.trace(moment)) or 1.0)


def _root_mean_square(rows_TD: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(rows_TD), dtype=np.float64))) or 1.0


def first_layer_shares(model: Model, encoding: Encoding | None = None, seed: int = 0) -> tuple[LogitShares, ...]:
    """Content, position and coupling of every head of layer 0: 16 tokens of the vocabulary at up to 32 positions.

    Empty where layer 0 does not read the embedding as it is (norms after the embedding, other widths), where logits
    are soft-capped, or where the encoding has no tables.
    """
    name = model.spec.embedding
    if name is None or not model.layers:
        return ()
    layer = model.layers[0]
    used = layer.encoding if encoding is None else encoding
    if layer.spec.placement == "post" or layer.spec.kind == "cross" or layer.spec.softcap or not used.exact_tables:
        return ()
    if layer.spec.logit_path(POSITIONS):
        return ()
    if any(_EMBEDDING_NORM.search(name) for name in model.source.names()):
        return ()
    if layer.spec.stack == "encoder" and "decoder" in (model.spec.embedding or ""):
        return ()  # the encoder reads something else than tokens (Whisper)
    shape = model.source.info(name).shape
    if len(shape) != 2:
        return ()
    words, width = shape
    if width != layer.spec.width or words < TOKENS:
        return ()
    chosen = np.random.default_rng(seed).choice(words, TOKENS, replace=False)
    drawn = usable(model.source.read_rows(name, chosen), name, model.path).astype(np.float64)
    longest = None if used.input is None else used.input.length
    at = np.arange(POSITIONS if longest is None else min(POSITIONS, longest))
    x = drawn if used.input is None else (drawn[:, None] + used.input.vectors(at)).reshape(-1, width)
    q_HNR, k_HNR, _ = project(layer, x)
    found = []
    for h in range(layer.spec.heads):
        q, k = q_HNR[h], k_HNR[h]
        if used.input is not None:
            q, k = (part.reshape(TOKENS, len(at), -1) for part in (q, k))
        split = decompose(q, k, used, at, causal=layer.spec.causal, scale=layer.spec.scale, head=h)
        found.append(LogitShares(split.content, split.position, split.coupling))
    return tuple(found)


def _shares(energy_F: Array) -> tuple[float, ...]:
    total = float(energy_F.sum())
    return tuple(float(value) for value in energy_F / total) if total > 0 else ()
