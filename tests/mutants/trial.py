"""Tests in a forked process, against a copy of the package in which a module may be changed.

Forks start with the third parties' packages imported already, so a trial costs little more than its tests; toposcope
itself is imported anew in each, from the copy. Programs that a test starts see the copy, too.
"""

from __future__ import annotations

import ast
import builtins
import compileall
import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutants.targets import IGNORED, ROOT, SOURCE

PRELOADED = {"numpy", "scipy", "torch", "transformers", "safetensors", "tokenizers", "gguf", "ml_dtypes"}
OPTIONS = ("-q", "-x", "--tb=no", "--no-header", "-p", "no:cacheprovider")
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # hypothesis is imported before pytest begins


@dataclass(frozen=True)
class Covered:
    """One test as it is without a change: what it costs, and which lines of which module it runs."""

    seconds: float  # of processor time: others may use the machine, too
    passed: bool
    lines: Mapping[str, Sequence[int]]


class Copy:
    """A copy of src/toposcope in which one module at a time is changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        shutil.copytree(SOURCE / "toposcope", place / "toposcope")  # with what is compiled already
        compileall.compile_dir(place, quiet=2)

    def write(self, sources: Mapping[str, str]) -> None:
        """Put the sources of modules in; those of all others are as they were."""
        for module, source in sources.items():
            path = self.place / "toposcope" / Path(*module.split(".")).with_suffix(".py")
            path.write_text(source, encoding="utf-8")
            # compiled files are told apart by size and second only
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                compiled.unlink()


class Watcher:
    """A plug-in of pytest: chooses and orders tests, times them, and notes which lines each one ran."""

    def __init__(self, chosen: Mapping[str, float] | None) -> None:
        self.chosen = chosen
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: str | None = None
        self._shared: set[tuple[str, int]] = set()
        self._clock = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        # a counterexample is enough: nobody reads it, so it need not be made small
        settings.register_profile(
            "mutants",
            settings.default,
            phases=(Phase.explicit, Phase.generate),
            print_blob=False,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if getattr(item, "originalname", item.name) not in IGNORED]
        if self.chosen is not None:
            kept = [item for item in kept if item.nodeid in self.chosen]
            cost: dict[str, float] = {}
            for item in kept:  # files stay together, for what their tests share
                cost[str(item.path)] = cost.get(str(item.path), 0.0) + self.chosen[item.nodeid]
            kept.sort(key=lambda item: (cost[str(item.path)], str(item.path), self.chosen[item.nodeid]))
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": True, "lines": []})
        told["seconds"] += time.process_time() - self._clock
        self._clock = time.process_time()
        if report.outcome != "passed":
            told["passed"] = False
        if report.failed:
            self.failed = self.failed or report.nodeid
        told["lines"] += sorted(hits())
        if report.when == "setup":  # what a fixture ran may serve later tests, too
            self._shared |= hits()
        hits().clear()

    def pytest_collection_finish(self) -> None:
        self._shared |= hits()  # what the test files ran when they were read
        hits().clear()
        self._clock = time.process_time()

    def pytest_sessionfinish(self) -> None:
        for told in self.tests.values():
            lines: dict[str, set[int]] = {}
            for module, line in {*told["lines"], *self._shared}:
                lines.setdefault(module, set()).add(line)
            told["lines"] = {module: sorted(found) for module, found in lines.items()}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # the module cannot even be imported
            self.failed = self.failed or report.nodeid


def hits() -> set[tuple[str, int]]:
    """Where the instrumented modules note what they run: (module, line)."""
    return vars(builtins).setdefault("_lines_run", set())


def instrumented(source: str, module: str) -> str:
    """The module, noting each statement of a function before it is run."""

    class Noting(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node, ast.Module | ast.ClassDef):
                return node
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                    setattr(node, name, [new for each in body for new in (_note(module, each.lineno), each)])
            return node

    tree = Noting().visit(ast.parse(source))
    first = next(number for number, each in enumerate(tree.body) if isinstance(each, ast.Import | ast.ImportFrom))
    begin = ast.parse(
        "import builtins\nvars(builtins).setdefault('_lines_run', set())"
    ).body  # also where a test starts Python
    tree.body[first + 1 : first + 1] = begin  # after `from __future__`
    return ast.unparse(ast.fix_missing_locations(tree))


def _note(module: str, line: int) -> ast.stmt:
    return ast.parse(f"_lines_run.add(({module!r}, {line}))").body[0]


def run(
    copy: Copy,
    files: Iterable[Path],
    scratch: Path,
    *,
    chosen: Mapping[str, float] | None = None,
    seconds: int = 600,
    whole: bool = False,
) -> dict[str, Any]:
    """Run tests in a fork: {"outcome": "passed" | "failed" | "timeout" | "crashed", "test": ..., "tests": ...}.

    `chosen` are tests with what they cost; all tests of the files where it is None. `whole`: go on after a failure.
    `seconds` limits the processor time; ten times as many on the wall end tests that wait for ever.
    """
    answer = scratch / "answer.json"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        _in_child(copy, [str(path) for path in files], chosen, answer, scratch, whole)
    end = time.monotonic() + 10 * seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"outcome": "timeout", "test": None, "tests": {}}
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests may have left behind
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return {"outcome": "timeout", "test": None, "tests": {}}
    if status or not answer.is_file():
        return {"outcome": "crashed", "test": None, "tests": {}}
    told = dict(json.loads(answer.read_text(encoding="utf-8")))
    if told["outcome"] == "broken":
        raise RuntimeError(f"the runner itself failed: {told['test']}")
    return told


def _in_child(
    copy: Copy, files: list[str], chosen: Mapping[str, float] | None, answer: Path, scratch: Path, whole: bool
) -> None:
    code = 1
    try:
        os.setsid()
        out = os.open(scratch / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(ROOT)
        sys.path.insert(0, str(copy.place))
        os.environ["PYTHONPATH"] = str(copy.place)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["TOPOSCOPE_TESTS"] = "all"  # a sample would notice less
        sys.dont_write_bytecode = True
        watcher = Watcher(chosen)
        options = [each for each in OPTIONS if not (whole and each == "-x")]
        ended = int(pytest.main([*options, *QUIET, f"--basetemp={scratch / 'pytest'}", *files], plugins=[watcher]))
        _surely_the_copy(copy)
        outcome = "passed" if ended in (0, 5) and watcher.failed is None else "failed"
        told = {"outcome": outcome, "test": watcher.failed, "tests": watcher.tests, "modules": _third_parties()}
        answer.write_text(json.dumps(told), encoding="utf-8")
        code = 0
    except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
        answer.write_text(json.dumps({"outcome": "broken", "test": repr(error), "tests": {}}), encoding="utf-8")
        code = 0
    finally:
        os._exit(code)


def _surely_the_copy(copy: Copy) -> None:
    used = sys.modules.get("toposcope")
    if used is not None and not str(used.__file__).startswith(str(copy.place)):
        raise RuntimeError(f"the tests ran {used.__file__}, not the copy")


def _third_parties() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in PRELOADED]


def preload(names: Iterable[str]) -> None:
    """Import what the tests will import anyway, once for all forks to come."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
