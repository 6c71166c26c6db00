"""Ablation of real models: SmolLM2 by its loss, RXNMapper by hidden tokens, MiniLM by the drift of its output."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from toposcope.core.errors import NotFound
from toposcope.models.ablation.check import prove
from toposcope.models.ablation.result import summarise
from toposcope.models.ablation.runner import Heads, ablation_runner, texts_of
from toposcope.models.ablation.screen import estimates
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, locate, read_text

pytestmark = pytest.mark.slow

REACTIONS = """\
CC(=O)O.OCC>>CC(=O)OCC
CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1
O=C(O)c1ccccc1.CO>>COC(=O)c1ccccc1
CCBr.[OH-]>>CCO
c1ccccc1.ClC(C)=O>>CC(=O)c1ccccc1
O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1
BrCCBr.NCCN>>C1CNCCN1
OB(O)c1ccccc1.Brc1ccccc1>>c1ccc(-c2ccccc2)cc1
C=CC=C.C=CC=O>>O=CC1CC=CCC1
CC(=O)CC.[BH4-]>>CC(O)CC
O=C1CCCCC1.NO>>ON=C1CCCCC1
CC(C)=O.C#C>>C#CC(C)(C)O
Nc1ccccc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccccc1
CCOC(=O)C.CCN>>CCNC(C)=O
ClCc1ccccc1.[C-]#N>>N#CCc1ccccc1
OCc1ccccc1>>O=Cc1ccccc1
C=Cc1ccccc1.BrBr>>BrCC(Br)c1ccccc1
CC(O)C>>CC(C)=O
O=[N+]([O-])c1ccccc1>>Nc1ccccc1
CCO.CC(=O)Cl>>CCOC(C)=O
"""


def reference_of(name: str) -> Reference:
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"running {name} needs {package}: pip install {package}")
    try:
        locate(name)
        read_text("wiki")
    except NotFound as missing:
        pytest.skip(str(missing))
    return load_reference(name, head=True, attention="sdpa")


def test_smollm2_needs_a_head_of_layer_1_and_no_other_run_changes_it() -> None:
    """Measured once over all 270 heads (docs/ablate.md): 1.0 is the most damaging by far, 12.4 is an ordinary one."""
    import torch

    reference = reference_of("smollm2")
    corpus = cut(reference, read_text("wiki"), tokens=64, count=2, name="wiki", begin=1000)
    texts = texts_of(reference, corpus, ["text"])
    heads: list[Heads] = [((1, 0),), ((12, 4),)]
    with (
        ablation_runner(reference.model, texts) as runner,
        ablation_runner(reference.model, texts, resume=False) as full,
    ):
        assert runner.resumable.blocks == 30
        for each in (runner, full):
            each.measure(heads)
        runner.measure_floor()
        for removed in heads:
            np.testing.assert_allclose(runner.losses(removed), full.losses(removed), atol=1e-6, rtol=0)
        assert runner.damage(heads[0]) > 0.1 > abs(runner.damage(heads[1]))
        floor = runner.floor()
        assert floor is not None
        assert floor.mean() > runner.losses(()).mean() + 1
        guess = estimates(runner, runner.all_heads())
        worst = runner.all_heads()[int(np.argmax(guess))][0]
        assert worst[0] in (0, 1, 24)
    with torch.no_grad():
        given = torch.from_numpy(corpus.sequences[0])[None]
        theirs = float(reference.model(input_ids=given, labels=given).loss)
    assert runner.losses(())[0] == pytest.approx(theirs, abs=1e-5)
    assert prove(reference.model, [(1, 0), (29, 8)], texts[0].trials).holds


def test_rxnmapper_by_hidden_tokens_of_reactions() -> None:
    reference = reference_of("rxnmapper")
    corpus = cut(reference, REACTIONS, tokens=64, count=20, name="reactions", lines=True)
    assert len(corpus.sequences) == 20
    with ablation_runner(reference.model, texts_of(reference, corpus, ["text"])) as runner:
        assert runner.sizes == [8] * 12
        assert "several times" in str(runner.resumable.reason)
        runner.measure(runner.all_heads([0, 5]))
        runner.measure_floor()
        found = summarise(runner)
    assert found.predicts == "masked token"
    base = np.mean(found.texts[0].base)
    assert 0 < base < 2  # it knows its trade: guessing among the tokens of these lines costs over 2.5 nats
    assert found.texts[0].floor is not None
    assert np.mean(found.texts[0].floor) > base + 0.5
    assert [each.layer for each in found.layers] == [0, 5]
    assert len({each.damage["text"] for each in found.heads}) == 16
    assert prove(reference.model, [(0, 1), (11, 7)], runner.texts["text"].trials).holds


def test_minilm_by_the_drift_of_its_output() -> None:
    reference = reference_of("minilm")
    corpus = cut(reference, read_text("wiki"), tokens=48, count=3, name="wiki", begin=1000)
    with ablation_runner(reference.model, texts_of(reference, corpus)) as runner:
        assert runner.resumable.reason is None
        runner.measure(runner.all_heads())
        runner.measure_floor()
        found = summarise(runner)
    assert found.predicts == "drift"
    assert found.texts[0].base == pytest.approx((0, 0, 0), abs=1e-9)
    assert len(found.heads) == 72
    assert all(0 <= each.damage["text"] < 0.5 for each in found.heads)
    assert found.ranked()[0].damage["text"] > 3 * np.median([each.damage["text"] for each in found.heads])
    assert found.texts[0].floor is not None
    assert len(found.layers) == 6
    assert prove(reference.model, [(0, 1), (5, 11)], runner.texts["text"].trials).holds
