"""A reproduction as a page of Markdown, made from its result alone."""

from __future__ import annotations

from collections.abc import Sequence

from toposcope.studies.language.page import tables
from toposcope.studies.reproduce.result import (
    CouplingCell,
    ReproduceResult,
    StudyAnswer,
    StudyOutcome,
    StudySelfTest,
)

MOST_KEYS = 300  # that a page lists


def page(result: ReproduceResult) -> str:
    """The whole page."""
    if result.study is not None:
        return _study(result, result.study)
    return _coupling(result) if result.what == "coupling" else _dynamics(result)


def _coupling(result: ReproduceResult) -> str:
    claims = result.claims
    lines = [
        "# Content-position coupling: the claims, put to the test",
        "",
        f"{result.runs_done} runs of size `{result.size}` (profile `{result.profile}`, the published "
        f"variant with profile `published`), {result.seeds} seeds. Means ± half of Student's 95 % interval over "
        "seeds, the number of seeds in parentheses; differences are paired by seed.",
        "*Described* models are the clean ones. *Published* ones have every quirk of the released scripts on. The "
        "released code is what is public; the authors may have used other code for their paper. The paper trained "
        "models of six layers and width 256 on sentences of 128 tokens: what is judged here is whether its claims "
        "hold in small models.",
        "",
        "Rules were fixed before any result was seen: *ahead* holds where the interval of every difference lies "
        "above 0, and does not hold where one lies below; *beyond* and *below* compare the interval of a mean with a "
        "threshold; *apart* holds where an interval excludes 0. Whatever is left open is *not at this scale*.",
        "",
        "| claim | described | published |",
        "|---|---|---|",
        *(f"| {claim.id} | {claim.verdict} | {claim.verdict_published} |" for claim in claims),
        "",
        "## Claim by claim",
    ]
    for claim in claims:
        lines += [
            "",
            f"### {claim.id}",
            "",
            "| as stated | the released code | described models | published models |",
            "|---|---|---|---|",
            f"| {_words(claim.claim)} | {_words(claim.released_code)} | {_cell(claim.measured)} | "
            f"{_cell(claim.measured_published or ())} |",
            f"| | | **{claim.verdict}** | **{claim.verdict_published}** |",
            "",
            f"Rule: {claim.rule}",
            "",
            f"Runs: {', '.join(f'`{key}`' for key in claim.runs) or '-'}",
        ]
    lines += [
        "",
        "## Every accuracy and deposit index",
        "",
        "Accuracy in percent on 2048 sentences never trained on. Floor: best score without solving the task; "
        "ceiling: the best any model can. The deposit index of a layer is 1 where one head carries everything and 0 "
        "where at least two matter alike, or none; '-' where there is no skill to lose (less than 10 points above "
        "the floor). Reported: the paper's figure, at its own size.",
        "",
        "| variant | task | encoding | accuracy | floor | ceiling | reported | deposit, layer 0 | layer 1 | runs |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, result.cells),
        "",
        "Every number is in the JSON result with the whole keys of its runs; `toposcope runs show KEY` prints a run.",
    ]
    return "\n".join(lines) + "\n"


def _dynamics(result: ReproduceResult) -> str:
    probe = result.probe
    lines = [
        "# Token dynamics: the claims, put to the test",
        "",
        "First facts about the released code, or about the mathematics behind it, computed anew on small random "
        "matrices; then what trained models say, if any were trained. The released code is what is public; the "
        "authors may have used other code for their paper.",
        "",
        "| claim | verdict |",
        "|---|---|",
        *(f"| {claim.id} | {claim.verdict} |" for claim in result.claims),
    ]
    for claim in result.claims:
        lines += [
            "",
            f"## {claim.id}",
            "",
            "| as meant | the released code | ours |",
            "|---|---|---|",
            f"| {_words(claim.claim)} | {_words(claim.released_code)} | {_cell(claim.measured)} |",
            f"| | | **{claim.verdict}** |",
            "",
            f"Checked: {claim.rule}",
            *(["", f"Runs: {', '.join(f'`{key}`' for key in claim.runs)}"] if claim.runs else []),
        ]
    if probe:
        lines += ["", "## Every measurement", "", tables(probe)]
    return "\n".join(lines) + "\n"


