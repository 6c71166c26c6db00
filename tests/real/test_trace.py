"""SmolLM2, MiniLM and RXNMapper on real texts: which heads look back, and whether the weights would have told."""

from __future__ import annotations

import importlib.util

import pytest

from toposcope.core.errors import NotFound
from toposcope.models.corpus import Corpus, cut
from toposcope.models.load import Reference, load_reference, locate, read_text
from toposcope.models.tracing.measure import trace_corpus
from toposcope.models.tracing.result import TraceResult

pytestmark = pytest.mark.slow

REACTIONS = """
CC(C)(C)OC(=O)N1CCC(N)CC1.O=C(Cl)c1ccccc1>>CC(C)(C)OC(=O)N1CCC(NC(=O)c2ccccc2)CC1
CCO.CC(=O)Cl>>CC(=O)OCC
Brc1ccccc1.OB(O)c1ccncc1>>c1ccc(-c2ccncc2)cc1
CC(=O)c1ccccc1.NO>>CC(=NO)c1ccccc1
"""


def on(name: str, content: str | None = None, *, lines: bool = False, **sizes: int) -> tuple[Reference, Corpus]:
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"running {name} needs {package}: pip install {package}")
    try:
        locate(name)
        text = read_text("wiki") if content is None else content
    except NotFound as missing:
        pytest.skip(str(missing))
    reference = load_reference(name, attention="sdpa")
    return reference, cut(reference, text, name="wiki", lines=lines, **sizes)


@pytest.fixture(scope="module")
def smollm2() -> TraceResult:
    return trace_corpus(*on("smollm2", tokens=128, count=1, begin=1000))


def test_heads_of_smollm2_that_look_back(smollm2: TraceResult) -> None:
    assert len(smollm2.heads) == 270
    assert smollm2.rebuilt < 1e-4
    assert {each.name for each in smollm2.named("previous")} == {"16.0", "11.1", "1.2", "2.1", "19.3"}
    assert all(each.peak_offset == 1 for each in smollm2.named("previous"))
    assert len(smollm2.named("first")) > 50
    assert "17.3" in {each.name for each in smollm2.named("induction")}
    assert all(each.median("maj_gap") is not None for each in smollm2.heads)


def test_what_the_weights_of_smollm2_tell(smollm2: TraceResult) -> None:
    found = smollm2.agreement
    assert found is not None
    assert (len(found.listed), len(found.hits)) == (17, 2)
    assert found.precision == pytest.approx(2 / 17)
    assert found.recall == pytest.approx(0.4)
    assert found.fast.rho is not None
    assert found.contrast.rho is not None
    assert found.fast.rho > 0.6 > found.contrast.rho
    assert len(found.fast_listed) == 10
    assert (found.fast_auc or 0) > 0.95
    assert (found.fast_precision or 0) > (found.precision or 1)


def test_a_head_of_minilm_looks_back_by_position_alone() -> None:
    found = trace_corpus(*on("minilm", tokens=48, count=4, begin=1000), layers=[0, 1])
    back = next(each for each in found.heads if each.name == "0.2")
    assert back.names == ("previous",)
    assert (back.score("previous") or 0) > 0.95
    assert (back.median("gram_position") or 0) > 0.9
    assert "1.8" in {each.name for each in found.named("next")}
    assert found.agreement is None


def test_neighbours_in_rxnmapper() -> None:
    found = trace_corpus(*on("rxnmapper", REACTIONS, lines=True, tokens=128, count=4), layers=[0])
    assert {each.name for each in found.named("previous")} == {"0.3"}
    assert "0.4" in {each.name for each in found.named("next")}
    assert found.sequences == 4
