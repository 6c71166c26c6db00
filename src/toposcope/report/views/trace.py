"""The view of `trace`: what heads do on a text, their patterns, shares and kernels; and tokens through depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

import numpy as np

from toposcope.models.ablation.positional import POSITIONAL
from toposcope.models.corpus import RANDOM
from toposcope.models.tracing import SEQUENCES, TOKENS
from toposcope.models.tracing.logits import LogitPicture
from toposcope.models.tracing.patterns import WORDS, together
from toposcope.models.tracing.result import MOSTLY, SPLIT, HeadTrace, TraceResult
from toposcope.report import charts
from toposcope.report.attention import attention_block
from toposcope.report.blocks import (
    Chart,
    Column,
    Command,
    HeadMap,
    Listing,
    Matrix,
    Measure,
    Page,
    PanelChart,
    Paragraphs,
    Row,
    Summary,
    count,
)
from toposcope.report.commands import command
from toposcope.report.views.trace_agreement import agreement_blocks
from toposcope.report.views.trace_depth import add_depth
from toposcope.report.views.trace_stream import add_stream, largest_token

HEADS = {
    "previous": "previous-token", "next": "next-token", "self": "self", "first": "first-token",
    "induction": "induction", "local": "local",
}  # fmt: skip
TARGETS = {
    "previous": "the previous token", "next": "the next token", "self": "the token itself",
    "first": "the first token", "induction": "what followed before", "local": "a local window",
}  # fmt: skip
LABORATORY = "lab"  # the family of models that 'toposcope train' wrote
LETTERS = {"previous": "p", "next": "n", "self": "s", "first": "1", "induction": "i", "local": "w"}
NONE = "none"
NAMED = 6  # heads listed after a pattern
MANY, FEW = 48, 12  # positional heads that are all named; how many of more than that, those with most first
KERNELS = 6  # heads whose kernels are drawn
ASKED = 5  # heads that are listed, and that the next step asks about where none is positional
TELLING = 16  # sequences of it: the damage of one head of many is small, and fewer seldom tell it from 0
_DOTS = "A dot for each head, the line through layer means."
SHARES = ("content", "position", "coupling")  # measures that are shares of a whole
METRICS = {
    "rho": (
        "Logit norm ratio",
        "Norm of the logits over that of the same content without position (1: position has no effect).",
    ),
    "erank_ratio": ("Rank ratio", "Effective rank of the logits over that of the same content without position."),
    "maj_gap": ("Ky Fan gap", "0 or below: position contracts every Ky Fan norm of the logits."),
    "toeplitz": ("Raw Toeplitz", "Share of the logits' energy that depends on the offset alone, with their mean."),
    "toeplitz_centred": (
        "Toeplitz",
        "Share of the logits' energy that depends on the offset alone, without their mean.",
    ),
    "content": ("Content", "Share of the logits' variance due to content alone."),
    "position": ("Position", "Share of the logits' variance due to position alone."),
    "coupling": ("Interaction", "Content x position: share of the logits' variance in which both act together."),
    "gram_content": ("Content (G cc)", "Share of the logits due to the parts of queries and keys without position."),
    "gram_mixed": ("Mixed (G cp)", "Share of the logits due to content on one side and position on the other."),
    "gram_position": ("Position (G pp)", "Share of the logits due to the positional parts of queries and keys."),
    "distance": ("Distance", "Mean distance, in tokens, at which the head attends."),
    "entropy": ("Entropy", "Mean entropy of its attention, in nats: 0 is one token for each query."),
}
OTHERS = {  # measured, and in no table of the page
    "gram_cross": "products between the Gram shares",
    "kernel_rho": "shared-content factor of the kernel",
    "cap": "bound on the norm (S5f)",
}
AXES = {"rho": "logit norm ratio", "toeplitz": "Toeplitz share", "distance": "distance, tokens"}
ORDER = {  # what orders the list of heads, by the best measure there is
    "position": "share of the logits' variance that position alone accounts for",
    "gram_position": "share of the logits that position alone accounts for",
    "toeplitz": "share of the logits' energy that depends on the offset alone",
}
PEAK = "peak: the offset at which the mean logit is largest (1: the token before)"
ANSWERED = ("previous", "next")  # next: of encoders
BRIEF = (
    "name", "rho", "toeplitz_centred", "content", "position", "coupling", "gram_content", "gram_mixed",
    "gram_position", "peak_offset", "on_previous", "on_first",
)  # fmt: skip


def view(result: TraceResult, page: Page) -> None:
    """Add the sections of a trace."""
    heads = result.heads
    layers = len({each.layer for each in heads})
    page.facts += [
        (str(len(heads)), f"heads in {layers} layer{'' if layers == 1 else 's'}"),
        (str(result.sequences), "sequence" if result.sequences == 1 else "sequences"),
        (f"{result.tokens:,}", "tokens each"),
    ]
    if not heads:
        add_stream(result, page, (*largest_token(result), "No head was traced."))
        _add_missing(page, result)
        return
    rows = [_row(each) for each in heads]
    max(rows, key=_positional)["shown_first"] = True
    table = page.rows("traced heads", rows)
    there = [key for key in METRICS if any(row[key] is not None for row in rows)]
    add_stream(result, page, _summary(result))
    page.add("Norms of logits and tokens", Summary(tuple(_logits(result))), full=True)
    page.add("What heads attend to", _patterns(page, result))
    page.add("The most positional heads", _listing(page, rows, there), _next_step(result, rows))
    several = _several(result)
    words = Paragraphs(tuple(several)) if several else None
    page.add("Head by head", words, _head_map(result, rows, table, there), full=True)
    page.add("Attention on the text", attention_block(result), full=True)
    page.add("Kernels on this text", _kernels(page, rows))
    page.add("Logits and their Toeplitz part", *(Row(_picture(each)) for each in result.logits))
    page.add("By depth", Row(tuple(_by_layer(page, rows))))
    if result.agreement is not None:
        page.add("Could the weights alone tell?", *agreement_blocks(page, result.agreement), full=True)
    add_depth(result, page)
    _add_missing(page, result)


def heads_of(result: TraceResult) -> tuple[list[dict[str, Any]], tuple[Measure, ...]]:
    """The rows of the head map, and the ways to colour it: for a page that draws the map by itself."""
    rows = [_row(each) for each in result.heads]
    there = [key for key in METRICS if any(row[key] is not None for row in rows)]
    return rows, _head_map(result, rows, "", there).measures


# ------------------------------------------------------------------ words
def _next_step(result: TraceResult, rows: Sequence[dict[str, Any]]) -> Command:
    """What a head does is not what it is worth: the command that measures that, for the positional heads.

    It finds these heads anew; where they were measured otherwise here, the question says so.
    """
    question = "Which of them does the model need?"
    if any(each.family == LABORATORY for each in result.provenance.subjects):  # all heads, on its own task
        return Command(question, " ".join(command(result, "ablate")))
    options = result.provenance.options
    some = options.get("heads") not in (None, "all") or not any(
        (each.positional or 0) > MOSTLY for each in result.heads
    )
    named = ",".join(row["name"] for row in sorted(rows, key=_positional, reverse=True)[:ASKED])
    asked = ["--heads", named] if some else ["--heads", POSITIONAL, "--only", "text"]
    drawn = options.get("text") == RANDOM  # a loss needs a text: the command then takes its own
    kept = ["seed"] if drawn else ["text", "begin", "lines", "seed"]
    kept += [name for name in ("device", "dtype", "device_map") if options.get(name) != "auto"]
    words = command(result, "ablate", kept if some else [*kept, "layers"])
    usual = [(options.get(name, number), number) for name, number in (("tokens", TOKENS), ("sequences", SEQUENCES))]
    if not some and (drawn or result.encoding is not None or any(given != number for given, number in usual)):
        question += (
            f" (ablate calls those heads positional that are so under the model's own encoding, on {SEQUENCES} "
            f"stretches of {TOKENS} tokens{' of wiki' if drawn else ''}.)"
        )
    return Command(question, " ".join([*words, *asked, "--sequences", str(TELLING)]))


def _summary(result: TraceResult) -> list[str]:
    heads = result.heads
    put_in = "" if result.encoding is None else f", with the encoding {result.encoding} put into these heads"
    sentences = [*_most_positional(result)]
    if not any(each.names for each in heads):
        sentences.append(f"None of the {len(heads)} heads follows a named pattern on this text.")
    spread = "; ±: 95% interval over sequences" if any("±" in each for each in sentences) else ""
    on = f"Measured on: {result.text}{put_in}{spread}."
    return [*sentences, f"{on} Heads are named layer.head, both counted from 0."]


def _several(result: TraceResult) -> list[str]:
    """Heads that follow more than one pattern, which a table of patterns does not show."""
    several = Counter(together(each.names) for each in result.heads if len(each.names) > 1)
    also = "; ".join(_also(some, number, result) for some, number in several.most_common())
    return [f"{also[:1].upper()}{also[1:]}."] if also else []


def _logits(result: TraceResult) -> list[str]:
    """What position does to the norms of logits, over all heads, and which token has the largest norm."""
    heads, sentences = result.heads, []
    rho = [value for each in heads if (value := each.median("rho")) is not None]
    if rho:
        low, middle, high = np.percentile(rho, (25, 50, 75))
        sentences.append(
            f"The norm of the logits over that without position is {middle:.2f} in the median over heads, quartiles "
            f"{low:.2f} to {high:.2f} (1: position has no effect on it), and below 1 in "
            f"{sum(value < 1 for value in rho)} of {len(rho)} heads."
        )
    gaps = [value for each in heads if (value := each.median("maj_gap")) is not None]
    if gaps:
        below = sum(value <= 1e-9 for value in gaps)
        sentences.append(
            f"In {below} of {len(gaps)} heads position raises no Ky Fan norm of the logits (the sum of their k "
            "largest singular values, for any k)."
        )
    return [*sentences, *largest_token(result)]


def _most_positional(result: TraceResult) -> list[str]:
    """The heads in whose logits position alone has the largest share."""
    for key, what in (("position", "the logits' variance"), ("gram_position", "the logits")):
        ranked = sorted(
            ((spread, each) for each in result.heads if (spread := getattr(each, key)) is not None),
            key=lambda pair: -pair[0].median,
        )
        if ranked:
            noise = (
                f" Up to about {result.null_share:.0%} of these shares is content that the means of "
                f"{count(result.sequences, 'sequence')} do not average out."
                if result.null_share is not None
                else ""
            )
            spread, best = ranked[0]
            half = [each for spread, each in ranked if spread.median > MOSTLY]
            names = [each.name for each in (half[:FEW] if len(half) > MANY else sorted(half, key=_place))]
            more = f" and {len(half) - len(names)} more" if len(half) > len(names) else ""
            return [
                f"Positional heads: in {len(half) or 'none'} of {count(len(ranked), 'head')} position alone accounts "
                f"for more than {MOSTLY:.0%} of {what}{': ' if half else ''}{', '.join(names)}{more}. Most of all in "
                f"{best.name} ({spread.median:.0%}).{noise}"
            ]
    return []


def _place(head: HeadTrace) -> tuple[int, int]:
    return head.layer, head.head


def _also(names: Sequence[str], number: int, result: TraceResult) -> str:
    """Heads that follow several patterns: 'all 6 induction heads also attend to the first token'."""
    first, *others = names
    of = len(result.patterns[first])
    heads = (
        f"the one {HEADS[first]} head"
        if of == 1
        else f"{f'all {of}' if number == of else f'{number} of {of}'} {HEADS[first]} heads"
    )
    verb = "attends" if number == 1 else "attend"
    return f"{heads} also {verb} to {' and '.join(TARGETS[name] for name in others)}"


def _says(head: HeadTrace) -> str:
    named = [
        f"{WORDS[name]} ({head.score(name) or 0:.0%} of its attention"
        f"{' on repeated random tokens' if name == 'induction' else ''})"
        for name in together(head.names)
    ]
    words = f"It attends to: {', '.join(named)}." if named else "It follows no named pattern."
    if head.rho is not None:
        side = "lowers" if head.rho.median < 1 else "raises"
        inside = f", quartiles {head.rho.low:.2f} to {head.rho.high:.2f}" if head.rho.count > 1 else ""
        words += f" Position {side} the norm of its logits (ratio {head.rho.median:.2f}{inside})."
    return words


def _pattern(names: Sequence[str]) -> str:
    """All patterns of a head in words."""
    return " + ".join(WORDS[name] for name in together(names)) or NONE


def _letters(heads: Sequence[HeadTrace]) -> dict[str, str]:
    """What stands in a cell for each set of patterns that some head follows: single ones first, in a fixed order."""
    alone = {WORDS[name]: letter for name, letter in LETTERS.items()}
    several = Counter(together(head.names) for head in heads if len(head.names) > 1)
    free = list(ascii_uppercase)
    joint = {}
    for names, _ in several.most_common():  # a capital: of the first pattern, as long as that is free
        letter = LETTERS[names[0]].upper()
        joint[_pattern(names)] = free.pop(free.index(letter) if letter in free else 0)
    return {**alone, **joint, NONE: "·"}


# ------------------------------------------------------------------ tables and maps
def _row(head: HeadTrace) -> dict[str, Any]:
    known = [name for name in WORDS if head.score(name) is not None]
    return {
        "name": head.name,
        "layer": head.layer,
        "head": head.head,
        "pattern": _pattern(head.names),
        "says": _says(head),
        "shown_first": False,
        "peak_offset": head.peak_offset,
        **{key: head.median(key) for key in METRICS},
        **{f"on_{name}": head.score(name) for name in WORDS},
        "kernel": list(head.kernel),
        "pattern_names": [WORDS[name] for name in known],
        "pattern_shares": [head.score(name) for name in known],
        "pattern_even": [head.uniform.get(name) for name in known],
    }


def _positional(row: dict[str, Any]) -> float:
    """How much of a head's logits position alone makes, by the best measure there is."""
    known = (row[key] for key in ORDER)
    return next((float(value) for value in known if value is not None), 0.0)


