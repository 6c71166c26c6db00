"""What `trace` adds with --depth and --verify: layers beside their flow, verdicts beside runs of real tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toposcope.models.rank import RankCorrelation
from toposcope.models.tracing.depth import DepthStep, LayerDepth
from toposcope.models.tracing.result import TraceResult
from toposcope.models.tracing.verify import OBSERVED, HeadRun, VerdictSummary
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Measure, Page, Paragraphs, Row, Summary, count

LETTERS = {"agrees": "a", "not_yet": "·", "contradicts": "X"}


def add_depth(result: TraceResult, page: Page) -> None:
    """Add what was followed through depth."""
    text = result.depth_text or ""
    if result.verdicts is not None:
        blocks, every = _verdicts(page, text, result.verdicts, result.verified)
        page.add("Do the verdicts hold on these tokens?", *blocks)
        page.add("Every run", every, detail=True)
    if result.depth:
        page.add("Layers beside their flow", *_layers(page, text, result.depth, result.depth_correlations))


# ------------------------------------------------------------------ layers
def _layers(
    page: Page, text: str, layers: Sequence[LayerDepth], correlations: Sequence[RankCorrelation]
) -> list[Any]:
    rows = [_layer(each) for each in layers]
    moves = [
        {"layer": each.layer, "step": name, "growth": step.norm_growth, "cosine": step.cosine_change,
         "dispersion": step.dispersion_growth}
        for each in layers
        for name, step in (("attention", each.attention), ("whole layer", each.whole), ("flow", each.flow))
        if step is not None
    ]  # fmt: skip
    steps, states = page.rows("steps", moves), page.rows("states", rows)
    columns = (
        Column("layer", "layer"), Column("norm", "norm", ".4g"), Column("cosine", "cos", ".2f"),
        Column("rank", "rank", ".0f"), Column("radial", "radial", "+.2f"), Column("spreading", "spreading", "+.2f"),
        *(Column(f"{what}_{step}", f"{what} {mark}", "+.2f") for what in ("norm", "spread", "cos")
          for step, mark in (("attention", "a"), ("flow", "f"), ("whole", "w"))),
    )  # fmt: skip
    brief = ("layer", "norm", "cosine", "rank", *(f"{w}_{s}" for w in ("norm", "spread") for s in _SHORT))
    words = (
        "The tokens that enter each layer: mean norm, mean cosine over pairs, effective rank; then what one step "
        "does to norm and spread (log growth) and to the cosine (difference). a: attention's own step; f: one unit "
        "of the flow of the same weights; w: the whole layer with its MLP."
    )
    return [
        Summary(tuple(_said(text, layers, correlations))),
        Listing("Layer by layer", words, states, columns, top=64, brief=brief),
        Row((
            Chart("Growth of norms",
                  "Mean log growth of tokens in one layer: by attention's step, the whole layer, the flow.", steps,
                  charts.line("layer", "growth", colour="step", zero=True, points=True, y_title="log growth")),
            Chart("Change of cosine", "Does the layer turn tokens towards one another (above 0) or apart?", steps,
                  charts.line("layer", "cosine", colour="step", zero=True, points=True, y_title="change of cosine")),
            Chart("Mean cosine of tokens",
                  "Over pairs of the tokens that enter each layer: 1 where all point one way.", states,
                  charts.line("layer", "cosine", points=True, y_title="mean cosine")),
            Chart("Effective rank of tokens", "How many directions the tokens that enter each layer fill.", states,
                  charts.line("layer", "rank", points=True, y_title="effective rank")),
        )),
        _correlations(page, correlations, f"{count(len(layers), 'layer')}: too few for correlations.", _CONTROL),
    ]  # fmt: skip


_PREDICTORS = {"alpha": "max Re eig(V O)", "omega": "min Re eig(V O)", "rho_euler": "max |1 + eig(V O)|"}
_SHORT = ("attention", "flow", "whole")
_CONTROL = (
    " The control for the flow is step: attention's own step as a predictor of the whole layer. All others need no "
    "text: they are heuristics."
)


def _layer(each: LayerDepth) -> dict[str, Any]:
    steps: dict[str, DepthStep | None] = {"attention": each.attention, "flow": each.flow, "whole": each.whole}
    return {
        "layer": each.layer,
        "norm": each.norm,
        "cosine": each.cosine,
        "rank": each.effective_rank,
        "radial": each.radial_rate,
        "spreading": each.dispersion_rate,
        **{f"norm_{name}": None if step is None else step.norm_growth for name, step in steps.items()},
        **{f"spread_{name}": None if step is None else step.dispersion_growth for name, step in steps.items()},
        **{f"cos_{name}": None if step is None else step.cosine_change for name, step in steps.items()},
    }


def _said(text: str, layers: Sequence[LayerDepth], correlations: Sequence[RankCorrelation]) -> list[str]:
    said = [f"{text[:1].upper()}{text[1:]} through {count(len(layers), 'layer')}."]
    flow = [each for each in correlations if each.predicted == "flow" and each.rho is not None]
    for measured, words in (("attention", "attention's own step"), ("whole", "the whole layer")):
        known = [each for each in flow if each.measured.startswith(f"{measured} ")]
        if known:
            listed = ", ".join(
                f"{each.measured.removeprefix(measured).replace('_', ' ').strip()} {each.rho:+.2f}" for each in known
            )
            said.append(f"Does the flow order the layers as {words} does? Rank correlation: {listed}.")
    start, end = layers[0], layers[-1]
    if start.cosine is not None and end.cosine is not None:
        said.append(
            f"The tokens' mean cosine goes from {start.cosine:.2f} at layer {start.layer} to {end.cosine:.2f} at "
            f"layer {end.layer}, their effective rank from {start.effective_rank:.0f} to {end.effective_rank:.0f}."
        )
    return said


def _correlations(page: Page, found: Sequence[RankCorrelation], too_few: str, more: str = "") -> Listing | Paragraphs:
    """One row for each measured quantity, one column for each predictor; a star where p < 0.01."""
    known = [each for each in found if each.rho is not None]
    if not known:
        return Paragraphs((too_few,), soft=True)
    order = {"flow": 0, "step": 1}
    predictors = sorted(dict.fromkeys(each.predicted for each in known), key=lambda name: order.get(name, 2))
    rows = []
    for measured in dict.fromkeys(each.measured for each in found):
        of = {each.predicted: each for each in found if each.measured == measured}
        rows.append({"measured": measured.replace("_", " "), **{name: _rho(of.get(name)) for name in predictors}})
    columns = [Column("measured", "measured", "plain")]
    columns += [Column(name, _PREDICTORS.get(name, name.replace("_", " ")), "plain") for name in predictors]
    words = f"Spearman's rho of each predictor with what was measured; * p < 0.01.{more}"
    brief = ("measured", "flow", "step", "growth_index", "pair_index")
    table = page.rows("correlations", rows)
    return Listing("Rank correlations", words, table, tuple(columns), folded=True, top=32, brief=brief)


def _rho(each: RankCorrelation | None) -> str | None:
    if each is None or each.rho is None:
        return None
    return f"{each.rho:+.2f}" + ("*" if each.p is not None and each.p < 0.01 else "")


# ------------------------------------------------------------------ verdicts
def _verdicts(page: Page, text: str, found: VerdictSummary, runs: Sequence[HeadRun]) -> tuple[list[Any], Any]:
    counts = {word: sum(row[word] for row in found.words.values()) for word in LETTERS}
    certified = count(len(runs), "certified head")
    said = [
        f"{certified} {'was' if len(runs) == 1 else 'were'} let run, each alone, on {text}.",
        f"{counts['agrees']} agree with their theorem, {counts['not_yet']} show nothing yet in the time given, "
        f"{counts['contradicts']} contradict it.",
    ]
    said += [f"Head {each.name} contradicts '{each.verdict}': {each.sentence}." for each in runs if _against(each)]
    if found.undecided:
        said.append(f"{count(found.undecided, 'head')} without a certified verdict: not run.")
    if found.worst_path is not None:
        said.append(f"The token that V alone drives stays on e^(Vt) x(0) to {found.worst_path:.1e}.")
    if found.alone:
        said.append(f"Followed alone, at a tolerance of 1e-10: {', '.join(found.alone)}.")
    if found.stiff:
        said.append(f"{len(found.stiff)} stiff (the run ended early): {', '.join(found.stiff)}.")
    blocks: list[Any] = [Summary(tuple(said))]
    if not runs:
        return blocks, None
    observed = [
        {"verdict": verdict, **row, **{word: found.words[verdict][word] for word in LETTERS}}
        for verdict, row in found.table.items()
    ]
    columns = [Column("verdict", "verdict", "text"), *(Column(each, each.replace("_", " ")) for each in OBSERVED)]
    columns += [Column(word, word.replace("_", " ")) for word in LETTERS]
    brief = ("verdict", *OBSERVED)
    blocks.append(
        Listing("Verdict and observation", "How many heads.", page.rows("observed", observed), tuple(columns),
                brief=brief)
    )  # fmt: skip
    keys = ("layer", "head", "verdict", "rule", "observed", "word", "end", "rate", "mean_rate", "growth_index")
    rows = [
        {
            **{key: getattr(each, key) for key in keys},
            "rule": each.rule.replace("T", "Thm "),
            "says": _sentence(each.sentence),
            "shown_first": False,
        }
        for each in runs
    ]
    next((row for row in rows if row["word"] == "contradicts"), rows[0])["shown_first"] = True
    table = page.rows("verified heads", rows)
    facts = {
        "verdict": "verdict", "rule": "by", "observed": "observed", "word": "run and verdict",
        "rate": "growth rate at the end", "mean_rate": "mean growth rate", "end": "time it ran",
        "growth_index": "growth index",
    }  # fmt: skip
    columns = [
        Column("layer", "layer"), Column("head", "head"), Column("verdict", "verdict", "text"),
        Column("observed", "observed", "text"), Column("word", "run and verdict", "text"), Column("rate", "rate"),
    ]  # fmt: skip
    blocks += [
        HeadMap(
            "Verdict and run",
            "Layers down, heads across; choose one to see what was certified and what was seen.",
            table,
            (
                Measure("word", "Agreement", "category", "Does the run agree with the theorem?", words=LETTERS),
                Measure("rate", "Rate", "diverging", "Growth of the largest token over time.", harm=True),
            ),
            facts=tuple(Column(key, words, "text" if key in keys[2:6] else "number") for key, words in facts.items()),
        ),
        _correlations(page, found.correlations, "Too few heads for correlations."),
    ]
    return blocks, Listing("All runs", "What was seen of each head.", table, tuple(columns), folded=True)


def _against(each: HeadRun) -> bool:
    return each.word == "contradicts"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
