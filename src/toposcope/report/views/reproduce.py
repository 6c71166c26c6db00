"""The view of `reproduce`: each claim of a paper, what its released code does, what came out here, the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toposcope.core.fields import plain
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Pairs, Paragraphs, Summary, count
from toposcope.report.views.study import settled, study_sections, with_interval

if TYPE_CHECKING:
    from toposcope.studies.reproduce.result import CouplingCell, ProbeRow, ReproducedClaim, ReproduceResult

# A verdict is on these runs, not on a paper: its words say so.
_WORDS = {
    "holds": "held here",
    "does not hold": "did not hold here",
    "not at this scale": "undecided here",
    "not measured here": "not measured",
    "equivalent": "no difference here",
    "undecided": "undecided here, with a stated power",
}
_MEANING = {
    "holds": "the measurements are for it, beyond their intervals",
    "does not hold": "the measurements are against it, beyond their intervals",
    "not at this scale": "runs of this size do not decide it",
    "not measured here": "nothing was run for it",
    "equivalent": "the difference is smaller than any that matters, by the bound fixed beforehand",
    "undecided": "neither; each number says how large a difference would have been seen",
}
_DECIDED = ("holds", "does not hold", "equivalent")
MOST = 8  # claims that the summary tells in full
_BESIDE = "(beside: "  # how the outcome marks what does not decide
_MODELS = {"described": "as described", "published": "as released"}
_DOTS = {"holds": "converges", "does not hold": "diverges"}


def view(result: ReproduceResult, page: Page) -> None:
    """Add the sections of a reproduction."""
    claims = result.claims
    both = any(claim.verdict_published is not None for claim in claims)
    page.title = page.title or f"Reproduction: {result.what}"
    counts = Counter(_WORDS[claim.verdict] + _in_part(claim.verdict, claim.measured) for claim in claims)
    page.facts += [
        (str(len(claims)), "claim" if len(claims) == 1 else "claims"),
        *((str(number), words) for words, number in counts.items()),
    ]
    if result.runs_done:
        page.facts.append((f"{result.runs_done:,}", "runs"))
    page.add("Summary", Summary(tuple(_summary(result, both))))
    kinds = (
        (Column("verdict", "as described", "plain"), Column("verdict_published", "as released", "plain"))
        if both
        else (Column("verdict", "outcome", "plain"),)
    )
    columns = (Column("claim", "the claim", "wrap"), *kinds, Column("id", "short name", "wrap"))
    told = [f"{_WORDS[word]}: {_MEANING[word]}" for word in _MEANING if word in _used(claims)]
    if any(_in_part(claim.verdict, claim.measured) for claim in claims):
        told.append("in part: that is so of some of the estimates that the claim needs, and not of all")
    sentence = "; ".join(told) + "."
    listing = Listing(
        "Every claim", sentence[0].upper() + sentence[1:], page.rows("claims", [_flat(claim) for claim in claims]),
        columns, top=60, brief=("claim", "verdict", "verdict_published"),
    )  # fmt: skip
    page.add("Outcomes", listing)
    note = Paragraphs(
        ("Estimates are means ± half of Student's 95% interval, with the number of seeds in brackets.",), soft=True
    )
    table = "Every question" if result.study is not None else "Every number"
    cards = [_card(claim, both, table) for claim in claims]
    page.add("Claim by claim", note if result.numbers else None, *cards, detail=True)
    if result.cells:
        _accuracies(page, result.cells)
    if result.probe is not None:
        _probe(page, result.probe.rows)
    if result.study is not None:
        study_sections(page, result.study)
    if result.numbers:
        page.add("Every number", _numbers(page, result), detail=True)
    words = (
        "The released code is what is public; the authors may have used other code for their paper. What it does "
        "stands beside each claim, and is no verdict on the paper."
    )
    page.add("About the released code", Paragraphs((words,), soft=True))


def _used(claims: Sequence[ReproducedClaim]) -> set[str]:
    return {str(word) for claim in claims for word in (claim.verdict, claim.verdict_published) if word is not None}


def _summary(result: ReproduceResult, both: bool) -> list[str]:
    """The claims that these runs decide, each in a sentence of its own; then how many they do not."""
    claims = result.claims
    tried = sum(set(_both(claim)) - {None, "not measured here"} != set() for claim in claims)
    of = "" if tried == len(claims) else f" of {len(claims)}"
    said = [f"{tried}{of} claim{'s' * (len(claims) != 1)} {'was' if tried == 1 else 'were'} put to the test."]
    decided = [claim for claim in claims if set(_DECIDED) & set(_both(claim))]
    said += [_told(claim, both) for claim in decided[:MOST]]
    if len(decided) > MOST:
        said.append(f"{len(decided) - MOST} more were decided: see the table.")
    for word, words in (
        ("not at this scale", "not decided by runs of this size"),
        ("not measured here", "not measured"),
        ("undecided", "left undecided, with a stated power"),
    ):
        left = sum(claim not in decided and claim.verdict == word for claim in claims)
        if left:
            said.append(f"{count(left, 'claim')} {'was' if left == 1 else 'were'} {words}.")
    if result.skipped:
        said.append(f"{count(len(result.skipped), 'run')} failed; the same command tries them again.")
    return said


def _both(claim: ReproducedClaim) -> tuple[str | None, str | None]:
    return claim.verdict, claim.verdict_published


def _told(claim: ReproducedClaim, both: bool) -> str:
    """A claim with what came of it, where: in models built as described, or as released."""
    models = {"as described": claim.verdict, "as released": claim.verdict_published} if both else {"": claim.verdict}
    parts = []
    for word in _DECIDED:
        where = " and ".join(name for name, verdict in models.items() if verdict == word)
        if where or (not both and claim.verdict == word):
            part = "" if both else _in_part(word, claim.measured)
            parts.append(_WORDS[word] + part + (f", in models built {where}" if where else ""))
    return f"{claim.claim.rstrip('.')}: {'; '.join(parts)}."


def _flat(claim: ReproducedClaim) -> dict[str, Any]:
    found: dict[str, Any] = plain(claim)
    found |= {key: _WORDS.get(str(found[key])) for key in ("verdict", "verdict_published")}
    found["verdict"] += _in_part(claim.verdict, claim.measured)
    return {key: "; ".join(map(str, value)) if isinstance(value, list) else value for key, value in found.items()}


def _card(claim: ReproducedClaim, both: bool, table: str) -> Pairs:
    items: list[tuple[str, str | tuple[str, ...]]] = [
        ("as stated", claim.claim),
        ("the released code", claim.released_code),
    ]
    items.append(("models as described" if both else "here", _outcome(claim.verdict, claim.measured, table)))
    if both and claim.verdict_published is not None:
        released = _outcome(claim.verdict_published, claim.measured_published or (), table)
        items.append(("models as released", released))
    if claim.before:
        items.append(("before this study", claim.before))
    items.append(("rule", tuple(claim.rule.split("; ")) if claim.rule.count("; ") > 1 else claim.rule))
    if claim.change:
        items.append(("would change it", claim.change))
    if claim.runs:
        items.append(("runs", f"{len(claim.runs)}; their keys are in the data of the table above"))
    outcome = _WORDS[claim.verdict] + _in_part(claim.verdict, claim.measured)
    return Pairs(f"{claim.id}: {outcome}", tuple(items), dot=_DOTS.get(claim.verdict, "indeterminate"))


def _outcome(verdict: str, measured: Sequence[str], table: str) -> tuple[str, ...]:
    """The verdict, a line for each estimate that decides it, and for those beside them, unless they are many."""
    lines = [_readable(line) for line in measured if line != "-" and not line.startswith(_BESIDE)]
    beside = [
        _readable(line.removeprefix(_BESIDE).removesuffix(")")) for line in measured if line.startswith(_BESIDE)
    ]
    if len(beside) > MOST:
        beside = [f"{len(beside)} more estimates: see '{table}' below."]
    said = (_WORDS[verdict] + _in_part(verdict, measured)).capitalize()
    return (f"{said}.", *lines, *(("Beside it, without a say:", *beside) if beside else ()))


def _in_part(verdict: str, measured: Sequence[str]) -> str:
    """Whether no difference is found in some of the estimates that decide, and in others one that matters."""
    deciding = [line for line in measured if line != "-" and not line.startswith(_BESIDE)]
    alike = sum(", equivalent within " in line for line in deciding)
    return ", in part" if verdict == "equivalent" and 0 < alike < len(deciding) else ""


def _readable(line: str) -> str:
    """The same with 1,460 for 1.46e+03, and 0 for what only rounding keeps from it."""
    line = re.sub(r"-?\d(?:\.\d+)?e-(?:0[9]|[1-9]\d)(?= ± 0\b(?!\.))", "0", line)
    return re.sub(r"\d(?:\.\d+)?e\+0[3-5]", lambda found: f"{float(found[0]):,.0f}", line)


def _accuracies(page: Page, cells: Sequence[CouplingCell]) -> None:
    for task in dict.fromkeys(cell.task for cell in cells):
        mine = [cell for cell in cells if cell.task == task]
        page.add(f"Accuracy: {task}", _who_learns(page, task, mine))
    every = (
        Column("variant", "models", "plain"), Column("task", "task", "plain"),
        Column("encoding", "encoding", "plain"), Column("seeds", "seeds"), Column("accuracy", "accuracy, %", ".1f"),
        Column("half", "±", ".1f"), Column("floor", "floor, %", ".1f"), Column("ceiling", "ceiling, %", ".1f"),
        Column("reported", "reported, %"), Column("deposit_0", "deposit, layer 0", ".2f"),
        Column("deposit_1", "deposit, layer 1", ".2f"),
    )  # fmt: skip
    rows = [
        {**{key: value for key, value in plain(cell).items() if key != "runs"}, "variant": _MODELS[cell.variant]}
        for cell in cells
    ]
    columns = tuple(
        column
        for column in every
        if not column.key.startswith("deposit") or any(row[column.key] is not None for row in rows)
    )
    words = (
        "Accuracy, and the deposit index (how much hangs on a single head) of each layer: 1 where one head carries "
        "all, none where nothing was learned."
    )
    brief = ("variant", "task", "encoding", "seeds", "accuracy", "half", "floor")
    listing = Listing("All cells", words, page.rows("cells", rows), columns, top=60, brief=brief)
    page.add("Every accuracy", listing)


def _who_learns(page: Page, task: str, cells: Sequence[CouplingCell]) -> Chart:
    rows: list[dict[str, Any]] = [
        {
            "model": f"{cell.encoding}, {_MODELS[cell.variant]}",
            "accuracy": cell.accuracy,
            "low": max(cell.accuracy - (cell.half or 0.0), 0.0),  # no accuracy is beyond these
            "high": min(cell.accuracy + (cell.half or 0.0), 100.0),
            "reported": cell.reported,
            "seeds": cell.seeds,
        }
        for cell in cells
    ]
    spec = charts.intervals(
        "model", "accuracy", "low", "high", order=[row["model"] for row in rows], reference=None,
        x_title="accuracy in percent",
    )  # fmt: skip
    names = spec["layer"][0]["encoding"]["y"]
    if any(row["reported"] is not None for row in rows):
        mark = {"type": "tick", "color": charts.PALETTE[1], "thickness": 3}
        reported = {"y": names, "x": {"field": "reported", "type": "quantitative"}}
        spec["layer"].append({"mark": mark, "encoding": reported})
    spec["layer"] += [
        {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": bound}}}
        for bound in (cells[0].floor, cells[0].ceiling)
    ]
    words = (
        "Mean over seeds with its 95% interval, within 0 and 100%; dashed: the task's floor and ceiling; orange: "
        "what the paper reports, at its own size."
    )
    return Chart(f"Who learns {task}", words, page.rows(f"cells {task}", rows), spec, in_figure=True)


def _probe(page: Page, cells: Sequence[ProbeRow]) -> None:
    """Byte models that were held to a regime: their loss, group by group, against the group's free model."""
    for group in dict.fromkeys(cell.group for cell in cells):
        mine = [cell for cell in cells if cell.group == group]
        rows: list[dict[str, Any]] = [
            {
                "model": cell.cell,
                "difference": cell.less.mean,
                "low": cell.less.mean - (cell.less.half or 0.0),
                "high": cell.less.mean + (cell.less.half or 0.0),
                "seeds": cell.less.n,
            }
            for cell in mine
            if cell.less is not None
        ]
        if not rows:
            continue
        base = mine[0].base
        spec = charts.intervals(
            "model", "difference", "low", "high", order=[row["model"] for row in rows],
            x_title=f"bits per byte, less {base}; below 0 is better",
        )  # fmt: skip
        words = f"Held-out bits per byte against the cell '{base}', paired by seed, with Student's 95% interval."
        picture = Chart("What it costs", words, page.rows(f"probe {group}", rows), spec, in_figure=True)
        page.add(f"Held to a regime: {group}", picture)
    if not cells:
        return
    flat = [
        {key: value["mean"] if isinstance(value, dict) else value for key, value in plain(cell).items()}
        for cell in cells
    ]
    columns = (
        Column("group", "group", "plain"), Column("cell", "model", "plain"), Column("words", "which", "wrap"),
        Column("seeds", "seeds"), Column("bits", "bits per byte", ".3f"), Column("less", "less the base", "+.3f"),
        Column("says", "says", "plain"), Column("cosine", "cosine"), Column("rank", "rank"),
        Column("slower", "time of a step"),
    )  # fmt: skip
    brief = ("group", "cell", "seeds", "bits", "less", "says")
    words = "Means over seeds; the others are in the data."
    listing = Listing("All cells of the probe", words, page.rows("probe", flat), columns, top=60, brief=brief)
    page.add("Every model", listing)


