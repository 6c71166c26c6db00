"""The documentation's promises that can be kept by a machine.

Every block of commands or Python on every page is run. Commands run as they are written, in a directory where tiny
models and texts lie under the names the pages use, with training profiles of a few steps: so names, options and files
are proven, and numbers are not. A command whose output is shown runs on the real model, and must print it. Lines that
call make, pip or python -m are looked up (target, extra, module). What cannot run says why in a comment before it:
<!-- not run in tests: needs a cluster -->.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import toposcope.core.errors
from toposcope.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
ERRORS = ROOT / "src/toposcope/core/error_pages"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *ERRORS.glob("*.md")],
    key=lambda page: page.as_posix(),
)
REASONS = ("a gpu", "a cluster", "a ray cluster", "hours", "an outside model")
MARK = re.compile(r"not run in tests: needs (.+)")
FENCE = re.compile(r"(?:^<!--(?P<mark>[^\n]*?)-->\n)?^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ |^(toposcope|make|pip|python) ")
PIPES = {"|", "||", ">", ">>", "&&", ";"}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, and the reason it gives for not being run."""

    page: Path
    line: int
    language: str
    body: str
    mark: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Commands without a language count too, so that none can hide."""
        shell = self.language in ("console", "sh", "bash") or (self.language == "" and bool(COMMAND.match(self.body)))
        return self.language == "python" or shell

    def commands(self) -> list[tuple[str, str]]:
        """Each command with the output that is shown of it."""
        lines = self.body.splitlines()
        if not any(line.startswith("$ ") for line in lines):
            return [(line, "") for line in lines if line.strip()]
        found: list[tuple[str, str]] = []
        for line in lines:
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + line + "\n")
        return found

    @property
    def shows_output(self) -> bool:
        return self.language != "python" and any(shown.strip() for _, shown in self.commands())


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], match["body"], match["mark"]))
    return found


# ------------------------------------------------------------------ what lies in the directory of a page
@pytest.fixture(scope="session")
def supplies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models under the names of installed ones, texts, and the files that pages speak of."""
    from tests.unit.models.making import TEXT, WORDS, write_bert, write_llama_lm
    from tests.unit.tiny import write_adapter

    place = tmp_path_factory.mktemp("supplies")
    sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "num_hidden_layers": 4}
    write_llama_lm(place / "smollm2", **sizes, max_position_embeddings=8192)
    shutil.copytree(place / "smollm2", place / "my-checkpoint")
    (place / "examples").mkdir()
    for name in ("tiny_yarn", "tiny_yarn_lost"):
        shutil.copytree(ROOT / "examples" / name, place / "examples" / name)
    for name in ("rxnmapper", "rxnfp/bert_pretrained", "rxnfp/bert_ft"):
        write_bert(place / name)
    at, random = "base_model.model.model.layers.1.self_attn.q_proj.lora", np.random.default_rng(0)
    lora = {f"{at}_A.weight": random.standard_normal((2, 24)), f"{at}_B.weight": random.standard_normal((24, 2))}
    write_adapter(place / "my-lora", {name: each.astype(np.float32) for name, each in lora.items()})
    words = np.random.default_rng(0).choice(WORDS, 20_000)
    for name in ("wiki", "c4", "letter.txt"):
        (place / name).write_text(" ".join(words))
    (place / "reactions.txt").write_text((TEXT + "\n") * 12)
    for name, sign in (("w.npy", 1), ("v.npy", -1)):
        np.save(place / name, sign * np.eye(2))
    with contextlib.chdir(place):
        run(["scan", "smollm2", "--layers", "0", "--json", "scan.json"])
        run(["check", "smollm2", "--json", "check.json"])
        (place / "out").mkdir()
        for stored in ("a.json", "out/smollm2-scan.json"):
            shutil.copy("scan.json", stored)
        shutil.copy("check.json", "b.json")
    return place


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training of a few steps, in this process; the papers' grids cut to a few models; a server that stops."""
    import uvicorn

    from tests.unit.cli.test_reproduce import tiny
    from toposcope.lab import ablation, profiles, train
    from toposcope.runs import local, sweep
    from toposcope.runs.jobs import work
    from toposcope.studies.language import groups
    from toposcope.studies.language.config import ProbeConfig
    from toposcope.studies.reproduce import coupling, reproduce
    from toposcope.web import server

    few = {
        name: replace(each, width=16, heads=2, ff=16, batch=4, steps=2, steps_of=MappingProxyType({}))
        for name, each in profiles.PROFILES.items()
    }
    monkeypatch.setattr(profiles, "PROFILES", MappingProxyType(few))

    drawn, removed = train.fixed_sentences, train.ablation_map
    monkeypatch.setattr(train, "fixed_sentences", lambda config, task: drawn(config, task, 64))
    monkeypatch.setattr(train, "ablation_map", lambda *given, **more: removed(*given, **more, draws=20))
    whole = ablation.ablate_lab
    monkeypatch.setattr(ablation, "ablate_lab", lambda model, **more: whole(model, sentences=64, **more))

    seeds = sweep.read_seeds
    for module in (sweep, reproduce):
        monkeypatch.setattr(module, "read_seeds", lambda text: seeds(text)[:1])

    def here(queue: Any, *, jobs: int, threads: int = 1, **more: Any) -> None:
        while queue.open:
            claim = queue.next()
            if claim is not None:
                work(claim.job.kind)(claim.job.config, claim.directory, lambda said: None)
                queue.finished(claim)

    sizes: dict[str, Any] = {"width": 8, "ff": 8, "length": 12, "batch": 2, "windows": 4, "steps": 2}

    def probes(size: Any, chosen: Any) -> dict[str, list[ProbeConfig]]:
        made = [ProbeConfig(cell, seed=0, text="wiki", other="c4", **sizes) for cell in ("full-pd", "full-nd")]
        return {"causal": made}

    monkeypatch.setattr(local, "run", here)
    monkeypatch.setattr(coupling, "grid", lambda size, chosen: tiny(size, range(1)))
    monkeypatch.setattr(groups, "grid", probes)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets=None: None)
    listen = server.listen  # the usual port may be in use, by a test beside this one
    monkeypatch.setattr(server, "listen", lambda host, port: listen(host, 0))
    monkeypatch.setenv("COLUMNS", "80")


