"""Every command's JSON is what its schema says, and a schema refuses what its command does not write."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.models.making import TEXT, write_bert, write_llama_lm
from tests.unit.models.planting import write_planted
from tests.unit.tiny import write_llama
from toposcope.cli import COMMANDS, main
from toposcope.core.errors import BadValue
from toposcope.report import kinds

TINY = ("--set", "steps=4", "--set", "batch=8", "--set", "width=16", "--set", "heads=2", "--set", "ff=16")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(*arguments: str) -> dict[str, Any]:
    """What a command writes with --json, after it was held against its schema."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json", "told.json"])
    assert ended.value.code in (0, None)
    result = json.loads(Path("told.json").read_text())
    hold(result)
    return result


def hold(result: dict[str, Any]) -> None:
    """The result fits its schema; with a key too many or too few, anywhere in it, it does not."""
    schema = kinds.document(result["schema"])
    checker = jsonschema.Draft202012Validator(schema)
    for fault in checker.iter_errors(result):
        pytest.fail(f"{result['schema']}: {deepest(fault)}")
    for place in closed(result, schema, schema):
        spoilt = copy.deepcopy(result)
        found = at(spoilt, place)
        found["another key"] = 1
        assert not checker.is_valid(spoilt), f"{result['schema']} lets another key into {place}"
        del found["another key"]
    for name in schema["required"]:
        assert not checker.is_valid({key: value for key, value in result.items() if key != name}), name


def deepest(fault: jsonschema.ValidationError) -> str:
    """Where the fault really is: inside a choice, that of the choice that fits best."""
    inner = jsonschema.exceptions.best_match([fault])
    return f"{inner.json_path}: {inner.message}"[:500]


