"""Scores against transformers' own losses and plain numpy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toposcope.core.errors import BadConfig, BadValue
from toposcope.models.load import Reference
from toposcope.models.score import HIDDEN_SHARE, as_number, kind_of, pool, trial, trial_loss

torch = pytest.importorskip("torch", reason="scores need torch: pip install torch")
hf = pytest.importorskip("transformers", reason="scores need transformers: pip install transformers")

from tests.reference.tiny import build  # noqa: E402 - it needs both

IDS = np.random.default_rng(0).integers(4, 50, 23)


def reference(model: Any, *, mask: int | None = 3) -> Reference:
    return Reference(Path("tiny"), model, SimpleNamespace(mask_token_id=mask, all_special_ids=[0, 1, 2, 3]))


def outcome(model: Any, each: Any) -> Any:
    with torch.no_grad():
        return model(**each.inputs)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bloom", "deepseek_v3"])
def test_next_token_is_their_loss(name: str) -> None:
    model = build(name)
    each = trial(reference(model), IDS)
    given = torch.from_numpy(IDS)[None]
    with torch.no_grad():
        theirs = float(model(input_ids=given, labels=given).loss)
    assert kind_of(model) == "next token"
    assert float(trial_loss(each, outcome(model, each))) == pytest.approx(theirs, abs=1e-6)


def test_the_second_half_is_predicted_from_the_place_before_it() -> None:
    model = build("llama")
    each = trial(reference(model), IDS, second_half=True)
    given = torch.from_numpy(IDS)[None]
    labels = given.clone()
    labels[0, :12] = -100  # 23 tokens: the second half begins at 12
    with torch.no_grad():
        theirs = float(model(input_ids=given, labels=labels).loss)
    assert float(trial_loss(each, outcome(model, each))) == pytest.approx(theirs, abs=1e-6)


def test_only_the_logits_that_count_are_computed() -> None:
    model = build("llama")
    each = trial(reference(model), IDS, second_half=True)
    assert outcome(model, each).logits.shape == (1, 11, 50)


def test_masked_tokens_are_hidden_and_their_loss_is_theirs() -> None:
    model = build("bert")
    each = trial(reference(model), IDS, seed=5)
    assert kind_of(model) == "masked token"
    hidden = np.flatnonzero(each.inputs["input_ids"][0].numpy() != IDS)
    assert hidden.tolist() == each.positions_P.tolist()
    assert len(hidden) == round(HIDDEN_SHARE * len(IDS))
    labels = torch.full((1, len(IDS)), -100)
    labels[0, hidden] = torch.from_numpy(IDS[hidden])
    with torch.no_grad():
        theirs = float(model(input_ids=each.inputs["input_ids"], labels=labels).loss)
    assert float(trial_loss(each, outcome(model, each))) == pytest.approx(theirs, abs=1e-6)


def test_hidden_positions_follow_the_seed_the_half_and_the_special_tokens() -> None:
    model = build("bert")
    ids = np.concatenate([[1], IDS, [2]])

    def positions(**options: Any) -> list[int]:
        return trial(reference(model), ids, **options).positions_P.tolist()

    assert positions(seed=1) == positions(seed=1)
    assert len({tuple(positions(seed=1, number=number)) for number in range(8)}) > 1
    for number in range(20):
        assert not {0, len(ids) - 1} & set(positions(number=number))
        assert min(positions(number=number, second_half=True)) >= 13


def test_a_continuation_is_their_loss_of_the_second_half() -> None:
    model = build("t5")
    each = trial(reference(model), IDS)
    given = torch.from_numpy(IDS)[None]
    with torch.no_grad():
        theirs = float(model(input_ids=given[:, :12], labels=given[:, 12:]).loss)
    assert kind_of(model) == "continuation"
    assert float(trial_loss(each, outcome(model, each))) == pytest.approx(theirs, abs=1e-6)


def test_drift_is_one_minus_the_cosine_of_mean_outputs() -> None:
    model, other = (
        hf.BertModel(hf.BertConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, vocab_size=50)).eval()
        for _ in range(2)
    )
    each = trial(reference(model), IDS)
    assert kind_of(model) == "drift"
    mine, theirs = (outcome(model, each), outcome(other, each))
    a, b = (out.last_hidden_state[0].double().mean(0).numpy() for out in (mine, theirs))
    expected = 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert float(trial_loss(each, theirs, pool(each, mine))) == pytest.approx(expected, abs=1e-12)
    assert float(trial_loss(each, mine, pool(each, mine))) == pytest.approx(0, abs=1e-12)


def test_what_cannot_be_scored_says_so() -> None:
    model = build("bert")
    with pytest.raises(BadConfig, match="mask token"):
        trial(reference(model, mask=None), IDS)
    with pytest.raises(BadValue, match="special tokens"):
        trial(reference(model), np.array([0, 1, 2]))
    with pytest.raises(BadValue, match="NaN"):
        as_number(torch.tensor(float("nan")))
