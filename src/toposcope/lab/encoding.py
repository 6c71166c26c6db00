"""The torch side of an encoding: its record's tables as tensors, and what is learned of it as parameters.

Every constant (angles, decays, slopes, buckets, sinusoids) is read from the `Encoding` record. Parameters start at
the record's initial values, and `record()` gives back the record with the trained ones in their place.
Shape suffixes: B batch, H heads, G key heads, N queries, M keys, R head width, D model width, W hidden units.
"""

# mypy: allow-subclassing-any
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toposcope.checkpoints.families.lab import Acting, layer_encoding, trained_encoding
from toposcope.core.errors import BadEncoding
from toposcope.encodings import (
    Encoding,
    EncodingSpec,
    Rotary,
    Sizes,
    fire_network,
    pope_frequencies,
    spec,
    t5_bucket,
)

RMS = 0.5  # of the token embedding, and of what is added to it


def completed(asked: EncodingSpec, sizes: Sizes, *, seed: int, latent: tuple[int, int] | None = None) -> EncodingSpec:
    """The encoding as the lab uses it where the user left something open.

    Rotary pairs are neighbours; absolute vectors are as large as the embedding; T5's buckets reach as far as the
    text; whatever is drawn depends on the run's seed. `latent` is MLA's (content, rotary) width.
    """
    given: dict[str, Any] = dict(asked.parameters)
    buckets = given.get("buckets", 32)  # where they are all exact, the last must lie farther
    defaults: dict[str, dict[str, object]] = {
        "rope": {"pairing": "interleaved"},
        "rope-partial": {"pairing": "interleaved"},
        "sinusoidal": {"scale": RMS * math.sqrt(2)},
        "learned": {"std": RMS, "seed": seed},
        "random": {"std": RMS, "seed": seed},
        "t5": {"max_distance": max(sizes.context, buckets), "seed": seed},
        "fire": {"seed": seed},
    }
    if asked.name == "mla" and latent is not None:
        defaults["mla"] = {"nope_dim": latent[0], "rope_dim": latent[1]}
    return spec(asked.name, **{**defaults.get(asked.name, {}), **given})


class InputPosition(nn.Module):
    """What is added to the embeddings: a learned table, or the record's fixed vectors."""

    fixed_ND: Tensor

    def __init__(self, made: EncodingSpec, sizes: Sizes) -> None:
        super().__init__()
        self.spec, self.sizes = made, sizes
        self._fixed = made.build(sizes)
        first_ND = _tensor(self._vectors(sizes.context))
        if made.name == "learned":
            self.table = nn.Parameter(first_ND)
        else:
            self.register_buffer("fixed_ND", first_ND, persistent=False)

    def forward(self, length: int) -> Tensor:
        """p_ND for positions 0 .. length-1."""
        if self.spec.name == "learned":
            if length > len(self.table):
                self._vectors(length)  # says how long the table is
            return self.table[:length]
        if length > len(self.fixed_ND):
            self.fixed_ND = _tensor(self._vectors(length)).to(self.fixed_ND)
        return self.fixed_ND[:length]

    def record(self) -> Encoding:
        return trained_encoding(self.spec, self.sizes, _arrays(self))

    def _vectors(self, length: int) -> np.ndarray:
        return self._fixed.input.vectors(np.arange(length))  # type: ignore[union-attr]