def _patterns(page: Page, result: TraceResult) -> Listing:
    rows = [
        {
            "pattern": WORDS[name],
            "threshold": threshold,
            "heads": len(result.patterns[name]),
            "strongest": ", ".join(f"{each.name} {each.score(name):.0%}" for each in result.named(name)[:NAMED]),
        }
        for name, threshold in result.thresholds.items()
        if any(each.score(name) is not None for each in result.heads)
    ]
    columns = (
        Column("pattern", "pattern", "plain"), Column("threshold", "from", ".0%"), Column("heads", "heads"),
        Column("strongest", "the strongest, with their share of attention", "wrap"),
    )  # fmt: skip
    none = sum(not each.names for each in result.heads)
    words = (
        "From: a head is counted from this share of its attention on (median over sequences; induction: on random "
        f"tokens said twice). A head may follow several patterns; {none} of {len(result.heads)} follow none."
    )
    return Listing("Named patterns", words, page.rows("patterns", rows), columns)


def _listing(page: Page, rows: Sequence[dict[str, Any]], there: Sequence[str]) -> Listing:
    ranked = sorted(rows, key=lambda row: -_positional(row))
    left = sum((row["position"] or row["gram_position"] or 0.0) > MOSTLY for row in rows) - ASKED
    shares = [f"on_{name}" for name in WORDS if any(row[f"on_{name}"] is not None for row in rows)]
    order = next((key for key in ORDER if key in there), None)
    measures = [key for key in there if key != order]
    first = [] if order is None else [order]
    keys = ("name", *first, "pattern", *measures, "peak_offset", *shares)
    headings = {
        "rho": "norm ratio",
        "gram_content": "G cc",
        "gram_mixed": "G cp",
        "gram_position": "G pp",
    }
    columns = (
        Column("name", "head", "plain"),
        *(Column(key, headings.get(key, _within(METRICS[key][0])), _digits(key)) for key in first),
        Column("pattern", "pattern", "plain"),
        *(Column(key, headings.get(key, _within(METRICS[key][0])), _digits(key)) for key in measures),
        Column("peak_offset", "peak"),
        *(Column(key, key.removeprefix("on_"), ".0%") for key in shares),
    )
    explained = {
        "rho": "norm ratio: of the logits, over that without position (1: position has no effect)",
        "toeplitz_centred": "Toeplitz: share of the logits' energy that depends on the offset alone (raw: with their "
        "mean)",
        "position": "content, position, interaction: shares of the logits' variance",
        "gram_position": "G cc, cp, pp: shares of the logits, of content with content, content with position, "
        "position with position",
    }
    words = "; ".join(said for key, said in explained.items() if key in there)
    attended = "previous: share of attention on the token before"
    if "on_next" in shares:
        attended += "; next: on the one after"
    answer = tuple(filter(None, ("name", order, "peak_offset", *(f"on_{name}" for name in ANSWERED))))
    short = "" if order is None else f"{headings.get(order, _within(METRICS[order][0]))}: {ORDER[order]}; "
    return Listing(
        "Every head, the most positional first",
        f"Medians over sequences. {words[:1].upper()}{words[1:]}; {PEAK}; then shares of attention.",
        page.rows("heads by position", ranked, keys),
        columns,
        top=ASKED,
        others=f"{left} of them positional" if left > 0 else "",
        brief=BRIEF,
        answer=answer,
        answer_sentence=f"{short[:1].upper()}{short[1:]}{PEAK}; {attended}. Medians over sequences.",
    )


