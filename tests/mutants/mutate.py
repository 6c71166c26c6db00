"""Small changes of a module's source, each of which a good test should notice.

Kinds: arithmetic (+ - * / swapped, a sign dropped), comparison (< for <=, == for !=, in for not in), off by one
(whole numbers one up or down, fractions doubled), flag (True for False), condition (negated), logic (and for or),
dropped (a statement becomes `pass`), result (a function returns None). Words are left alone: what is raised, titles
and docstrings may be reworded without breaking anything. So are annotations, decorators and imports.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISON: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change. `within` is the function it is in; (module, within, before, after, nth) outlive moved lines."""

    module: str
    line: int
    first: int  # a test that runs a statement in these lines runs the change
    last: int
    within: str
    kind: str
    before: str  # the whole statement's first line, or the condition, as it was
    after: str
    nth: int  # which of the equal changes of one function it is
    source: str  # the whole module, changed

    @property
    def name(self) -> str:
        """What it is called in the journal and in the list of equivalent ones."""
        return " | ".join([self.module, self.within, self.before, self.after, str(self.nth)])


@dataclass(frozen=True)
class _Change:
    site: tuple[int, int]
    statement: ast.stmt
    within: str
    kind: str
    node: ast.AST
    text: str  # what stands in the place of `node`
    shown: ast.AST  # what is quoted: the smallest expression that tells what is changed
    in_function: bool = True


def mutants(path: Path, module: str) -> list[list[Mutant]]:
    """All mutants of a module, those of one place together."""
    source = path.read_text(encoding="utf-8")
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for each in lines:
        starts.append(starts[-1] + len(each))

    def span(node: Any) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    whole = source.encode()
    seen: dict[tuple[str, str, str], int] = {}
    places: dict[tuple[int, int], list[Mutant]] = {}
    for change in _changes(ast.parse(source)):
        start, end = span(change.node)
        new = whole[:start] + change.text.encode() + whole[end:]
        left, right = span(change.shown)
        before = whole[left:right].decode()
        after = (whole[left:start] + change.text.encode() + whole[end:right]).decode()
        short = (change.within, " ".join(before.split()), " ".join(after.split()))
        seen[short] = seen.get(short, -1) + 1
        places.setdefault(change.site, []).append(
            Mutant(
                module,
                change.node.lineno,  # type: ignore[attr-defined]
                *_lines(change, len(lines)),
                change.within,
                change.kind,
                short[1],
                short[2],
                seen[short],
                new.decode(),
            )
        )
    return [places[site] for site in sorted(places)]


def sample(places: Sequence[Sequence[Mutant]], count: int, seed: str) -> list[Mutant]:
    """`count` mutants, at most one of each place, drawn evenly."""
    draw = random.Random(seed)
    chosen = draw.sample(range(len(places)), min(count, len(places)))
    return [draw.choice(list(places[index])) for index in chosen]


def _lines(change: _Change, whole: int) -> tuple[int, int]:
    """Of a statement its own line; of a default the whole function; of what runs at import the whole module."""
    statement = change.statement
    if not change.in_function:
        return 1, whole
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.lineno, statement.end_lineno or statement.lineno
    return statement.lineno, statement.lineno


# ------------------------------------------------------------------ the changes
def _changes(tree: ast.Module) -> Iterator[_Change]:
    yield from _body(tree.body, "", set())


