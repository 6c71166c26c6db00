"""Pictures of logits against dense algebra: each visible entry counts once; diagonals are averaged before cells."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.models.test_trace import MODELS, ready, texts
from toposcope.core.errors import BadValue
from toposcope.encodings import alibi
from toposcope.models.intervene import captured
from toposcope.models.tracing.logits import SIDE, HeadLogits, picture
from toposcope.models.tracing.measure import most_positional, trace_corpus

torch = pytest.importorskip("torch", reason="running a model needs torch: pip install torch")


def dense(logits: np.ndarray, visible: np.ndarray, cell: int) -> tuple[np.ndarray, np.ndarray]:
    """Both pictures of a matrix, entry by entry; NaN where nothing is visible."""
    length = len(logits)
    fitted = np.zeros_like(logits)
    for t in range(1 - length, length):
        on = np.eye(length, k=-t, dtype=bool) & visible
        if on.any():
            fitted[on] = logits[on].mean()
    starts = range(0, length, cell)
    found = []
    for matrix in (logits, fitted):
        small = np.full((len(starts), len(starts)), np.nan)
        for a, i in enumerate(starts):
            for b, j in enumerate(starts):
                seen = visible[i : i + cell, j : j + cell]
                if seen.any():
                    small[a, b] = matrix[i : i + cell, j : j + cell][seen].mean()
        found.append(small)
    return found[0], found[1]


@pytest.mark.parametrize(("causal", "reach", "biased"), [(True, None, True), (True, 17, False), (False, 40, True)])
def test_cells_are_means_of_visible_entries(causal: bool, reach: int | None, biased: bool) -> None:
    random = np.random.default_rng(0)
    length, cell = 150, 3
    q, k = random.standard_normal((2, length, 8))
    bias = alibi(2).bias if biased else None
    at = np.arange(length)
    offset = at[:, None] - at
    logits = q @ k.T
    if bias is not None:
        logits = logits + bias.table(at, at)[1]
    visible = np.ones_like(offset, dtype=bool) if not causal else offset >= 0
    if reach is not None:
        visible &= np.abs(offset) <= reach
    found = picture(5, HeadLogits(q, k, bias, 1, causal, reach))
    assert (found.name, found.tokens, found.cell) == ("5.1", length, cell)
    assert len(found.logits) == 50 <= SIDE
    whole, toeplitz = dense(logits, visible, cell)
    for ours, theirs in ((found.logits, whole), (found.toeplitz, toeplitz)):
        np.testing.assert_allclose(np.array(ours, dtype=float), theirs, rtol=1e-3, atol=1e-12)
    fitted = dense(logits, visible, 1)[1][visible]
    assert found.share == pytest.approx((fitted**2).sum() / (logits[visible] ** 2).sum(), rel=1e-10)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox"])
def test_they_are_the_model_s_own_logits(family: str) -> None:
    model, corpus = ready(MODELS[family]()), texts(2)
    with captured(model, [1]) as seen, torch.no_grad():
        model(input_ids=torch.from_numpy(corpus.sequences[0])[None])
    q, k = (part[0].double().numpy() for part in (seen[1].query_BHNR, seen[1].key_BGMR))
    logits = q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(1, 2) * seen[1].scaling
    at = np.arange(20)
    visible = at[:, None] >= at
    if family == "mistral":
        visible &= at[:, None] - at < 6
    (found,) = trace_corpus(model, corpus, logits=[(1, 2)]).logits
    whole, toeplitz = dense(logits[2], visible, 1)
    np.testing.assert_allclose(np.array(found.logits, dtype=float), whole, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.array(found.toeplitz, dtype=float), toeplitz, rtol=1e-3, atol=1e-4)


def test_the_most_positional_heads_are_pictured_and_only_traced_ones_can_be() -> None:
    model = ready(MODELS["llama"]())
    found = trace_corpus(model, texts(2), logits=3)
    shares = {(row.layer, row.head): row.median("position") for row in found.heads}
    best = sorted(shares, key=lambda key: -(shares[key] or 0.0))[:3]
    assert [(each.layer, each.head) for each in found.logits] == best == most_positional(found.heads, 3)
    assert found.as_dict()["logits"][0]["logits"][0][1:] == [None] * 19
    assert trace_corpus(model, texts(2)).logits == ()
    with pytest.raises(BadValue, match="not traced") as caught:
        trace_corpus(model, texts(2), layers=[0], logits=[(1, 0)])
    assert "1.0" in str(caught.value)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_pictures_of_what_was_kept_are_those_of_another_pass(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, corpus = ready(MODELS[family]()), texts(2)
    ran: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: ran.append(1))
    kept, first = trace_corpus(model, corpus, logits=2), len(ran)
    monkeypatch.setattr("toposcope.models.tracing.measure.HELD", 0)
    again, second = trace_corpus(model, corpus, logits=2), len(ran) - first
    handle.remove()
    assert second == first + 1
    assert (kept.logits, kept.attention) == (again.logits, again.attention)
    assert kept.logits
