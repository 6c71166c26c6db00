"""The tokens of SmolLM2 and MiniLM through depth, against a plain loop over transformers' hidden states."""

from __future__ import annotations

import numpy as np
import pytest

from tests.real.test_depth import reference_of
from tests.unit.models.test_stream import plain, seen
from toposcope.models.corpus import cut
from toposcope.models.load import read_text
from toposcope.models.tracing.stream import follow


@pytest.mark.parametrize(("name", "order"), [("smollm2", "sequential"), ("minilm", "post-norm")])
def test_hidden_states_of_a_trained_model(name: str, order: str) -> None:
    reference = reference_of(name)
    corpus = cut(reference, read_text("wiki"), tokens=24, count=2, name="wiki")
    (own, off), left_out = follow(reference, corpus)
    assert not left_out
    assert own.order == off.order == order
    rows = [seen(reference.model, ids, []) for ids in corpus.sequences]
    after = own.after_layers if own.final is None else (*own.after_layers[:-1], own.final)
    for number, state in enumerate(after):
        clouds = [plain(states[number][0].double().numpy()) for states in rows]
        for measure in clouds[0]:
            expected = np.mean([each[measure] for each in clouds])
            assert getattr(state, measure).mean == pytest.approx(expected, rel=1e-9, abs=1e-12), (number, measure)
    assert own.total("attention") > 0  # attention moves tokens together in both, as their MLPs do not
    assert own.total("mlp") < 0
    assert any(abs(state.difference.mean) > 0.01 for state in off.after_layers)