def _digits(metric: str) -> str:
    """How a measure is written in a table: shares of a whole in percent."""
    return ".0%" if metric in SHARES else ".2f"


def _form(metric: str) -> str:
    """The same on a map, and beside it."""
    return "percent" if metric in SHARES else "number"


def _head_map(result: TraceResult, rows: Sequence[dict[str, Any]], table: str, there: Sequence[str]) -> HeadMap:
    words = "All patterns whose threshold a head passes; a dot where it passes none."
    measures = [Measure("pattern", "Pattern", "category", words, words=_letters(result.heads))]
    measures += [Measure(key, METRICS[key][0], "sequential", METRICS[key][1], _form(key), low=0.0) for key in there]
    measures += [
        Measure(f"on_{name}", title.capitalize(), "sequential", f"Share of attention: {title}.", "percent", 0.0, 1.0)
        for name, title in WORDS.items()
        if any(row[f"on_{name}"] is not None for row in rows)
    ]
    return HeadMap(
        "Layers down, heads across",
        f"Medians over {count(result.sequences, 'sequence')} ({result.text}). Choose a head to read about it.",
        table,
        tuple(measures),
        facts=(
            Column("pattern", "pattern", "text"),
            *(Column(key, _within(METRICS[key][0]), _form(key)) for key in METRICS),
            Column("peak_offset", "kernel's peak at offset"),
            *(Column(f"on_{name}", f"on {title}", "percent") for name, title in WORDS.items()),
        ),
        charts=(
            PanelChart(
                "Mean kernel on this text",
                "How the mean logit depends on the offset t = query - key.",
                {"kernel": "kernel"},
                charts.line("offset", "kernel", zero=True, height=170),
                index="offset",
            ),
            PanelChart(
                "Where its attention goes",
                "Share of attention on each pattern, beside what even attention would give.",
                {"pattern": "pattern_names", "share": "pattern_shares", "even": "pattern_even"},
                _pattern_bars(),
            ),
        ),
        in_figure=True,
    )