def _body(body: Sequence[ast.stmt], within: str, known: set[str], *, function: bool = False) -> Iterator[_Change]:
    """Changes of statements; `known` are names that have a value already, so that an assignment can be dropped."""
    for number, each in enumerate(body):
        if isinstance(each, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
            continue
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            continue  # a docstring
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{within}.{each.name}".lstrip(".")
            for default in (*each.args.defaults, *(node for node in each.args.kw_defaults if node)):
                yield from _expression(default, each, inner, default)
            names = {arg.arg for arg in (*each.args.args, *each.args.kwonlyargs, *each.args.posonlyargs)}
            yield from _body(each.body, inner, names, function=True)
        elif isinstance(each, ast.ClassDef):
            yield from _body(each.body, f"{within}.{each.name}".lstrip("."), set())
        else:
            for change in _statement(each, within, known, last=number == len(body) - 1):
                yield replace(change, in_function=function)


def _statement(each: ast.stmt, within: str, known: set[str], *, last: bool) -> Iterator[_Change]:
    site = (each.lineno, each.col_offset)
    if _droppable(each, known, last):
        yield _Change(site, each, within, "dropped", each, "pass", each)
    if isinstance(each, ast.Return) and each.value is not None and not _is(each.value, None):
        yield _Change(site, each, within, "result", each.value, "None", each)
    for field, value in ast.iter_fields(each):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.expr) and field not in ("annotation", "exc", "cause", "msg"):
                shown = part if isinstance(each, ast.If | ast.While | ast.For | ast.With) else each
                yield from _expression(part, each, within, shown)
            elif isinstance(part, ast.withitem):
                yield from _expression(part.context_expr, each, within, part.context_expr)
    if isinstance(each, ast.If | ast.While):
        yield _Change(_place(each.test), each, within, "condition", each.test, _negated(each.test), each.test)
    if isinstance(each, ast.AugAssign) and type(each.op) in ARITHMETIC:
        other = ast.AugAssign(each.target, ARITHMETIC[type(each.op)](), each.value)
        yield _Change((each.lineno, each.col_offset + 1), each, within, "arithmetic", each, ast.unparse(other), each)
    for target in getattr(each, "targets", [getattr(each, "target", None)]):
        known |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} if target else set()
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(each, name, [])
        if isinstance(inner, list):
            yield from _body(inner, within, known)
    for handler in getattr(each, "handlers", []):
        yield from _body(handler.body, within, known)


def _droppable(each: ast.stmt, known: set[str], last: bool) -> bool:
    """A call for its effect, a step out, a value that replaces another: not the only assignment of a name."""
    if isinstance(each, ast.Assign):
        names = [node.id for target in each.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        direct = all(isinstance(target, ast.Name | ast.Tuple) for target in each.targets)
        return not direct or all(name in known for name in names)
    if isinstance(each, ast.Return):
        return not last  # of the last one, `result` says the same
    return isinstance(each, ast.Expr | ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete)


def _expression(node: ast.expr, statement: ast.stmt, within: str, shown: ast.AST) -> Iterator[_Change]:
    def change(kind: str, new: str | ast.expr, of: ast.expr = node) -> _Change:
        return _Change(_place(of), statement, within, kind, of, new if isinstance(new, str) else _plain(new), shown)

    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _words(node):
        yield change("arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield change("arithmetic", node.operand)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield change("condition", node.operand)
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            ops = [*node.ops[:index], COMPARISON[type(operator)](), *node.ops[index + 1 :]]
            yield change("comparison", ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.BoolOp):
        yield change("logic", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
    elif isinstance(node, ast.IfExp):
        yield change("condition", _negated(node.test), node.test)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield change("flag", str(not node.value))
        elif isinstance(node.value, int):
            yield change("off by one", str(node.value + 1))
            yield change("off by one", f"({node.value - 1})" if node.value == 0 else str(node.value - 1))
        elif isinstance(node.value, float):
            yield change("off by one", repr(2 * node.value if node.value else 1.0))
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.comprehension):
                yield from _expression(part.iter, statement, within, shown)
                for test in part.ifs:
                    yield _Change(_place(test), statement, within, "condition", test, _negated(test), shown)
                    yield from _expression(test, statement, within, shown)
            elif isinstance(part, ast.keyword):
                yield from _expression(part.value, statement, within, shown)
            elif isinstance(part, ast.expr) and field != "annotation":
                yield from _expression(part, statement, within, shown)


def _place(node: ast.expr) -> tuple[int, int]:
    """Where a change is: two changes of one operator or number are one place."""
    at = node.left if isinstance(node, ast.BinOp | ast.Compare) else node
    return (at.end_lineno or 0, at.end_col_offset or 0) if at is not node else (node.lineno, node.col_offset)


def _words(node: ast.BinOp) -> bool:
    """Whether it puts words together, or types."""
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr) or _is(side, str) for side in sides) or (
        isinstance(node.op, ast.BitOr | ast.Add) and any(isinstance(side, ast.List | ast.Tuple) for side in sides)
    )


def _is(node: ast.expr, kind: type | None) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None if kind is None else isinstance(node.value, kind))


def _negated(test: ast.expr) -> str:
    return f"(not {_plain(test)})"


def _plain(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
