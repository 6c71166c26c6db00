"""A run's configuration: its key, its checks, and what the profile fills in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from toposcope.core.errors import BadEncoding, BadValue, ToposcopeError
from toposcope.lab.config import RunConfig
from toposcope.lab.profiles import PROFILES

PLAIN = RunConfig("distance", "rope")


def test_the_default_is_the_described_model_at_laptop_size() -> None:
    assert PLAIN.settings == {
        "steps": 400,
        "batch": 64,
        "lr": 2e-3,
        "weight_decay": 0.01,
        "betas": [0.9, 0.98],
        "dropout": 0.0,
        "width": 64,
        "layers": 2,
        "heads": 8,
        "kv_heads": None,
        "head_dim": None,
        "ff": 128,
    }
    assert RunConfig("count", "rope").settings["steps"] == 500
    made = PLAIN.model()
    assert (made.vocabulary, made.classes, made.length, made.reads) == (64, 18, 32, "pooled")
    assert PLAIN.switches.names() == ()


def test_the_key_is_the_hash_of_the_canonical_form() -> None:
    told = json.loads(PLAIN.canonical())
    assert told["schema"] == 3
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    assert PLAIN.key() == hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("whose", ["task_origins", "kind_origins"])
def test_another_version_of_a_plug_in_is_another_run(monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    keys = {PLAIN.key()}
    for version in ("1.0", "1.1"):
        brought = {"distance": f"waves {version}", "rope": f"waves {version}"}
        monkeypatch.setattr(f"toposcope.lab.config.{whose}", lambda brought=brought: brought)
        keys.add(PLAIN.key())
    assert len(keys) == 3


def test_equal_runs_have_equal_keys_and_different_ones_different() -> None:
    assert RunConfig("distance", "rotary").key() == PLAIN.key()
    assert replace(PLAIN, steps=400, width=64).key() == PLAIN.key()
    assert RunConfig.from_dict(json.loads(json.dumps(PLAIN.as_dict()))) == PLAIN
    changes = [
        {"seed": 1},
        {"encoding": "rope@heads:0"},
        {"task": "count"},
        {"steps": 10},
        {"lr": 1e-3},
        {"causal": True},
        {"quirks": ("relu_mlp",)},
        {"variant": "published"},
        {"profile": "laptop-m"},
        {"task_options": (("fixed_length", True),)},
        {"probes": False},
        {"kv_heads": 4},
    ]
    keys = {replace(PLAIN, **change).key() for change in changes}
    assert len(keys | {PLAIN.key()}) == len(changes) + 1


def test_a_configuration_with_options_is_read_back() -> None:
    made = RunConfig(
        "distance",
        "rope",
        quirks=("relu_mlp", "-relu_mlp"),
        task_options=(("fixed_length", True),),
        variant="published",
    )
    assert RunConfig.from_dict(json.loads(json.dumps(made.as_dict()))) == made


def test_the_published_variant_is_all_quirks_and_single_ones_can_be_undone() -> None:
    published = RunConfig("distance", "rope", profile="published", variant="published")
    assert published.settings["betas"] == [0.98, 0.9]
    assert published.settings["dropout"] == 0.1
    assert published.make_task().collide
    assert published.make_task().vocabulary == 224
    assert not replace(published, quirks=("-colliding_fillers",)).make_task().collide
    assert replace(published, quirks=("-swapped_betas",)).settings["betas"] == [0.9, 0.98]
    assert RunConfig("count", "rope", variant="published").make_task().vocabulary == 64


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("task", ["distance", "count", "induction"])
@pytest.mark.parametrize("variant", ["described", "published"])
def test_every_profile_makes_a_model(profile: str, task: str, variant: str) -> None:
    for encoding in ("rope", "mla", "t5", "fire"):
        assert RunConfig(task, encoding, profile=profile, variant=variant).model().length > 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"task": "distanse"}, BadValue, "'distance'"),
        ({"encoding": "roppe"}, BadEncoding, "'rope'"),
        ({"profile": "laptop"}, BadValue, "'laptop-"),
        ({"variant": "publish"}, BadValue, "'published'"),
        ({"quirks": ("relu",)}, BadValue, "no quirk"),
        ({"heads": 7}, BadValue, "7 heads"),
        ({"head_dim": 5}, BadEncoding, "pairs"),
        ({"steps": 0}, BadValue, "steps"),
        ({"lr": -1.0}, BadValue, "learning rate"),
        ({"seed": -1}, BadValue, "seed"),
        ({"encoding": "rope@layers:2"}, BadEncoding, "to 1"),
        ({"task_options": (("sides", 3),)}, BadValue, "'sides'"),
    ],
)
def test_mistakes_are_said_before_anything_is_trained(changes: dict, kind: type[ToposcopeError], said: str) -> None:
    with pytest.raises(kind, match=said):
        replace(PLAIN, **changes)


def test_unknown_settings_in_a_file_are_named() -> None:
    with pytest.raises(BadValue, match="'sed'"):
        RunConfig.from_dict({**PLAIN.as_dict(), "sed": 1})
