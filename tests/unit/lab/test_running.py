"""Models of the laboratory under `trace` and `ablate`, and with other encodings put in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from toposcope.checkpoints.families.lab import model_directory
from toposcope.cli import main
from toposcope.core.errors import BadValue

torch = pytest.importorskip("torch", reason="the laboratory needs torch: pip install torch")

from toposcope.lab.export import export  # noqa: E402
from toposcope.lab.model import ModelConfig, Transformer  # noqa: E402
from toposcope.lab.running import corpus, load_running, own_task, random_corpus, sentences  # noqa: E402
from toposcope.lab.tasks import find  # noqa: E402
from toposcope.models.content import ContentReader  # noqa: E402
from toposcope.models.instrument import attached  # noqa: E402
from toposcope.models.intervene import ablated, captured  # noqa: E402
from toposcope.models.swap_encoding import swap_encoding  # noqa: E402


def write(directory: Path, name: str) -> Path:
    task = find("distance", "laptop-s")
    model = Transformer(ModelConfig(task.vocabulary, task.classes, task.length, encoding=name, seed=3))
    return export(model, directory / "model", task="distance")


@pytest.mark.parametrize(
    "name", ["none", "learned", "sinusoidal", "rope", "rope@heads:0", "alibi", "t5", "mla", "xpos"]
)
def test_content_and_ablation(tmp_path: Path, name: str) -> None:
    """The heads' outputs follow from content and record; a removed head is a zero before the output projection."""
    running = load_running(write(tmp_path, name))
    task = own_task(tmp_path / "model", running.inner)
    ids = torch.from_numpy(corpus(task, 1).sequences[0])[None]
    seen = []
    with torch.no_grad(), attached(running) as instrument, captured(running) as trace:
        plain = running(ids)
        assert torch.equal(plain, running.inner(ids))
        reader = ContentReader.of(instrument)
        instrument.observers.append(lambda call, output: seen.append((reader.of_call(call, 0), output[0])))
        running(ids)
        with ablated(running, 1, 3):
            assert not torch.equal(running(ids), plain)
            assert not trace[1].output_BNHV[:, :, 3].any()
        assert torch.equal(running(ids), plain)
    for content, output in seen[:2]:
        at = np.arange(content.q_HNR.shape[1])
        q, k = content.q_HNR, content.k_HMR
        if content.encoding.rotary is not None:
            q, k = (content.encoding.rotary.rotate(x, at, side=side) for x, side in ((q, "query"), (k, "key")))
        logits = q @ k.swapaxes(1, 2) * content.scale
        if content.encoding.bias is not None:
            logits = logits + content.encoding.bias.table(at, at)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        mine = (weights / weights.sum(axis=-1, keepdims=True)) @ content.v_HMV
        assert np.abs(mine.swapaxes(0, 1) - output.numpy()).max() < 1e-5


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "rope", "alibi"])
def test_without_position_any_order_is_the_same(tmp_path: Path, name: str) -> None:
    running = load_running(write(tmp_path, name))
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(0))
    mixed = ids[:, torch.randperm(20, generator=torch.Generator().manual_seed(1))]
    with torch.no_grad():
        assert not torch.allclose(running(ids), running(mixed), atol=1e-4)
        with swap_encoding(running, "none"):
            assert torch.allclose(running(ids), running(mixed), atol=1e-5)


def test_new_sentences_are_drawn_and_the_task_is_found(tmp_path: Path) -> None:
    running = load_running(write(tmp_path, "rope"))
    task = own_task(tmp_path / "model", running.inner)
    assert task == find("distance", "laptop-s")
    batch = sentences(task, 5)
    assert [len(each) for each in corpus(task, 5).sequences] == batch.lengths_B.tolist()
    assert model_directory(tmp_path) == tmp_path / "model"
    assert model_directory(tmp_path / "model") == tmp_path / "model"
    assert model_directory(tmp_path / "nowhere") is None
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**said, "task": None}))
    with pytest.raises(BadValue, match="which task"):
        own_task(tmp_path / "model", running.inner)


@pytest.mark.sample(3, of="long commands")
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path, "rope")
    for command in (["ablate", str(directory), "--json", str(tmp_path / "a.json")],
                    ["trace", str(tmp_path), "--sequences", "3", "--json", str(tmp_path / "t.json")]):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    map_ = json.loads((tmp_path / "a.json").read_text())["ablation"]
    assert len(map_["zero"]) == 2
    assert len(map_["zero"][0]["accuracy"]) == 8
    assert len(json.loads((tmp_path / "t.json").read_text())["heads"]) == 16
    said = capsys.readouterr().out
    assert map_["sentences"] == 2048
    assert "2,048" in said
    assert "3 sentences" in said
    assert "'distance'" in said


def test_a_text_it_cannot_read_is_refused_and_random_tokens_are_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "rope")
    for text, code in (("letter.txt", 2), ("wiki", 2), ("random", 0)):
        with pytest.raises(SystemExit) as ended:
            main(["trace", str(tmp_path), "--text", text, "--sequences", "3", "--json", str(tmp_path / "t.json")])
        assert ended.value.code == code
    found = json.loads((tmp_path / "t.json").read_text())
    assert (found["provenance"]["options"]["text"], found["sequences"]) == ("random", 3)
    task = find("distance", "laptop-s")
    for ids in random_corpus(task, 4, seed=2).sequences:
        assert len(ids) == task.length
        assert 1 <= ids.min() <= ids.max() < task.vocabulary
    assert "no tokenizer" in capsys.readouterr().err
