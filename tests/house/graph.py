"""The import graph of the package, read from its source: imports inside functions count like those at the top."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "toposcope"


@dataclass(frozen=True)
class Import:
    """One module importing another; `lazy` where it does so inside a function."""

    importer: str
    imported: str
    line: int
    lazy: bool


@dataclass(frozen=True)
class House:
    """All modules of a source tree and their imports of one another."""

    source: Path = ROOT / "src"

    @cached_property
    def modules(self) -> Mapping[str, Path]:
        found = {}
        for path in sorted((self.source / PACKAGE).rglob("*.py")):
            parts = path.relative_to(self.source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(each for module, path in self.modules.items() for each in self._of(module, path))

    def _of(self, module: str, path: Path) -> Iterator[Import]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(node) for each in ast.walk(tree) if isinstance(each, FUNCTIONS) for node in ast.walk(each)}
        unused = {id(node) for each in ast.walk(tree) if _for_types(each) for node in ast.walk(each)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in unused:
                for target in self._targets(node):
                    yield Import(module, target, node.lineno, id(node) in inside)

    def _targets(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in self.modules)
        elif node.module and node.module.split(".")[0] == PACKAGE:
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield inner if inner in self.modules else node.module

    @cached_property
    def importers(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = {module: set() for module in self.modules}
        for each in self.imports:
            found[each.imported].add(each.importer)
        return found

    @cached_property
    def classes(self) -> Mapping[str, list[str]]:
        """The modules in which a class of this name is defined."""
        found: dict[str, list[str]] = {}
        for module, path in self.modules.items():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(module)
        return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _for_types(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`, whose imports never run."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room(module: str) -> str:
    """The package a module stands in: `spectra` for toposcope.spectra.anova; '' for the package itself."""
    return module.split(".")[1] if "." in module else ""
