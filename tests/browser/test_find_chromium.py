"""The script that looks for a browser: what it does on machines of every kind, told by the programs on its path."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "find_chromium.sh"
BASH = shutil.which("sh")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs a shell")


def run(place: Path, programs: dict[str, str], **more: str) -> tuple[str, list[str]]:
    """What the script says where nothing but these programs is there, and how apt-get was called."""
    folder = place / "bin"
    folder.mkdir()
    log = place / "log"
    for name, body in {"timeout": 'shift; exec "$@"', **programs}.items():
        (folder / name).write_text(f"#!{BASH}\nlog={log}; bin={folder}\n{body}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [str(BASH), str(SCRIPT)], env={"PATH": str(folder), **more}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout, log.read_text().splitlines() if log.exists() else []


ROOT, USER = {"id": "echo 0"}, {"id": "echo 1000"}
CALLED = 'for word; do last=$word; done; echo "$last" >> $log; '
INSTALLS = CALLED + "if [ $last = chromium ]; then echo > $bin/chromium; /bin/chmod 755 $bin/chromium; fi"


def test_one_that_is_there_is_used(tmp_path: Path) -> None:
    assert run(tmp_path, {**ROOT, "chromium": "", "apt-get": CALLED}) == ("", [])


def test_one_that_is_named_is_used(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("")
    mine.chmod(0o755)
    assert run(tmp_path, {**ROOT, "apt-get": CALLED}, PLAYWRIGHT_CHROMIUM=str(mine)) == ("", [])


@pytest.mark.parametrize("programs", [{**USER, "apt-get": CALLED}, ROOT], ids=["not root", "no apt-get"])
def test_where_none_may_be_installed_it_says_so(tmp_path: Path, programs: dict[str, str]) -> None:
    said, called = run(tmp_path, programs)
    assert "skipped" in said
    assert called == []


def test_root_installs_debian_s_even_where_lists_cannot_be_fetched(tmp_path: Path) -> None:
    broken = INSTALLS + '; if [ "$last" = update ]; then echo noise; exit 100; fi'
    said, called = run(tmp_path, {**ROOT, "apt-get": broken}, PLAYWRIGHT_CHROMIUM="/nowhere")
    assert said == "installing Debian's chromium for the browser tests\n"
    assert called == ["update", "chromium"]


def test_an_install_that_fails_is_told_and_harmless(tmp_path: Path) -> None:
    said, called = run(tmp_path, {**ROOT, "apt-get": CALLED + "exit 100"})
    assert said.endswith("chromium could not be installed: the browser tests will be skipped\n")
    assert called == ["update", "chromium"]
