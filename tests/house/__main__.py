"""`python -m tests.house [ROOT]`: the size and the shape of a checkout, as a table."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

from tests.house.graph import ROOT, House, room

_SENTENCE = re.compile(r"\w+\W+\w+\W+\w+")


def main(root: Path) -> None:
    """Print the table."""
    house = House(root / "src")
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in house.modules.items()}
    files, total = Counter(map(room, lines)), Counter[str]()
    for module, count in lines.items():
        total[room(module)] += count
    print(f"{'package':12s} {'files':>6s} {'lines':>7s} {'lines/file':>11s}")
    for name in sorted(files):
        print(f"{name or '(top)':12s} {files[name]:6d} {total[name]:7d} {total[name] / files[name]:11.0f}")
    print(f"{'all':12s} {len(lines):6d} {sum(lines.values()):7d} {sum(lines.values()) / len(lines):11.0f}")
    longest = [f"{module} {count}" for module, count in lines.items() if count > 500]
    print(f"files of more than 500 lines: {', '.join(longest) or 'none'}")
    print(f"modules with one importer: {sum(len(users) == 1 for users in house.importers.values())}")
    twins = {name: homes for name, homes in house.classes.items() if len(homes) > 1}
    print(f"class names that exist twice: {len(twins)} ({', '.join(sorted(twins))})")
    print(f"lazy imports in cli: {sum(each.lazy and room(each.importer) == 'cli' for each in house.imports)}")
    print(f"tests that assert prose: {sum(map(_prose, sorted((root / 'tests').rglob('test_*.py'))))}")


def _prose(path: Path) -> int:
    """Tests that look for three words or more in a row, in what a command prints or an error says."""
    functions = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    ]
    return sum(each.name.startswith("test_") and any(map(_sentence, ast.walk(each))) for each in functions)


def _sentence(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "match":
        words = [node.value]
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
        words = [node.left]
    else:
        return False
    return any(isinstance(each, ast.Constant) and _SENTENCE.search(str(each.value)) for each in words)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
