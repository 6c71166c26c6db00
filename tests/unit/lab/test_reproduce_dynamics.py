"""The released code's facts: the tools of the checks against plain references, and what they found."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.unit.runs.making import shows_itself
from toposcope.encodings import rope
from toposcope.studies.reproduce.dynamics import FACTS, checked, definite, least, rotated_logits
from toposcope.studies.reproduce.page import page
from toposcope.studies.reproduce.reproduce import reproduce


def test_turning_along_the_tokens_gives_rotary_logits_and_along_the_batch_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 4))
    turning = rope(4, pairing="interleaved").rotary
    assert turning is not None
    complex_x = x[..., 0::2] + 1j * x[..., 1::2]
    speeds = 10000.0 ** -np.array([0, 0.5])
    lag = np.arange(5)[:, None] - np.arange(5)
    theirs = np.einsum("bif,bjf,ijf->bij", complex_x, complex_x.conj(), np.exp(1j * lag[..., None] * speeds)).real
    np.testing.assert_allclose(rotated_logits(x, turning, 1), theirs, atol=1e-12)
    np.testing.assert_allclose(rotated_logits(x, turning, 0), x @ np.swapaxes(x, 1, 2), atol=1e-12)


def test_definite_is_definite_and_not_symmetric() -> None:
    made = definite(np.random.default_rng(1), 8)
    assert least(made) == pytest.approx(np.linalg.eigvalsh((made + made.T) / 2).min())
    assert least(made) > 0
    assert np.abs(made - made.T).max() > 0.1


def test_what_the_checks_find() -> None:
    found = {each.id: each for each in checked()}
    assert found.pop("regimes compared by training").verdict == "not measured here"
    assert len(found) == len(FACTS) == 7
    assert {each.verdict for each in found.values()} == {"does not hold"}
    imposed = found["definiteness imposed"].measured
    assert re.findall(r"(\d+) of (\d+)", imposed[0]) == [("0", "50")]  # an orthogonal Q keeps it
    assert re.findall(r"(\d+) of (\d+)", imposed[2]) == [("50", "50")]
    assert "403-fold" in found["definite means decided"].measured[0]  # e^6
    assert re.findall(r"(\d+) of (\d+)", found["heads"].measured[0]) == [("200", "200")]


def test_the_page_has_a_section_for_each(tmp_path: Path) -> None:
    result = reproduce("dynamics", size="facts")
    shows_itself(result, tmp_path, figure=False)
    text = page(result)
    assert text.count("\n## ") == len(FACTS) + 1
    assert "| ours |" in text
