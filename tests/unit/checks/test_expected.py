"""What a user expects of an encoding against what there is: only what is stated is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toposcope
from toposcope.checks.expected import differences, expectations
from toposcope.core.errors import BadValue
from toposcope.encodings import alibi, learned_init, parse, rope
from toposcope.encodings.rotary_mla import mla

YARN = rope(64, base=500000.0, scaling="yarn", factor=4.0, original_context=1024, context=4096)
GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 64,
    "sliding_window_pattern": 6, "max_position_embeddings": 4096, "query_pre_attn_scalar": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "apart"),
    [
        ("rope", set()),
        ("rope:base=500000", set()),
        ("rope:scaling=yarn,factor=4", set()),
        ("yarn:factor=4,original_context=1024", set()),
        ("rope:base=10000", {"base"}),
        ("rope:scaling=yarn,factor=8", {"factor"}),
        ("rope:scaling=llama3,factor=4", {"scaling"}),
        ("rope:rotary_dim=64", set()),
        ("rope:partial=0.5", {"partial"}),
        ("yarn:factor=4,truncate=false", {"truncate"}),
        ("alibi", {"encoding"}),
        ("none", {"encoding"}),
        ("mla", {"encoding"}),
    ],
)
def test_only_what_is_stated_is_compared(written: str, apart: set[str]) -> None:
    assert differences(parse(written), YARN).keys() == apart


def test_a_factor_that_follows_from_lengths() -> None:
    implied = rope(64, scaling="yarn", original_context=1024, context=4096)
    assert differences(parse("yarn:factor=4"), implied) == {}
    assert differences(parse("yarn:factor=2"), implied) == {"factor": (2.0, 4.0)}


def test_rope_covers_mla_and_not_the_reverse() -> None:
    assert differences(parse("rope:base=10000"), mla(16, 16)) == {}
    assert differences(parse("mla"), mla(16, 16)) == {}
    assert differences(parse("rope"), alibi(4)) == {"encoding": ("rope", "alibi")}
    assert differences(parse("learned"), learned_init(8, 16)) == {}


def found(place: Path, expect: Any, **changes: Any) -> list[Any]:
    path = place / "config.json"
    path.write_text(json.dumps({**GEMMA, **changes}))
    return [each for each in toposcope.check(path, expect=expect).findings if each.id == "expected-encoding"]


def test_groups_of_layers(tmp_path: Path) -> None:
    (one, two) = found(tmp_path, ["sliding=rope:base=10000", "full=rope:base=1000000"])
    assert {one.status, two.status} == {"ok"}
    assert sorted(one.layers) == [0, 1, 2, 3, 4]
    assert two.layers == (5,)


def test_a_fault_names_both_and_the_layers(tmp_path: Path) -> None:
    (wrong,) = found(tmp_path, "rope:base=10000")
    assert wrong.status == "fault"
    assert wrong.layers == (5,)
    assert wrong.evidence["differs"] == {"base": {"expected": 10000.0, "found": 1000000.0}}


def test_a_group_without_layers_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2})
    )
    finding = toposcope.check(path, expect="sliding=rope").find("expected-encoding")
    assert finding is not None
    assert finding.status == "fault"


@pytest.mark.parametrize("written", ["slidding=rope", "local=rope:base=1"])
def test_groups_that_are_none(written: str) -> None:
    with pytest.raises(BadValue):
        expectations(written)
