"""The view of `check --against`: do two engines agree, where do they part, and which known bug explains it."""

from __future__ import annotations

from typing import Any

from toposcope.live.bugs import BY_KEY
from toposcope.live.engines.against import AgainstResult, Hypothesis
from toposcope.live.engines.simulate import title
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Summary, count

AWAY = "leads away from B"  # a share below 0

LEAST = 1e-9  # nats: what a logarithmic axis shows of none


def view(result: AgainstResult, page: Page) -> None:
    """Add the sections of two engines against each other."""
    if not page.title:
        page.title = f"Check of {result.a} against {result.b}"
    page.facts += [
        (f"{result.rms:.3g}", "nats between them (rms)"),
        ("nowhere" if result.first_apart is None else str(result.first_apart), "position from which they part"),
        (str(result.texts), "texts"),
    ]
    page.add("Do the two agree?", Summary(tuple(_summary(result))))
    if result.hypotheses:
        page.add("Which known bug explains it", *_hypotheses(page, result))
    page.add(
        "By position and length" if result.first_apart is None else "Where they part",
        *_by_position(page, result),
        _by_length(page, result),
    )
    if result.not_simulated and result.first_apart is not None:
        rows = [{"bug": each.bug, "why": each.why} for each in result.not_simulated]
        columns = (Column("bug", "bug", "plain"), Column("why", "why not", "wrap"))
        table = page.rows("bugs not tried", rows)
        page.add("Bugs not tried", Listing("Bugs not tried", "", table, columns, top=30), detail=True)


def _summary(result: AgainstResult) -> list[str]:
    floor = result.floor
    rounding = f"A difference beyond {floor.tolerance:.1e} nats counts, as was asked for."
    if floor.tokens:
        rounding = (
            f"Rounding: A in {floor.dtype} and in {floor.finer} differ by at most {floor.largest:.1e} nats on one "
            f"text; beyond {floor.tolerance:.1e} counts as a difference."
        )
    if result.outcome == "equal":
        return [f"{result.a} and {result.b} agree within rounding on {result.text}.", rounding]
    sentences = [f"{_verdict(result)} They part from position {result.first_apart} on ({result.text})."]
    if result.first_apart == 0:
        sentences.append(
            "The first token, which sees nothing but itself, differs already: rotation and relative biases cannot "
            "do that, so something else is wrong, alone or as well."
        )
    if result.causes and result.left is not None and result.left > result.floor.tolerance:
        sentences.append(
            f"It leaves up to {result.left:.1e} nats, which is beyond rounding: the bug differs in a detail, or "
            "something else differs as well."
        )
    sentences += _what_to_do(result)
    if not result.held_out and result.hypotheses:
        sentences.append("One text only: the share was not tried on another. Give two or more.")
    return [*sentences, rounding]


def _verdict(result: AgainstResult) -> str:
    best = result.hypotheses[0] if result.hypotheses else None
    if best is None:
        why = result.not_simulated[0].why if result.not_simulated else "no known bug applies"
        return f"{result.a} and {result.b} differ, and no bug could be tried on A: {why}"
    if result.outcome == "explained":
        return f"{title(best.bug)} ({best.variant}): that, in A, explains {best.share:.2%} of the difference to B."
    if result.outcome == "several":
        names = "; or: ".join(title(each) for each in result.causes)
        return f"{names}. Each explains more than {result.threshold:.0%}: these texts cannot tell them apart."
    nearest = f"the nearest, {best.bug}, explains {best.share:.1%}" if best.share > 0 else "none comes nearer to B"
    enough = f"{result.threshold:.0%} would count"
    return f"{result.a} and {result.b} differ, by none of the known bugs ({nearest}; {enough})."


def _what_to_do(result: AgainstResult) -> list[str]:
    if result.outcome != "explained" or result.causes[0] not in BY_KEY:
        return []
    bug = BY_KEY[result.causes[0]]
    return [f"Seen in {', '.join(bug.seen_in)}. {bug.how_to_avoid}"]


def _hypotheses(page: Page, result: AgainstResult) -> list[Any]:
    rows = [
        {
            "bug": each.bug,
            "variant": each.variant,
            "explained": _share(each.explained),
            "held_out": "" if each.held_out is None else _share(each.held_out),
        }
        for each in result.hypotheses
    ]
    columns = (
        Column("bug", "bug in A", "plain"),
        Column("variant", "how", "wrap"),
        Column("explained", "explains", "plain"),
        Column("held_out", "on other texts", "plain"),
    )
    words = (
        "The share of the squared difference that is gone where A has the bug; the best variant of each. From "
        f"{result.threshold:.0%} on a bug counts as the cause."
    )
    return [Listing("Known bugs, put into A", words, page.rows("known bugs", rows), columns, top=24)]


def _share(value: float) -> str:
    return AWAY if value < 0 else f"{value:.2%}" if value < 0.9999 else f"{value:.4%}"


def _by_position(page: Page, result: AgainstResult) -> list[Any]:
    best: Hypothesis | None = result.hypotheses[0] if result.hypotheses else None
    rows = [
        {"position": (part.first + part.last) / 2, "nats": max(value, LEAST), "of": name}
        for part in result.positions
        for name, value in (
            ("B - A", part.rms),
            (f"B - A with {best.bug}" if best else "", part.left),
            ("tolerance", result.floor.tolerance),
        )
        if value is not None
    ]
    spec = charts.line("position", "nats", colour="of", log_x=True, log_y=True, points=True, y_title="nats (rms)")
    spec = charts.from_zero(spec, max((part.last for part in result.positions), default=1))
    words = "Root mean square of the difference in log-probability, by the position that predicts."
    words += f" No difference is drawn at {LEAST:.0e}." if any(row["nats"] == LEAST for row in rows) else ""
    chart = Chart("Difference by position", words, page.rows("difference by position", rows), spec, in_figure=True)
    columns = [
        Column("positions", "positions", "plain"), Column("tokens", "tokens"), Column("rms", "rms", ".1e"),
        Column("mean", "mean B - A", "+.1e"), Column("largest", "largest", ".1e"),
    ]  # fmt: skip
    if best is not None:
        columns.append(Column("left", f"rms left by {best.bug}", ".1e"))
    numbers = [
        {**vars(part), "positions": str(part.first) if part.first == part.last else f"{part.first}-{part.last}"}
        for part in result.positions
    ]
    table = page.rows("difference by range of positions", numbers)
    return [
        chart,
        Listing("By position", "Nats; a position is that of the token that predicts.", table, tuple(columns), top=24),
    ]


def _by_length(page: Page, result: AgainstResult) -> Listing:
    rows = [
        {**vars(each), "first_apart": "nowhere" if each.first_apart is None else str(each.first_apart)}
        for each in result.lengths
    ]
    columns = (
        Column("length", "tokens"), Column("texts", "texts"), Column("rms", "rms", ".1e"),
        Column("largest", "largest", ".1e"), Column("first_apart", "part from", "plain"),
    )  # fmt: skip
    words = f"{count(len(rows), 'length')} of text; an encoding that depends on the length shows here."
    return Listing("By length", words, page.rows("difference by length", rows), columns, top=12)
