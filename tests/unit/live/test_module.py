"""`check_module`: planted faults are named, and modules without fault are not called faulty."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import toposcope
from tests.unit.results import holds
from toposcope.checks import Finding
from toposcope.core.errors import BadValue
from toposcope.live.module.check import ModuleCheckResult, check_module

from .modules import (
    Attention,
    alibi_bias,
    along_batch,
    backwards,
    half,
    interleaved,
    partial,
    shifted_by,
    sinusoid,
    still,
    twice_as_fast,
    wrong_stride,
    xpos_key,
    xpos_query,
)

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("none", {"causal": True}),
    ("relative", {"rotate": half}),
    ("relative", {"rotate": half, "causal": True, "kv_heads": 2, "fused": True}),
    ("relative", {"rotate": interleaved, "causal": True}),
    ("relative", {"rotate": partial}),
    ("relative", {"rotate": half, "qk_norm": True, "causal": True}),
    ("relative", {"rotate": half, "softcap": 20.0, "causal": True}),
    ("relative", {"rotate": half, "log_length": True, "causal": True}),
    ("relative", {"rotate": half, "window": 4, "causal": True}),
    ("relative", {"rotate": half, "window": 3}),
    ("relative", {"rotate": half, "sink": True, "causal": True}),
    ("none", {"sink": True, "causal": True}),
    ("relative", {"rotate": shifted_by(1)}),  # positions counted from 1, for both
    ("relative", {"rotate": xpos_query, "rotate_key": xpos_key, "causal": True}),
    ("relative", {"bias": alibi_bias, "causal": True}),
    ("relative", {"bias": alibi_bias}),
    ("relative", {"bias": alibi_bias, "rotate": half}),
    ("absolute", {"added": sinusoid}),
    ("absolute", {"added": sinusoid, "causal": True, "fused": True}),
    ("absolute", {"added": sinusoid, "added_to_values": False}),
]

# the id of the finding, what it must know, and how the module is built
PLANTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("batch-axis", {"acts": "rotation"}, {"rotate": along_batch}),
    ("batch-axis", {"acts": "rotation"}, {"rotate": along_batch, "causal": True, "fused": True, "kv_heads": 2}),
    ("not-a-rotation", {}, {"rotate": wrong_stride}),
    ("not-a-rotation", {}, {"rotate": wrong_stride, "causal": True, "fused": True}),
    ("absolute-beside-relative", {}, {"rotate": half, "added": sinusoid}),
    ("absolute-beside-relative", {}, {"rotate": interleaved, "added": sinusoid, "causal": True}),
    ("absolute-beside-relative", {}, {"rotate": half, "added": sinusoid, "added_to_values": False}),
    ("absolute-beside-relative", {}, {"bias": alibi_bias, "added": sinusoid}),
    ("keys-not-rotated", {}, {"rotate": half, "rotate_key": still}),
    ("keys-not-rotated", {}, {"rotate": interleaved, "rotate_key": still, "causal": True, "fused": True}),
    ("queries-not-rotated", {}, {"rotate": still, "rotate_key": half}),
    ("offset-zero", {"apart": 1}, {"rotate": half, "rotate_key": shifted_by(1)}),
    ("offset-zero", {"apart": 1}, {"rotate": shifted_by(1), "rotate_key": half, "causal": True, "fused": True}),
    ("offset-zero", {"apart": 1}, {"rotate": interleaved, "rotate_key": shifted_by(1, interleaved), "kv_heads": 2}),
    ("offset-zero", {"apart": 2}, {"rotate": half, "rotate_key": shifted_by(-2), "qk_norm": True}),
    ("opposite-turns", {}, {"rotate": half, "rotate_key": backwards}),
    ("not-relative", {}, {"rotate": half, "rotate_key": twice_as_fast}),
]


def name(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={getattr(value, '__name__', value)}" for key, value in options.items()) or "plain"


def fault(report: ModuleCheckResult) -> Finding:
    assert len(report.faults) == 1, [finding.title for finding in report.faults]
    return report.faults[0]


def mispaired(report: ModuleCheckResult) -> tuple[str, str, str]:
    """The one fault, the pairs that the weights are made for, and those that turn."""
    found = fault(report)
    return found.id, found.evidence["weights"], found.evidence["rotation"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "options"), GOOD, ids=[name(options) for _, options in GOOD])
def test_good_modules_are_named_and_not_blamed(kind: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    report = check_module(Attention(**options).to(dtype), expects=kind)  # type: ignore[arg-type]
    assert report.position == kind
    assert report.worst == "ok", [finding.title for finding in report.findings if finding.status != "ok"]
    assert report.causal == bool(options.get("causal"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("id", "known", "options"), PLANTED, ids=[f"{i}: {name(options)}" for i, _, options in PLANTED]
)
def test_planted_faults_are_named(
    id: str, known: dict[str, Any], options: dict[str, Any], dtype: torch.dtype
) -> None:
    found = fault(check_module(Attention(**options).to(dtype)))
    assert found.id == id
    assert known.items() <= found.evidence.items()


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_do_not_depend_on_the_seed(seed: int) -> None:
    assert check_module(Attention(rotate=half, causal=True, seed=seed), seed=seed).worst == "ok"
    assert fault(check_module(Attention(rotate=wrong_stride, seed=seed), seed=seed)).id == "not-a-rotation"
    off = Attention(rotate=half, rotate_key=shifted_by(1), seed=seed)
    assert fault(check_module(off, seed=seed)).id == "offset-zero"


def test_batch_axis_rotation_leaves_no_position() -> None:
    report = check_module(Attention(rotate=along_batch), expects="relative")
    assert report.position == "none"
    assert {finding.id for finding in report.faults} == {"batch-axis", "expected"}


def other_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from half-split to interleaved order."""
    rows = weight.shape[0] // heads
    return weight.view(heads, 2, rows // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def reordered(module: Attention, rotate: Any) -> Attention:
    """The same weights in interleaved order, under another rotation."""
    other = copy.deepcopy(module)
    other.rotate = other.rotate_key = rotate
    for part in (other.q_proj, other.k_proj):
        part.weight.data = other_order(part.weight.data, module.heads)
        if part.bias is not None:
            part.bias.data = other_order(part.bias.data, module.heads)
    return other


def test_interleaved_weights_with_half_split_rotation_against_a_reference() -> None:
    good = Attention(rotate=half)
    wrong = reordered(good, half)
    assert check_module(wrong).worst == "ok"  # without a reference, nothing is wrong with it
    assert mispaired(check_module(wrong, reference=good)) == ("reference", "interleaved", "half-split")


def test_half_split_rotation_where_the_reference_turns_neighbours() -> None:
    reference, wrong = Attention(rotate=interleaved, causal=True), Attention(rotate=half, causal=True)
    assert mispaired(check_module(wrong, reference=reference)) == ("reference", "interleaved", "half-split")
    assert mispaired(check_module(reference, reference=wrong)) == ("reference", "half-split", "interleaved")


def test_reordered_weights_under_the_other_rotation_agree() -> None:
    good = Attention(rotate=half)
    report = check_module(reordered(good, interleaved), reference=good)
    assert report.worst == "ok"
    found = report.find("reference")
    assert found is not None
    assert (found.status, found.evidence["difference"] < 1e-3) == ("ok", True)


def test_a_reference_may_be_a_function() -> None:
    good = Attention(rotate=half).eval()
    assert check_module(good, reference=lambda x: good(x)).worst == "ok"
    assert fault(check_module(good, reference=lambda x: 2 * good(x))).id == "reference"


def test_the_pairing_can_be_stated() -> None:
    module = Attention(rotate=half)
    assert check_module(module, pairing="half").worst == "ok"
    assert mispaired(check_module(module, pairing="interleaved")) == ("pairing", "interleaved", "half-split")


def trained_like(rotate: Any, order: str) -> Attention:
    """Weights with the sine part that training gives true pairs: a key's second channel follows a query's first."""
    module = Attention(width=128, heads=2, rotate=rotate, linear_bias=False)
    q = module.q_proj.weight.data.view(2, 64, 128)
    k = module.k_proj.weight.data.view(2, 64, 128)
    first = list(range(32)) if order == "half" else list(range(0, 64, 2))
    second = list(range(32, 64)) if order == "half" else list(range(1, 64, 2))
    k[:, second] += 0.5 * q[:, first]
    k[:, first] -= 0.5 * q[:, second]
    return module


@pytest.mark.parametrize(("rotate", "order"), [(half, "half"), (interleaved, "interleaved")])
def test_trained_weights_tell_their_pairing(rotate: Any, order: str) -> None:
    report = check_module(trained_like(rotate, order))
    assert report.worst == "ok"
    found = report.find("pairing")
    assert found is not None
    assert found.evidence["turned"] > 6 > found.evidence["other"]


@pytest.mark.parametrize(
    ("rotate", "order", "pairs"),
    [(half, "interleaved", ("interleaved", "half-split")), (interleaved, "half", ("half-split", "interleaved"))],
)
def test_trained_weights_under_the_wrong_rotation(rotate: Any, order: str, pairs: tuple[str, str]) -> None:
    assert mispaired(check_module(trained_like(rotate, order))) == ("pairing", *pairs)


def with_positions(module: Any, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return module(x, positions)


def test_shift_through_positions() -> None:
    report = check_module(Attention(rotate=half, causal=True), call=with_positions)
    found = report.find("shift")
    assert found is not None
    assert found.status == "ok"
    assert check_module(Attention(added=sinusoid), call=with_positions).position == "absolute"


def test_shift_alone_tells_relative_from_absolute() -> None:
    """With the softmax hidden and queries and keys alone carrying position, only the shift can tell."""
    hidden = {"hidden": True, "added_to_values": False}
    assert check_module(Attention(rotate=half, **hidden), call=with_positions).position == "relative"
    assert check_module(Attention(added=sinusoid, **hidden), call=with_positions).position == "absolute"


def test_positions_that_reach_only_the_keys() -> None:
    """With a cache, queries counted from 0 and keys from the start of the text: right at 0, wrong when shifted."""

    class Cached(Attention):
        def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
            at = torch.arange(x.shape[1])
            self.rotate_key = half if positions is None else lambda v, _: half(v, positions)
            return super().forward(x, at)

    assert fault(check_module(Cached(rotate=half), call=with_positions)).id == "shift"


def test_a_hidden_softmax_is_said_to_be_hidden() -> None:
    report = check_module(Attention(rotate=half, hidden=True))
    assert report.position == "unclear"
    assert report.counts == {"fault": 0, "warning": 1, "cannot_tell": 0, "ok": 1}
    assert {probe.name for probe in report.probes if not probe.ran} >= {
        "one token everywhere, logits",
        "shift the text",
    }


@pytest.mark.parametrize(
    ("id", "known", "options"), PLANTED, ids=[f"{i}: {name(options)}" for i, _, options in PLANTED]
)
def test_qk_given_for_a_hidden_softmax(id: str, known: dict[str, Any], options: dict[str, Any]) -> None:
    """The same faults, through the user's own functions instead of watching."""
    module = Attention(**{**options, "hidden": True, "fused": False})
    report = check_module(module, qk=lambda m, x: m.queries_and_keys(x), logits=lambda m, x: m.logits(x))
    found = [finding for finding in report.faults if finding.id == id]
    assert len(found) == 1
    assert known.items() <= found[0].evidence.items()


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        (set(), {"rotate": half}),
        (set(), {"bias": alibi_bias, "causal": True}),
        ({"keys-not-rotated"}, {"rotate": half, "rotate_key": still}),
        ({"not-relative"}, {"rotate": wrong_stride}),
        ({"absolute-beside-relative"}, {"rotate": half, "added": sinusoid, "causal": True}),
    ],
)
def test_logits_alone(ids: set[str], options: dict[str, Any]) -> None:
    report = check_module(Attention(**options, hidden=True), logits=lambda m, x: m.logits(x))
    assert {finding.id for finding in report.faults} == ids
    if not ids:
        assert report.position == "relative"


