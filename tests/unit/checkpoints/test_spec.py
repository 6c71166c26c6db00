"""What a layer's description says of itself."""

from __future__ import annotations

import pytest

from toposcope.checkpoints.spec import LayerSpec, Linear, NormSpec
from toposcope.core.errors import BadConfig

NORM = NormSpec("rms", 1e-6)


@pytest.mark.parametrize(
    ("norms", "placement"),
    [
        ((), "none"),
        (("input_norm",), "pre"),
        (("output_norm",), "branch"),
        (("input_norm", "output_norm"), "sandwich"),
        (("residual_norm",), "post"),
        (("residual_norm", "input_norm", "output_norm"), "post"),
    ],
)
def test_where_the_norms_stand(norms: tuple[str, ...], placement: str) -> None:
    made = dict.fromkeys(norms, NORM)
    spec = LayerSpec("decoder", 0, 6, 1, 1, 4, 0.5, causal=True, o=Linear("o"), **made)
    assert spec.placement == placement


def test_widths_are_the_heads_own_unless_told() -> None:
    spec = LayerSpec("decoder", 0, 6, 1, 1, 4, 0.5, causal=True, o=Linear("o"))
    assert (spec.value_width, spec.key_source_width) == (4, 6)
    other = LayerSpec("decoder", 0, 6, 1, 1, 4, 0.5, causal=True, o=Linear("o"), value_dim=3, source_width=9)
    assert (other.value_width, other.key_source_width) == (3, 9)


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf")])
def test_a_norm_needs_a_small_number(eps: float) -> None:
    with pytest.raises(BadConfig, match="epsilon"):
        NormSpec("rms", eps)


def test_a_window_does_not_reach_backwards() -> None:
    assert LayerSpec("decoder", 0, 6, 1, 1, 4, 0.5, causal=True, o=Linear("o"), reach=0).reach == 0
    with pytest.raises(BadConfig, match="reaches -1"):
        LayerSpec("decoder", 0, 6, 1, 1, 4, 0.5, causal=True, o=Linear("o"), reach=-1)
