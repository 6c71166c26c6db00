"""What a layer's description says of itself."""

from __future__ import annotations

import pytest

from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec, Skipped
from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE

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


def layer(**changes: object) -> LayerSpec:
    given = {"scale": 0.5, "causal": True, "o": Linear("o"), **changes}
    return LayerSpec("decoder", 0, 6, 1, 1, 4, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_scale_and_cap_are_positive_and_can_be_computed_with(name: str) -> None:
    for good in (1e-50, 1e-3, 1.0, 30.0, 1e50):
        assert getattr(layer(**{name: good}), name) == good
    for wrong in (0.0, -1.0, 1e-51, 1e51, float("nan"), float("inf")):
        with pytest.raises(BadConfig):
            layer(**{name: wrong})
    assert layer().softcap is None


def test_an_epsilon_may_be_zero() -> None:
    assert [NormSpec("rms", eps).eps for eps in (0.0, 1e-12, 1.0)] == [0.0, 1e-12, 1.0]
    with pytest.raises(BadConfig):
        NormSpec("layer", 1e60)


def test_names_are_made_from_a_prefix() -> None:
    assert Linear.at("a.q") == Linear("a.q.weight", "a.q.bias", transposed=False)
    assert Linear.at("a.q", transposed=True).transposed
    assert NormSpec.at("rms", "a.n", 1e-5) == NormSpec("rms", 1e-5, "a.n.weight", "a.n.bias", 0.0)
    assert NormSpec.at("rms", "a.n", 1e-5, offset=1.0).offset == 1.0
    assert Linear("w") == Linear("w", None, transposed=False, bias_part=None)


def test_what_is_not_said_of_a_layer_is_not_there() -> None:
    spec = layer()
    assert (spec.layout, spec.kind, spec.encoding, spec.qk_norm_over) == ("stacked", "self", NONE, "head")
    assert (spec.shared_key, spec.ggml_permuted, spec.warnings, spec.reach) == (0, False, (), None)
    model = ModelSpec("llama", (spec,))
    assert (model.embedding, model.context, model.skipped, model.accounted) == (None, None, (), ())
    assert Skipped("x", "y").tensors == ()
