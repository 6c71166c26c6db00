"""The text page's answers against `toposcope.loss` and `toposcope.trace`, to the digit; and what it refuses."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.unit.models.making import TEXT, write_llama_lm
from tests.unit.web.making import make_client
from toposcope.encodings import parse
from toposcope.models.corpus import cut
from toposcope.models.intervene import captured
from toposcope.models.load import load_reference
from toposcope.models.loss import Wanted, loss
from toposcope.models.swap_encoding import swap_encoding
from toposcope.models.tracing.on_text import head_on
from toposcope.models.tracing.trace import trace
from toposcope.web.models import ModelRegistry
from toposcope.web.texts import LONGEST_TEXT

torch = pytest.importorskip("torch", reason="running a model needs torch: pip install torch")
SAID = TEXT.strip()[:120].strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("lm")
    write_llama_lm(here)
    (here / "said.txt").write_text(SAID)
    return here


@pytest.fixture(scope="module")
def reading(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    registry = ModelRegistry([str(place)], with_installed=False)
    with make_client(tmp_path_factory.mktemp("server"), registry) as made:
        yield made
    registry.close()


def asked(client: TestClient, path: str = "", **parameters: str) -> dict[str, Any]:
    """The answer, once the model is loaded."""
    name = client.get("/api/models").json()[0]["id"]
    for _ in range(600):
        answer = client.get(f"/api/models/{name}/text{path}", params={"text": SAID, **parameters})
        if answer.status_code != 200 or answer.json()["state"] != "loading":
            return answer.json()
        time.sleep(0.1)
    raise AssertionError("the model was not loaded within a minute")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"encoding": "none"},
        {"encoding": "alibi", "layers": "1-2"},
        {"encoding": "rope:base=100", "heads": "0.1,2.3"},
    ],
)
def test_losses_are_those_of_the_command(reading: TestClient, place: Path, changed: dict[str, str]) -> None:
    found = asked(reading, **changed)
    expected = loss(str(place), place / "said.txt", tokens=128, sequences=1, **changed)
    assert len(found["conditions"]) == len(expected.conditions) == 1 + bool(changed)
    for ours, theirs in zip(found["conditions"], expected.conditions, strict=True):
        assert (ours["loss"], ours["difference"], ours["where"]) == (theirs.loss, theirs.difference, theirs.where)
        assert [each["loss"] for each in ours["bins"]] == [each.loss for each in theirs.bins]
        assert np.mean(ours["losses"]) == pytest.approx(theirs.loss, rel=1e-12)
        assert ours["positions"] == list(range(len(ours["losses"])))
    assert len(found["tokens"]) == len(found["conditions"][0]["losses"]) + 1


@pytest.mark.parametrize("changed", [{}, {"encoding": "none"}, {"encoding": "alibi", "heads": "1.1,1.2"}])
def test_heads_are_those_of_a_trace(reading: TestClient, place: Path, changed: dict[str, str]) -> None:
    rows = {(row["layer"], row["head"]): row for row in asked(reading, **changed)["rows"]}
    assert len(rows) == 12
    expected = trace(str(place), place / "said.txt", tokens=128, sequences=1, logits="none", **changed)
    assert len(expected.heads) == (2 if "heads" in changed else 12)
    for head in expected.heads:
        for name in ("distance", "entropy", "on_previous", "on_first", "on_self"):
            assert rows[head.layer, head.head][name] == head.median(name)
    if "heads" in changed:  # what comes later sees the change, what comes before does not
        plain = {(row["layer"], row["head"]): row for row in asked(reading)["rows"]}
        same = {key for key, row in rows.items() if row["entropy"] == plain[key]["entropy"]}
        assert same == {key for key in rows if key[0] == 0} | {(1, 0), (1, 3)}


def test_a_head_s_attention_is_the_model_s_under_what_is_put_in(reading: TestClient, place: Path) -> None:
    reference = load_reference(place, head=True, attention="eager")
    ids = cut(reference, SAID, tokens=128).sequences[0]
    for encoding in ("none", "rope:base=100"):
        wanted = Wanted(parse(encoding), layers=(0,))
        values = {}
        for layer in (0, 1):
            (window,) = head_on(reference, ids, layer, 1, wanted)
            head = window.heads[0]
            np.testing.assert_allclose(head.probabilities_BM.sum(axis=1), 1, atol=1e-3)
            values[layer] = head
        with swap_encoding(reference, encoding, layers=(0,)), captured(reference) as seen, torch.no_grad():
            reference.model(input_ids=torch.from_numpy(ids)[None])
            outputs = {layer: seen[layer] for layer in (0, 1)}
        for layer, head in values.items():
            v = outputs[layer].value_BGMV[0, 0].double().numpy()  # two heads share the keys and values of a group
            expected = outputs[layer].output_BNHV[0, :, 1].double().numpy()
            np.testing.assert_allclose(head.probabilities_BM @ v, expected, atol=2e-3 * np.abs(expected).max())
        assert values[0].position_BM[values[0].seen].any() == (encoding != "none")
        (packed,) = asked(reading, "/1.1", encoding=encoding, layers="0")["windows"]
        codes = np.frombuffer(base64.b64decode(packed["heads"][0]["logits"]), dtype="<u2")
        low, step = np.frombuffer(base64.b64decode(packed["heads"][0]["numbers"]), dtype="<f4")[:2]
        np.testing.assert_allclose(low + step * codes, values[1].logits_BM[values[1].seen], atol=1e-3)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("", {"text": ""}),
        ("", {"text": "x" * (LONGEST_TEXT + 1)}),
        ("", {"tokens": "1000000"}),
        ("", {"tokens": "1"}),
        ("", {"encoding": "nothing-like-it"}),
        ("", {"layers": "0"}),
        ("", {"encoding": "none", "layers": "99"}),
        ("", {"encoding": "none", "heads": "0.99"}),
        ("", {"unknown": "1"}),
        ("/99.0", {}),
        ("/0.99", {}),
    ],
)
def test_wrong_questions_get_a_sentence(reading: TestClient, path: str, parameters: dict[str, str]) -> None:
    asked(reading)
    found = asked(reading, path, **parameters)
    assert found["error"]
    assert found["kind"] in ("BadValue", "BadEncoding", "NotFound")


def test_files_that_are_replaced_are_loaded_anew(tmp_path: Path) -> None:
    place = tmp_path / "model"
    place.mkdir()
    write_llama_lm(place)
    registry = ModelRegistry([str(place)], with_installed=False)
    with make_client(tmp_path, registry) as client:
        first = asked(client)
        assert "error" not in first
        write_llama_lm(place, num_hidden_layers=1)
        again = asked(client)
    registry.close()
    assert [len(each["rows"]) for each in (first, again)] == [12, 4]


def test_a_model_that_cannot_run_says_why(tmp_path: Path) -> None:
    from tests.unit.tiny import write_llama

    registry = ModelRegistry([str(write_llama(tmp_path / "bare"))], with_installed=False)  # without a tokenizer
    with make_client(tmp_path, registry) as client:
        found = asked(client)
    registry.close()
    assert found["state"] == "failed"
    assert found["words"]
