"""Plug-ins: the example as a package that is installed, and packages that are broken."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope
from toposcope.checkpoints import families
from toposcope.checkpoints.attention import logits, project
from toposcope.cli import main
from toposcope.core.errors import BadEncoding
from toposcope.encodings import Sizes, kinds, make, parse
from toposcope.encodings.registry import _brought as brought_encodings
from toposcope.lab import tasks

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/plugin"
Install = Callable[[str, str, Mapping[str, Mapping[str, str]]], None]


def forget() -> None:
    """As in a new process: nothing is known yet of other packages."""
    for cached in (kinds, brought_encodings, tasks._brought, families.families, families._brought):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package's metadata where pip would: beside the modules, on the path."""
    site = tmp_path / "site"
    site.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(site))
    forget()

    def put(name: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [
            line
            for group, points in groups.items()
            for line in (f"[{group}]", *(f"{point} = {place}" for point, place in points.items()), "")
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))

    yield put
    for module in set(sys.modules) - before:
        if module.startswith(("toposcope_wave", "broken_")):
            del sys.modules[module]
    forget()


@pytest.fixture
def example(install: Install, tmp_path: Path) -> Path:
    said = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "toposcope_wave", tmp_path / "site/toposcope_wave")
    install(said["name"], said["version"], said["entry-points"])
    return tmp_path / "site"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def listed(what: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert run("ls", what, "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)["names"]
    return {next(iter(row.values())): row["origin"] for row in rows}


def test_the_example_is_listed_with_its_package(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what, name, ours in (
        ("encodings", "wave", "rope"),
        ("tasks", "first", "count"),
        ("families", "wavegpt", "gpt2"),
    ):
        found = listed(what, capsys)
        assert found[name] == "toposcope-wave 1.0"
        assert found[ours] == "toposcope"
        assert list(found)[-1] == name
    assert run("ls", "encodings") == 0
    assert {"toposcope-wave", "1.0"} <= set(capsys.readouterr().out.split())


def test_the_encoding_is_used_by_name(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = np.arange(7)
    table = make("wave", Sizes(16, 2, 8, 64), period=5.0).bias.table(at, at)  # type: ignore[union-attr]
    np.testing.assert_allclose(table[1], np.cos(2 * np.pi * (at[:, None] - at) / 5), atol=1e-12)
    assert str(parse("wave:period=8")) == "wave:period=8"
    with pytest.raises(BadEncoding, match="'period'"):
        parse("wave:period=-1")
    assert run("spectrum", "wave:period=8", "--context", "64", "--json", "-") == 0
    assert make("wave", Sizes(16, 2, 8, 64), period=8.0).title in capsys.readouterr().out


def test_the_task_is_trained_and_its_model_read(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from toposcope.lab import train

    task = tasks.find("first")
    batch = task.generate(50, torch.Generator().manual_seed(0))
    assert (batch.labels == batch.ids_BN[:, 0] - 1).all()
    assert all((row.bincount(minlength=9)[1:] == 2).all() for row in batch.ids_BN)
    drawn, removed = train.fixed_sentences, train.ablation_map
    monkeypatch.setattr(train, "fixed_sentences", lambda config, task: drawn(config, task, 32))
    monkeypatch.setattr(train, "ablation_map", lambda *given, **more: removed(*given, **more, draws=10))
    sizes = [word for each in ("steps=2", "batch=4", "width=16", "heads=2", "ff=16") for word in ("--set", each)]
    kept = tmp_path / "run"
    assert run("train", "--task", "first", "--encoding", "wave:period=8", *sizes, "--out", str(kept)) == 0
    with toposcope.load(kept / "model") as model:
        assert {layer.encoding.name for layer in model.layers} == {"wave"}


def test_a_checkpoint_of_the_family_is_scanned(
    example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    width, heads, at = 12, 3, np.arange(6)
    names = [f"block.{i}.{name}.weight" for i in range(2) for name in ("query", "key", "value", "out")]
    tensors = {name: random.standard_normal((width, width)).astype(np.float32) for name in names}
    model = tmp_path / "model"
    model.mkdir()
    save_file(tensors, model / "model.safetensors")
    config = {"model_type": "wavegpt", "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": 2}
    (model / "config.json").write_text(json.dumps({**config, "period": 5.0}))
    assert run("scan", str(model), "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["provenance"]["subjects"][0]["family"] == "wavegpt"
    assert len(result["heads"]) == 2 * heads
    x_ND = random.standard_normal((6, width))
    with toposcope.load(model) as opened:
        layer = opened.layers[1]
        q_HNR, k_HNR, _ = project(layer, x_ND)
        found_HNN = logits(layer, q_HNR, k_HNR)
    query, key = (x_ND @ tensors[f"block.1.{name}.weight"].T for name in ("query", "key"))
    for head in range(heads):
        part = slice(4 * head, 4 * head + 4)
        expected = query[:, part] @ key[:, part].T / 2 + np.cos(2 * np.pi * (at[:, None] - at) / 5)
        np.testing.assert_allclose(found_HNN[head], expected, rtol=1e-6, atol=1e-6)


def test_a_new_process_finds_the_package(example: Path) -> None:
    words = [sys.executable, "-m", "toposcope", "ls", "encodings", "--json", "-"]
    path = f"{example}{os.pathsep}{Path(toposcope.__file__).parents[1]}"
    done = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": path}, check=True)
    assert json.loads(done.stdout)["names"][-1]["name"] == "wave"
    assert done.stderr == ""


OURS = "from dataclasses import replace\nfrom toposcope.encodings.registry import built_in\n"
FAMILY = "from toposcope.checkpoints.families import Family\n"
BROKEN: Mapping[str, tuple[str, str, str]] = {  # a point of a group, its module, and what is said of it
    "encodings/gone": ("", "broken_gone:X", "ModuleNotFoundError"),
    "encodings/fails": ("raise RuntimeError('no\\nway')", "broken_fails:X", "RuntimeError: no"),
    "encodings/exits": ("raise SystemExit(3)", "broken_exits:X", "SystemExit"),
    "encodings/lacks": ("", "broken_lacks:X", "AttributeError"),
    "encodings/typed": ("class X: name = 'typed'", "broken_typed:X", "toposcope.encodings.Kind"),
    "encodings/other": (f"{OURS}X = replace(built_in()['rope'], name='x')", "broken_other:X", "'x'"),
    "encodings/alias": (
        f"{OURS}X = replace(built_in()['none'], name='alias', aliases={{'yarn': {{}}}})",
        "broken_alias:X",
        "'yarn'",
    ),
    "encodings/rope": (
        f"{OURS}X = built_in()['rope']",
        "broken_rope:X",
        "Toposcope already",
    ),
    "encodings/Loud": ("class X: name = 'Loud'", "broken_loud:X", "small letters"),
    "tasks/half": (
        "from toposcope.lab.tasks import Task\nclass X(Task):\n    name = 'half'",
        "broken_half:X",
        "lacks answers",
    ),
    "tasks/count": (
        "from toposcope.lab.tasks.count import CountTask as X",
        "broken_count:X",
        "Toposcope already",
    ),
    "tasks/plain": ("class X: name = 'plain'", "broken_plain:X", "toposcope.lab.tasks.Task"),
    "families/mine": (
        f"{FAMILY}X = Family('mine', ('llama',), print, '')",
        "broken_mine:X",
        "'llama'",
    ),
    "families/gpt2": (f"{FAMILY}X = Family('gpt2', (), print, '')", "broken_gpt2:X", "Toposcope already"),
    "families/text": ("X = 'text'", "broken_text:X", "None"),
}


@pytest.mark.parametrize("point", BROKEN)
def test_a_broken_package_is_named_and_disturbs_nothing(
    point: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    body, place, words = BROKEN[point]
    group, name = point.split("/")
    module = place.partition(":")[0]
    if module != "broken_gone":
        (tmp_path / f"site/{module}.py").write_text(body)
    package, version = "broken-package", "2.1"
    install(package, version, {f"toposcope.{group}": {name: place}})
    with caplog.at_level(logging.WARNING, "toposcope"):
        found = listed(group, capsys)
        assert listed(group, capsys) == found
    assert set(found.values()) == {"toposcope"}
    (said,) = (record.getMessage() for record in caplog.records)  # once, in one line
    assert f"'{name}'" in said
    assert f"{package} {version}" in said
    assert words in said
    assert "\n" not in said


def test_two_packages_cannot_bring_one_name(
    example: Path, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("a-second", "0.3", {"toposcope.encodings": {"wave": "toposcope_wave:WAVE"}})
    with caplog.at_level(logging.WARNING, "toposcope"):
        assert "wave" in kinds()
    ((name, left_out, reason),) = (record.args for record in caplog.records)  # type: ignore[misc]
    assert (name, left_out) == ("wave", "toposcope-wave 1.0")
    assert "a-second" in str(reason)


def test_our_own_names_ask_no_other_package(install: Install, tmp_path: Path) -> None:
    (tmp_path / "site/broken_slow.py").write_text("X = 1")
    groups = ("encodings", "tasks", "families")
    install("broken-package", "2.1", {f"toposcope.{group}": {"slow": "broken_slow:X"} for group in groups})
    parse("rope:base=500000").build(Sizes(16, 2, 8, 64))
    tasks.find("distance")
    assert run("--help") == 0
    assert "broken_slow" not in sys.modules


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs/plugins.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", page, re.S)
    files = [EXAMPLE / f"toposcope_wave/{name}.py" for name in ("__init__", "first", "wavegpt")]
    for file in files:
        assert file.read_text() in shown, f"docs/plugins.md does not show {file.name} as it is"
    assert (EXAMPLE / "pyproject.toml").read_text() in page
