"""SARIF and JUnit: the structure that readers of these formats rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from toposcope.checks.findings import CheckResult, Finding, outcome
from toposcope.cli import main
from toposcope.core.result import Provenance, Subject
from toposcope.report import ci

NASTY = 'a "name" <b>&amp; \x00\x1b[31m ]]> \u202e'


def result(*findings: Finding, path: str = "models/mine") -> CheckResult:
    subject = Subject("mine", path, "safetensors", "llama", "0" * 64)
    return CheckResult(layers=2, provenance=Provenance((subject,)), **outcome(findings, "RoPE"))


FOUND = (
    Finding("base-lost", "fault", "a fault", "Why.", "Do this.", layers=(0, 1), evidence={"written": 5}),
    Finding("base-lost", "fault", "another", NASTY),
    Finding("context", "warning", "a warning", "Why."),
    Finding("pairing", "cannot_tell", "not told", "These weights cannot tell."),
    Finding("rotation", "ok", "in order", "Fine."),
)


def test_sarif_has_what_its_schema_asks_for() -> None:
    log = json.loads(ci.sarif(result(*FOUND)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "toposcope"
    ids = [rule["id"] for rule in driver["rules"]]
    assert ids == ["base-lost", "context", "pairing", "rotation"]
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert [(each["level"], each["kind"]) for each in run["results"]] == [
        ("error", "fail"), ("error", "fail"), ("warning", "fail"), ("none", "open"), ("none", "pass"),
    ]  # fmt: skip
    for each in run["results"]:
        assert ids[each["ruleIndex"]] == each["ruleId"]
        assert each["message"]["text"]
        assert each["kind"] == "fail" or each["level"] == "none"  # section 3.27.10 of the standard
        (place,) = each["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "models/mine"


@pytest.mark.parametrize(
    ("path", "uri"),
    [("/home/me/deep/mine", "deep/mine"), ("a b/<c>", "a_b/_c_"), ("../x", "x"), ("/", "model"), ("m", "m")],
)
def test_places_are_relative_and_plain(path: str, uri: str) -> None:
    log = json.loads(ci.sarif(result(FOUND[0], path=path)))
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == uri


def test_junit_counts_and_cases() -> None:
    suite = ElementTree.fromstring(ci.junit(result(*FOUND)))[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "2", "errors": "0", "skipped": "1",
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert len({case.get("name") for case in cases}) == 5
    assert [case[0].tag for case in cases] == ["failure", "failure", "system-out", "skipped", "system-out"]
    assert "cannot tell" in (cases[3][0].get("message") or "")


def test_nothing_found_is_a_sound_file() -> None:
    assert ElementTree.fromstring(ci.junit(result()))[0].get("tests") == "0"
    assert json.loads(ci.sarif(result()))["runs"][0]["results"] == []


def test_the_command_writes_both(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2})
    )
    names = [str(tmp_path / name) for name in ("c.sarif", "c.xml")]
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(tmp_path / "config.json"), "--expect", "alibi", "--sarif", names[0], "--junit", names[1]])
    assert stopped.value.code == 1
    results = json.loads(Path(names[0]).read_text())["runs"][0]["results"]
    assert results[0]["ruleId"] == "expected-encoding"
    assert ElementTree.parse(names[1]).getroot()[0].get("failures") == "1"
    assert names[0] in capsys.readouterr().out


def test_to_standard_output(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2})
    )
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "config.json"), "--sarif", "-"])
    assert json.loads(capsys.readouterr().out)["version"] == "2.1.0"
