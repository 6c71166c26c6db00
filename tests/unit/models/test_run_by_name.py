"""Running a model by its name on the hub: its files are fetched whole, after saying how much that is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import toposcope
from tests.hub import Hub, used
from tests.unit.models.making import TEXT, write_llama_lm
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.core.errors import NotFound
from toposcope.models.load import load_reference, locate


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    write_llama_lm(tmp_path / "served/org/lm")
    (tmp_path / "served/org/lm/flax_model.msgpack").write_bytes(bytes(1000))
    (tmp_path / "served/org/lm/modeling.py").write_text("raise SystemExit('run')")
    (tmp_path / "text.txt").write_text(TEXT * 20)
    server = Hub(tmp_path / "served", redirects=True, token="hf_right")
    with server, used(server, tmp_path, monkeypatch, token="hf_right"):
        yield server


def test_what_runs_by_name_is_what_runs_by_path(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text, place = tmp_path / "text.txt", hub.root / "org/lm"
    with caplog.at_level(logging.INFO, "toposcope"):
        by_name = toposcope.loss("org/lm", text=text, tokens=16, sequences=2)
    size = sum(file.stat().st_size for file in place.iterdir() if file.suffix in (".json", ".safetensors"))
    assert f"{size / 1e3:.1f} kB" in caplog.text
    by_path = toposcope.loss(place, text=text, tokens=16, sequences=2)
    assert by_name.conditions == by_path.conditions
    assert {"flax_model.msgpack", "modeling.py"}.isdisjoint(hub.sent)
    assert dict(hub.tokens) == {"hub": {"Bearer hf_right"}}
    hub.forget()
    again = load_reference("org/lm")
    assert again.path.name == again.commit == "a" * 40
    toposcope.scan("org/lm", layers="0")
    assert hub.bytes == 0  # it is whole in the Hugging Face cache now
    assert by_name.provenance.subjects[0].commit == "a" * 40
    assert by_path.provenance.subjects[0].commit is None


def test_a_flow_reads_the_text_with_the_tokenizer_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    given = {"head": "0.0", "text": tmp_path / "text.txt", "tokens": 4}
    by_name, by_path = (toposcope.flow(each, **given) for each in ("org/lm", hub.root / "org/lm"))
    assert by_name.provenance.subjects[0].sha256 == by_path.provenance.subjects[0].sha256
    assert hub.sent["tokenizer.json"] > 0
    assert dict(hub.tokens) == {"hub": {"Bearer hf_right"}}


def test_whoever_opens_a_model_says_the_same_of_an_unknown_one(tmp_path: Path) -> None:
    said = []
    for opens in (locate, open_checkpoint):
        for name in ("smollm3", str(tmp_path / "nothing.gguf")):
            with pytest.raises(NotFound) as error:
                opens(name)
            said.append(str(error.value))
    assert said[:2] == said[2:]


def test_an_unknown_name_says_so(hub: Hub) -> None:
    with pytest.raises(NotFound, match="org/nothing"):
        locate("org/nothing")
