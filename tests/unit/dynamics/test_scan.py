"""The walk through a model: rows for every head, reasons for what is left out, results that JSON can hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope
from tests.unit import tiny
from toposcope.core.errors import BadWeights
from toposcope.core.results import plain
from toposcope.dynamics.scan import scan


def as_json(result: Any) -> dict[str, Any]:
    return json.loads(json.dumps(plain(result.as_dict()), allow_nan=False))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path)


def rewritten(directory: Path, change: Any) -> Path:
    """The tiny Llama with its tensors changed by `change(name, array)`."""
    config = json.loads((directory / "config.json").read_text())
    stored = {name: change(name, array) for name, array in tiny.tensors(config).items()}
    save_file(stored, directory / "model.safetensors")
    return directory


def test_a_whole_model(llama: Path) -> None:
    ticks: list[int] = []
    with toposcope.load(llama) as model:
        result = scan(model, tick=lambda: ticks.append(1))
    found = as_json(result)
    assert [(row["layer"], row["head"]) for row in found["heads"]] == [(i, h) for i in range(3) for h in range(4)]
    assert [row["layer"] for row in found["layers"]] == [0, 1, 2]
    assert len(ticks) == 3
    assert set(found) == {"heads", "layers", "model", "skipped"}
    counts = Counter(row["verdict"] for row in found["heads"])
    assert found["model"]["counts"] == dict(counts)
    assert found["model"]["robust"] == sum(row["robust"] for row in found["heads"])
    assert found["model"]["metastable"] == sum(row["metastable"] for row in found["heads"])
    for name in ("growth_index", "spread_index", "pair_index", "ov_positivity"):
        assert found["model"][name] == pytest.approx(np.mean([row[name] for row in found["heads"]]))
    assert found["model"]["exact"] is False
    assert found["skipped"] == []


def test_some_layers(llama: Path) -> None:
    with toposcope.load(llama) as model:
        whole, part = scan(model), scan(model, [2, 0])
    assert [head.layer for head in part.heads] == [2] * 4 + [0] * 4
    ours, theirs = as_json(part)["heads"], as_json(whole)["heads"]
    assert ours == theirs[8:] + theirs[:4]
    assert as_json(part)["model"]["verdict"] is None
    assert as_json(part)["model"]["log_growth"] is None


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_change_nothing(llama: Path, workers: int) -> None:
    with toposcope.load(llama) as model:
        assert as_json(scan(model, workers=workers, null=True)) == as_json(scan(model, null=True))


def test_the_randomised_twin(llama: Path) -> None:
    with toposcope.load(llama) as model:
        first, again, other = (scan(model, null=True, seed=seed) for seed in (5, 5, 6))
    assert len(first.twin) == 12
    found = as_json(first)["null"]
    assert found == as_json(again)["null"] != as_json(other)["null"]
    assert sum(found["counts"].values()) == 12
    # the twin has the real heads' factors, turned: norms stay, spectra do not
    for real, twin in zip(first.heads, first.twin, strict=True):
        assert (twin.layer, twin.head) == (real.layer, real.head)
        assert twin.regime.alpha != pytest.approx(real.regime.alpha, rel=1e-3)


@pytest.mark.parametrize(("sign", "verdict"), [(-1.0, "contracting_first_token"), (1.0, "expanding_first_token")])
def test_the_model_as_a_whole(llama: Path, sign: float, verdict: str) -> None:
    """V = I and O = +-I in every layer: U = +-I, and the stack multiplies the first token by e^{+-3}."""

    def change(name: str, array: np.ndarray) -> np.ndarray:
        if "v_proj" in name:
            return np.eye(16, dtype=np.float32)
        if "o_proj" in name:
            return sign * np.eye(16, dtype=np.float32)
        return np.ones_like(array) if "layernorm" in name else array

    tiny.write_llama(llama, num_key_value_heads=4)
    with toposcope.load(rewritten(llama, change)) as model:
        found = as_json(scan(model))
        part = as_json(scan(model, [0]))
    assert found["model"]["verdict"] == verdict
    assert found["model"]["log_growth"] == pytest.approx(3 * sign, rel=1e-6)
    assert part["model"]["verdict"] is None  # one layer is not the stack
    for row in found["layers"]:
        assert (row["verdict"], row["scope"]) == ("converges" if sign < 0 else "diverges", "first_token")
        assert row["rho_euler"] == pytest.approx(1 + sign)
    assert {row["verdict"] for row in found["heads"]} == {"converges" if sign < 0 else "diverges"}
    assert all(row["robust"] and row["exact"] for row in found["heads"])


def test_a_dead_head_and_a_singular_one_have_rows_that_json_can_hold(llama: Path) -> None:
    def change(name: str, array: np.ndarray) -> np.ndarray:
        if "layers.0" in name and "o_proj" in name:
            array[:, 4:8] = 0.0  # head 1 writes nothing
        if "layers.1" in name and "o_proj" in name:
            array[:] = 0.0
            array[8:12, :4] = np.eye(4)  # head 0 writes where its values do not read
        if "layers.1" in name and "v_proj" in name:
            array[:, 8:12] = 0.0
        return array

    with toposcope.load(rewritten(llama, change)) as model:
        found = as_json(scan(model))
    assert found["heads"][1]["verdict"] == "inactive"
    assert found["heads"][0]["verdict"] != "inactive"
    singular = found["heads"][4]
    assert singular["verdict"] == "indeterminate"
    assert "rank_deficient" in singular["warnings"]
    assert singular["cond_VO"] is None  # infinite
    assert [row["verdict"] for row in found["heads"][5:8]] == ["inactive"] * 3
    assert "rank_deficient" in found["layers"][1]["warnings"]


@pytest.mark.parametrize("which", ["v_proj", "q_proj", "input_layernorm"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_an_error_and_no_verdict(llama: Path, which: str, bad: float) -> None:
    def change(name: str, array: np.ndarray) -> np.ndarray:
        if which in name and "layers.1" in name:
            array.flat[3] = bad
        return array

    with toposcope.load(rewritten(llama, change)) as model, pytest.raises(BadWeights, match=which):
        scan(model)


def test_cross_attention_is_left_out_with_a_reason(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    transformers.T5Model(transformers.T5Config(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    with toposcope.load(tmp_path) as model:
        kinds = [layer.spec.kind for layer in model.layers]
        found = as_json(scan(model))
    assert kinds.count("cross") == 2
    reasons = [entry for entry in found["skipped"] if "cross-attention" in entry["why"]]
    assert len(reasons) == 2
    assert {row["layer"] for row in found["heads"]} == {i for i, kind in enumerate(kinds) if kind == "self"}
    assert {row["causal"] for row in found["heads"]} == {True, False}
    assert found["model"]["log_growth"] is None  # two stacks are not one product
    assert all(row["rule"] not in ("T3a", "T3b", "T4a", "T4b") for row in found["heads"])  # relative biases
