"""Change central modules a little, one change at a time, and see whether their tests notice.

    python -m tests.mutants --sample 200 --seed 1
    python -m tests.mutants --modules spectra.anova,models.deposit --sample 40 --seed 2

Nothing of the tree is changed: a copy of the package is. Outcomes go to a journal (out/mutants), so that a run that
was ended goes on where it was; a change of the module or of its tests makes them out of date. For each mutant only
those tests are asked that run its line, the quickest first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutants.mutate import Mutant, mutants, sample
from tests.mutants.targets import MODULES, ROOT, file_of, tests_of
from tests.mutants.trial import Copy, Covered, instrumented, preload, run

EQUIVALENT = Path(__file__).with_name("equivalent.json")
KINDS = ("noticed", "timeout", "survived", "equivalent")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    known = {each["mutant"]: each["why"] for each in json.loads(EQUIVALENT.read_text(encoding="utf-8"))}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        bench = Bench(options, Path(scratch), known)
        rows: list[dict[str, Any]] = []
        for module in options.modules:
            rows += bench.trials(module, drawn(module, options))
        print(table(rows))
        told = {"seed": options.seed, "sample": options.sample, "mutants": rows, **share(rows)}
        if options.json:
            options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def drawn(module: str, options: argparse.Namespace) -> list[Mutant]:
    """The module's part of the sample: as many as of any other module, give or take one."""
    places = mutants(file_of(module), module)
    each, more = divmod(options.sample, len(options.modules))
    count = each + (options.modules.index(module) < more)
    found = sample(places, count, f"{options.seed} {module}")
    if options.only:
        found = [mutant for place in places for mutant in place if options.only in mutant.name]
    return found


