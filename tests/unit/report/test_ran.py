"""Reports on models that ran or were trained: every number is that of the result it was made of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.unit.report import making
from tests.unit.report.reading import Reader, table
from toposcope.report import render

pytestmark = pytest.mark.xdist_group("report-ran")  # one process, so that models run and are trained once


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each command says of a tiny language model, and of a small one of the laboratory that learned its task."""
    place = tmp_path_factory.mktemp("ran")
    lm = making.language_model(place / "lm")
    return {
        "ablate-check": making.proved(lm),
        "trace": making.followed(lm),
        "refine": making.refined(lm),
        "train": making.really_trained(place),
        "lab-ablate": making.lab_ablated(place),
    }


@pytest.fixture(scope="module")
def pages(ran: dict[str, dict[str, Any]]) -> dict[str, Reader]:
    return {name: Reader(render([result])) for name, result in ran.items()}


@pytest.mark.parametrize("name", ["ablate-check", "lab-ablate", "refine", "trace", "train"])
def test_every_picture_has_a_sentence_and_its_data(pages: dict[str, Reader], name: str) -> None:
    page = pages[name]
    assert page.data["blocks"]
    for block in page.data["blocks"].values():
        assert block["sentence"].endswith((".", "?", ".)")), block["sentence"]
        if block["kind"] == "attention":
            assert all(head["logits"] and head["position"] for each in block["windows"] for head in each["heads"])
        if block["kind"] in ("attention", "matrix"):  # they hold their own
            continue
        columns = page.data["tables"][block["table"]]
        for fields in map(encoded, _layers(block.get("spec", {}))):
            assert fields <= set(columns), (block["title"], fields)
        asked = {measure["key"] for measure in block.get("measures", ())} | {f["key"] for f in block.get("facts", ())}
        assert asked <= set(columns)
        assert all(len(values) > 0 for values in columns.values())


def _layers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec, *(each for layer in spec.get("layer", ()) for each in _layers(layer))]


def encoded(spec: dict[str, Any]) -> set[str]:
    """The fields that a chart draws."""
    return {channel["field"] for channel in spec.get("encoding", {}).values() if "field" in channel}


def test_a_learned_map_names_its_head_and_deposit(ran: dict[str, dict[str, Any]], pages: dict[str, Reader]) -> None:
    found, page = ran["lab-ablate"]["ablation"], pages["lab-ablate"]
    assert found["base"] > 2 * found["floor"], "this seed was chosen because it learns"
    lost = {
        (layer["layer"], head): found["base"] - accuracy
        for layer in found["zero"]
        for head, accuracy in enumerate(layer["accuracy"])
    }
    layer, head = max(lost, key=lost.__getitem__)
    assert f"Head {layer}.{head} matters most: without it {found['base'] - lost[layer, head]:.1%} are" in page.words
    share = lost[layer, head] / (found["base"] - found["floor"])
    assert f"a loss of {share:.0%} of what the model can do above the floor" in page.words
    for row in found["zero"]:
        low, high = (row["interval"][end] for end in ("low", "high"))
        words = f"Layer {row['layer']} has a deposit index of {row['di']:.2f} (95%: {low:.2f} to {high:.2f})"
        assert f"{words}, on head {row['head']}." in page.words
    rows = table(page, "accuracy-without-each-head")
    assert {(row["layer"], row["head"]): row["damage_zero"] for row in rows} == pytest.approx(lost, abs=1e-4)
    assert [(row["layer"], row["head"]) for row in rows if row["shown_first"]] == [(layer, head)]
    drawn = {row["what"]: row["index"] for row in table(page, "deposit-indices")}
    told = {f"layer {row['layer']}, {how}": row["di"] for how in ("zero", "mean") for row in found[how]}
    assert drawn == pytest.approx({name: index for name, index in told.items() if index is not None}, rel=1e-4)


def test_a_map_without_skill_says_so(ran: dict[str, dict[str, Any]]) -> None:
    result = json.loads(json.dumps(ran["lab-ablate"]))
    result["ablation"]["floor"] = 0.9
    words = Reader(render([result])).words
    assert "90.0%" in words
    assert "no skill" in words
    assert "matters most" not in words


