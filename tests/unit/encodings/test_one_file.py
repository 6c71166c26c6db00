"""A new encoding is one file: it is named, listed, read, built and cited without a line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from toposcope import encodings
from toposcope.encodings import Sizes, make, parse
from toposcope.encodings.registry import built_in, kind_origins, kinds, papers

STEP = '''"""A bias that falls by a step."""

from toposcope.encodings.registry import Kind, Paper
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Encoding, LogitBias

PAPERS = {"somebody2023step": Paper("Somebody", "Steps", "nowhere", 2023)}


def build(sizes, given):
    far = given.get("far", 4)
    fall = lambda at_N, at_M: -1.0 * (abs(at_N[:, None] - at_M) >= far)[None].repeat(sizes.heads, 0)
    return Encoding("step", f"a step at {far}", {"far": far}, bias=LogitBias(sizes.heads, fall, toeplitz=True))


def restored(sizes, said, tensors):
    return build(sizes, {"far": int(tensors["place"][0])})


KINDS = (
    Kind(
        "step",
        "falls by a step",
        "bias",
        build,
        (Parameter.whole("far", 4, "tokens"),),
        {"stair": {"far": 2}},
        tuple(PAPERS),
        learns=("place",),
        trained=restored,
    ),
)
'''


def forget() -> None:
    for cached in (built_in, kinds, papers):
        cached.cache_clear()


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "bias_step.py").write_text(STEP)
    monkeypatch.setattr(encodings, "__path__", [*encodings.__path__, str(tmp_path)])
    forget()
    yield
    sys.modules.pop("toposcope.encodings.bias_step", None)
    forget()


def test_one_file_is_all_it_takes(step: None) -> None:
    names = list(kinds())
    assert names.index("kerple") < names.index("step") < names.index("fire")  # among the biases, by year
    assert kind_origins()["step"] == "toposcope"
    assert papers()["somebody2023step"].year == 2023
    assert str(parse("stair")) == "step:far=2"
    at = np.arange(6)
    table_HNN = make("step", Sizes(16, 2, 8, 64), far=3).bias.table(at, at)  # type: ignore[union-attr]
    np.testing.assert_array_equal(table_HNN[1], -1.0 * (abs(at[:, None] - at) >= 3))


def test_what_it_learns_is_read_back(step: None) -> None:
    from toposcope.checkpoints.families.lab import trained_encoding

    found = trained_encoding(parse("step"), Sizes(16, 2, 8, 64), {"place": np.array([5.0])})
    assert found.parameters["far"] == 5
    assert parse("step").kind.learns == ("place",)


def test_without_the_file_there_is_none() -> None:
    assert "step" not in kinds()
