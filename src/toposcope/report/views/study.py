"""The sections of a study of `reproduce`: its effects with every seed, its pictures, its questions, its self-test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toposcope.core.fields import plain
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Paragraphs
from toposcope.studies.reproduce.words import axis_title

if TYPE_CHECKING:
    from toposcope.studies.reproduce.result import StudyAnswer, StudyOutcome, StudyPoint

ROUNDING = 1e-9  # a mean below it, with no spread, is 0


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
    page.add("Every question", _questions(page, study), detail=True)
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
        f"Mean {'over' if first.at else 'difference over'} seeds with Student's 95 % interval, not corrected; small "
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
    words = "Mean over seeds at each place, with Student's 95 % interval."
    return Chart(first.picture, words, page.rows(f"picture {first.picture}", rows), spec, in_figure=True)


def _heading(title: str) -> str:
    return title[:1].upper() + title[1:]


def settled(mean: float, half: float | None) -> float:
    """A mean; 0 where all seeds agree, and only rounding keeps them from it."""
    return 0.0 if half == 0 and abs(mean) < ROUNDING else mean


def _questions(page: Page, study: StudyOutcome) -> Listing:
    rows = [
        {**plain(each), "runs": " ".join(each.runs), "values": " ".join(f"{value:.6g}" for value in each.values)}
        for each in study.answers
    ]
    rows = [
        {**row, "mean": settled(row["mean"], row["half"]), "seeds": " ".join(map(str, row["seeds"]))} for row in rows
    ]
    claims = {each.claim for each in study.answers}
    columns = (
        *((Column("claim", "claim", "wrap"),) if len(claims) > 1 else ()), Column("name", "question", "wrap"),
        Column("measure", "measure", "plain"),
        Column("n", "pairs"), Column("mean", "mean"), Column("half", "±"), Column("p", "p, corrected"),
        Column("p_equivalent", "p of equivalence"), Column("bound", "bound"),
        Column("detectable", "detectable at 80 % power"), Column("outcome", "outcome", "plain"),
        Column("decides", "decides", "text"),
    )  # fmt: skip
    deciding = (
        "One question decides, and needs no correction"
        if study.family == 1
        else f"The {study.family} questions that decide are one family, corrected by Holm's method"
    )
    beside = "" if all(each.decides for each in study.answers) else "; the others are a family of their own"
    words = f"{deciding}{beside}. A difference certain to be smaller than the bound is equivalent."
    return Listing("Questions", words, page.rows("questions", rows), columns, top=60)


def _self_tests(page: Page, study: StudyOutcome) -> Listing:
    columns = (
        Column("question", "question", "wrap"), Column("pairs", "pairs"), Column("shuffles", "shuffles"),
        Column("found_in_equal_arms", "found in equal arms"), Column("false_rate", "false alarms", ".3f"),
        Column("handicap", "handicap"),
        Column("power", "stated power", ".2f"), Column("found", "found", ".2f"), Column("found_low", "from", ".2f"),
        Column("found_high", "to", ".2f"),
    )  # fmt: skip
    words = (
        "The pairs of each question that decides, arms swapped at random so that they are equal; and with a handicap "
        "on one of them."
    )
    return Listing(
        "Equal arms, and a handicap", words, page.rows("self_tests", plain(list(study.self_tests))), columns
    )
