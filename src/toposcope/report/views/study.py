"""The sections of a study of `reproduce`: its effects with every seed, its pictures, its questions, its self-test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toposcope.core.fields import plain
from toposcope.core.statistics import plus_minus
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Paragraphs, rounded
from toposcope.studies.reproduce.words import axis_title

if TYPE_CHECKING:
    from toposcope.studies.reproduce.result import StudyAnswer, StudyOutcome, StudyPoint

ROUNDING = 1e-9  # a mean below it, with no spread, is 0
LEAST_P = 0.001  # smaller ones are shown as that


def study_sections(page: Page, study: StudyOutcome) -> None:
    """Add them."""
    put_down = f"in commit {study.rules_commit}" if study.rules_commit else "in no commit that is known"
    rules = f"Rules put down {put_down}; sha256 of the file {study.rules_sha256}."
    page.add(study.title, Paragraphs((study.about, rules), soft=True))
    pictures = dict.fromkeys(point.picture for point in study.points)
    page.add(
        "Every arm",
        *(_picture(page, [point for point in study.points if point.picture == each]) for each in pictures),
    )
    shown = [each for each in study.answers if each.mean is not None]
    against = dict.fromkeys((each.measure, each.at) for each in shown if each.decides)
    page.add(
        "Effects", *(_effects(page, [each for each in shown if (each.measure, each.at) == one]) for one in against)
    )
    if study.answers:
        page.add("Every question", *_questions(page, study), detail=True)
    if study.self_tests:
        page.add("The study tried on itself", _self_tests(page, study), detail=True)


def _effects(page: Page, answers: Sequence[StudyAnswer]) -> Chart:
    """Each contrast with its interval, and a dot for every seed."""
    rows: list[dict[str, Any]] = []
    for each in answers:
        assert each.mean is not None
        half = each.half or 0.0
        name = each.name if each.decides else f"{each.name} (beside)"
        mean = {"mean": each.mean, "low": each.mean - half, "high": each.mean + half}
        rows.append({"question": name, **mean, "seed": None, "value": None})
        rows += [
            {"question": name, **dict.fromkeys(mean), "seed": seed, "value": value}
            for seed, value in zip(each.seeds, each.values, strict=True)
        ]
    first = answers[0]
    order = list(dict.fromkeys(str(row["question"]) for row in rows))
    title = axis_title(first.measure)
    large = any(abs(value) >= 1000 for each in answers for value in each.values)
    spec = charts.intervals(
        "question", "mean", "low", "high", order=order, reference=first.at, x_title=title,
        x_format=",.0f" if large else None,
    )  # fmt: skip
    names = spec["layer"][-1]["encoding"]["y"]
    spec["layer"].insert(
        1,
        {
            "mark": {"type": "point", "filled": True, "size": 16, "opacity": 0.5, "color": charts.PALETTE[1]},
            "encoding": {
                "y": names,
                "x": charts.quantity("value", title),
                "tooltip": [{"field": name} for name in ("question", "seed", "value")],
            },
        },
    )
    words = (
        f"Mean {'over' if first.at else 'difference over'} seeds with Student's 95% interval, not corrected; small "
        "dots are single seeds; "
        f"dashed: {first.at:g}, which each is tested against."
    )
    against = f", against {first.at:g}" if first.at else ""
    table = page.rows(f"effects {first.measure}{against}", rows)
    return Chart(_heading(title) + against, words, table, spec, in_figure=True)


def _picture(page: Page, points: Sequence[StudyPoint]) -> Chart:
    """A line for each series, with the interval of every point."""
    rows = [
        {
            "series": each.series, "arm": each.arm, "x": each.x, "mean": each.mean,
            "low": each.mean - (each.half or 0.0), "high": each.mean + (each.half or 0.0), "seeds": each.n,
        }
        for each in sorted(points, key=lambda each: (each.series, each.x))
    ]  # fmt: skip
    first = points[0]
    doubling = first.x_name == "loops"
    spec = charts.line(
        "x",
        "mean",
        colour="series",
        log_x=doubling,
        points=True,
        x_title=first.x_name.replace("_", " "),
        y_title=axis_title(first.measure),
    )
    names = dict.fromkeys(str(row["series"]) for row in rows)
    spec = charts.in_colours(spec, "series", dict(zip(names, charts.PALETTE, strict=False)))  # one legend, not two
    curve = spec["layer"][-1]["encoding"]
    curve["x"]["scale"]["padding"] = 12
    if len(names) == 1:  # its name is in the title
        curve["strokeDash"]["legend"] = None
    curve["color"]["legend"] = curve["strokeDash"]["legend"]  # lines for the colours, as for the dashes
    if doubling:
        curve["x"]["axis"] = {"values": sorted({each.x for each in points})}
    spec["layer"].append(
        {
            "mark": {"type": "rule", "opacity": 0.6},
            "encoding": {
                "x": curve["x"],
                "y": {**curve["y"], "field": "low"},
                "y2": {"field": "high"},
                "color": curve["color"],
            },
        }
    )
    words = "Mean over seeds at each place, with Student's 95% interval."
    return Chart(first.picture, words, page.rows(f"picture {first.picture}", rows), spec, in_figure=True)


def _heading(title: str) -> str:
    return title[:1].upper() + title[1:]


def settled(mean: float | None, half: float | None) -> float | None:
    """A mean; 0 where all seeds agree, and only rounding keeps them from it."""
    return 0.0 if mean is not None and half == 0 and abs(mean) < ROUNDING else mean


def _questions(page: Page, study: StudyOutcome) -> list[Listing]:
    """A table of each claim, narrow enough for a phone; and one of what the numbers could have shown."""
    measures, pairs = {each.measure for each in study.answers}, sorted({each.n for each in study.answers})
    rows: list[dict[str, Any]] = []
    for each in study.answers:
        settled_mean = settled(each.mean, each.half)
        rows.append(
            {
                **plain(each),
                "runs": " ".join(each.runs),
                "seeds": " ".join(map(str, each.seeds)),
                "values": " ".join(f"{value:.6g}" for value in each.values),
                "question": each.name + (f", {each.measure}" if len(measures) > 1 else ""),
                "mean": settled_mean,
                "told": with_interval(settled_mean, each.half),
                "p_told": _probability(each.p),
                "p_equivalent_told": _probability(each.p_equivalent),
                "seen": None if each.detectable is None else rounded(each.detectable, 2),
                "said": each.outcome + ("" if each.decides else " (beside)"),
            }
        )
    deciding = (
        "One question decides, and needs no correction"
        if study.family == 1
        else f"The {study.family} questions that decide are one family, corrected by Holm's method"
    )
    beside = "" if all(each.decides for each in study.answers) else "; those beside are a family of their own"
    counted = f"{pairs[0]} pairs each" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]} pairs"
    of = f" Measured: {axis_title(next(iter(measures)))}." if len(measures) == 1 else ""
    words = f"{deciding}{beside}. {counted}; ± is Student's 95% interval, not corrected.{of}"
    columns = (
        Column("question", "question", "wrap"), Column("told", "mean", "interval", by="mean"),
        Column("said", "outcome", "plain"),
    )  # fmt: skip
    claims = list(dict.fromkeys(str(row["claim"]) for row in rows))
    found = []
    for claim in claims:
        mine = [row for row in rows if row["claim"] == claim]
        name = page.rows("questions", mine, keys=list(rows[0]))
        found.append(Listing(_heading(claim), words if claim == claims[0] else "", name, columns, top=60))
    certain = (
        Column("question", "question", "wrap"), Column("p_told", "p", "interval", by="p"),
        Column("p_equivalent_told", "p, equal", "interval", by="p_equivalent"), Column("bound", "bound"),
        Column("seen", "seen at 80%", by="detectable"),
    )  # fmt: skip
    words = (
        "Corrected p: of no difference, and of one as large as the bound (what is certain to be smaller is "
        "equivalent); and the difference that would be seen with a probability of 80%."
    )
    keys = ["claim", "question", "p", "p_told", "p_equivalent", "p_equivalent_told", "bound", "detectable", "seen"]
    listing = Listing("How certain each is", words, page.rows("certainty", rows, keys=keys), certain, top=60)
    return [*found, listing]


def _probability(p: float | None) -> str | None:
    return None if p is None else f"{p:.2g}" if p >= LEAST_P else f"< {LEAST_P}"


def with_interval(mean: float | None, half: float | None) -> str | None:
    """A mean with its interval; None where nothing was run."""
    return None if mean is None else plus_minus(mean, half, signed=False)


def _self_tests(page: Page, study: StudyOutcome) -> Listing:
    rows = [
        {
            **plain(each),
            "told": None if each.found is None else f"{each.found_low:.2f}–{each.found_high:.2f}",
        }
        for each in study.self_tests
    ]
    columns = (
        Column("question", "question", "wrap"), Column("false_rate", "false alarms", ".3f"),
        Column("power", "power", ".2f"), Column("told", "found", "interval", by="found"),
    )  # fmt: skip
    shuffles, pairs = (
        " to ".join(dict.fromkeys(f"{each:,}" for each in (min(many), max(many))))
        for many in ([each.shuffles for each in study.self_tests], [each.pairs for each in study.self_tests])
    )
    words = (
        f"The {pairs} pairs of each question that decides, arms swapped at random so that they are equal, "
        f"{shuffles} times: the share of false alarms. And with a handicap planted in one of them: the power that "
        "was stated, and how often it was found (95% interval)."
    )
    return Listing("Equal arms, and a handicap", words, page.rows("self_tests", rows), columns)