# ------------------------------------------------------------------ running
def run(words: list[str]) -> tuple[int, str]:
    """A toposcope command in this process: its exit code, and all it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words)
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, said.getvalue()


def obey(command: str, shown: str, place: str) -> None:
    """Run one command and compare what it prints with what is shown, whatever the width of lines."""
    words = shlex.split(command, comments=True)
    expected = 2 if shown.startswith("toposcope: ") else 0
    if words[0] == "make":
        code, said = outside(["make", "--dry-run", "-C", str(ROOT), *words[1:]])
    elif words[0] == "pip":
        code, said = 0, looked_up_extras(words, place)
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None, f"{place}: there is no module {words[2]}"
        return
    elif words[:2] == ["python", "-c"]:
        exec(compile(words[2], place, "exec"), {})
        code, said = 0, ""
    elif words[0] == "toposcope" and not set(words) & PIPES:
        if "KEY" in words:  # any run there is
            words[words.index("KEY")] = next(Path("runs").glob("*/result.json")).parent.name
        code, said = run(words[1:])
    else:
        tools = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, env={"PATH": tools, "COLUMNS": "80", **kept}
        )
        code, said = done.returncode, done.stdout + done.stderr
    assert code == expected, f"{place}: '{command}' ended with {code}\n{said}"
    assert "".join(shown.split()) in "".join(said.split()), f"{place}: '{command}' printed\n{said}"


def outside(words: list[str]) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def looked_up_extras(words: list[str], place: str) -> str:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for word in words for found in re.findall(r"\[([\w,]+)\]", word) for extra in found.split(",")}
    assert named <= set(known), f"{place}: there is no extra {named - set(known)}"
    assert words[1] == "install"
    return ""


@contextlib.contextmanager
def furnished(place: Path, supplies: Path) -> Iterator[None]:
    """A working directory in which the supplies lie."""
    shutil.copytree(supplies, place, dirs_exist_ok=True)
    with contextlib.chdir(place):
        yield


@pytest.mark.sample(10)
@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES if blocks(page)])
def test_blocks_run(page: str, supplies: Path, small: None, tmp_path: Path) -> None:
    everything = [block for block in blocks(ROOT / page) if block.runs and block.mark is None]
    names: dict[str, Any] = {}
    bare = tmp_path / "bare"
    shutil.copytree(supplies / "examples", bare / "examples")
    with furnished(tmp_path / "here", supplies):
        if "3f2a91c0" in (ROOT / page).read_text():
            run(["train", "--task", "distance", "--encoding", "rope", "--out", "runs/3f2a91c0"])
        for block in everything:
            if block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block.body, block.place, "exec"), names)
            else:
                with contextlib.chdir(bare) if block.shows_output else contextlib.nullcontext():
                    for command, shown in block.commands():
                        obey(command, shown, block.place)


def test_marked_blocks_have_a_reason_that_counts(record_property: pytest.RecordProperty) -> None:
    marked = [block for page in PAGES for block in blocks(page) if block.runs and block.mark is not None]
    for block in marked:
        reason = MARK.search(block.mark or "")
        assert reason is not None, f"{block.place}: write <!-- not run in tests: needs ... -->"
        assert reason[1].strip().lower().startswith(REASONS), f"{block.place}: '{reason[1]}' is no reason"
    record_property("blocks not run", [block.place for block in marked])
    assert len(marked) <= 5, "too much of the documentation is not run"


def test_no_command_hides_in_indented_text_or_in_another_language() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.language in ("", "console", "sh", "bash", "python", "text", "json"), block.place
            if not block.runs:
                assert not COMMAND.match(block.body), f"{block.place} looks like a command"
        rest = FENCE.sub("", page.read_text(encoding="utf-8"))
        for line in rest.splitlines():
            assert not re.match(r"    (\$ )?(toposcope|pip install|python -m) ", line), f"{page.name}: fence '{line}'"


def test_commands_named_in_prose_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`(?:\.venv/bin/)?toposcope ([a-z]+)", page.read_text(encoding="utf-8")):
            assert name in COMMANDS, f"{page.relative_to(ROOT)} speaks of 'toposcope {name}'"


# ------------------------------------------------------------------ errors
def named_errors() -> set[str]:
    return {
        name
        for name, value in vars(toposcope.core.errors).items()
        if isinstance(value, type) and issubclass(value, toposcope.core.errors.ToposcopeError)
    } - {"ToposcopeError"}


def test_every_error_has_its_page_and_every_page_its_error() -> None:
    assert named_errors() == {page.stem for page in ERRORS.glob("*.md")}
    index = (ROOT / "docs/errors/README.md").read_text()
    assert named_errors() == set(re.findall(r"^\| `(\w+)`", index, re.M))
    assert named_errors() == set(re.findall(r'^--8<-- "src/toposcope/core/error_pages/(\w+).md"$', index, re.M))


def test_explain_alone_lists_every_kind_of_error() -> None:
    code, said = run(["explain"])
    assert code == 0
    lines = said.split("\n\n")[0].splitlines()
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == named_errors()


def test_a_clone_is_installed_within_the_tested_versions() -> None:
    """An open range can pull gigabytes of torch, and a transformers that nobody has tried."""
    for page in PAGES:
        for line in re.findall(r"pip install (?:[^\n`]* )?'?\.(?:\[|'|\s)[^\n`]*", page.read_text()):
            assert "-c constraints.txt" in line, f"{page.relative_to(ROOT)}: {line}"


@pytest.mark.parametrize("name", sorted(named_errors()))
def test_every_error_page_shows_a_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it really occurs is shown by `test_blocks_run`; what needs a missing package is brought about here."""
    shown = [block for block in blocks(ERRORS / f"{name}.md") if f"toposcope explain {name}" in block.body]
    assert len(shown) == 1
    code, said = run(["explain", name])
    assert code == 0
    assert all(word in said for word in ("Symptom.", "Cause.", "Cure."))
    if name != "MissingExtra":
        assert shown[0].language == "console"
        assert shown[0].shows_output
        return
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, said = run(["trace", "smollm2"])
    assert code == 2
    assert said.split() == shown[0].body.split()


