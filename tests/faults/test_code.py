"""What no module may do: run code from data, or read or write files otherwise than the few that know how."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "toposcope"
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

# Who may open a file for writing, rename, remove or connect to a database, and what for.
WRITERS = {
    "core/files.py": "every result: to a temporary name, then renamed",
    "core/journal.py": "lines that are appended",
    "runs/lock.py": "the signature in a lock",
    "runs/store.py": "the removal of runs",
    "runs/index.py": "the index",
    "runs/directory.py": "the removal of what a killed process or a finished run leaves",
    "runs/local.py": "a worker's last words, in a temporary file",
    "runs/on_ray.py": "a worker's own temporary directory",
    "core/saved.py": "the removal of a checkpoint",
    "models/gguf_cache.py": "a copy of a model: a directory that is renamed",
    "checkpoints/hub/cache.py": "removes ranges that are damaged; a directory for one process where nothing is kept",
    "models/load.py": "the content of that copy",
    "report/movie.py": "a movie's temporary directory",
    "studies/language/sotu.py": "a temporary directory for npm",
    "cli/__init__.py": "standard output, when its reader has gone",
    "web/server.py": "the page that takes a browser to the server, in a temporary directory",
}
# Who may open a file for reading by itself; all others use toposcope.core.untrusted, the one door.
READERS = {
    "core/untrusted.py": "the door",
    "checkpoints/pickled.py": "an archive whose file came through the door",
    "checkpoints/torch_file.py": "weights that torch reads, after the door has let them in",
    "checkpoints/torch_storage.py": "what torch says of a file that the door has let in; no byte of it is touched",
    "refinements/diagonal.py": "values that safetensors maps, after the door has let them in",
    "core/saved.py": "torch.load of bytes that came through the door",
    "core/arrays.py": "an archive whose file came through the door",
    "studies/language/sotu.py": "an archive whose file came through the door",
    "runs/index.py": "SQLite, after the door has looked at the file; a copy in memory for who only looks",
    "runs/lock.py": "the lock, which follows no link",
    "core/journal.py": "the journal, which is written as well",
    "core/files.py": "the directory of what was written, to have it on the disk; the temporary file",
    "models/gguf_cache.py": "its own copy, to have it on the disk and to hold it",
    "core/memory.py": "what the system says of its memory",
    "report/page.py": "the page's own parts, which come with the package",
    "report/paint.py": "the page's own colours, which come with the package",
    "web/app.py": "the page's own parts, which come with the package",
    "core/errors.py": "the pages of errors, which come with the package",
    "report/movie.py": "the movie that was just drawn",
    "cli/__init__.py": "standard output, when its reader has gone",
    "core/interpreters.py": "the pipes between a process and those it has started itself",
}
PIPES = ("core/interpreters.py",)  # objects between a process and its own child: not data
REMOVES = {
    "unlink",
    "rmtree",
    "rmdir",
    "rename",
    "symlink_to",
    "hardlink_to",
    "touch",
    "ftruncate",
    "pwrite",
    "fsync",
}
MAKES = {
    "save_file",
    "save_pretrained",
    "TemporaryFile",
    "NamedTemporaryFile",
    "TemporaryDirectory",
    "mkdtemp",
    "mkstemp",
}
IN_MEMORY = {"buffer", "out", "content"}  # what may be given to savefig, torch.save, np.savez in place of a path


def calls(module: str) -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of a module: on what, which function, and the call."""
    for node in ast.walk(ast.parse((SOURCE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield ast.unparse(node.func.value), node.func.attr, node
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id, node


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(each.value) for each in call.keywords if each.arg == name), None)


def reads(on: str, name: str, call: ast.Call) -> bool:
    if name in ("read_text", "read_bytes"):
        return bool(on) and on != "untrusted"  # a method of Path; the door's functions are called plainly
    if name == "open":
        return on not in ("self", "shown", "entry", "webbrowser", "Image")
    if name in ("load", "loads") and on in ("json", "torch", "pickle", "np", "numpy", "safetensors", "tomllib"):
        return name == "load"
    if name in ("fromfile", "genfromtxt", "loadtxt", "memmap", "read_csv", "copyfile", "copy2", "copytree", "fopen"):
        return True
    if name == "connect":
        return on == "sqlite3"
    return name in ("safe_open", "load_file", "mmap", "ZipFile", "TarFile", "FileIO")


def writes(on: str, name: str, call: ast.Call) -> bool:
    if name in ("write_text", "write_bytes"):
        return bool(on)  # a method of Path; our own functions of that name are called plainly
    if name == "open" and on == "os":
        return "O_RDONLY" not in ast.unparse(call)
    if name == "open" and on not in ("", "tarfile", "self", "shown", "entry"):
        mode = next(
            (arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)), "r"
        )
        return bool(set(mode) & set("wax+"))
    if name == "open" and on == "":
        return len(call.args) > 1 or keyword(call, "mode") is not None
    if name in ("replace", "remove", "mkfifo", "link", "makedirs"):
        return on in ("os", "temporary", "begun")
    if name == "connect":
        return on == "sqlite3"
    if name in ("savefig", "savez", "savez_compressed", "savetxt") or (
        on in ("torch", "np", "numpy") and name == "save"
    ):
        return not any(isinstance(arg, ast.Name) and arg.id in IN_MEMORY for arg in call.args)
    return name in REMOVES or name in MAKES