def _add_missing(page: Page, result: TraceResult) -> None:
    """What was left out, and what could not be measured."""
    left = tuple(f"Left out: {each.what}: {each.why}." for each in result.skipped)
    listing = None
    gaps = [gap for gap in result.gaps if not _measured_otherwise(result, gap.metric)]
    if gaps:
        by_reason: dict[str, list[str]] = {}
        for gap in gaps:
            by_reason.setdefault(gap.why, []).append(gap.metric)
        rows = [{"metrics": ", ".join(map(_named, metrics)), "why": why} for why, metrics in by_reason.items()]
        columns = (Column("metrics", "measure", "wrap"), Column("why", "why", "wrap"))
        listing = Listing("What could not be measured", "", page.rows("gaps", rows), columns)
    page.add("Not measured", Paragraphs(left) if left else None, listing, full=not left)


def _measured_otherwise(result: TraceResult, metric: str) -> bool:
    """Whether a share is missing because the heads have those that stand for it where position acts otherwise."""
    there = {key for key in SPLIT if any(getattr(each, key) is not None for each in result.heads)}
    return bool(there) and metric in SPLIT and metric not in there


def _named(metric: str) -> str:
    """What a metric is called where readers see it."""
    known = METRICS.get(metric)
    return _within(known[0]) if known else OTHERS.get(metric, metric.replace("_", " "))