class LayerEncoding(nn.Module):
    """What acts inside one layer's attention: rotations of queries and keys, and biases of the logits."""

    def __init__(self, acting: Sequence[Acting], sizes: Sizes, kv_heads: int, *, misread: bool = False) -> None:
        super().__init__()
        self.acting, self.sizes = tuple(acting), sizes
        self.parts = nn.ModuleList(_part(each, sizes, kv_heads, misread) for each in acting)
        self.record()  # complains of parts that do not go together
        self.turning = [part for part in self.parts if hasattr(part, "turn")]
        self.biased = [part for part in self.parts if hasattr(part, "bias")]
        self.alike = len(self.parts) == 1 and isinstance(self.parts[0], RotaryPart) and self.parts[0].alike

    def turn_rows(self, flat_BNW: Tensor, heads: int, at_BN: Tensor | None = None) -> Tensor:
        """Rows that begin with the queries and keys of `heads` heads, these turned: `turn` at once, where `alike`."""
        return _TurnRows.apply(flat_BNW, self.parts[0].factors("query", flat_BNW.shape[1], at_BN), heads)

    def turn(self, q_BHNR: Tensor, k_BGNR: Tensor, at_BN: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys as position changes them; `at_BN` says where the tokens stand, if not at 0, 1, 2, ..."""
        for part in self.turning:
            q_BHNR, k_BGNR = part.turn(q_BHNR, "query", at_BN), part.turn(k_BGNR, "key", at_BN)
        return q_BHNR, k_BGNR

    def bias(self, q_BHNR: Tensor, k_BGNR: Tensor, scaling: float) -> Tensor | None:
        """What is added to the scaled logits, (1 or B, H, N, M); None where nothing is."""
        found = None
        for part in self.biased:
            one = part.bias(q_BHNR, k_BGNR, scaling)
            found = one if found is None else found + one
        return found

    def record(self) -> Encoding:
        """The layer's encoding as it stands, trained parameters included."""
        return layer_encoding(self.acting, self.sizes, lambda number: _arrays(self.parts[number]))


class RotaryPart(nn.Module):
    """Turns channel pairs: the pair (a, b) is a complex number, multiplied by one that depends on position.

    That number is what the record's rotation makes of (1, 0), so angles, decays and factors are all its own.
    """

    def __init__(self, rotary: Rotary, context: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.rotary, self.by_length = rotary, rotary.by_length
        first_F, second_F = rotary.pairs_F2.T
        self.neighbours = rotary.pairing == "interleaved"
        pairs = len(first_F) if self.neighbours else int(second_F[0] - first_F[0])  # some of them may stand still
        self.start, self.stop = int(first_F[0]), int(first_F[0]) + 2 * pairs
        self.heads = heads
        turning = heads if rotary.turning_heads is None else rotary.turning_heads
        if turning * kv_heads % heads:
            raise BadEncoding(
                f"{turning} heads are to turn, but {heads // kv_heads} share a key: turn a multiple of that."
            )
        self.turning = {"query": turning, "key": turning * kv_heads // heads}
        self._fill(context, context)

    def _fill(self, length: int, context: int) -> None:
        """The factors of so many positions, as a text of `context` tokens has them."""
        self.context = context
        for side in ("query", "key"):
            old = getattr(self, side, None)
            new = _tensor(self._factors(length, side))
            self.register_buffer(side, new if old is None else new.to(old), persistent=False)

    def _factors(self, length: int, side: Literal["query", "key"]) -> np.ndarray:
        """Real and imaginary part of each pair's factor at each position, (N, F, 2)."""
        first_F, second_F = self.rotary.pairs_F2.T
        unit_NR = np.zeros((length, self.rotary.head_dim))
        unit_NR[:, first_F] = 1.0
        turned_NR = self.rotary.rotate(unit_NR, np.arange(length), side=side, context=self.context)
        factors_NF2 = np.zeros((length, (self.stop - self.start) // 2, 2))
        factors_NF2[..., 0] = 1.0
        factors_NF2[:, : len(first_F), 0] = turned_NR[:, first_F]
        factors_NF2[:, : len(first_F), 1] = turned_NR[:, second_F]
        return factors_NF2

    @property
    def alike(self) -> bool:
        """Whether all channels of all heads turn, queries as keys, in pairs of neighbours."""
        every = self.turning["query"] == self.heads and (self.start, self.stop) == (0, self.rotary.head_dim)
        return self.neighbours and every and torch.equal(self.query, self.key)

    def factors(self, side: Literal["query", "key"], length: int, at_BN: Tensor | None = None) -> Tensor:
        """The complex factor of each pair at the first positions, (N, F), or at those given, (B, N, F)."""
        rows, context = max(length, len(self.query)), length
        if at_BN is not None and self.by_length:  # the columns of packed sentences are no length of a text
            context = int(at_BN.max()) + 1
        if rows > len(self.query) or (self.by_length and context != self.context):
            self._fill(rows, context)
        table_NF2 = getattr(self, side)
        return torch.view_as_complex(table_NF2[:length] if at_BN is None else table_NF2[at_BN])

    def turn(self, x_BHNR: Tensor, side: Literal["query", "key"], at_BN: Tensor | None = None) -> Tensor:
        """The rows of queries or keys, each turned to its position."""
        heads, length, width = x_BHNR.shape[1:]
        factors = self.factors(side, length, at_BN)
        factors = factors if at_BN is None else factors[:, None]
        turning = self.turning[side]
        some = x_BHNR[:, :turning]
        block = self._turned(some[..., self.start : self.stop], factors)
        if self.stop - self.start < width:
            block = torch.cat([some[..., : self.start], block, some[..., self.stop :]], dim=3)
        return block if turning == heads else torch.cat([block, x_BHNR[:, turning:]], dim=1)

    def _turned(self, block: Tensor, factors: Tensor) -> Tensor:
        if not self.neighbours:
            a, b = block.chunk(2, dim=-1)
            turned = torch.complex(a, b) * factors
            return torch.cat([turned.real, turned.imag], dim=-1)
        pairs = block.unflatten(-1, (-1, 2))
        if any(step % 2 for step in pairs.stride()[:-1]) or pairs.storage_offset() % 2:
            pairs = pairs.contiguous()  # torch sees neighbours as complex numbers only at even places
        return torch.view_as_real(torch.view_as_complex(pairs) * factors).flatten(-2)


class _TurnRows(torch.autograd.Function):
    """The first channels of rows (B, N, W) as complex numbers, head after head, multiplied by (N, F) or (B, N, F)."""

    @staticmethod
    def forward(ctx: Any, flat_BNW: Tensor, factors: Tensor, heads: int) -> Tensor:
        ctx.save_for_backward(factors)
        ctx.heads = heads
        return _multiplied(flat_BNW, factors, heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _TurnRows.apply(grads[0], ctx.saved_tensors[0].conj(), ctx.heads), None, None


def _multiplied(flat_BNW: Tensor, factors: Tensor, heads: int) -> Tensor:
    out_BNW = flat_BNW.clone(memory_format=torch.contiguous_format)
    pairs = factors.shape[-1]
    some = out_BNW[..., : heads * pairs * 2].unflatten(-1, (heads, pairs, 2))
    torch.view_as_complex(some).mul_(factors[..., None, :])
    return out_BNW


class MisreadRotary(RotaryPart):
    """MLA's rotary part as the released scripts read it: no rotation.

    Columns 2f and 2f+1 of [sin w_0 .. | cos w_0 ..] are taken for the sine and cosine of pair f.
    """

    def _factors(self, length: int, side: Literal["query", "key"]) -> np.ndarray:
        angle_NF = np.arange(length)[:, None] * self.rotary.frequencies(self.context)
        table_NR = np.concatenate([np.sin(angle_NF), np.cos(angle_NF)], axis=1)
        return table_NR.reshape(length, -1, 2)[..., ::-1]


class FixedBias(nn.Module):
    """The record's table of biases, on the heads it is limited to."""

    table_HNN: Tensor

    def __init__(self, record: Encoding, context: int) -> None:
        super().__init__()
        self.table_at = record.bias.table  # type: ignore[union-attr]
        self.register_buffer("table_HNN", self._table(context), persistent=False)

    def _table(self, length: int) -> Tensor:
        at_N = np.arange(length)
        return _tensor(self.table_at(at_N, at_N))

    def bias(self, q_BHNR: Tensor, k_BGNR: Tensor, scaling: float) -> Tensor:
        length = q_BHNR.shape[2]
        if length > self.table_HNN.shape[1]:
            self.table_HNN = self._table(length).to(self.table_HNN)
        return self.table_HNN[None, :, :length, :length]


class _LearnedBias(nn.Module):
    """A bias with parameters: `values` computes it for given offsets; heads outside `chosen` get none."""

    def __init__(self, heads: int, chosen: tuple[int, ...] | None) -> None:
        super().__init__()
        mask_H11 = None
        if chosen is not None:
            mask_H11 = torch.zeros(heads, 1, 1)
            mask_H11[list(chosen)] = 1.0
        self.register_buffer("chosen", mask_H11, persistent=False)

    def values(self, length: int) -> Tensor:
        raise NotImplementedError

    def bias(self, q_BHNR: Tensor, k_BGNR: Tensor, scaling: float) -> Tensor:
        values_HNN = self.values(q_BHNR.shape[2])
        return (values_HNN if self.chosen is None else values_HNN * self.chosen)[None]


class T5Bias(_LearnedBias):
    """A trained number per bucket and head; the buckets are the registry's."""

    def __init__(self, record: Encoding, chosen: tuple[int, ...] | None) -> None:
        said = record.parameters
        super().__init__(said["heads"], chosen)
        self.bucket_of: Callable[[np.ndarray], np.ndarray] = lambda offsets: t5_bucket(
            -offsets,
            bidirectional=said["bidirectional"],
            buckets=said["buckets"],
            max_distance=said["max_distance"],
        )
        reach = max(said["max_distance"], said["buckets"]) + 1
        offset_T = np.arange(-reach, reach + 1)
        table_BH = np.zeros((said["buckets"], said["heads"]))  # a bucket no distance falls into stays 0
        table_BH[self.bucket_of(offset_T)] = record.bias.by_offset(offset_T).T  # type: ignore[union-attr]
        self.table = nn.Parameter(_tensor(table_BH))
        self.buckets: dict[int, Tensor] = {}

    def values(self, length: int) -> Tensor:
        if length not in self.buckets:
            at_N = np.arange(length)
            self.buckets[length] = torch.from_numpy(self.bucket_of(at_N[:, None] - at_N).ravel())
        bucket_P = self.buckets[length].to(self.table.device)
        return self.table.t().index_select(1, bucket_P).unflatten(1, (length, length))


class KerpleBias(_LearnedBias):
    """-r1 ln(1 + r2 t) or -r1 t^r2 with trained r1, r2 > 0 per head (r2 < 2 for the power)."""

    def __init__(self, record: Encoding, chosen: tuple[int, ...] | None) -> None:
        said = record.parameters
        super().__init__(said["heads"], chosen)
        self.kernel = said["kernel"]
        r1_H, r2_H = np.asarray(said["r1"]), np.asarray(said["r2"])
        self.raw_r1 = nn.Parameter(_tensor(np.log(r1_H)))
        half_H = np.clip(r2_H / 2, 1e-3, 1 - 1e-3)
        self.raw_r2 = nn.Parameter(_tensor(np.log(r2_H) if self.kernel == "log" else np.log(half_H / (1 - half_H))))

    def values(self, length: int) -> Tensor:
        at_N = torch.arange(length, device=self.raw_r1.device)
        distance_NN = (at_N[:, None] - at_N).abs().to(self.raw_r1.dtype)
        r1_H11 = self.raw_r1.exp()[:, None, None]
        if self.kernel == "log":
            return -r1_H11 * torch.log1p(self.raw_r2.exp()[:, None, None] * distance_NN)
        # 0^r2 is 0 and has no gradient, but ln 0 would spoil it
        power_HNN = distance_NN.clamp(min=1e-30) ** (2 * self.raw_r2.sigmoid())[:, None, None]
        return -r1_H11 * torch.where(distance_NN > 0, power_HNN, 0.0)


class FireBias(_LearnedBias):
    """f(psi(|i-j|) / psi(max(L, i))), psi(x) = ln(c x + 1), with a trained network f, c and L."""

    def __init__(self, record: Encoding, chosen: tuple[int, ...] | None) -> None:
        said = record.parameters
        super().__init__(said["heads"], chosen)
        self.causal = said["causal"]
        network = fire_network(said["heads"], said["hidden"], said["seed"])
        self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias = (
            nn.Parameter(_tensor(part)) for part in network
        )
        self.log_c = nn.Parameter(_tensor(np.log(said["c"])))
        self.log_threshold = nn.Parameter(_tensor(np.log(said["threshold"])))

    def values(self, length: int) -> Tensor:
        at_N = torch.arange(length, device=self.log_c.device).to(self.log_c.dtype)
        reach_NN = at_N[:, None] if self.causal else torch.maximum(at_N[:, None], at_N)
        c, threshold = self.log_c.exp(), self.log_threshold.exp()
        distance_NN = (at_N[:, None] - at_N).abs()
        ratio_NN = torch.log1p(c * distance_NN) / torch.log1p(c * torch.maximum(reach_NN, threshold))
        hidden_NNW = F.relu(ratio_NN[..., None] * self.hidden_weight + self.hidden_bias)
        return F.linear(hidden_NNW, self.output_weight, self.output_bias).permute(2, 0, 1)


class Cope(nn.Module):
    """Contextual position: the distance of j from i is the sum of gates sigmoid(q_i . k) from j to i.

    The bias is q_i . e[distance], e interpolated between whole numbers and cut at the end of the table. The paper
    looks back only; without a mask the gates ahead are counted likewise, from i to j, with a second table for them.
    """

    def __init__(self, record: Encoding, sizes: Sizes) -> None:
        super().__init__()
        said = record.parameters
        self.causal = sizes.causal
        ways = 1 if sizes.causal else 2
        self.table = nn.Parameter(torch.zeros(ways, said["positions"], said["head_dim"]))  # as in the paper

    def bias(self, q_BHNR: Tensor, k_BGNR: Tensor, scaling: float) -> Tensor:
        k_BHNR = k_BGNR.repeat_interleave(q_BHNR.shape[1] // k_BGNR.shape[1], dim=1)
        gate_BHNN = torch.sigmoid(scaling * q_BHNR @ k_BHNR.mT)
        back_BHNN = self._term(gate_BHNN.tril().flip(-1).cumsum(-1).flip(-1), q_BHNR, self.table[0])
        if self.causal:
            return scaling * back_BHNN
        ahead_BHNN = self._term(gate_BHNN.triu().cumsum(-1), q_BHNR, self.table[1])
        past_NN = torch.ones(gate_BHNN.shape[-2:], dtype=torch.bool, device=gate_BHNN.device).tril()
        return scaling * torch.where(past_NN, back_BHNN, ahead_BHNN)

    @staticmethod
    def _term(position_BHNN: Tensor, q_BHNR: Tensor, table_PR: Tensor) -> Tensor:
        """q . e[position], linear between the rows of e."""
        at = position_BHNN.clamp(max=len(table_PR) - 1)
        product_BHNP = q_BHNR @ table_PR.t()
        below = at.detach().floor()
        share = at - below
        low = product_BHNP.gather(-1, below.long())
        high = product_BHNP.gather(-1, at.detach().ceil().long())
        return low + share * (high - low)


class Pope(nn.Module):
    """Polar position: softplus of each channel is a length, its angle is w_c times position, plus a trained phase.

    sum_c softplus(q_c) softplus(k_c) cos(w_c (i-j) + delta_c) is a dot product of twice the width.
    """

    angle_NR: Tensor

    def __init__(self, record: Encoding, sizes: Sizes) -> None:
        super().__init__()
        said = record.parameters
        self.frequency_R = pope_frequencies(said["head_dim"], said["base"])
        self.phase = nn.Parameter(torch.zeros(sizes.heads, 1, said["head_dim"]))
        self.register_buffer("angle_NR", self._angles(sizes.context), persistent=False)

    def _angles(self, length: int) -> Tensor:
        return _tensor(np.arange(length)[:, None] * self.frequency_R)

    def turn(self, x_BHNR: Tensor, side: Literal["query", "key"], at_BN: Tensor | None = None) -> Tensor:
        length = x_BHNR.shape[2]
        if length > len(self.angle_NR):
            self.angle_NR = self._angles(length).to(self.angle_NR)
        size = F.softplus(x_BHNR)
        angle = self.angle_NR[:length] if at_BN is None else self.angle_NR[at_BN][:, None]
        if side == "query":
            angle = angle + self.phase
        return torch.cat([size * angle.cos(), size * angle.sin()], dim=-1)


def _part(acting: Acting, sizes: Sizes, kv_heads: int, misread: bool) -> nn.Module:
    name = acting.spec.name
    whole = acting.spec.build(sizes)
    learned_biases = {"t5": T5Bias, "kerple": KerpleBias, "fire": FireBias}
    if name in learned_biases:
        return learned_biases[name](whole, acting.heads)
    if name in ("cope", "pope"):
        return (Cope if name == "cope" else Pope)(whole, sizes)
    if not whole.exact_tables:
        raise BadEncoding(f"'{name}' has no tables and cannot be trained yet.")
    record = layer_encoding([acting], sizes, lambda _: {})
    if record.rotary is not None:
        kind = MisreadRotary if misread and name == "mla" else RotaryPart
        return kind(record.rotary, sizes.context, sizes.heads, kv_heads)
    return FixedBias(record, sizes.context)


def _arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy() for name, value in module.named_parameters(recurse=False)}


def _tensor(values: np.ndarray | float) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))