class Bench:
    """Knows which tests run which lines, and tries mutants against them."""

    def __init__(self, options: argparse.Namespace, scratch: Path, known: dict[str, str]) -> None:
        self.options, self.scratch, self.known = options, scratch, known
        self.copy = Copy(scratch / "copy")
        self.sources = {module: file_of(module).read_text(encoding="utf-8") for module in MODULES + options.modules}
        self._package = _hash(*(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py"))))
        self._cover_file, self._journal_file = options.out / "covered.json", options.out / "journal.jsonl"
        self._cover: dict[str, Any] = _read(self._cover_file)
        lines = self._journal_file.read_text(encoding="utf-8").splitlines() if self._journal_file.is_file() else []
        self._journal = {each["key"]: each for each in map(json.loads, lines)}

    def covered(self, files: Sequence[Path]) -> dict[str, Covered]:
        """Each test of these files without a change; files that are as they were are not run again."""
        found: dict[str, Covered] = {}
        for path in files:
            name = _relative(path)
            key = _hash(path.read_bytes(), self._package.encode())
            if self._cover.get(name, {}).get("key") != key:
                self.copy.write({module: instrumented(source, module) for module, source in self.sources.items()})
                told = run(self.copy, [path], self.scratch, whole=True)
                self.copy.write(self.sources)
                if told["outcome"] in ("timeout", "crashed") or not told["tests"]:
                    raise SystemExit(f"{name}: {told['outcome']} without any change, {len(told['tests'])} tests ran.")
                self._cover[name] = {"key": key, "tests": told["tests"], "modules": told.get("modules", [])}
                self._cover_file.write_text(json.dumps(self._cover), encoding="utf-8")
            preload(self._cover[name]["modules"])
            found |= {test: Covered(**each) for test, each in self._cover[name]["tests"].items()}
        return {test: each for test, each in found.items() if each.passed}

    def trials(self, module: str, chosen: Sequence[Mutant]) -> list[dict[str, Any]]:
        """Try mutants of one module, those that the journal does not know."""
        files = [Path(each).resolve() for each in self.options.tests] or tests_of(module)
        covered = self.covered(files)
        rows = []
        for mutant in chosen:
            cost = {test: each.seconds for test, each in covered.items() if _runs(each, mutant)}
            key = _hash(mutant.name.encode(), mutant.source.encode(), json.dumps(sorted(cost)).encode())
            row = self._journal.get(key)
            if row is None:
                row = {"key": key, **self._trial(mutant, files, cost)}
                self._journal[key] = row
                with self._journal_file.open("a", encoding="utf-8") as journal:
                    journal.write(json.dumps(row) + "\n")
            if row["outcome"] == "survived" and mutant.name in self.known:
                row = {**row, "outcome": "equivalent", "why": self.known[mutant.name]}
            rows.append(row)
            print(f"  {row['outcome']:10} {module}:{row['line']}  {shown(row)}", flush=True)
        return rows

    def _trial(self, mutant: Mutant, files: Sequence[Path], cost: dict[str, float]) -> dict[str, Any]:
        took = time.monotonic()
        chosen, left, seconds = {}, 0, 0.0
        for test in sorted(cost, key=cost.__getitem__):
            if seconds + cost[test] > self.options.budget:
                left += 1
                continue
            chosen[test] = cost[test]
            seconds += cost[test]
        told: dict[str, Any] = {"outcome": "passed", "test": None}
        if chosen:
            named = {test.partition("::")[0] for test in chosen}
            asked = [path for path in files if _relative(path) in named]
            self.copy.write({mutant.module: mutant.source})
            told = run(self.copy, asked, self.scratch, chosen=chosen, seconds=int(3 * seconds) + self.options.margin)
            self.copy.write({mutant.module: self.sources[mutant.module]})
        outcome = {"passed": "survived", "failed": "noticed", "crashed": "noticed"}.get(told["outcome"], "timeout")
        return {
            "module": mutant.module,
            "line": mutant.line,
            "within": mutant.within,
            "kind": mutant.kind,
            "before": mutant.before,
            "after": mutant.after,
            "mutant": mutant.name,
            "outcome": outcome,
            "by": told["test"],
            "tests": len(chosen),
            "left_out": left,  # tests that would have taken too long
            "seconds": round(time.monotonic() - took, 1),
        }


def _runs(test: Covered, mutant: Mutant) -> bool:
    return any(mutant.first <= line <= mutant.last for line in test.lines.get(mutant.module, ()))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Counts by module, and each survivor."""
    lines = ["| module | mutants | " + " | ".join(KINDS) + " |", "|---|" + "---|" * (len(KINDS) + 1)]
    for module in [*dict.fromkeys(row["module"] for row in rows), None]:
        counts = Counter(row["outcome"] for row in rows if module in (None, row["module"]))
        cells = [module or "all", counts.total(), *(counts[kind] for kind in KINDS)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    told = share(rows)
    lines += ["", f"Noticed: {told['noticed']} of {told['changed']} that change behaviour."]
    for row in rows:
        if row["outcome"] in ("survived", "equivalent"):
            why = row.get("why", f"{row['tests']} tests ran it, {row['left_out']} were left out")
            lines.append(f"- {row['outcome']}, {row['module']}:{row['line']} ({row['kind']}, {why})")
            lines.append(f"    {shown(row)}")
    return "\n".join(lines)


def shown(row: dict[str, Any], around: int = 45) -> str:
    """What is changed, with a few characters on each side of it."""
    before, after = row["before"], row["after"]
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    parts = (text[max(0, start - around) : len(text) - max(0, end - around)] for text in (before, after))
    return " -> ".join(f"`{part}`" for part in parts)


def share(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many of the mutants that change behaviour are noticed; a test that hangs is one that notices."""
    counts = Counter(row["outcome"] for row in rows)
    noticed = counts["noticed"] + counts["timeout"]
    return {"noticed": noticed, "changed": noticed + counts["survived"]}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--modules", default=",".join(MODULES), help="names below toposcope, with commas between")
    parser.add_argument("--sample", type=int, default=200, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="instead of a sample: all mutants whose name contains this")
    parser.add_argument("--tests", nargs="*", default=[], help="test files to ask, instead of those found")
    parser.add_argument("--budget", type=float, default=30.0, help="processor seconds of tests for one mutant")
    parser.add_argument("--margin", type=int, default=20, help="seconds added to three times the clean time")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants", help="where the journal is kept")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    options = parser.parse_args(arguments)
    options.modules = tuple(options.modules.split(","))
    return options


def _alike(one: str, other: str) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1),
        len(min(one, other, key=len)),
    )


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _hash(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8) + part)
    return total.hexdigest()[:24]


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


if __name__ == "__main__":
    raise SystemExit(main())