def test_causality_is_found_and_compared() -> None:
    assert fault(check_module(Attention(rotate=half), causal=True)).id == "mask"
    assert fault(check_module(Attention(rotate=half, causal=True), causal=False)).id == "mask"


@pytest.mark.parametrize(
    ("expects", "options"),
    [("relative", {}), ("none", {"rotate": half}), ("absolute", {"rotate": half}), ("relative", {"added": sinusoid})],
)
def test_expectations_are_held_against_what_is_found(expects: Any, options: dict[str, Any]) -> None:
    assert fault(check_module(Attention(**options), expects=expects)).id == "expected"


def test_both_kinds_may_be_meant() -> None:
    report = check_module(Attention(rotate=half, added=sinusoid), expects="absolute+relative")
    assert (report.position, report.worst) == ("absolute+relative", "ok")


def test_the_module_is_left_as_it_was() -> None:
    module = Attention(rotate=half, dropout=0.5).train()
    module.dropout.eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    threads = torch.backends.mha.get_fastpath_enabled()
    check_module(module)
    assert module.training
    assert not module.dropout.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.backends.mha.get_fastpath_enabled() == threads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_tested_on_a_copy(dtype: torch.dtype) -> None:
    module = Attention(rotate=half).to(dtype)
    report = check_module(module)
    assert (report.position, report.worst) == ("relative", "ok")
    assert report.probes[-1].name == "precision"
    assert module.q_proj.weight.dtype == dtype
    assert fault(check_module(Attention(rotate=wrong_stride).to(dtype))).id == "not-a-rotation"


