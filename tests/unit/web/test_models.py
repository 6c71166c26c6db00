"""The head browser against the library's scan and dense linear algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.unit.tiny import write_llama
from tests.unit.web.making import make_shelf
from toposcope.checkpoints import load
from toposcope.checkpoints.fold import fold
from toposcope.core.errors import NotFound
from toposcope.dynamics.run import run
from toposcope.dynamics.scan import scan
from toposcope.dynamics.sources import head_problem
from toposcope.dynamics.tokens import drawn_tokens
from toposcope.spectra.of_heads import head_spectra, second_moment
from toposcope.web.models import Shelf


def scanned(shelf: Shelf) -> dict[str, Any]:
    shown = shelf.get(shelf.list()[0]["id"])
    shown.start_scan()
    shown.wait(60)
    return shown.start_scan()


def test_a_scan_is_the_library_s(shelf: Shelf) -> None:
    found = scanned(shelf)
    assert (found["state"], found["done"], found["total"]) == ("done", 6, 6)
    with load(shelf.get(shelf.list()[0]["id"]).target) as model:
        there = scan(model, sums=False)
        moment = second_moment(model)
        rows = [
            head_spectra(layer, fold(layer, head), second_moment=moment, context=64)
            for layer in model.layers
            for head in layer.heads
        ]
    assert len(found["rows"]) == len(there.heads) == 12
    for row, head, seen in zip(found["rows"], there.heads, rows, strict=True):
        assert (row["layer"], row["head"], row["verdict"]) == (head.layer, head.head, head.regime.verdict.value)
        assert row["growth_index"] == head.regime.growth_index
        assert row["margin"] == head.regime.margin
        assert row["peak_offset"] == seen.peak_offset
        assert row["lambda_max_over_n"] == pytest.approx(seen.lambda_max_over_n)
    assert found["model"]["counts"] == there.model["counts"]
    assert all((row["coupling"] is not None) == (row["layer"] == 0) for row in found["rows"])


def test_a_scan_is_done_once(shelf: Shelf) -> None:
    scanned(shelf)
    shown = shelf.get(shelf.list()[0]["id"])
    assert shown.start_scan()["rows"] is shown.start_scan()["rows"]
    assert shown.done == shown.total


def test_a_head_s_page(shelf: Shelf) -> None:
    scanned(shelf)
    shown = shelf.get(shelf.list()[0]["id"])
    found = shown.head(1, 2)
    with load(shown.target) as model:
        head = fold(model.layers[1], model.layers[1].head(2))
    there = np.linalg.eigvals(head.v @ head.o)
    ours = np.array([complex(*pair) for pair in found["verdict_words"]["eigenvalues"]])
    np.testing.assert_allclose(np.sort_complex(ours), np.sort_complex(there), atol=1e-12)
    assert found["alpha"] == pytest.approx(there.real.max())
    assert found["scanned"]
    # the kernel at offset 0 is the mean logit of a token with itself
    with load(shown.target) as model:
        moment = second_moment(model)
    assert moment is not None
    wanted = head.scale * np.trace(head.q @ moment @ head.k.T)
    assert found["kernel"]["values"][0] == pytest.approx(wanted)
    assert sum(found["spectra"]["query_energy"]) == pytest.approx(1)


def test_a_head_can_be_seen_before_the_scan(tmp_path: Path) -> None:
    shelf = make_shelf(tmp_path)
    shown = shelf.get(shelf.list()[0]["id"])
    found = shown.head(0, 0)
    assert not found["scanned"]
    assert found["verdict_words"]["verdict"]
    assert shown.progress()["state"] == "new"
    shelf.close()


def test_a_head_s_flow_is_the_library_s(shelf: Shelf) -> None:
    shown = shelf.get(shelf.list()[0]["id"])
    problem = shown.head_problem(2, 1, 5, 7, {"norms": "start"})
    with load(shown.target) as model:
        there = head_problem(model, 2, 1, drawn_tokens(model, 256, 7)[:5], norms="start")
        np.testing.assert_array_equal(problem.start, there.start)
        ours, theirs = problem.decide(), there.decide()
        assert (ours.verdict, ours.rule) == (theirs.verdict, theirs.rule)
        assert run(problem, horizon=0.5).log_growth == run(there, horizon=0.5).log_growth


def test_verdicts_are_remembered_by_what_they_depend_on(shelf: Shelf) -> None:
    shown = shelf.get(shelf.list()[0]["id"])
    one = shown.head_problem(0, 1, 5, 0, {"diagonal": 0.0}).decide()
    assert shown.head_problem(0, 1, 5, 3, {"diagonal": 0.0}).decide() is one
    assert shown.head_problem(0, 1, 5, 0, {"diagonal": 1.0}).decide() is not one
    assert shown.head_problem(0, 2, 5, 0, {"diagonal": 0.0}).decide() is not one


def test_ids_are_plain_and_unique(tmp_path: Path) -> None:
    one, two = write_llama(tmp_path / "a" / "my model"), write_llama(tmp_path / "b" / "my model")
    shelf = Shelf([str(one), str(two)], with_installed=False)
    assert [each["id"] for each in shelf.list()] == ["my-model", "my-model-2"]
    for name in ("../a", str(one), "my model", ""):
        with pytest.raises(NotFound):
            shelf.get(name)


def test_a_wrong_model_is_told_before_the_server_starts(tmp_path: Path) -> None:
    shelf = Shelf([str(tmp_path / "nothing")], with_installed=False)
    with pytest.raises(NotFound):
        shelf.open_named()


def test_a_scan_that_fails_says_why(tmp_path: Path) -> None:
    place = write_llama(tmp_path / "model")
    shelf = Shelf([str(place)], with_installed=False)
    shown = shelf.get("model")
    shown.open()
    (place / "config.json").write_text("{")
    shown.start_scan()
    shown.wait(30)
    assert shown.state == "failed"
    assert "config.json" in (shown.error or "")


def test_files_that_change_are_read_anew(tmp_path: Path) -> None:
    """Written over in place, or another file put there: nothing that is shown comes from what was."""
    place = write_llama(tmp_path / "model")
    shelf = Shelf([str(place)], with_installed=False)
    shown = shelf.get("model")

    def seen() -> tuple[Any, ...]:
        shown.start_scan()
        shown.wait(60)
        head = shown.head(1, 2)
        verdict = shown.head_problem(1, 2, 4, 0, {}).decide()
        assert head["scanned"]
        return (
            shown.start_scan()["rows"][6],
            head["alpha"],
            verdict.alpha,
            shown.head_problem(1, 2, 4, 0, {}).start[0, 0],
        )

    first = seen()
    weights = place / "model.safetensors"
    write_llama(tmp_path / "other", seed=1)
    weights.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    assert shown.head(1, 2)["scanned"] is False
    second = seen()
    write_llama(tmp_path / "third", seed=2)
    (tmp_path / "third" / "model.safetensors").replace(weights)
    third = seen()
    for before, after in ((first, second), (second, third)):
        assert all(one != two for one, two in zip(before, after, strict=True))
    fresh = Shelf([str(place)], with_installed=False).get("model")
    assert fresh.head(1, 2)["alpha"] == third[1]
    weights.unlink()
    with pytest.raises(NotFound):
        shown.head(1, 2)
    shelf.close()


def test_stopping_ends_a_scan(tmp_path: Path) -> None:
    shelf = make_shelf(tmp_path)
    shelf.stopping.set()
    shown = shelf.get(shelf.list()[0]["id"])
    shown.start_scan()
    shown.wait(30)
    assert shown.state == "new"
    assert shown.done < 6


@pytest.mark.parametrize("place", ["99.0", "0.99", "100000.0"])
def test_heads_that_are_not_there(client: TestClient, shelf: Shelf, place: str) -> None:
    answer = client.get(f"/api/models/{shelf.list()[0]['id']}/heads/{place}")
    assert answer.status_code == 404
    assert "not" in answer.json()["error"]