def test_a_run_shows_its_curve_and_its_probes(ran: dict[str, dict[str, Any]], pages: dict[str, Reader]) -> None:
    run, page = ran["train"], pages["train"]
    assert f"{run['accuracy']:.1%} of the test's answers are right" in page.words
    curve = [(row["step"], row["accuracy"]) for row in table(page, "copy-accuracy")]
    assert curve == [(point["step"], pytest.approx(point["accuracy"], rel=1e-4)) for point in run["curve"]]
    norms = [(row["step"], row["norm"]) for row in table(page, "gradients")]
    assert norms == [
        (point["step"], pytest.approx(norm, rel=1e-4)) for point in run["gradients"] for norm in point["layers"]
    ]
    sharp = [(row["step"], row["eigenvalue"]) for row in table(page, "sharpness")]
    assert sharp == [(point["step"], pytest.approx(point["value"], rel=1e-4)) for point in run["hessian"]]
    assert len({row["layer"] for row in table(page, "logit-norm-ratio")}) == 2
    assert "matters most" in page.words


def test_a_proof_is_told_head_by_head(ran: dict[str, dict[str, Any]], pages: dict[str, Reader]) -> None:
    result, page = ran["ablate-check"], pages["ablate-check"]
    assert {(row["heads"], row["of"]) for row in table(page, "conditions")} == {(12, 12)}
    assert "not hold" not in page.words
    assert page.words.count(result["weights_before"]) == 3  # before, after, and of the subject
    assert {row["proof"] for row in table(page, "proofs")} == {"holds"}
    broken = json.loads(json.dumps(result))
    broken["heads"][5] |= {"undone": False, "holds": False}
    broken["holds"] = False
    broken["weights_after"] = "0" * 64
    told = Reader(render([broken]))
    assert "not hold" in told.words
    assert sorted(row["heads"] for row in table(told, "conditions")) == [11, 12, 12, 12]
    layer, head = broken["heads"][5]["layer"], broken["heads"][5]["head"]
    assert f"Head {layer}.{head}: " in told.words
    assert "touched" in page.words
    assert "touched" not in told.words
    assert "0" * 64 in told.words
    first = [(row["layer"], row["head"]) for row in table(told, "proofs") if row["shown_first"]]
    assert first == [(layer, head)]


def test_refining_is_told_against_its_control(ran: dict[str, dict[str, Any]], pages: dict[str, Reader]) -> None:
    result, page = ran["refine"], pages["refine"]
    held = {name: np.array(losses) for name, losses in result["held_out"].items()}
    assert f"{held['diagonal'].mean():.4f}" in page.words
    rows = {row["what"]: row for row in table(page, "differences")}
    gain = held["diagonal"] - held["control"]
    assert rows["D tuned less control tuned"]["difference"] == pytest.approx(gain.mean(), rel=1e-3)
    assert f"D tuned, against control tuned: {gain.mean():+.4f} ±" in page.words
    by_sequence = table(page, "held-out")
    assert [row["before"] for row in by_sequence] == pytest.approx(list(held["before"]), rel=1e-4)
    assert len(table(page, "training")) == 2 * result["settings"]["steps"]
    assert [row["median"] for row in table(page, "moved")] == pytest.approx(
        [row["median"] for row in result["moved"]], rel=1e-4
    )


def test_layers_stand_beside_the_flow(ran: dict[str, dict[str, Any]], pages: dict[str, Reader]) -> None:
    layers, page = ran["trace"]["depth"], pages["trace"]
    states = table(page, "states")
    assert [row["cosine"] for row in states] == pytest.approx([row["cosine"] for row in layers], rel=1e-4)
    growth = {(row["layer"], row["step"]): row["growth"] for row in table(page, "steps")}
    for layer in layers:
        for name, key in (("attention", "attention"), ("flow", "flow"), ("whole layer", "whole")):
            if layer[key] is None:
                assert (layer["layer"], name) not in growth
            else:
                assert growth[layer["layer"], name] == pytest.approx(layer[key]["norm_growth"], rel=1e-4)
    assert f"from {layers[0]['cosine']:.2f} at layer 0 to {layers[-1]['cosine']:.2f} at layer 2" in page.words


def test_verdicts_stand_beside_their_runs(ran: dict[str, dict[str, Any]], pages: dict[str, Reader]) -> None:
    runs, page = ran["trace"]["verified"], pages["trace"]
    agrees = sum(each["word"] == "agrees" for each in runs)
    assert f"{agrees} agree with their theorem" in page.words
    rows = table(page, "verified-heads")
    assert [(row["layer"], row["head"], row["word"]) for row in rows] == [
        (each["layer"], each["head"], each["word"]) for each in runs
    ]
    assert [row["rate"] for row in rows] == pytest.approx([each["rate"] for each in runs], rel=1e-4)
