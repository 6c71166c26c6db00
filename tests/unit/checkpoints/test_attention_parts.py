"""Parts of attention beside Q, K, V and O (sinks, gates, norms, chunks, rows), each against plain torch algebra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.tiny import write_llama
from toposcope.checkpoints import Model, load
from toposcope.checkpoints.attention import attention, output, project
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.spec import GateSpec, LayerSpec, Linear, ModelSpec, NormSpec, RowPattern
from toposcope.core.errors import BadConfig, BadEncoding, BadValue, MissingTensor
from toposcope.dynamics.heads import outside_theorems
from toposcope.encodings.record import NONE, Encoding, QueryScale, Rotary
from toposcope.encodings.rotary import rope

WIDTH, HEADS, GROUPS, WIDE, TOKENS = 16, 4, 2, 4, 7


class Held:
    """A source over arrays in memory."""

    path, format, metadata = Path("held"), "safetensors", {}

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays

    def names(self) -> set[str]:
        return set(self._arrays)

    def info(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def read(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def digest(self) -> str:
        return ""

    @property
    def ledger(self):
        from toposcope.checkpoints.decode import Ledger

        return Ledger()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    sizes = {
        "q": (HEADS * WIDE, WIDTH),
        "k": (GROUPS * WIDE, WIDTH),
        "v": (GROUPS * WIDE, WIDTH),
        "o": (WIDTH, HEADS * WIDE),
        "gate": (HEADS * WIDE, WIDTH),
        "gate.bias": (HEADS * WIDE,),
        "head_gate": (HEADS, WIDTH),
        "sinks": (1, HEADS, 1),
        "q_norm": (WIDE,),
        "k_norm": (WIDE,),
        "v_norm": (WIDE,),
        "inner": (HEADS * WIDE,),
        "inner_head": (WIDE,),
    }
    return {name: random.standard_normal(shape) for name, shape in sizes.items()}


def spec(**changes: object) -> LayerSpec:
    linear = {name: Linear(name) for name in "qkvo"}
    return LayerSpec(
        **{"stack": "decoder", "index": 0, "width": WIDTH, "heads": HEADS, "kv_heads": GROUPS, "head_dim": WIDE},
        **{"scale": 0.5, "causal": True, **linear, **changes},
    )


def ours(arrays: dict[str, np.ndarray], layer: LayerSpec, tokens: int = TOKENS) -> tuple[np.ndarray, np.ndarray]:
    model = Model(ModelSpec("held", (layer,)), Held(arrays), {}, read_layer)
    x = np.random.default_rng(4).standard_normal((tokens, WIDTH))
    found = model.layers[0]
    probabilities = attention(found, x)
    return probabilities, output(found, probabilities, project(found, x)[2], x)


def plain(arrays: dict[str, np.ndarray], tokens: int = TOKENS):
    """x, and per head q, k, v, without any of the parts."""
    x = np.random.default_rng(4).standard_normal((tokens, WIDTH))
    q, k, v = ((x @ arrays[name].T).reshape(tokens, -1, WIDE).swapaxes(0, 1) for name in "qkv")
    return x, q, np.repeat(k, 2, axis=0), np.repeat(v, 2, axis=0)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def causal(logits: np.ndarray) -> np.ndarray:
    return np.where(np.tril(np.ones(logits.shape[-2:], dtype=bool)), logits, -np.inf)


def joined(heads: np.ndarray) -> np.ndarray:
    return heads.swapaxes(0, 1).reshape(heads.shape[1], -1)


def rms(x: np.ndarray, gain: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def test_a_sink_takes_its_share_of_the_softmax(arrays: dict[str, np.ndarray]) -> None:
    probabilities, out = ours(arrays, spec(sinks="sinks"))
    _, q, k, v = plain(arrays)
    weights = np.exp(causal(q @ k.swapaxes(1, 2) * 0.5))
    expected = weights / (weights.sum(-1, keepdims=True) + np.exp(arrays["sinks"].reshape(HEADS, 1, 1)))
    np.testing.assert_allclose(probabilities, expected, atol=1e-12)
    np.testing.assert_allclose(out, joined(expected @ v) @ arrays["o"].T, atol=1e-12)
    assert (probabilities.sum(-1) < 0.9).any()


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("sigmoid", lambda z: 1 / (1 + np.exp(-z))),
        ("double_sigmoid", lambda z: 2 / (1 + np.exp(-z))),
        ("softplus", lambda z: np.log(1 + np.exp(z))),
    ],
)
def test_a_gate_multiplies_every_channel(arrays: dict[str, np.ndarray], activation: str, function: object) -> None:
    gate = GateSpec(Linear("gate", "gate.bias"), activation)
    probabilities, out = ours(arrays, spec(gate=gate))
    x, _, _, v = plain(arrays)
    expected = joined(probabilities @ v) * function(x @ arrays["gate"].T + arrays["gate.bias"])
    np.testing.assert_allclose(out, expected @ arrays["o"].T, atol=1e-12)


def test_a_gate_may_have_one_number_per_head(arrays: dict[str, np.ndarray]) -> None:
    probabilities, out = ours(arrays, spec(gate=GateSpec(Linear("head_gate"), "sigmoid", "head")))
    x, _, _, v = plain(arrays)
    factors = 1 / (1 + np.exp(-(x @ arrays["head_gate"].T)))
    expected = joined(probabilities @ v * factors.T[:, :, None])
    np.testing.assert_allclose(out, expected @ arrays["o"].T, atol=1e-12)


def test_a_gate_needs_the_layers_input(arrays: dict[str, np.ndarray]) -> None:
    model = Model(ModelSpec("held", (spec(gate=GateSpec(Linear("gate"), "sigmoid")),)), Held(arrays), {}, read_layer)
    with pytest.raises(BadValue):
        output(model.layers[0], np.ones((HEADS, 1, 1)), np.ones((HEADS, 1, WIDE)))


def test_values_and_joined_heads_may_be_normed(arrays: dict[str, np.ndarray]) -> None:
    norms = {"v_norm": NormSpec("rms", 1e-6, "v_norm"), "inner_norm": NormSpec("rms", 1e-6, "inner")}
    probabilities, out = ours(arrays, spec(**norms))
    _, _, _, v = plain(arrays)
    heads = joined(probabilities @ rms(v, arrays["v_norm"]))
    np.testing.assert_allclose(out, rms(heads, arrays["inner"]) @ arrays["o"].T, atol=1e-12)
    probabilities, out = ours(arrays, spec(inner_norm=NormSpec("rms", 1e-6, "inner_head")))
    heads = rms(probabilities @ v, arrays["inner_head"])
    np.testing.assert_allclose(out, joined(heads) @ arrays["o"].T, atol=1e-12)


def test_norms_after_rotation(arrays: dict[str, np.ndarray]) -> None:
    encoding = rope(WIDE)
    norms = {"q_norm": NormSpec("rms", 1e-6, "q_norm"), "k_norm": NormSpec("rms", 1e-6, "k_norm")}
    after, _ = ours(arrays, spec(**norms, encoding=encoding, qk_norm_after=True))
    before, _ = ours(arrays, spec(**norms, encoding=encoding))
    _, q, k, _ = plain(arrays)
    at = np.arange(TOKENS)
    turned = [encoding.rotary.rotate(each, at, side=side) for each, side in ((q, "query"), (k, "key"))]
    q, k = rms(turned[0], arrays["q_norm"]), rms(turned[1], arrays["k_norm"])
    np.testing.assert_allclose(after, softmax(causal(q @ k.swapaxes(1, 2) * 0.5)), atol=1e-12)
    assert np.abs(after - before).max() > 1e-2


def test_chunks_are_blind_to_each_other(arrays: dict[str, np.ndarray]) -> None:
    probabilities, _ = ours(arrays, spec(chunk=3))
    for start in range(0, TOKENS, 3):
        block = probabilities[:, start : start + 3, start : start + 3]
        np.testing.assert_allclose(block.sum(-1), 1)
    with pytest.raises(BadConfig):
        spec(chunk=0)


def test_a_query_scale_multiplies_rows_of_logits(arrays: dict[str, np.ndarray]) -> None:
    grows = QueryScale(rate=0.7, period=2, shift=1)
    found, _ = ours(arrays, spec(encoding=replace(NONE, query_scale=grows)))
    _, q, k, _ = plain(arrays)
    factors = 1 + 0.7 * np.log(np.floor((np.arange(TOKENS) + 1) / 2) + 1)
    np.testing.assert_allclose(found, softmax(causal(factors[:, None] * (q @ k.swapaxes(1, 2) * 0.5))), atol=1e-12)
    assert grows.plain_below == 1
    np.testing.assert_array_equal(QueryScale(0.1, 8192, 1).factors([0, 8190]), 1)
    assert QueryScale(0.1, 8192, 1).factors(8191) > 1
    with pytest.raises(BadEncoding):
        QueryScale(0.1, 0)


def test_rows_of_a_tensor_that_holds_more(arrays: dict[str, np.ndarray]) -> None:
    both = np.stack([arrays["q"].reshape(HEADS, WIDE, -1), arrays["gate"].reshape(HEADS, WIDE, -1)], axis=1)
    held = {**arrays, "q_gate": both.reshape(-1, WIDTH)}
    packed = spec(
        q=Linear("q_gate", rows=RowPattern(0, WIDE, HEADS, 2 * WIDE)),
        gate=GateSpec(Linear("q_gate", rows=RowPattern(WIDE, WIDE, HEADS, 2 * WIDE)), "sigmoid"),
    )
    apart = spec(gate=GateSpec(Linear("gate"), "sigmoid"))
    for one, other in zip(ours(held, packed), ours(arrays, apart), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(MissingTensor):
        ours(held, replace(packed, q=Linear("q_gate", rows=RowPattern(WIDE, WIDE, HEADS, 3 * WIDE))))
    with pytest.raises(BadConfig):
        RowPattern(0, 4, 2, 3)


def test_a_factor_multiplies_weight_and_bias(arrays: dict[str, np.ndarray]) -> None:
    held = {**arrays, "k.bias": np.arange(GROUPS * WIDE, dtype=float)}
    scaled = {**held, "k": 3 * held["k"], "k.bias": 3 * held["k.bias"]}
    one = ours(held, spec(k=Linear("k", "k.bias", factor=3.0)))
    other = ours(scaled, spec(k=Linear("k", "k.bias")))
    np.testing.assert_allclose(one[0], other[0], atol=1e-12)


def test_positions_may_have_axes(arrays: dict[str, np.ndarray]) -> None:
    rotary = rope(WIDE).rotary
    plane = Rotary(
        WIDE, rotary.pairs_F2, rotary.frequencies_at, "half", axis_F=np.array([0, 1]), axes=("row", "column")
    )
    x = np.random.default_rng(0).standard_normal((3, WIDE))
    at = np.array([[0, 5], [2, 5], [2, 1]])
    turned = plane.rotate(x, at, side="query")
    for pair, axis in enumerate((0, 1)):
        one = rotary.rotate(x, at[:, axis], side="query")
        np.testing.assert_allclose(turned[:, rotary.pairs_F2[pair]], one[:, rotary.pairs_F2[pair]])
    np.testing.assert_allclose(plane.rotate(x, [1, 2, 3], side="key"), rotary.rotate(x, [1, 2, 3], side="key"))
    with pytest.raises(BadValue):
        rotary.rotate(x, at, side="query")
    image = Encoding("rope-2d", "", rotary=plane, exact_tables=False, notes=("rows and columns of an image",))
    assert image.mechanisms == ("rotary",)
    with pytest.raises(BadEncoding):
        image.tables()


def test_no_theorem_speaks_of_such_layers_and_no_flow_moves_them(tmp_path: Path) -> None:
    from toposcope.dynamics.sources import stack_problem

    with load(write_llama(tmp_path)) as model:
        layer = model.layers[0]
        assert outside_theorems(layer) == ()
        plain = layer.spec
        gains = {"q_norm": NormSpec("rms", 1e-6, "q"), "k_norm": NormSpec("rms", 1e-6, "k")}
        parts = {
            "attention_sinks": {"sinks": "s"},
            "output_gate": {"gate": GateSpec(Linear("g"), "sigmoid")},
            "norm_before_O": {"inner_norm": NormSpec("rms", 1e-6)},
            "chunked_mask": {"chunk": 4},
            "norms_after_rotation": {"qk_norm_after": True, **gains},
        }
        for name, part in parts.items():
            layer.spec = replace(plain, **part)
            assert outside_theorems(layer) == (name,)
            with pytest.raises(BadValue, match=name.replace("_", " ")):
                stack_problem(model, np.ones((5, plain.width)))


def test_a_norm_without_a_gain_commutes_with_a_rotation(arrays: dict[str, np.ndarray]) -> None:
    bare = {"q_norm": NormSpec("rms", 1e-6), "k_norm": NormSpec("rms", 1e-6), "encoding": rope(WIDE)}
    after, before = spec(**bare, qk_norm_after=True), spec(**bare)
    assert after.logit_path() == ()
    np.testing.assert_allclose(ours(arrays, after)[0], ours(arrays, before)[0], atol=1e-12)


def test_no_verdict_where_something_stands_between_v_and_o() -> None:
    from toposcope.dynamics.reduction import reduce_values
    from toposcope.dynamics.regime import Setting, Verdict, decide

    system = reduce_values(-np.eye(3), np.eye(3))
    assert decide(system, Setting()).verdict is Verdict.CONVERGES
    assert decide(system, Setting(outside=("attention_sinks",))).verdict is Verdict.CONVERGES
    assert not decide(system, Setting(outside=("attention_sinks",))).exact
    for part in ("output_gate", "value_norm", "norm_before_O"):
        assert decide(system, Setting(outside=(part,))).verdict is Verdict.INDETERMINATE
