"""One run of the probe: pairing, cells, resuming, and its measurements against plain references."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from toposcope.core.errors import BadValue
from toposcope.dynamics import regime
from toposcope.lab.load import load_model
from toposcope.lab.train import TRAINING, stream
from toposcope.studies.language.cells import CELLS, build, find_cell
from toposcope.studies.language.config import ProbeConfig
from toposcope.studies.language.measure import along_depth, bits, draw, longer_cost
from toposcope.studies.language.probe import run, work
from toposcope.studies.language.texts import find

SIZES: dict[str, Any] = {"width": 8, "ff": 8, "length": 12, "batch": 4, "windows": 6, "steps": 6}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    random = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta", "of", "the"]
    path.write_text(" ".join(words[i] for i in random.integers(len(words), size=2000)))
    return str(path)


def config(text: str, cell: str = "free", **changes: Any) -> ProbeConfig:
    return ProbeConfig(cell, text=text, other=text, **{**SIZES, **changes})


def test_cells_of_one_seed_share_windows_and_first_weights(text: str) -> None:
    free, held = config(text, "free", heads=2), config(text, "head-nd", heads=2)
    one, other = (build(each.held, each.model()).model for each in (free, held))
    for name in ("embed.weight", "head.weight", "layers.0.mlp.0.weight", "layers.1.attention.q_proj.weight"):
        assert torch.equal(one.get_parameter(name), other.get_parameter(name)), name
    words = find(text).trained
    batches = [draw(each, words, each.batch, stream(each.seed, TRAINING)).ids_BN for each in (free, held)]
    assert torch.equal(*batches)
    assert free.key() != held.key() != replace(held, seed=1).key()


def test_the_key_follows_the_bytes_of_the_text_not_its_name(text: str, tmp_path: Path) -> None:
    copy, changed = tmp_path / "copy.txt", tmp_path / "changed.txt"
    copy.write_bytes(Path(text).read_bytes())
    changed.write_bytes(Path(text).read_bytes() + b"!")
    assert config(str(copy)).key() == config(text).key()
    assert config(str(changed)).key() != config(text).key()
    assert ProbeConfig.from_dict(config(text, seed=3).as_dict()) == config(text, seed=3)


@pytest.mark.parametrize(
    "wrong", [{"task": "words"}, {"steps": 0}, {"lr": 0.0}, {"seed": -1}, {"heads": 3}, {"cell": "full-zz"}]
)
def test_wrong_settings_are_refused(text: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        ProbeConfig(**{"cell": "free", "text": text, "other": text, **SIZES, **wrong})
    with pytest.raises(BadValue, match="'colour'"):
        ProbeConfig.from_dict({"cell": "free", "colour": 1})


def test_a_run_that_was_stopped_gives_the_same_numbers(text: str, tmp_path: Path) -> None:
    chosen = config(text, "full-nd", task="masked-bytes", encoding="learned")
    through = run(chosen, tmp_path / "through")
    assert run(chosen, tmp_path / "cut", stop_after=2) is None
    with pytest.raises(BadValue, match="another run"):
        run(replace(chosen, seed=1), tmp_path / "cut")
    resumed = run(chosen, tmp_path / "cut")
    assert through is not None
    assert resumed is not None
    for name in through.keys() - {"seconds", "step_seconds"}:
        assert through[name] == resumed[name], name
    weights = [load_file(tmp_path / each / "model" / "model.safetensors") for each in ("through", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_job_is_done_once(text: str, tmp_path: Path) -> None:
    seen: list[int] = []
    work(config(text).as_dict(), tmp_path, lambda told: seen.append(told["step"]))
    before = (tmp_path / "result.json").stat().st_mtime_ns
    work(config(text).as_dict(), tmp_path, lambda told: seen.append(told["step"]))
    assert seen == list(range(1, SIZES["steps"] + 1))
    assert (tmp_path / "result.json").stat().st_mtime_ns == before
    assert not (tmp_path / "checkpoint.pt").exists()


CASES = [
    ("full-pd", "masked-bytes", "learned", 1, "diverges", "T4b"),
    ("full-nd", "masked-bytes", "learned", 1, "converges", "T3b"),
    ("full-nd", "bytes", "rope", 1, "converges", "T6"),
    ("full-half", "bytes", "rope", 1, "not_convergent", "T5"),
    ("head-nd", "bytes", "rope", 2, "converges", "T6"),
    ("layer-pd", "bytes", "rope", 2, "diverges", "T5"),
]


@pytest.mark.parametrize(("cell", "task", "encoding", "heads", "verdict", "rule"), CASES)
def test_the_promise_is_read_off_the_saved_model(
    text: str, tmp_path: Path, cell: str, task: str, encoding: str, heads: int, verdict: str, rule: str
) -> None:
    result = run(config(text, cell, task=task, encoding=encoding, heads=heads, lr=0.02), tmp_path)
    assert result is not None
    assert (result["promised"], result["promise_held"]) == (verdict, True)
    whose = "layers" if cell.startswith("layer") else "heads"
    assert {(row["verdict"], row["rule"]) for row in result[whose]} == {(verdict, rule)}
    if not cell.startswith("full"):  # one head as wide as the model: LayerNorm leaves a direction unread, margin 0
        assert all(row["margin"] > 0 for row in result[whose])
    if verdict != "not_convergent":
        assert all((row["alpha"] < 0) if verdict == "converges" else (row["omega"] > 0) for row in result[whose])
    # the same from the saved weights by hand: V diag(gain) off the ones vector, then O
    model = load_model(tmp_path)
    layer = model.layers[0]
    v = layer.attention.v_proj.weight.double() * layer.attention_norm.weight.double()
    v, o = (v - v.mean(1, keepdim=True)).detach().numpy(), layer.attention.o_proj.weight.double().detach().numpy()
    assert not layer.attention_norm.bias.any()
    if cell == "head-nd":
        for rows in np.split(np.arange(8), heads):
            small = v[rows] @ o[:, rows]
            assert np.linalg.eigvals(small).real.max() < 0
            assert regime(np.eye(len(rows)), small).verdict.value == "converges"
    values = np.linalg.eigvals(o @ v).real
    kept = values[np.abs(values) > 1e-6]
    counted = (int((kept > 0).sum()), int((kept < 0).sum()))
    allowed = {"pd": [(7, 0)], "nd": [(0, 7)], "lf": [(3, 4), (4, 3)]}  # LayerNorm takes one direction of 8 away
    if cell != "head-nd":
        assert counted in allowed[cell[-2:]]


def test_what_was_held_trains_what_it_says(text: str) -> None:
    counts = {}
    for cell in CELLS.values():
        chosen = config(text, cell.name, heads=2 if cell.kind in ("head", "layer") or cell.added else 1)
        model = build(cell, chosen.model()).model
        counts[cell.name] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    plain = counts["free"]
    assert counts["free-identity"] == plain - 2 * 64
    assert counts["full-pd"] == counts["full-nd"]
    assert counts["released-pd"] == counts["released-nd"] == counts["full-pd"] + 2 * 64
    assert counts["layer-pd"] == counts["layer-nd"] == plain
    assert counts["head-pd"] == counts["head-nd"] == plain + 2 * 2 * 16
    assert counts["slice"] == counts["uniform"] == counts["control"] == plain + 2 * 8


def test_the_control_is_a_bias_of_the_queries(text: str) -> None:
    chosen = config(text, "control", heads=2)
    built = build(find_cell("control"), chosen.model())
    attention = built.model.layers[0].attention
    ids = torch.arange(12)[None]
    with torch.no_grad():
        before = built.model(ids)
        attention.query_bias.normal_(generator=torch.Generator().manual_seed(0))
        biased = attention.project(torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1)))[0]
        after = built.model(ids)
        bias = attention.query_bias.clone()
        built.added.remove()  # type: ignore[union-attr]
        plain = attention.project(torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1)))[0]
        assert torch.allclose(biased - plain, bias.expand_as(plain), atol=1e-6)
        assert torch.equal(built.model(ids), before)
    assert not torch.allclose(after, before, atol=1e-4)


@pytest.mark.parametrize(
    ("cell", "file"), [("slice", "diagonal"), ("uniform", "diagonal"), ("control", "query_bias")]
)
def test_what_was_added_is_saved_and_moved(text: str, tmp_path: Path, cell: str, file: str) -> None:
    result = run(config(text, cell, heads=2), tmp_path)
    assert result is not None
    saved = torch.cat([value.flatten() for value in load_file(tmp_path / f"{file}.safetensors").values()])
    assert result["added"]["most"] == pytest.approx(float(saved.max()))
    assert result["promised"] is None
    load_model(tmp_path)  # plain weights, without it
    if cell != "control":
        ratio = saved / result["added"]["start"]
        assert result["added"]["log_moved"] == pytest.approx(float(ratio.log().pow(2).mean().sqrt()), rel=1e-5)
        assert result["added"]["log_moved"] > 0


def test_bits_are_those_of_a_plain_sum(text: str) -> None:
    chosen = config(text, encoding="rope")
    model = build(chosen.held, chosen.model()).model
    batch = draw(chosen, find(text).held, 5, stream(0, 7))
    with torch.no_grad():
        logs = F.log_softmax(model(batch.ids_BN).double(), dim=-1)
    picked = logs.gather(2, batch.labels[..., None])
    assert bits(model, batch) == pytest.approx(-float(picked.mean()) / math.log(2), rel=1e-5)


def test_longer_contexts_are_set_beside_the_same_bytes_alone(text: str) -> None:
    chosen = config(text, encoding="rope", windows=8)
    model = build(chosen.held, chosen.model()).model
    batch = draw(chosen, find(text).held, 4, stream(0, 9), factor=2)
    with torch.no_grad():
        both, alone = (F.log_softmax(model(ids).double(), -1) for ids in (batch.ids_BN, batch.ids_BN[:, 12:]))
    late = batch.labels[:, 12:, None]
    theirs = -float((both[:, 12:].gather(2, late) - alone.gather(2, late)).mean()) / math.log(2)
    assert longer_cost(chosen, model, stream(0, 9)) == pytest.approx(theirs, abs=1e-5)
    learned = config(text, encoding="learned")
    assert longer_cost(learned, build(learned.held, learned.model()).model, stream(0, 9)) is None


def test_depth_of_a_planted_layer(text: str) -> None:
    """With attention that adds -x / 2 and nothing else, tokens move in by half and no cosine changes."""
    chosen = config(text, encoding="none", layers=1)
    model = build(chosen.held, chosen.model()).model
    layer = model.layers[0]
    layer.attention_norm = torch.nn.Identity()
    layer.attention.forward = lambda x, *rest: -0.5 * x
    torch.nn.init.zeros_(layer.mlp[2].weight)
    found = along_depth(model, torch.arange(24).reshape(2, 12))
    assert found["radial"] == pytest.approx([-0.5])
    assert found["dispersion"] == pytest.approx([-0.5])
    assert found["cosine"][0] == pytest.approx(found["cosine"][1])
    assert found["rank"][0] == pytest.approx(found["rank"][1])
    x = model.embed(torch.arange(12)).detach().double()
    unit = x / x.norm(dim=1, keepdim=True)
    pairs = torch.triu_indices(12, 12, 1)
    first = float((unit @ unit.T)[pairs[0], pairs[1]].mean())
    alone = along_depth(model, torch.arange(12)[None])
    assert alone["cosine"][0] == pytest.approx(first, abs=1e-6)


def test_a_result_is_plain_json(text: str, tmp_path: Path) -> None:
    result = run(config(text), tmp_path)
    written = json.loads((tmp_path / "result.json").read_text())
    assert written.pop("sha256")
    assert written == result