def test_files_are_written_by_those_who_know_how() -> None:
    for module in MODULES:
        check_writes(module)


def test_files_are_read_through_the_one_door() -> None:
    for module in MODULES:
        check_reads(module)


def test_no_data_is_run() -> None:
    for module in MODULES:
        check_runs(module)


def check_writes(module: str) -> None:
    found = [f"line {call.lineno}: {on}.{name}" for on, name, call in calls(module) if writes(on, name, call)]
    if module in WRITERS:
        assert found, f"{module} writes nothing any more: take it off the list"
    else:
        assert not found, f"{module} writes by itself; use toposcope.core.files: {found}"


def check_reads(module: str) -> None:
    found = [f"line {call.lineno}: {on}.{name}" for on, name, call in calls(module) if reads(on, name, call)]
    if module in READERS:
        assert found, f"{module} opens nothing any more: take it off the list"
    else:
        assert not found, f"{module} opens files by itself; use toposcope.core.untrusted: {found}"


def check_runs(module: str) -> None:
    for on, name, call in calls(module):
        where = f"{module}, line {call.lineno}: {on}.{name}"
        assert not (on == "" and name in ("eval", "exec", "compile", "__import__", "input")), where
        assert not (on in ("os",) and name in ("system", "popen")), where
        assert on not in ("marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"), where
        assert not (on == "pickle" and name in ("load", "loads", "Unpickler")) or module in PIPES, where
        assert not (on in ("np", "numpy") and name == "load"), f"{where}: read arrays with toposcope.core.arrays"
        assert name not in ("extractall", "extract", "unpack_archive"), where
        assert keyword(call, "shell") in (None, "False"), where
        if on == "torch" and name == "load":
            assert keyword(call, "weights_only") == "True", where
        if name == "from_pretrained":
            given = "arguments" in ast.unparse(call)  # models/load.py: one dictionary for all
            assert given or (keyword(call, "trust_remote_code"), keyword(call, "local_files_only")) == (
                "False",
                "True",
            ), where


def test_what_transformers_is_given() -> None:
    from toposcope.models.load import _Place

    given = _Place(Path("somewhere"), None).arguments
    assert (given["local_files_only"], given["trust_remote_code"]) == (True, False)


def test_the_rules_find_what_they_are_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    (tmp_path / "bad.py").write_text(
        "Path('a').write_text('x')\nopen('a', 'w')\nPath('a').open('ab')\ntorch.save(x, path)\nos.replace(a, b)\n"
        "sqlite3.connect('x')\nfigure.savefig('a.png')\npath.unlink()\nsave_file(x, 'a')\n"
    )
    assert [writes(*each) for each in calls("bad.py") if each[1] != "Path"] == [True] * 9
    (tmp_path / "good.py").write_text(
        "write_text('a', 'x')\nPath('a').open('rb')\nopen('a')\ntorch.save(x, buffer)\n"
    )
    assert not any(writes(*each) for each in calls("good.py"))
    (tmp_path / "bad.py").write_text(
        "Path('a').read_text()\nopen('a')\nPath('a').open('rb')\nos.open(a, 0)\njson.load(file)\nzipfile.ZipFile(a)\n"
        "tarfile.open(a)\nsafe_open(a, 'pt')\nsqlite3.connect(a)\nnp.fromfile(a)\na.joinpath(b).read_bytes()\n"
    )
    assert [reads(*each) for each in calls("bad.py") if each[1] not in ("Path", "joinpath")] == [True] * 11
    (tmp_path / "good.py").write_text("read_bytes(a, most=1)\nopen_file(a)\nread_json(a, most=1)\njson.loads(text)\n")
    assert not any(reads(*each) for each in calls("good.py"))
    for text in (
        "torch.load(x)",
        "eval('1')",
        "np.load('x')",
        "subprocess.run('x', shell=True)",
        "a.from_pretrained('x')",
    ):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(AssertionError):
            check_runs("bad.py")