def closed(value: Any, schema: Any, whole: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a result there are closed objects: the first entry of each list is looked into."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    for option in schema.get("anyOf", ()):
        if value is not None and option != {"type": "null"}:
            yield from closed(value, option, whole, place)
    if isinstance(value, dict) and schema.get("additionalProperties") is False:
        yield place
        for name, inner in schema["properties"].items():
            if name in value:
                yield from closed(value[name], inner, whole, (*place, name))
    elif isinstance(value, list) and value and "items" in schema:
        yield from closed(value[0], schema["items"], whole, (*place, 0))


def at(value: Any, place: Sequence[Any]) -> Any:
    for step in place:
        value = value[step]
    return value


def test_every_schema_is_one_and_is_closed() -> None:
    for name in kinds.KINDS:
        schema = kinds.document(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"toposcope/{name}/2" == schema["properties"]["schema"]["const"]
        assert schema["additionalProperties"] is False
        assert all(part["additionalProperties"] is False for part in schema["$defs"].values())


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name, expected in (("scan", "scan/2"), ("toposcope/loss/2", "loss/2"), ("inspect", "inspect/2")):
        with pytest.raises(SystemExit) as ended:
            main(["schema", name])
        assert ended.value.code == 0
        assert json.loads(capsys.readouterr().out)["$id"] == f"toposcope/{expected}"
    with pytest.raises(SystemExit):
        main(["schema"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(kinds.KINDS)
    with pytest.raises(BadValue, match="'check'"):
        kinds.document("chekc")


def test_commands_without_a_schema_are_those_without_a_result() -> None:
    without = set(COMMANDS) - set(kinds.KINDS)
    assert without == {"bench", "explain", "report", "schema", "serve"}


def test_schemas_of_results_need_no_torch() -> None:
    script = (
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "from toposcope.report.kinds import KINDS, document\n"
        "from toposcope.core.errors import MissingExtra\n"
        "for name in KINDS:\n"
        "    try:\n        document(name)\n"
        "    except MissingExtra as error:\n        print(name, error)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out == ""


def test_results_of_weights(tmp_path: Path) -> None:
    llama, other = str(write_llama(tmp_path / "a")), str(write_llama(tmp_path / "b", seed=1))
    for what in ("models", "families", "encodings", "texts"):
        assert told("ls", what)["names"]
    assert told("inspect", llama)["heads"]
    assert told("check", llama)["findings"]
    scanned = told(
        "scan", llama, "--random-baseline", "--encoding", "none", "--encoding", "alibi", "--encoding", "sinusoidal"
    )
    assert scanned["random_baseline"]["heads"] == 12
    assert len(scanned["what_if"]) == 3
    assert told("scan", llama, "--layers", "sample:2")["estimate"]["drawn"]
    Path("told.json").rename("scan.json")
    assert told("compare", llama, other)["heads"]
    assert told("compare", "scan.json", "scan.json")["of"] == "scan"


@pytest.mark.sample(3, of="long commands")
def test_results_of_texts(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="running a model needs transformers")
    model, bert = tmp_path / "llama", tmp_path / "bert"
    write_llama_lm(model)
    write_bert(bert)
    text = tmp_path / "hills.txt"
    text.write_text(TEXT * 12)
    cut = ("--text", str(text), "--tokens", "16", "--sequences", "3")
    assert told("trace", str(model), *cut)["agreement"]
    assert told("trace", str(bert), *cut)["null_share"] is not None
    assert told("scan", str(bert))["spectra"]["table"]
    assert len(told("loss", str(model), *cut, "--encoding", "none", "--each", "layer")["conditions"]) == 4
    once = ("--text", str(text), "--tokens", "12", "--sequences", "1")
    followed = told("trace", str(model), *once, "--depth", "--verify", "--jobs", "1")
    assert followed["depth"]
    assert followed["verified"]
    steps = ("--tokens", "12", "--steps", "2", "--held-out", "2")
    assert told("refine", str(model), "--out", "refined", "--text", str(text), *steps)["moved"]
    planted = write_planted(tmp_path / "planted", (2,))
    words = ("ablate", str(planted), "--text", str(planted / "text.txt"), "--lines", "--sequences", "4")
    assert told(*words, "--pairs", "layer0")["pairs"]
    assert told(*words, "--mode", "screen", "--sample", "3")["screen"]
    assert told(*words, "--check")["holds"]


def test_results_of_the_laboratory() -> None:
    pytest.importorskip("torch", reason="training needs torch")
    trained = told("train", "--task", "distance", "--encoding", "rope", *TINY)
    assert trained["ablation"]["zero"]
    sweep = told("sweep", "--tasks", "distance", "--encodings", "rope", "--seeds", "1", "--jobs", "1", *TINY)
    assert len(sweep["runs"]) == len(told("runs")["runs"]) == 1
    assert told("runs", "show", trained["key"])["result"]["accuracy"] == trained["accuracy"]
    assert told("ablate", str(Path(trained["directory"]) / "model"))["task"] == "distance"


def test_results_of_the_papers_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    from tests.unit.cli.test_reproduce import tiny
    from toposcope.studies.reproduce import coupling

    assert told("reproduce", "dynamics", "--size", "facts")["claims"]
    for config in tiny(coupling.SIZES["demo"], range(1)):  # trained here, and so no worker has to start for them
        words = ("--task", config.task, "--encoding", config.encoding, "--variant", config.variant)
        sizes = [f"{name}={getattr(config, name)}" for name in ("steps", "batch", "width", "heads", "ff")]
        told("train", *words, "--store", "store", *(word for size in sizes for word in ("--set", size)))
    monkeypatch.setattr(coupling, "grid", tiny)
    assert told("reproduce", "coupling", "--store", "store", "--seeds", "1", "--jobs", "1")["cells"]


def test_results_of_the_byte_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    from toposcope.studies.language import groups
    from toposcope.studies.language.config import ProbeConfig

    text = tmp_path / "text.txt"
    text.write_text("the house of the people and the people of the house " * 40)
    sizes: dict[str, Any] = {"width": 8, "ff": 8, "length": 12, "batch": 2, "windows": 4, "steps": 2}

    def grid(size: groups.ProbeSize, seeds: Sequence[int]) -> dict[str, list[ProbeConfig]]:
        cells = ("full-pd", "full-nd")
        made = [ProbeConfig(c, seed=s, text=str(text), other=str(text), **sizes) for s in seeds for c in cells]
        return {"causal": made}

    monkeypatch.setattr(groups, "grid", grid)
    found = told("reproduce", "dynamics", "--size", "demo", "--store", "store", "--seeds", "1", "--jobs", "1")
    assert found["probe"]["rows"]
