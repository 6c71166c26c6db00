"""`check_model` on checkpoints with planted properties: mechanisms, pairing, tables, context, copies, dead heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from tests.unit.results import holds
from toposcope.checkpoints.view import Model
from toposcope.checks import CheckResult, Finding, check_model
from toposcope.encodings import alibi, combine, learned, mla, sinusoidal, t5
from toposcope.encodings.record import NONE, Encoding, Rotary

from .making import Tensors, bert, llama, random_table, smooth_table, trained_pairs


def check(path: Path, **options: Any) -> CheckResult:
    with toposcope.load(path) as model:
        return check_model(model, **options)


def with_encoding(path: Path, *encodings: Encoding, causal: bool = True, **spec: Any) -> CheckResult:
    """The model with its layers' encodings replaced (the last one for all that follow)."""
    with toposcope.load(path) as model:
        layers = tuple(
            replace(layer, encoding=encodings[min(i, len(encodings) - 1)], causal=causal, **spec)
            for i, layer in enumerate(model.spec.layers)
        )
        changed = Model(replace(model.spec, layers=layers), model.source, model.config, model._read_layer)
        return check_model(changed)


def raised(report: CheckResult) -> dict[str, str]:
    return {finding.id: finding.status for finding in report.findings if finding.status in ("fault", "warning")}


def found(report: CheckResult, id: str) -> Finding:
    finding = report.find(id)
    assert finding is not None, [each.id for each in report.findings]
    return finding


def test_a_plain_llama_raises_nothing(tmp_path: Path) -> None:
    report = check(llama(tmp_path, rope_theta=1e4))
    assert raised(report) == {}
    assert report.worst == "cannot_tell"  # its weights are random
    assert found(report, "mechanisms").evidence["mechanisms"] == ["rotary"]
    assert found(report, "rotation").status == "ok"


def test_findings_are_ordered_and_json(tmp_path: Path) -> None:
    report = check(bert(tmp_path, np.zeros((64, 32))))
    order = [finding.status for finding in report.findings]
    assert order == sorted(order, key=["fault", "warning", "cannot_tell", "ok"].index)
    assert order[0] == "fault"
    data = holds(report, tmp_path)
    assert data["worst"] == "fault"
    assert data["counts"]["fault"] == order.count("fault")
    assert [each["id"] for each in data["findings"]] == [each.id for each in report.findings]


def test_the_verb_takes_a_path_a_model_and_what_is_in_memory(tmp_path: Path) -> None:
    path = llama(tmp_path / "model", rope_theta=1e4)
    found = toposcope.check(path)
    assert holds(found, tmp_path)["provenance"]["subjects"][0]["name"] == "model"
    assert found.layers == 3
    asked = {"family": None, "num_heads": None, "adapter": None, "weights": True, "expect": []}
    assert found.provenance.options == asked
    with toposcope.load(path) as model:
        assert toposcope.check(model).findings == found.findings
    transformers = pytest.importorskip("transformers")
    loaded = toposcope.check(transformers.LlamaModel.from_pretrained(path))
    assert {each.id for each in found.findings} <= {each.id for each in loaded.findings}  # it was run, too


def test_without_weights_no_layer_is_read(tmp_path: Path) -> None:
    with toposcope.load(llama(tmp_path, rope_theta=1e4)) as model:

        def refuse(*_: Any) -> Any:
            raise AssertionError("a layer was read")  # pragma: no cover

        model._read_layer = refuse
        report = check_model(model, weights=False)
    assert report.find("pairing") is None


