"""The report of `reproduce`: each claim of a paper, what its released code does, what came out here, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Pairs, Paragraphs, Summary, count

_MEANING = {
    "holds": "the measurements are for it, beyond their intervals",
    "does not hold": "the measurements are against it, beyond their intervals",
    "not at this scale": "these runs do not decide it",
    "not measured here": "nothing was run for it",
}
_BESIDE = "(beside: "  # how the outcome marks what does not decide
_DOTS = {"holds": "converges", "does not hold": "diverges"}


def build(result: Mapping[str, Any], page: Page) -> None:
    claims = result["claims"]
    both = any("verdict_published" in claim for claim in claims)
    counts = Counter(claim["verdict"] for claim in claims)
    page.facts += [(str(len(claims)), "claims"), *((str(number), word) for word, number in counts.items())]
    if result.get("runs_done") is not None:
        page.facts.append((f"{result['runs_done']:,}", "training runs"))
    page.add("What to make of it", Summary(tuple(_meaning(claims, both))))
    table = page.rows("claims", [_flat(claim) for claim in claims])
    kinds = (
        (Column("verdict", "as described", "plain"), Column("verdict_published", "as released", "plain"))
        if both
        else (Column("verdict", "verdict", "plain"),)
    )
    columns = (Column("id", "claim", "wrap"), *kinds, Column("claim", "as stated", "wrap"))
    sentence = "; ".join(f"{word}: {_MEANING[word]}" for word in _MEANING if _used(claims, word)) + "."
    page.add("Verdicts", Listing("Every claim", sentence[0].upper() + sentence[1:], table, columns))
    told = Paragraphs(
        ("Estimates are means ± half of Student's 95 % interval, with the number of seeds in brackets.",), soft=True
    )
    page.add("Claim by claim", told if result.get("numbers") else None, *(_card(claim, both) for claim in claims))
    if result.get("table"):
        _accuracies(page, result["table"])
    if result.get("probe"):
        _probe(page, result["probe"]["rows"])
    if result.get("numbers"):
        page.add("Every number", _numbers(page, result["numbers"]))
    page.add(
        "About the released code",
        Paragraphs(
            ("The released code is what is public; the authors may have used other code for their paper.",), soft=True
        ),
    )


def _used(claims: Sequence[Mapping[str, Any]], word: str) -> bool:
    return any(word in (claim["verdict"], claim.get("verdict_published")) for claim in claims)


def _meaning(claims: Sequence[Mapping[str, Any]], both: bool) -> list[str]:
    keys = {"verdict": "On models as described: " if both else "", "verdict_published": "On models as released: "}
    said = [f"{count(len(claims), 'claim')} {'was' if len(claims) == 1 else 'were'} put to the test."]
    for key, words in keys.items():
        found = [word for word in _MEANING if any(claim.get(key) == word for claim in claims)]
        if found:
            told = [_counted(word, [claim["id"] for claim in claims if claim.get(key) == word]) for word in found]
            said.append((words + "; ".join(told))[0].upper() + (words + "; ".join(told))[1:] + ".")
    return said


def _counted(word: str, names: Sequence[str]) -> str:
    """How many, and of those with an outcome also which."""
    several = {"holds": "hold", "does not hold": "do not hold"}
    words = several.get(word, word) if len(names) > 1 else word
    return f"{len(names)} {words}" + (f" ({', '.join(names)})" if word in several else "")


def _flat(claim: Mapping[str, Any]) -> dict[str, Any]:
    return {key: "; ".join(map(str, value)) if isinstance(value, list) else value for key, value in claim.items()}


def _card(claim: Mapping[str, Any], both: bool) -> Pairs:
    flat = _flat(claim)
    items: list[tuple[str, str | tuple[str, ...]]] = [
        ("as stated", flat["claim"]),
        ("the released code", flat["released_code"]),
    ]
    if both:
        items += [
            ("models as described", _outcome(claim["verdict"], claim["measured"])),
            ("models as released", _outcome(claim["verdict_published"], claim["measured_published"])),
        ]
    else:
        items.append(("here", _outcome(claim["verdict"], claim["measured"])))
    items.append(("rule", flat["rule"]))
    if flat.get("runs"):
        items.append(("runs", f"{len(claim['runs'])}; their keys are in the data of the table above"))
    verdict = claim["verdict"]
    return Pairs(f"{claim['id']}: {verdict}", tuple(items), dot=_DOTS.get(verdict, "indeterminate"))


def _outcome(verdict: str, measured: str | Sequence[str]) -> tuple[str, ...]:
    """The verdict, a line for each estimate that decides it, and one for those that stand beside them."""
    found = [measured] if isinstance(measured, str) else list(measured)
    lines = [line for line in found if line != "-" and not line.startswith(_BESIDE)]
    beside = "; ".join(line.removeprefix(_BESIDE).removesuffix(")") for line in found if line.startswith(_BESIDE))
    return (f"{verdict.capitalize()}.", *lines, *((f"Row it: {beside}.",) if beside else ()))


def _accuracies(page: Page, cells: Sequence[Mapping[str, Any]]) -> None:
    for task in dict.fromkeys(cell["task"] for cell in cells):
        rows = [
            {
                "model": f"{cell['encoding']}, {'as described' if cell['variant'] == 'described' else 'as released'}",
                "accuracy": cell["accuracy"],
                "low": cell["accuracy"] - (cell["half"] or 0.0),
                "high": cell["accuracy"] + (cell["half"] or 0.0),
                "reported": cell["reported"],
                "seeds": cell["seeds"],
            }
            for cell in cells
            if cell["task"] == task
        ]
        spec = charts.intervals(
            "model", "accuracy", "low", "high", order=[row["model"] for row in rows], reference=None,
            x_title="accuracy in percent",
        )  # fmt: skip
        names = spec["layer"][0]["encoding"]["y"]
        if any(row["reported"] is not None for row in rows):
            spec["layer"].append(
                {
                    "mark": {"type": "tick", "color": charts.PALETTE[1], "thickness": 3},
                    "encoding": {"y": names, "x": {"field": "reported", "type": "quantitative"}},
                }
            )
        first = next(cell for cell in cells if cell["task"] == task)
        spec["layer"] += [
            {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": first[bound]}}}
            for bound in ("floor", "ceiling")
        ]
        words = (
            "Mean over seeds with its 95 % interval; dashed: the task's floor and ceiling; orange: what the paper "
            "reports, at its own size."
        )
        page.add(f"Accuracy: {task}", Chart(f"Who learns {task}", words, page.rows(f"cells {task}", rows), spec))
    columns = (
        Column("variant", "models", "plain"), Column("task", "task", "plain"),
        Column("encoding", "encoding", "plain"), Column("seeds", "seeds"), Column("accuracy", "accuracy, %"),
        Column("half", "±"), Column("floor", "floor, %"), Column("ceiling", "ceiling, %"),
        Column("reported", "reported, %"),
        *(Column(f"deposit_{layer}", f"deposit, layer {layer}") for layer in (0, 1)),
    )  # fmt: skip
    rows = [{key: value for key, value in cell.items() if key != "runs"} for cell in cells]
    words = (
        "Accuracy, and the deposit index of each layer: 1 where one head carries all, none where nothing was learned."
    )
    page.add("Every accuracy", Listing("All cells", words, page.rows("cells", rows), columns))


def _probe(page: Page, cells: Sequence[Mapping[str, Any]]) -> None:
    """Byte models that were held to a regime: their loss, group by group, against the group's free model."""
    for group in dict.fromkeys(cell["group"] for cell in cells):
        rows = [
            {
                "model": cell["cell"],
                "difference": cell["less"]["mean"],
                "low": cell["less"]["mean"] - (cell["less"]["half"] or 0.0),
                "high": cell["less"]["mean"] + (cell["less"]["half"] or 0.0),
                "seeds": cell["less"]["n"],
            }
            for cell in cells
            if cell["group"] == group and cell["less"] is not None
        ]
        if not rows:
            continue
        base = next(cell["base"] for cell in cells if cell["group"] == group)
        spec = charts.intervals(
            "model", "difference", "low", "high", order=[row["model"] for row in rows],
            x_title=f"bits a byte, less {base}; below 0 is better",
        )  # fmt: skip
        words = f"Held-out bits a byte against the cell '{base}', paired by seed, with Student's 95 % interval."
        page.add(f"Held to a regime: {group}", Chart("What it costs", words, page.rows(f"probe {group}", rows), spec))
    flat = [
        {key: value["mean"] if isinstance(value, Mapping) else value for key, value in cell.items() if key != "runs"}
        for cell in cells
    ]
    columns = (
        Column("group", "group", "plain"), Column("cell", "model", "plain"), Column("words", "which", "wrap"),
        Column("seeds", "seeds"), Column("bits", "bits a byte"), Column("less", "less the base"),
        Column("says", "says", "plain"), Column("cosine", "cosine"), Column("rank", "rank"),
        Column("slower", "time of a step"),
    )  # fmt: skip
    if flat:
        words = "Means over seeds; the others are in the data."
        page.add("Every model", Listing("All cells of the probe", words, page.rows("probe", flat), columns))


def _numbers(page: Page, numbers: Sequence[Mapping[str, Any]]) -> Listing:
    rows = [{**number, "runs": " ".join(number["runs"])} for number in numbers]
    columns = (
        Column("claim", "claim", "wrap"), Column("variant", "models", "plain"), Column("what", "what", "wrap"),
        Column("mean", "mean"), Column("half", "±"), Column("unit", "unit", "plain"), Column("n", "seeds"),
        Column("decides", "decides", "text"),
    )  # fmt: skip
    words = "Each estimate behind a verdict, and those that stand beside it; its runs are in the data."
    return Listing("Every estimate", words, page.rows("numbers", rows), columns)
