"""Comparison of checkpoints against dense matrices, planted changes, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import toposcope
from tests.unit.report import making
from tests.unit.tiny import write_llama
from toposcope.checkpoints.fold import fold
from toposcope.cli import main
from toposcope.core.errors import BadValue
from toposcope.scanning.compare import CompareResult, compare, compare_models, compare_results
from toposcope.scanning.differences import relative_change
from toposcope.scanning.scan import scan


@given(
    seed=st.integers(0, 10**6),
    r=st.integers(1, 6),
    d=st.integers(1, 12),
    size=st.sampled_from([1.0, 1e-3, 1e-9, 1e6]),
)
def test_relative_change_equals_the_dense_one(seed: int, r: int, d: int, size: float) -> None:
    random = np.random.default_rng(seed)
    la, ra = random.standard_normal((2, r, d))
    dl, dr = size * random.standard_normal((2, r, d))
    change, cosine = relative_change(la, ra, la + dl, ra + dr)
    a = la.T @ ra
    difference = dl.T @ ra + (la + dl).T @ dr  # the same difference, without subtracting two large matrices
    assert change == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(a), rel=1e-6)
    b = a + difference
    assert cosine == pytest.approx(np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-9)


def test_zero_heads_have_no_relative_change() -> None:
    zero, one = np.zeros((2, 5)), np.ones((2, 5))
    assert relative_change(zero, one, one, one) == (None, None)
    assert relative_change(one, one, zero, zero) == (pytest.approx(1.0), None)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A tiny Llama, and the same with the queries of head 1.2 doubled and the values of layer 2's group 0 turned."""
    before = write_llama(tmp_path / "before")
    after = write_llama(tmp_path / "after")
    tensors = load_file(after / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"][8:12] *= 2
    tensors["model.layers.2.self_attn.v_proj.weight"][:4] *= -1
    save_file(tensors, after / "model.safetensors")
    return before, after


def test_planted_changes_are_found_and_nothing_else(pair: tuple[Path, Path]) -> None:
    with toposcope.load(pair[0]) as a, toposcope.load(pair[1]) as b:
        found = compare_models(a, b)
        dense = {}
        for first, second in zip(a.layers, b.layers, strict=True):
            for i in range(4):
                one, two = fold(first, first.heads[i]), fold(second, second.heads[i])
                u, v = one.o @ one.v, two.o @ two.v
                w, x = one.scale * one.q.T @ one.k, two.scale * two.q.T @ two.k
                dense[first.number, i] = [np.linalg.norm(p - q) / np.linalg.norm(p) for p, q in ((w, x), (u, v))]
    for head in found.heads:
        expected = dense[head.layer, head.head]
        assert [head.change_W, head.change_V] == pytest.approx(expected, abs=1e-12)
        if (head.layer, head.head) == (1, 2):
            assert head.change_W == pytest.approx(1.0)
            assert head.cosine_W == pytest.approx(1.0)
        elif head.layer == 2 and head.head < 2:
            assert head.change_V == pytest.approx(2.0)
            assert head.cosine_V == pytest.approx(-1.0)
            assert head.growth_b == pytest.approx(1 - (head.growth_a or 0.0))
        else:
            assert head.size == 0.0
            assert head.verdict_a == head.verdict_b
            assert head.change_kernel == 0.0
    assert {(head.layer, head.head) for head in found.ranked()[:2]} == {(2, 0), (2, 1)}


def test_the_command_prints_in_eighty_columns_and_writes_what_it_says(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    html, stored = tmp_path / "c.html", tmp_path / "c.json"
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(pair[0]), str(pair[1]), "--html", str(html), "--json", str(stored), "--head-table"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in printed if str(tmp_path) not in line) <= 80
    result = toposcope.read(stored)
    assert isinstance(result, CompareResult)
    assert result.of == "models"
    assert [each.path for each in result.provenance.subjects] == list(map(str, pair))
    assert len(result.heads) == 12
    assert html.stat().st_size > 0


def test_a_comparison_prints_saves_frames_and_draws_itself(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with toposcope.load(pair[0]) as a, toposcope.load(pair[1]) as b:
        result = toposcope.compare(a, b)
    assert (result.a, result.b) == ("before", "after")
    assert max(map(len, str(result).splitlines())) <= 80
    assert toposcope.read(result.save(tmp_path / "compare.json")) == result
    assert list(result.frame()["change_W"]) == [head.change_W for head in result.heads]
    assert {row.layer: row.moved for row in result.layers} == {
        layer: sum(head.moved for head in result.heads if head.layer == layer) for layer in range(3)
    }
    assert "<script" not in result._repr_html_()
    assert result.figure(tmp_path / "compare.svg").stat().st_size > 1000
    assert "2.0" in result.html()


def test_two_scans_are_compared_number_by_number(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = (scan(place, context=64) for place in pair)
    found = compare(one.save(tmp_path / "a.json"), two)
    assert (found.of, found.layers) == ("scan", ())
    by_place = {(row.layer, row.head): row for row in found.heads}
    for a, b in zip(one.heads, two.heads, strict=True):
        row = by_place[a.layer, a.head]
        assert (row.numbers["alpha"].a, row.numbers["alpha"].b) == (a.alpha, b.alpha)
        assert row.numbers["alpha"].change == pytest.approx((b.alpha or 0.0) - (a.alpha or 0.0))
        assert (row.verdict_a, row.verdict_b) == (a.verdict.value, b.verdict.value)
    assert by_place[0, 0].numbers["alpha"].change == 0
    assert by_place[2, 0].numbers["alpha"].change != 0
    assert found.mean_absolute_change["alpha"] > 0
    models = compare(*pair)  # what weights add is all that models have beyond their scans
    for mine, theirs in zip(models.heads, found.heads, strict=True):
        assert replace(mine, change_W=None, change_V=None, cosine_W=None, cosine_V=None) == theirs


def test_what_cannot_be_compared_is_refused_with_reasons(tmp_path: Path) -> None:
    sizes = {
        "base": {},
        "deeper": {"num_hidden_layers": 4},
        "more": {"num_attention_heads": 8, "num_key_value_heads": 2},
    }
    models = {name: toposcope.load(write_llama(tmp_path / name, **changes)) for name, changes in sizes.items()}
    with pytest.raises(BadValue):
        compare_models(models["base"], models["deeper"])
    with pytest.raises(BadValue):
        compare_models(models["base"], models["more"])
    for model in models.values():
        model.close()
    one = scan(tmp_path / "base")
    with pytest.raises(BadValue):
        compare_results(making.traced(), making.ablated())
    with pytest.raises(BadValue):
        compare_results(making.loss(), making.loss())
    with pytest.raises(BadValue):
        compare(one, scan(tmp_path / "base", layers="0"))
    with pytest.raises(BadValue):
        compare(one, one, layers="0")


def test_a_model_and_a_result_are_not_compared(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "m")
    stored = scan(model).save(tmp_path / "r.json")
    with pytest.raises(BadValue):
        compare(stored, model)
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(stored), str(model)])
    assert stop.value.code == 2
