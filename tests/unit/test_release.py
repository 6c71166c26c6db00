"""The wheel and the source archive: what is in them, and that the wheel alone works in an empty environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit.tiny import write_llama
from toposcope import __version__
from toposcope.cli.overview import GROUPS

ROOT = Path(__file__).parents[2]
NO_INDEX = ("No matching distribution", "Could not find a version", "Connection", "Temporary failure", "timed out")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive of this tree."""
    place = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(place)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = place.glob("*.whl"), place.glob("*.tar.gz")
    return wheel, sdist


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"toposcope-{__version__}.dist-info/METADATA").decode())


@pytest.mark.xdist_group("release")
def test_the_wheel_holds_everything_the_commands_read(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    assert wheel.name == f"toposcope-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    source = ROOT / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in (source / "toposcope").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert ours <= held
    for kind in (
        "toposcope/py.typed",
        "toposcope/report/templates/",
        "toposcope/report/assets/",
        "toposcope/web/static/",
    ):
        assert any(name.startswith(kind) for name in held), f"{kind} is not in the wheel"
    assert not any(name.startswith(("tests/", "docs/", "bench/", "runs/", "out/")) for name in held)


@pytest.mark.xdist_group("release")
def test_the_source_archive_holds_what_is_needed_to_work_on_it(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    files = ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Makefile", "constraints.txt")
    assert {*files, "tests/unit/test_release.py", "src/toposcope/__init__.py", "docs/python.md"} <= held
    assert not any(re.match(r"(runs|out|\.venv)/", name) for name in held)


@pytest.mark.xdist_group("release")
def test_the_extras_of_the_wheel_lead_to_known_names(built: tuple[Path, Path]) -> None:
    said = metadata(built[0])
    extras = set(said.get_all("Provides-Extra", []))
    assert {"torch", "hf", "plot", "web", "cluster", "notebook", "all", "docs", "dev"} <= extras
    needs = [Requirement(text) for text in said.get_all("Requires-Dist", [])]
    own = [each for each in needs if each.name == "toposcope"]
    assert all(each.extras <= extras for each in own)

    def reached(extra: str) -> set[str]:
        chosen = [each for each in needs if each.marker is not None and each.marker.evaluate({"extra": extra})]
        inner = [reached(name) for each in chosen if each.name == "toposcope" for name in each.extras]
        return {each.name for each in chosen if each.name != "toposcope"}.union(*inner)

    assert reached("all") == set().union(
        *(reached(name) for name in ("torch", "hf", "plot", "web", "cluster", "notebook"))
    )
    assert {"torch", "transformers", "matplotlib", "starlette", "ray"} <= reached("all")
    core = {each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})}
    assert core & reached("all") == set()
    assert "torch" not in core


@pytest.mark.slow
@pytest.mark.sample(0.1)
@pytest.mark.xdist_group("release")
def test_the_wheel_alone_scans_a_model_in_an_empty_environment(
    built: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, wheel = tmp_path / "empty", built[0]
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=300)
    started = time.perf_counter()
    constraints = ["-c", str(ROOT / "constraints.txt")]
    words = [
        str(home / "bin/python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        *constraints,
        str(wheel),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    if done.returncode and any(word in done.stderr for word in NO_INDEX):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    seconds = time.perf_counter() - started
    size = sum(path.lstat().st_size for path in home.rglob("*") if path.is_file())

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(home / "bin/toposcope"), *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    model = write_llama(tmp_path / "model")
    told = run("--help")
    assert all(name in told for names in GROUPS.values() for name in names)
    assert run("explain", "BadFile")
    result = json.loads(run("scan", str(model), "--json", "-"))
    assert (result["provenance"]["toposcope"], len(result["heads"])) == (__version__, 12)
    run("scan", str(model), "--html", "report.html")
    assert "<html" in (tmp_path / "report.html").read_text()[:2000]
    with capsys.disabled():
        print(
            f"\nwheel {wheel.stat().st_size / 1e6:.2f} MB, source archive {built[1].stat().st_size / 1e6:.2f} MB; "
            f"installed with its dependencies in {seconds:.0f} s, {size / 1e6:.0f} MB"
        )
