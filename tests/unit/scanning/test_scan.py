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
from toposcope.cli import main
from toposcope.core.errors import BadValue, BadWeights, ToposcopeError
from toposcope.dynamics.layers import layer_dynamics, stack_growth
from toposcope.scanning.result import ScanResult
from toposcope.scanning.scan import is_scan_of, scan


def as_json(result: ScanResult) -> dict[str, Any]:
    """The fields of a result as JSON has them, without those that tell of this very run."""
    found: dict[str, Any] = json.loads(result.json())
    del found["provenance"]
    return found


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
    told: list[tuple[str, int, int]] = []
    with toposcope.load(llama) as model:
        result = scan(model, progress=lambda *words: told.append(words))
    found = as_json(result)
    assert [(row["layer"], row["head"]) for row in found["heads"]] == [(i, h) for i in range(3) for h in range(4)]
    assert [row["layer"] for row in found["layers"]] == [0, 1, 2]
    assert told == [("scanning layers", done, 3) for done in range(4)]
    assert (found["what_if"], found["random_baseline"], found["estimate"]) == ([], None, None)
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
        whole, part = scan(model), scan(model, layers=[2, 0])
    assert [head.layer for head in part.heads] == [0] * 4 + [2] * 4
    ours, theirs = as_json(part)["heads"], as_json(whole)["heads"]
    assert ours == theirs[:4] + theirs[8:]
    assert as_json(part)["model"]["verdict"] is None
    assert as_json(part)["model"]["log_growth"] is None


@pytest.mark.parametrize("jobs", [1, 3])
def test_threads_change_nothing(llama: Path, jobs: int) -> None:
    with toposcope.load(llama) as model:
        assert as_json(scan(model, jobs=jobs, random_baseline=True)) == as_json(scan(model, random_baseline=True))


def test_the_random_baseline(llama: Path) -> None:
    with toposcope.load(llama) as model:
        first, again, other = (scan(model, random_baseline=True, seed=seed) for seed in (5, 5, 6))
    found = first.random_baseline
    assert found is not None
    assert found == again.random_baseline != other.random_baseline
    assert (found.heads, sum(found.counts.values())) == (12, 12)
    for name in ("growth_index", "spread_index", "pair_index", "ov_positivity"):  # turned: spectra do not stay
        assert getattr(found, name) != pytest.approx(getattr(first.model, name), rel=1e-6)


def test_a_single_layer_grows_as_the_search_for_it_finds(llama: Path) -> None:
    """Fewer values than the model is wide: what the layer does not move stays, however it shrinks the rest."""
    tiny.write_llama(llama, num_hidden_layers=1)
    for sign in (1.0, -1.0):

        def change(name: str, array: np.ndarray, sign: float = sign) -> np.ndarray:
            return sign * array if "o_proj" in name else array

        with toposcope.load(rewritten(llama, change)) as model:
            growth = stack_growth([layer_dynamics(model.layers[0], storage_error=0.0)])
            found = scan(model).model.log_growth
        assert growth is not None
        assert found == pytest.approx(np.log(growth), abs=1e-7)


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
        part = as_json(scan(model, layers="0"))
    assert found["model"]["verdict"] == verdict
    assert found["model"]["log_growth"] == pytest.approx(3 * sign, rel=1e-6)
    assert part["model"]["verdict"] is None  # one layer is not the stack
    tiny.write_llama(llama, num_key_value_heads=4, num_hidden_layers=1)
    with toposcope.load(rewritten(llama, change)) as model:
        assert as_json(scan(model))["model"]["log_growth"] == pytest.approx(sign, rel=1e-12)  # e^{+-1}, known exactly
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


def test_a_result_prints_saves_frames_and_draws_itself(llama: Path, tmp_path: Path) -> None:
    result = toposcope.scan(str(llama), encoding=("alibi", "none"), random_baseline=True, layers="sample:2")
    assert isinstance(result, ScanResult)
    # a command is on one line to be pasted, as long as the model's path
    assert max(len(line) for line in str(result).splitlines() if str(llama) not in line) <= 80
    assert toposcope.read(result.save(tmp_path / "scan.json")) == result
    frame = result.frame()
    assert list(frame["fast_share"]) == [head.fast_share for head in result.heads]
    assert len(result.frame("what_if.heads")) == 2 * len(result.heads)
    assert result.csv().startswith("layer,head,")
    assert all(f"{head.layer}.{head.head}" in result.html() for head in result.heads[:1])
    assert "<script" not in result._repr_html_()
    assert result.figure(tmp_path / "scan.svg").stat().st_size > 1000


def test_lengths_and_wrong_options(llama: Path) -> None:
    assert scan(llama, layers="0", context="1k").spectra.context == 1024
    wrong: tuple[dict[str, Any], ...] = (
        {"context": "1"}, {"context": "many"}, {"encoding": "ropes"}, {"engine": "cloud"}, {"layers": "9"},
        {"ray_address": "nowhere:1"},
    )  # fmt: skip
    for options in wrong:
        with pytest.raises(ToposcopeError):
            scan(llama, **options)


def test_a_cluster_reads_files_and_no_model_in_memory(llama: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadValue):
        scan(torch.nn.Linear(2, 2), engine="ray")


def test_a_stored_scan_is_recognised_by_content(llama: Path, tmp_path: Path) -> None:
    result = scan(llama, encoding="alibi", context=32)
    part = scan(llama, layers="0")
    other = tiny.write_llama(tmp_path / "other", seed=3)
    turned = tiny.write_llama(tmp_path / "turned", rope_theta=77.0)
    again = tiny.write_llama(tmp_path / "copy")
    for place, found, expected in (
        (llama, result, True), (again, result, True), (other, result, False), (turned, result, False),
        (llama, part, False),
    ):  # fmt: skip
        with toposcope.load(place) as model:
            assert is_scan_of(found, model) is expected, place


def test_former_options_still_answer(llama: Path, tmp_path: Path) -> None:
    for name, options in (
        ("now", ["--random-baseline", "--encoding", "alibi"]),
        ("then", ["--null", "--what-if=alibi"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["scan", str(llama), "--layers", "0", "--json", str(tmp_path / name), *options])
        assert not ended.value.code
    now, then = (as_json(ScanResult.from_dict(json.loads((tmp_path / name).read_text()))) for name in ("now", "then"))
    assert now == then
    assert now["random_baseline"]["heads"] == 4