def _within(title: str) -> str:
    """A title within a sentence or as the heading of a column: names of people keep their capital."""
    return title if title.startswith(("Ky Fan", "Toeplitz")) else title[:1].lower() + title[1:]


# ------------------------------------------------------------------ charts
def _kernels(page: Page, rows: Sequence[dict[str, Any]]) -> Chart | None:
    best = sorted((row for row in rows if row["kernel"]), key=lambda row: -_positional(row))[:KERNELS]
    points = [
        {"head": row["name"], "offset": t, "kernel": value} for row in best for t, value in enumerate(row["kernel"])
    ]
    if not points:
        return None
    return Chart(
        "Mean kernels of the most positional heads",
        "Mean logit by offset, for the heads in which position alone has the largest share.",
        page.rows("trace kernels", points),
        charts.line("offset", "kernel", colour="head", zero=True),
        in_figure=True,
    )


def _picture(found: LogitPicture) -> tuple[Matrix, Matrix]:
    """A head's logits on the first sequence, and beside them what of these depends on the offset alone."""
    cell = found.cell
    starts = tuple(str(number * cell) for number in range(len(found.logits)))
    cells = f"Each cell is the mean of up to {cell} x {cell} logits. " if cell > 1 else ""
    share = "" if found.share is None else f" It holds {found.share:.0%} of their square."
    seen = sorted(value for line in found.logits for value in line if value is not None)
    # A first token may lie far off: its colour is cut.
    low, high = seen[len(seen) // 200], seen[-1 - len(seen) // 200]

    def matrix(key: str, title: str, sentence: str, values: Sequence[Sequence[float | None]]) -> Matrix:
        return Matrix(
            f"{title} of head {found.name}",
            sentence,
            "query" if cell == 1 else "queries from",
            "key" if cell == 1 else "keys from",
            starts,
            starts,
            (Measure(key, title, "sequential", "", low=low, high=high),),
            {key: values},
            square=True,
        )

    first = f"Queries down, keys across, on the first {found.tokens} tokens. {cells}".strip()
    second = f"Each diagonal's mean, in the same colours: what depends on offset alone.{share}"
    return (
        matrix("logits", "Logits", first, found.logits),
        matrix("toeplitz", "Toeplitz part", second, found.toeplitz),
    )


def _by_layer(page: Page, rows: Sequence[dict[str, Any]]) -> list[Chart]:
    found = []
    for key in ("rho", "toeplitz", "distance"):
        known = [{"layer": row["layer"], "head": row["head"], key: row[key]} for row in rows if row[key] is not None]
        if known:
            label, sentence = METRICS[key]
            spec = charts.dots_and_mean(
                "layer",
                key,
                reference=1.0 if key == "rho" else None,
                tooltip=("layer", "head", key),
                y_title=AXES[key],
            )
            table = page.rows(f"{label} by layer", known)
            found.append(Chart(f"{label} by layer", f"{sentence} {_DOTS}", table, spec, in_figure=key != "distance"))
    return found


def _pattern_bars() -> dict[str, Any]:
    names = {"field": "pattern", "type": "nominal", "title": None, "axis": {"labelLimit": 160}}
    return {
        "height": 140,
        "layer": [
            {
                "mark": {"type": "bar", "color": charts.PALETTE[0]},
                "encoding": {
                    "y": names,
                    "x": charts.quantity("share", "share of attention"),
                    "tooltip": [{"field": "pattern"}, {"field": "share"}, {"field": "even"}],
                },
            },
            {
                "mark": {"type": "tick", "color": charts.INK, "thickness": 2.5},
                "encoding": {"y": names, "x": {"field": "even", "type": "quantitative"}},
            },
        ],
    }
