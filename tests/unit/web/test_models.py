"""The head browser against the library's scan and dense linear algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.unit.tiny import write_llama
from tests.unit.web.making import make_registry
from toposcope.checkpoints import load
from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.installed import MODELS
from toposcope.core.errors import NotFound
from toposcope.dynamics.run import run
from toposcope.dynamics.sources import head_problem
from toposcope.dynamics.tokens import drawn_tokens
from toposcope.scanning.scan import scan
from toposcope.spectra.of_heads import second_moment
from toposcope.web import models
from toposcope.web.models import ModelRegistry


def scanned(registry: ModelRegistry) -> dict[str, Any]:
    shown = registry.get(registry.list()[0]["id"])
    shown.start_scan()
    shown.wait(60)
    return shown.start_scan()


def test_a_scan_is_the_library_s(registry: ModelRegistry) -> None:
    found = scanned(registry)
    assert (found["state"], found["done"], found["total"]) == ("done", 3, 3)
    there = scan(registry.get(registry.list()[0]["id"]).target)
    assert len(found["rows"]) == len(there.heads) == 12
    for row, head in zip(found["rows"], there.heads, strict=True):
        for name in ("layer", "head", "verdict", "growth_index", "margin", "peak_offset", "lambda_max_over_n"):
            assert row[name] == getattr(head, name), name
    assert found["model"]["counts"] == there.model.counts
    assert all((row["coupling"] is not None) == (row["layer"] == 0) for row in found["rows"])
    assert all(measure["key"] in found["rows"][0] for measure in found["measures"])


def test_a_stored_scan_of_the_same_content_is_shown_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, other = write_llama(tmp_path / "model"), write_llama(tmp_path / "other", seed=1)
    stored = scan(place, random_baseline=True)
    registry = ModelRegistry([str(place), str(other)], with_installed=False, stored=[stored])
    made: list[Any] = []
    whole = models.scan
    monkeypatch.setattr(models, "scan", lambda model, **given: made.append(model.path) or whole(model, **given))
    for name in ("model", "other"):
        registry.get(name).start_scan()
        registry.get(name).wait(60)
    assert registry.get("model").scan_result() is stored
    assert registry.get("other").scan_result() is not stored
    assert made == [other]
    assert [registry.get(name).start_scan()["stored"] for name in ("model", "other")] == [True, False]
    assert registry.get("model").head(1, 2)["scanned"]
    registry.close()


def test_a_scan_is_done_once(registry: ModelRegistry) -> None:
    scanned(registry)
    shown = registry.get(registry.list()[0]["id"])
    assert shown.start_scan()["rows"] is shown.start_scan()["rows"]
    assert shown.done == shown.total


def test_a_head_s_page(registry: ModelRegistry) -> None:
    scanned(registry)
    shown = registry.get(registry.list()[0]["id"])
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
    assert sum(found["query_energy"]) == pytest.approx(1)


def test_a_head_can_be_seen_before_the_scan(tmp_path: Path) -> None:
    registry = make_registry(tmp_path)
    shown = registry.get(registry.list()[0]["id"])
    found = shown.head(0, 0)
    assert not found["scanned"]
    assert found["verdict_words"]["verdict"]
    assert shown.progress()["state"] == "new"
    registry.close()


def test_a_head_s_flow_is_the_library_s(registry: ModelRegistry) -> None:
    shown = registry.get(registry.list()[0]["id"])
    problem = shown.head_problem(2, 1, 5, 7, {"norms": "start"})
    with load(shown.target) as model:
        there = head_problem(model, 2, 1, drawn_tokens(model, 256, 7)[:5], norms="start")
        np.testing.assert_array_equal(problem.start, there.start)
        ours, theirs = problem.decide(), there.decide()
        assert (ours.verdict, ours.rule) == (theirs.verdict, theirs.rule)
        assert run(problem, horizon=0.5).log_growth == run(there, horizon=0.5).log_growth


def test_verdicts_are_remembered_by_what_they_depend_on(registry: ModelRegistry) -> None:
    shown = registry.get(registry.list()[0]["id"])
    one = shown.head_problem(0, 1, 5, 0, {"diagonal": 0.0}).decide()
    assert shown.head_problem(0, 1, 5, 3, {"diagonal": 0.0}).decide() is one
    assert shown.head_problem(0, 1, 5, 0, {"diagonal": 1.0}).decide() is not one
    assert shown.head_problem(0, 2, 5, 0, {"diagonal": 0.0}).decide() is not one


def test_an_installed_model_is_described_where_it_was_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    items = MODELS[:2]
    monkeypatch.setattr(models, "installed", lambda: items)
    listed = ModelRegistry([items[1].name]).list()
    assert [(each["name"], each["about"]) for each in listed] == [
        (each.name, each.description) for each in reversed(items)
    ]


def test_ids_are_plain_and_unique(tmp_path: Path) -> None:
    one, two = write_llama(tmp_path / "a" / "my model"), write_llama(tmp_path / "b" / "my model")
    registry = ModelRegistry([str(one), str(two)], with_installed=False)
    assert [each["id"] for each in registry.list()] == ["my-model", "my-model-2"]
    for name in ("../a", str(one), "my model", ""):
        with pytest.raises(NotFound):
            registry.get(name)


def test_a_wrong_model_is_told_before_the_server_starts(tmp_path: Path) -> None:
    registry = ModelRegistry([str(tmp_path / "nothing")], with_installed=False)
    with pytest.raises(NotFound):
        registry.open_named()


def test_a_scan_that_fails_says_why(tmp_path: Path) -> None:
    place = write_llama(tmp_path / "model")
    registry = ModelRegistry([str(place)], with_installed=False)
    shown = registry.get("model")
    shown.open()
    (place / "config.json").write_text("{")
    shown.start_scan()
    shown.wait(30)
    assert shown.state == "failed"
    assert "config.json" in (shown.error or "")


def test_files_that_change_are_read_anew(tmp_path: Path) -> None:
    """Written over in place, or another file put there: nothing that is shown comes from what was."""
    place = write_llama(tmp_path / "model")
    registry = ModelRegistry([str(place)], with_installed=False)
    shown = registry.get("model")

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
    fresh = ModelRegistry([str(place)], with_installed=False).get("model")
    assert fresh.head(1, 2)["alpha"] == third[1]
    weights.unlink()
    with pytest.raises(NotFound):
        shown.head(1, 2)
    registry.close()


def test_stopping_ends_a_scan(tmp_path: Path) -> None:
    registry = make_registry(tmp_path)
    registry.stopping.set()
    shown = registry.get(registry.list()[0]["id"])
    shown.start_scan()
    shown.wait(30)
    assert shown.state == "new"
    assert shown.done < 6


@pytest.mark.parametrize("place", ["99.0", "0.99", "100000.0"])
def test_heads_that_are_not_there(client: TestClient, registry: ModelRegistry, place: str) -> None:
    answer = client.get(f"/api/models/{registry.list()[0]['id']}/heads/{place}")
    assert answer.status_code == 404
    assert "not" in answer.json()["error"]