def test_progress_counts_layers(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    check(llama(tmp_path, rope_theta=1e4), progress=lambda *told: seen.append(told))
    assert seen == [("layers", done, 3) for done in range(4)]


# mechanisms


def test_two_mechanisms_at_once(tmp_path: Path) -> None:
    path = llama(tmp_path, rope_theta=1e4)
    with toposcope.load(path) as model:
        rotary = model.layers[0].encoding
    both = combine(rotary, sinusoidal(64))
    report = with_encoding(path, both)
    assert raised(report) == {"mechanisms": "warning"}
    assert found(report, "mechanisms").evidence["mechanisms"] == ["input", "rotary"]


def test_no_position(tmp_path: Path) -> None:
    path = llama(tmp_path, rope_theta=1e4)
    assert raised(with_encoding(path, NONE)) == {"no-position": "warning"}
    assert raised(with_encoding(path, NONE, causal=False)) == {"no-position": "fault"}
    with toposcope.load(path) as model:
        rotary = model.layers[0].encoding
    some = with_encoding(path, rotary, NONE)
    assert raised(some) == {}
    assert found(some, "no-position").layers == (1, 2)


def test_a_table_that_no_layer_reads(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.embed_positions.weight"] = smooth_table(64, 64)

    assert raised(check(llama(tmp_path, change, rope_theta=1e4))) == {"unread-table": "warning"}


# rotation and pairing


def test_overlapping_pairs_are_no_rotation(tmp_path: Path) -> None:
    pairs = np.array([[0, 1], [1, 2], [2, 3]])
    rotary = Rotary(32, pairs, lambda _: np.array([1.0, 0.3, 0.1]), "interleaved")
    report = with_encoding(llama(tmp_path, rope_theta=1e4), Encoding("rope", "broken", {"base": 1e4}, rotary=rotary))
    assert raised(report)["rotation"] == "fault"


@pytest.mark.parametrize(("order", "status"), [("half", "ok"), ("interleaved", "fault")])
def test_weights_trained_with_the_other_pairing(tmp_path: Path, order: str, status: str) -> None:
    finding = found(check(llama(tmp_path, trained_pairs(order), rope_theta=1e4)), "pairing")
    assert finding.status == status
    good, other = finding.evidence["z_declared"], finding.evidence["z_other"]
    assert (good > 6 > other) if status == "ok" else (other > 6 > good)


def test_one_layer_in_the_other_order(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        trained_pairs("half", (0, 2))(tensors)
        trained_pairs("interleaved", (1,))(tensors)

    finding = found(check(llama(tmp_path, change, rope_theta=1e4)), "pairing")
    assert (finding.status, finding.layers) == ("fault", (1,))


def test_untrained_weights_cannot_tell(tmp_path: Path) -> None:
    report = check(llama(tmp_path, rope_theta=1e4))
    assert found(report, "pairing").status == "cannot_tell"
    assert found(report, "pairing").evidence["weights"] is None
    assert found(report, "initial-values").status == "cannot_tell"


# position tables


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_trained_table(tmp_path: Path, std: float) -> None:
    report = check(bert(tmp_path, smooth_table(std=std)))
    assert raised(report) == {}
    assert found(report, "position-table").evidence["state"] == "trained"


@pytest.mark.parametrize(("std", "status"), [(0.02, "fault"), (0.5, "cannot_tell")])
@pytest.mark.parametrize("seed", range(3))
def test_random_table(tmp_path: Path, std: float, status: str, seed: int) -> None:
    """With large entries a table that was trained may look like a fresh one."""
    finding = found(check(bert(tmp_path, random_table(seed=seed, std=std))), "position-table")
    assert (finding.status, finding.evidence["state"]) == (status, "random")


def test_random_table_with_a_common_offset(tmp_path: Path) -> None:
    """A mean row makes all rows alike without any order; it must not pass for training."""
    offset = 5 * random_table(1, 32, seed=9)
    assert raised(check(bert(tmp_path, random_table() + offset)))["position-table"] == "fault"


def test_unordered_but_trained_table(tmp_path: Path) -> None:
    """Neighbours unrelated, yet a few directions carry most of it: not what chance makes."""
    random = np.random.default_rng(0)
    table = random.standard_normal((128, 3)) @ random.standard_normal((3, 32)) + 0.1 * random.standard_normal(
        (128, 32)
    )
    assert raised(check(bert(tmp_path, table))) == {}


@pytest.mark.parametrize("start", [40, 77])
def test_trained_up_to_a_position(tmp_path: Path, start: int) -> None:
    table = smooth_table()
    table[start:] = random_table()[start:]
    report = check(bert(tmp_path, table))
    assert raised(report) == {"position-table": "warning"}
    assert abs(found(report, "position-table").evidence["untrained_from"] - start) <= 3


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({}, "interleaved, base 10000, size 1"),
        ({"scale": 0.3}, "interleaved, base 10000, size 0.3"),
        ({"layout": "half"}, "half, base 10000, size 1"),
        ({"offset": 1}, "interleaved, base 10000, counted from 1, size 1"),
        ({"base": 300.0}, "interleaved, base 300, size 1"),
    ],
)
def test_sinusoid_in_disguise(tmp_path: Path, options: dict[str, Any], known: str) -> None:
    made = sinusoidal(32, **options).input
    assert made is not None
    report = check(bert(tmp_path, made.vectors(np.arange(128))))
    assert raised(report) == {}
    finding = found(report, "position-table")
    assert finding.evidence["state"] == "sinusoid"
    assert finding.evidence["sinusoid"] == known


def test_sinusoid_of_frequencies_of_its_own(tmp_path: Path) -> None:
    made = sinusoidal(32).input
    assert made is not None
    finding = found(check(bert(tmp_path, made.vectors(0.7 * np.arange(128)))), "position-table")
    assert finding.evidence["state"] == "sinusoid"
    assert finding.evidence["sinusoid"] == "other"


def test_half_precision_sinusoid(tmp_path: Path) -> None:
    made = sinusoidal(32).input
    assert made is not None
    rounded = made.vectors(np.arange(128)).astype(np.float16).astype(np.float32)
    assert found(check(bert(tmp_path, rounded)), "position-table").evidence["state"] == "sinusoid"


def test_zero_rows(tmp_path: Path) -> None:
    table = smooth_table()
    table[100:] = 0
    assert raised(check(bert(tmp_path, table)))["dead-rows"] == "warning"
    assert found(check(bert(tmp_path, np.zeros((64, 32)))), "position-table").status == "fault"


def test_repeated_rows(tmp_path: Path) -> None:
    table = smooth_table(64)
    report = check(bert(tmp_path, np.concatenate([table, table])))
    assert raised(report) == {"repeated-rows": "warning"}


def test_reserved_rows_of_roberta_raise_nothing(tmp_path: Path) -> None:
    table = smooth_table(130)
    table[:2] = 0  # padding rows, never used

    report = check(bert(tmp_path, table, model_type="roberta", pad_token_id=1))
    assert raised(report) == {}
    assert found(report, "context").evidence == {"claimed": 130, "rows": 130, "reserved": 2}


# context


def test_claimed_positions_beyond_the_table(tmp_path: Path) -> None:
    report = check(bert(tmp_path, smooth_table(), max_position_embeddings=512))
    assert raised(report) == {"context": "fault"}
    assert found(report, "context").evidence["claimed"] == 512


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"rope_theta": 1e4}, "ok"),
        ({"rope_theta": 10.0}, "warning"),  # base 10: the slowest pair turns 75 times
        ({"rope_theta": 1e4, "max_position_embeddings": 131072}, "cannot_tell"),
        ({"rope_theta": 10.0, "model_type": "mistral", "sliding_window": 64}, "cannot_tell"),
    ],
)
def test_turns_of_the_slowest_pair(tmp_path: Path, settings: dict[str, Any], status: str) -> None:
    report = check(llama(tmp_path, **settings), weights=False)
    assert found(report, "context").status == status