def _study(result: ReproduceResult, study: StudyOutcome) -> str:
    committed = f"commit `{study.rules_commit}`" if study.rules_commit else "no commit that is known"
    lines = [
        f"# {study.title}",
        "",
        study.about,
        "",
        f"{result.runs_done} runs of size `{result.size}`, {result.seeds} seeds; contrasts are taken seed by seed. "
        f"The rules were put down in {committed}, before the first run; sha256 of the file: `{study.rules_sha256}`.",
        "",
        f"The {study.family} questions that decide are one family, corrected by Holm's method at 5 %: whether a mean "
        "differs from its value, and whether it differs by less than the bound (two one-sided tests), which goes "
        "first. What neither decides is undecided, with the difference that would be seen with 80 %. Intervals are "
        "Student's, 95 %, not corrected.",
        "",
        "| claim | outcome |",
        "|---|---|",
        *(f"| {claim.id} | {claim.verdict} |" for claim in result.claims),
    ]
    for claim in result.claims:
        lines += ["", f"## {claim.id}: {claim.verdict}", "", _words(claim.claim), ""]
        lines += [f"* The released code: {_words(claim.released_code)}"]
        lines += [f"* Before this study: {claim.before}"] if claim.before else []
        lines += [f"* Would change it: {claim.change}"] if claim.change else []
        lines += ["", "| question | measure | mean | pairs | p | p, equivalent | bound | seen with 80 % | outcome |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        lines += [_answer(each) for each in study.answers if each.claim == claim.id]
        lines += ["", _runs(claim.runs)]
    lines += [
        "",
        "## The study tried on itself",
        "",
        "The pairs of each deciding question, their arms made equal and swapped at random; and with a handicap on "
        "one arm of the size that is said to be seen with 80 %. At the strictest level of the correction.",
        "",
        "| question | pairs | found in equal arms | false alarms | handicap | stated power | found (95 %) |",
        "|---|---|---|---|---|---|---|",
        *(_tried(each) for each in study.self_tests),
    ]
    return "\n".join(lines) + "\n"


def _runs(keys: Sequence[str]) -> str:
    """The runs behind a claim; of very many only how many there are."""
    if len(keys) > MOST_KEYS:
        return f"Runs: {len(keys)}; the JSON names those behind every number."
    return f"Runs: {', '.join(f'`{key}`' for key in keys) or '-'}"


def _answer(each: StudyAnswer) -> str:
    cells = (
        f"{each.name}{'' if each.decides else ' (beside)'}: {each.direction} {each.at:g}",
        each.measure,
        _figure(each.mean, each.half),
        str(each.n),
        *("-" if value is None else f"{value:.2g}" for value in (each.p, each.p_equivalent)),
        *("-" if value is None else f"{value:.3g}" for value in (each.bound, each.detectable)),
        f"**{each.outcome}**" if each.decides else str(each.outcome),
    )
    return f"| {' | '.join(map(_words, cells))} |"


def _tried(each: StudySelfTest) -> str:
    if each.handicap is None or each.found is None or each.power is None or each.false_rate is None:
        return f"| {_words(each.question)} | {each.pairs} | - | - | - | - | - |"
    cells = (
        _words(each.question),
        str(each.pairs),
        f"{each.found_in_equal_arms} of {each.shuffles}",
        f"{each.false_rate:.3f}",
        f"{each.handicap:.3g}",
        f"{each.power:.2f}",
        f"{each.found:.2f} ({each.found_low:.2f} to {each.found_high:.2f})",
    )
    return f"| {' | '.join(cells)} |"


def _figure(mean: float | None, half: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.3g}" if half is None else f"{mean:.3g} ± {half:.2g}"


def _words(text: str) -> str:
    """Words in a cell: a bar would end it."""
    return text.replace("|", "\\|")


def _cell(words: Sequence[str]) -> str:
    return "<br>".join(words)


def _row(cell: CouplingCell) -> str:
    reported = "" if cell.reported is None else f"{cell.reported:.2f}"
    keys = " ".join(f"`{key[:8]}`" for key in cell.runs)
    pairs = ((cell.deposit_0, cell.deposit_half_0), (cell.deposit_1, cell.deposit_half_1))
    deposits = " | ".join(_number(*pair, 2) for pair in pairs)
    return (
        f"| {cell.variant} | {cell.task} | {cell.encoding} | {_number(cell.accuracy, cell.half, 1)} "
        f"({cell.seeds}) | {cell.floor:.1f} | {cell.ceiling:.1f} | {reported} | "
        f"{deposits} | {keys} |"
    )


def _number(mean: float | None, half: float | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" if half is None else f"{mean:.{digits}f} ± {half:.{digits}f}"
