"""What the view of `check` shows: the answer on the scaling, no line that reads as the opposite of a fault, one for
one fact, and a next step that can be run."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.checks.making import llama, trained_pairs
from toposcope.checks import CheckResult
from toposcope.checks.configuration import ALONE
from toposcope.report.blocks import Command, Findings, Listing, Page, Paragraphs
from toposcope.report.commands import live_line, loss_line
from toposcope.report.drawing import page_of

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LOST = {"typ": "yarn", "factor": 4.0}


def check(path: Path, **options: Any) -> CheckResult:
    return toposcope.check(path, **options)


def shown(page: Page, kind: type) -> list[Any]:
    return [block for section in page.sections for block in section.blocks if isinstance(block, kind)]


def items(result: CheckResult) -> list[tuple[str, str]]:
    (findings,) = shown(page_of([result]), Findings)
    return [(each["id"], each["status"]) for each in findings.items]


@pytest.mark.parametrize("scaling", [LOST, {"typ": "yarn"}, {"factor": 4.0}, {"rope_type": "default", "factor": 4.0}])
def test_nothing_ok_speaks_against_a_fault_on_the_scaling(tmp_path: Path, scaling: dict[str, Any]) -> None:
    result = check(llama(tmp_path, rope_theta=1e4, rope_scaling=scaling))
    assert result.worst == "fault"
    found = items(result)
    assert found[0][1] == "fault"
    assert ("rotary-settings", "ok") not in found
    assert result.find("rotary-settings") is not None  # machines have all of it
    first = str(result).split("in force?\n")[1].splitlines()[0]
    assert "No scaling is in force" in first


def test_the_answer_on_the_scaling_is_the_first_line(tmp_path: Path) -> None:
    result = check(llama(tmp_path, rope_theta=1e4, rope_scaling=YARN))
    lines = str(result).split("in force?\n")[1].splitlines()
    assert all(each in lines[0] for each in ("YaRN x4 is in force", "1,024", "4,096", "1.139"))
    assert ("rotary-settings", "ok") in items(result)


def test_an_expected_scaling_that_is_not_there_is_no_ok(tmp_path: Path) -> None:
    result = check(llama(tmp_path, rope_theta=1e4), expect="rope:scaling=yarn,factor=4")
    assert ("rotary-settings", "ok") not in items(result)
    met = check(tmp_path, expect="rope:scaling=default")
    assert {("rotary-settings", "ok"), ("expected-encoding", "ok")} <= set(items(met))


def test_untrained_weights_are_one_open_question(tmp_path: Path) -> None:
    result = check(llama(tmp_path / "drawn", rope_theta=1e4))
    assert {each.id for each in result.findings if each.status == "cannot_tell"} == {"pairing", "initial-values"}
    assert [found for found in items(result) if found[1] == "cannot_tell"] == [("initial-values", "cannot_tell")]
    trained = check(llama(tmp_path / "trained", trained_pairs("half"), rope_theta=1e4))
    assert items(trained) == [(each.id, each.status) for each in trained.findings]


def test_passed_checks_are_counted_in_a_terminal_and_kept_on_pages(tmp_path: Path) -> None:
    result = check(llama(tmp_path, trained_pairs("half"), rope_theta=1e4))
    passed = [each for each in result.findings if each.status == "ok"]
    assert f"{len(passed)} checks passed" in str(result)  # the header and the answer say what is in force
    (findings,) = shown(page_of([result]), Findings)
    assert len(findings.items) == len(result.findings)


def test_a_next_step_is_offered_only_where_it_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="what is offered runs the model")
    pytest.importorskip("transformers", reason="what is offered runs the model")
    directory = llama(tmp_path / "m", rope_theta=1e4, rope_scaling=YARN)
    bare = check(directory)
    (running,) = shown(page_of([bare]), Command)  # no tokenizer, and no text is needed to run it
    assert running.line.split() == ["toposcope", "check", str(directory), "--live"]
    (directory / "tokenizer.json").write_text("{}")
    line, running = shown(page_of([bare]), Command)
    assert line.line.split()[:3] == ["toposcope", "loss", str(directory)]
    assert {"--text", "--encoding"} <= set(line.line.split())
    assert running.line.split() == ["toposcope", "check", str(directory), "--live"]
    assert live_line(check(directory, family="llama")) is None  # a running model is not read as a family
    assert shown(page_of([check(directory / "config.json")]), Command) == []  # no weights were asked for
    for file in directory.glob("*.safetensors"):
        file.unlink()
    assert loss_line(bare) is None  # no weights
    shutil.rmtree(directory)
    assert loss_line(bare) is None


def test_the_running_model_is_offered_where_nothing_runs_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = llama(tmp_path, rope_theta=1e4, rope_scaling=YARN)
    (directory / "tokenizer.json").write_text("{}")
    result = check(directory)
    monkeypatch.setitem(sys.modules, "torch", None)
    (running,) = shown(page_of([result]), Command)
    assert running.line == live_line(result)
    assert "[hf]" in running.question
    assert loss_line(result) is None


def test_a_configuration_alone_is_not_in_force_and_leaves_no_question(tmp_path: Path) -> None:
    result = check(llama(tmp_path, rope_theta=1e4, rope_scaling=YARN) / "config.json")
    assert result.worst == "cannot_tell"  # for machines: never ok
    assert "cannot_tell" not in {status for _, status in items(result)}
    (unchecked,) = shown(page_of([result]), Paragraphs)
    finding = result.find(ALONE)
    assert finding is not None
    assert all(each in unchecked.paragraphs[0] for each in finding.evidence["unchecked"])
    for words in (str(result), *(each.title for each in result.findings)):
        assert "in force" not in words


def test_without_a_scaling_the_next_step_is_the_running_model(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="what is offered runs the model")
    pytest.importorskip("transformers", reason="what is offered runs the model")
    directory = llama(tmp_path, rope_theta=1e4)
    (directory / "tokenizer.json").write_text("{}")
    result = check(directory)
    (line,) = shown(page_of([result]), Command)
    assert line.line == live_line(result)
    assert str(result).splitlines()[-1].strip() == line.line
    running = check(directory, live=True, probes=["axes"])
    assert shown(page_of([running]), Command) == []  # it has run


def numbered(page: Page) -> list[str]:
    """The layers of each row of the table of numbers."""
    (listing,) = (each for each in shown(page, Listing) if each.title == "Layers as they ran")
    return page.tables[listing.table]["layers"]


def test_layers_with_the_same_numbers_are_one_row(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="it runs the model")
    pytest.importorskip("transformers", reason="it runs the model")
    result = check(llama(tmp_path, rope_theta=1e4), live=True, probes=["axes"])
    row = result.by_layer[0]
    page = page_of([replace(result, by_layer=(row, replace(row, layer=1, module="other")))])
    assert numbered(page) == ["0-1"]
    page = page_of([replace(result, by_layer=(row, replace(row, layer=1, scale=(row.scale or 1) * 2)))])
    assert numbered(page) == ["0", "1"]