def test_windows(tmp_path: Path) -> None:
    path = llama(tmp_path, rope_theta=1e4, model_type="mistral", sliding_window=64)
    assert raised(check(path)) == {"windows": "warning"}  # 3 x 63 tokens of 4096
    wide = llama(tmp_path / "wide", rope_theta=1e4, model_type="mistral", sliding_window=2048)
    report = check(wide)
    assert raised(report) == {}
    assert found(report, "windows").evidence["reach"] == [2047]


# biases


def test_alibi_slopes(tmp_path: Path) -> None:
    path = llama(tmp_path, rope_theta=1e4, num_attention_heads=4, num_key_value_heads=4)
    for heads in (4,):
        assert found(with_encoding(path, alibi(heads)), "alibi-slopes").status == "ok"
        assert (
            found(with_encoding(path, alibi(heads, slope_dtype="bfloat16", scale=0.2)), "alibi-slopes").status == "ok"
        )
    # the released code of one paper: e^{-h/H}
    steep = np.exp(-np.arange(1, 5) / 4)
    assert raised(with_encoding(path, alibi(4, slopes=steep))) == {"alibi-slopes": "warning"}
    assert raised(with_encoding(path, alibi(4, max_bias=2.0))) == {"alibi-slopes": "warning"}
    assert raised(with_encoding(path, alibi(4, slopes=-steep))) == {"alibi-slopes": "fault"}


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_table(tmp_path: Path, bidirectional: bool) -> None:
    path = llama(tmp_path, rope_theta=1e4, num_attention_heads=4, num_key_value_heads=4)
    random = np.random.default_rng(0)
    steps = np.cumsum(random.standard_normal((16, 4)), axis=0)
    smooth = np.concatenate([steps, -steps]) if bidirectional else np.repeat(steps, 2, axis=0)
    assert found(with_encoding(path, t5(smooth, bidirectional=bidirectional)), "t5-bias").status == "ok"
    fresh = random.standard_normal((32, 4)) * 0.05
    assert raised(with_encoding(path, t5(fresh, bidirectional=bidirectional))) == {"t5-bias": "warning"}
    assert raised(with_encoding(path, t5(np.zeros((32, 4)), bidirectional=bidirectional))) == {"t5-bias": "fault"}