# ------------------------------------------------------------------ links, maps, generated pages
def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_modules_named_by_their_path_exist() -> None:
    """`scanning/scan.py` or `cli/scan`: a path below src/toposcope in which no part is a stand-in, as NAME is."""
    home = ROOT / "src/toposcope"
    rooms = "|".join(sorted(each.name for each in home.iterdir() if each.is_dir()))
    path = re.compile(rf"`(?:src/toposcope/)?((?:{rooms})/[a-z0-9_/.]+)`")
    named = {(page.name, each) for page in PAGES for each in path.findall(page.read_text())}
    assert len(named) > 20
    gone = {(page, each) for page, each in named if not any((home / f"{each}{end}").exists() for end in ("", ".py"))}
    assert gone == set()


def test_every_function_of_the_map_exists() -> None:
    text = (ROOT / "docs/theory.md").read_text()
    names = set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", text))
    assert len(names) > 50
    for name in names:
        assert found(name), f"docs/theory.md names {name}, which does not exist"
    for path in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / path).exists(), path


def found(name: str) -> bool:
    """Whether a dotted name under toposcope leads to a module, a function, a class or a field."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            thing: Any = importlib.import_module("toposcope." + ".".join(parts[:cut]))
            break
    else:
        return False
    for part in parts[cut:]:
        if part in getattr(thing, "__dataclass_fields__", {}):
            return part == parts[-1]
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def test_the_map_is_not_fooled_by_a_name_that_is_not_there() -> None:
    assert found("dynamics.regime.Regime.margin")
    assert not found("dynamics.regime.regimes")
    assert not found("dynamics.nowhere.regime")


def test_every_theorem_of_the_notes_is_in_the_map() -> None:
    """T1 to T9 and S1 to S7, the parts of S5 one by one; and every rule that the code prints is among them."""
    text = (ROOT / "docs/theory.md").read_text()
    listed = set(re.findall(r"^\| ([TS]\d[a-g]?) \|", text, re.M))
    assert listed == {f"T{i}" for i in range(1, 10)} | {f"S{i}" for i in (1, 2, 3, 4, 6, 7)} | {
        f"S5{x}" for x in "abcdefg"
    }
    source = (ROOT / "src/toposcope/dynamics/regime.py").read_text()
    assert set(re.findall(r"\"(T\d)", source)) <= listed


def test_the_page_of_schemas_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_schema", ROOT / "docs/make_schema.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (ROOT / "docs/json.md").read_text() == made.page(), "run python docs/make_schema.py"


def test_the_site_is_built_without_a_warning_and_asks_nobody_for_anything(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site is built by mkdocs-material: pip install 'toposcope[docs]'")
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    code, said = outside(words)
    assert code == 0, said
    assert (tmp_path / "index.html").exists()
    asked = re.compile(
        r"<(?:script|img|iframe)[^>]*\bsrc=\"(https?:)?//|<link[^>]*\brel=\"(?!canonical)[^>]*href=\"https?://"
    )
    for page in tmp_path.rglob("*.html"):
        fetched = asked.search(page.read_text(encoding="utf-8"))
        assert fetched is None, f"{page.name} fetches {fetched}"
