"""Frequencies and the length of the text: what the configuration says, what transformers does, what is planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.live.tiny_models import DTYPES, around, cast, dynamic, longrope, rotary
from toposcope.checkpoints.live import view
from toposcope.checks import Finding
from toposcope.live.lengths import lengths
from toposcope.live.reference import fresh
from toposcope.live.running import Running

hf = pytest.importorskip("transformers")


def phi3(original: int = 32) -> Any:
    return rotary("Phi3", 4 * original, original_max_position_embeddings=original, rope_parameters=longrope(original))


def found(model: Any, dtype: torch.dtype = torch.float32) -> list[Finding]:
    return lengths(Running(cast(model, dtype)), view(model))


def said(findings: list[Finding]) -> set[tuple[str, Any]]:
    return {(each.status, each.evidence["bug"]) for each in findings}


def seen(findings: list[Finding], status: str, bug: str) -> dict[str, str]:
    evidence = next(each.evidence for each in findings if (each.status, each.evidence["bug"]) == (status, bug))
    return dict(evidence["seen"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "settings", [{}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}]
)
def test_fixed_frequencies(settings: dict[str, Any], dtype: torch.dtype) -> None:
    model = rotary(rope_parameters={"rope_theta": 1e4, "rope_type": "default", **settings})
    assert said(found(model, dtype)) == {("ok", None)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_transformers_does_with_longrope(dtype: torch.dtype) -> None:
    """A cache across the original context is stale in `forward`; `generate` is renewed in Phi-3, not in Llama."""
    theirs = found(phi3(), dtype)
    assert said(theirs) == {("warning", "cache-stale"), ("ok", None)}
    assert set(seen(theirs, "warning", "cache-stale")) == {"cache"}
    assert {"at", "above", "generate", "short, after longer"} <= set(theirs[-1].evidence["tried"])
    theirs = found(rotary("Llama", 128, rope_parameters=longrope(32)), dtype)
    assert said(theirs) == {("warning", "cache-stale"), ("ok", None)}
    assert set(seen(theirs, "warning", "cache-stale")) == {"cache", "generate"}
    assert all(each.evidence.get("reference_behaviour") for each in theirs if each.status == "warning")


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_transformers_does_with_dynamic(dtype: torch.dtype) -> None:
    """Frequencies of a longer text stay until one is shorter than the original context."""
    theirs = found(rotary("Llama", 48, rope_parameters=dynamic()), dtype)
    assert said(theirs) == {("warning", "dynamic-not-reset"), ("warning", "cache-stale"), ("ok", None)}
    assert set(seen(theirs, "warning", "dynamic-not-reset")) == {"at, after longer", "above, after longer"}


@pytest.mark.parametrize(
    ("long", "wrong"),
    [
        (
            lambda length: True,
            {"short", "below", "at", "at, after longer", "below, after longer", "short, after longer"},
        ),
        (lambda length: length >= 32, {"at", "at, after longer"}),
        (lambda length: length > 33, {"above"}),
    ],
)
def test_longrope_chosen_otherwise(long: Callable[[int], bool], wrong: set[str]) -> None:
    model = phi3()
    module = model.model.rotary_emb
    lists = {
        each: hf.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"](model.config, None, seq_len=32 + each)[0]
        for each in (False, True)
    }

    def change(given: dict[str, Any]) -> None:
        chosen = lists[long(int(given["position_ids"].max()) + 1)]
        module.original_inv_freq = module.long_inv_freq = chosen.clone()

    around(module, change)
    findings = found(model)
    assert said(findings) == {("fault", "longrope-choice")}
    assert set(seen(findings, "fault", "longrope-choice")) == wrong


def test_a_cache_that_generate_keeps() -> None:
    model = phi3()
    plain = hf.generation.utils.GenerationMixin.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = plain.__get__(model)
    findings = found(model)
    assert ("fault", "cache-stale") in said(findings)
    assert set(seen(findings, "fault", "cache-stale")) == {"generate"}


def test_dynamic_that_is_never_reset() -> None:
    model = rotary("Llama", 48, rope_parameters=dynamic())
    model.model.rotary_emb.original_max_seq_len = 0
    findings = found(model, torch.bfloat16)
    assert {"below, after longer", "short, after longer"} == set(seen(findings, "fault", "dynamic-not-reset"))


def test_dynamic_that_is_constant() -> None:
    model = rotary("Llama", 48, rope_parameters=dynamic())
    module = model.model.rotary_emb
    module.inv_freq = hf.modeling_rope_utils.ROPE_INIT_FUNCTIONS["dynamic"](model.config, None, seq_len=300)[0]
    module.max_seq_len_cached, module.original_max_seq_len = 10**9, 0
    assert said(found(model)) == {("fault", "dynamic-not-reset")}


def test_a_context_that_cannot_be_run() -> None:
    """Positions alone tell the length; a cache that long is not filled."""
    original = 20_000
    findings = found(phi3(original))
    assert said(findings) == {("warning", "cache-stale"), ("ok", None)}
    ok = findings[-1]
    assert ok.evidence["tried"]["above"] == original + 1
    assert "generate" not in ok.evidence["tried"]
    assert ok.evidence["notes"]


def test_other_frequencies_tell_nothing() -> None:
    model = rotary()
    model.model.rotary_emb.inv_freq.mul_(1.3)
    assert said(found(model)) == {("cannot_tell", None)}


def test_a_fresh_copy_is_of_transformers_own_class() -> None:
    class Own(hf.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        pass

    model = rotary("Llama", 128, rope_parameters=longrope(64))
    copy = fresh(Running(model), original_max_position_embeddings=32)
    assert copy is not None
    assert type(copy.model) is type(model)
    assert copy.model.config.rope_parameters["original_max_position_embeddings"] == 32
    assert fresh(Running(Own(model.config).eval())) is None