# copies and dead heads


def test_copied_layers(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for part in "qkvo":
            name = "model.layers.{}.self_attn." + part + "_proj.weight"
            tensors[name.format(2)] = tensors[name.format(0)].copy()

    report = check(llama(tmp_path, change, rope_theta=1e4))
    assert raised(report) == {"identical-layers": "warning"}
    assert found(report, "identical-layers").layers == (0, 2)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_dead_head(tmp_path: Path, part: str) -> None:
    def change(tensors: Tensors) -> None:
        tensors[f"model.layers.1.self_attn.{part}_proj.weight"][32:] = 0

    report = check(llama(tmp_path, change, rope_theta=1e4))
    assert raised(report) == {"dead-heads": "warning"}
    assert found(report, "dead-heads").evidence["heads"] == [(1, 1)]


def test_dead_output(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.o_proj.weight"][:, :32] = 0

    report = check(llama(tmp_path, change, rope_theta=1e4))
    assert found(report, "dead-heads").evidence == {"part": "output", "heads": [(0, 0)]}


# MLA


def deepseek(directory: Path, rope_dim: int = 8) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=rope_dim,
        v_head_dim=8,
        vocab_size=16,
        first_k_dense_replace=1,
    )
    transformers.DeepseekV3ForCausalLM(config).save_pretrained(directory)
    return directory


def test_mla_width(tmp_path: Path) -> None:
    path = deepseek(tmp_path)
    report = check(path)
    assert raised(report) == {}
    assert found(report, "mla-width").evidence == {"turning": 8, "head_dim": 24}
    # content channels turned as well
    assert found(with_encoding(path, mla(12, 12)), "mla-width").status == "fault"
    assert found(with_encoding(path, learned(smooth_table(64, 32))), "mla-width").status == "fault"
    assert with_encoding(path, NONE).find("mla-width") is None