def test_the_result_of_a_module(tmp_path: Path) -> None:
    result = toposcope.check(Attention(rotate=wrong_stride))
    assert isinstance(result, ModuleCheckResult)
    data = holds(result, tmp_path)
    assert data["schema"] == "toposcope/check-module/2"
    assert data["worst"] == "fault"
    assert data["findings"][0]["what_to_do"]
    assert result.rows("probes")[0]["ran"] is True


def test_bad_arguments() -> None:
    module = Attention()
    with pytest.raises(BadValue, match="length=2"):
        check_module(module, length=2)
    with pytest.raises(BadValue, match="batch=1"):
        check_module(module, batch=1)
    with pytest.raises(BadValue, match="width"):
        check_module(nn.Identity())
    with pytest.raises(BadValue, match="NoneType"):
        check_module(module, call=lambda m, x: None)


def test_modules_without_attention() -> None:
    """A map of each token alone has no position; a convolution over three tokens is relative, by the shift alone."""
    assert check_module(nn.Linear(8, 8)).position == "none"

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv1d(8, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            padded = torch.cat([x[:, :1], x, x[:, -1:]], dim=1)  # edges repeat: one token everywhere stays so
            return self.inner(padded.transpose(1, 2)).transpose(1, 2)

    report = check_module(Convolution(), width=8)
    assert (report.position, report.worst) == ("relative", "ok")
