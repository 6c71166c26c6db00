"""MLA's decoupled rotation: content channels that do not turn beside rotary ones that do."""

from __future__ import annotations

from toposcope.core.errors import BadEncoding
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Encoding, Pairing, stated
from toposcope.encodings.registry import Given, Kind, Paper, Sizes
from toposcope.encodings.rotary import BASE, PAIRS, SCALING, checked_scaling, rope


def mla(
    nope_dim: int, rope_dim: int, *, base: float = 10000.0, pairing: Pairing = "interleaved", **scaling: object
) -> Encoding:
    """Multi-head latent attention's decoupled rotation: `nope_dim` content channels, then `rope_dim` that turn.

    The last `rope_dim` channels are a RoPE block of their own (exponents 2f / rope_dim); content channels have
    w = 0. `scaling` takes the scaling parameters of `rope`.
    """
    if nope_dim < 0:
        raise BadEncoding(f"nope_dim must not be negative, got {nope_dim}.")
    turned = rope(
        nope_dim + rope_dim,
        base=base,
        pairing=pairing,
        rotary_dim=rope_dim,
        channel_offset=nope_dim,
        **scaling,  # type: ignore[arg-type]
    )
    return Encoding(
        name="mla",
        title=turned.title.replace("RoPE", "MLA, decoupled RoPE", 1),
        parameters=stated(nope_dim=nope_dim, rope_dim=rope_dim, **dict(turned.parameters)),
        rotary=turned.rotary,
        citations=("deepseek2024v2", *turned.citations),
    )


def _mla(sizes: Sizes, given: Given) -> Encoding:
    asked = dict(given)
    nope_dim, rope_dim = asked.pop("nope_dim", None), asked.pop("rope_dim", None)
    if rope_dim is None:
        rope_dim = max(2 * (sizes.head_dim // 4), 2) if nope_dim is None else sizes.head_dim - nope_dim
    if nope_dim is None:
        nope_dim = sizes.head_dim - rope_dim
    if nope_dim + rope_dim != sizes.head_dim:
        raise BadEncoding(
            f"nope_dim + rope_dim is {nope_dim + rope_dim}, but a query has {sizes.head_dim} channels. "
            "Give only one of the two, or make them add up."
        )
    return mla(nope_dim, rope_dim, **checked_scaling(sizes, asked))


PAPERS = {
    "deepseek2024v2": Paper(
        "DeepSeek-AI",
        "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
        "arXiv",
        2024,
        "2405.04434",
    ),
}
KINDS = (
    Kind(
        "mla",
        "content channels that do not turn beside rotary ones that do",
        "rotary",
        _mla,
        (
            Parameter.whole("nope_dim", None, "content channels; default: those that do not turn", least=0),
            Parameter.whole("rope_dim", None, "rotary channels, the last ones; default: about half", least=2),
            BASE,
            Parameter.choice("pairing", "interleaved", PAIRS, "half", "interleaved"),
            *SCALING,
        ),
        {"decoupled-rope": {}},
        ("deepseek2024v2", "su2021roformer"),
    ),
)