def _numbers(page: Page, result: ReproduceResult) -> Listing:
    rows = [
        {
            **number,
            "mean": settled(number["mean"], number["half"]),
            "runs": " ".join(number["runs"]),
            "variant": _MODELS.get(number["variant"], number["variant"]),
            "told": with_interval(settled(number["mean"], number["half"]), number["half"]),
            "estimate": number["what"]
            + (f", in {number['unit']}" if number["unit"] else "")
            + ("" if number["decides"] else " (beside)"),
        }
        for number in result.rows("numbers")
    ]
    seeds = {row["n"] for row in rows}
    columns = (
        *((Column("claim", "claim", "wrap"),) if len({row["claim"] for row in rows}) > 1 else ()),
        *((Column("variant", "models", "plain"),) if len({row["variant"] for row in rows}) > 1 else ()),
        Column("estimate", "what", "wrap"), Column("told", "mean", "interval", by="mean"),
        *((Column("n", "seeds"),) if len(seeds) > 1 else ()),
    )  # fmt: skip
    of = f" Each is of {seeds.pop()} seeds." if len(seeds) == 1 else ""
    words = (
        f"Each estimate behind a verdict, and those beside it, which decide nothing; its runs are in the data.{of}"
    )
    return Listing("Every estimate", words, page.rows("numbers", rows), columns)
