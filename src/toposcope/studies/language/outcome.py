"""What finished runs of the probe say: paired differences with intervals over seeds, and the claims they decide.

A difference is that of two cells of one group on the same seed: the same windows in the same order, the same first
weights. Intervals are Student's, 95 %, over seeds. An interval that holds 0, or one seed alone, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toposcope.studies.language.cells import CELLS
from toposcope.studies.language.groups import GROUPS, CellGroup
from toposcope.studies.reproduce.claims import Judgement, PaperClaim, ahead, apart
from toposcope.studies.reproduce.evidence import Estimate, RunMeasure, estimate
from toposcope.studies.reproduce.result import ClaimNumber, ClaimVerdict, ProbeRow, ReproducedClaim, SeedMean

SHORT_KEY = 8
Result = Mapping[str, Any]


def _last(name: str) -> Callable[[Result], float | None]:
    return lambda run: run[name][-1]


def _mean(name: str) -> Callable[[Result], float | None]:
    return lambda run: sum(run[name]) / len(run[name])


BITS = RunMeasure[Result]("bits per byte, held-out years", "", lambda run: run["bits_held"], digits=3)
OTHER = RunMeasure[Result]("bits per byte, wiki", "", lambda run: run["bits_other"], digits=3)
COSINE = RunMeasure[Result]("mean cosine after the last layer", "", _last("cosine"), digits=3)
RANK = RunMeasure[Result]("effective rank after the last layer", "", _last("rank"), digits=1)
RADIAL = RunMeasure[Result]("radial rate", "", _mean("radial"), digits=2)
DISPERSION = RunMeasure[Result]("dispersion rate", "", _mean("dispersion"), digits=2)
NOISE = RunMeasure[Result]("bits that 10 % noise costs", "", lambda run: run["noise_cost"], digits=3)
LONGER = RunMeasure[Result]("bits that a context twice as long costs", "", lambda run: run["longer_cost"], digits=3)
MOVED = RunMeasure[Result]("how far D moved", "e-folds", lambda run: (run["added"] or {}).get("log_moved"), digits=2)
BESIDE = (COSINE, RANK, RADIAL, DISPERSION, NOISE, LONGER, MOVED)


class Found:
    """Finished runs by group, cell and seed."""

    def __init__(self, by_group: Mapping[str, Sequence[Result]]) -> None:
        self._runs: dict[tuple[str, str], dict[int, Result]] = {}
        for group, results in by_group.items():
            for result in results:
                config = result["config"]
                self._runs.setdefault((group, config["cell"]), {})[int(config["seed"])] = result

    def of(self, group: str, cell: str) -> Mapping[int, Result]:
        return self._runs.get((group, cell), {})

    def all(self) -> list[Result]:
        return [result for runs in self._runs.values() for result in runs.values()]

    def mean(self, group: str, cell: str, measure: RunMeasure[Result]) -> Estimate | None:
        """The mean over seeds; None where no run defines it."""
        known = [(measure.of(run), (str(run["key"]),)) for run in self.of(group, cell).values()]
        return estimate(f"{cell} ({group}), {measure.name}", measure, known)

    def difference(self, group: str, first: str, second: str, measure: RunMeasure[Result]) -> Estimate | None:
        """The mean of first - second over the seeds of both."""
        one, other = self.of(group, first), self.of(group, second)
        known: list[tuple[float | None, tuple[str, ...]]] = []
        for seed in sorted(one.keys() & other.keys()):
            a, b = measure.of(one[seed]), measure.of(other[seed])
            keys = (str(one[seed]["key"]), str(other[seed]["key"]))
            known.append((None if a is None or b is None else a - b, keys))
        return estimate(f"{first} less {second} ({group}), {measure.name}", measure, known)

    def slower(self, group: str, cell: str, base: str) -> float | None:
        """The time of a step in units of the base cell's: the median over seeds."""
        one, other = self.of(group, cell), self.of(group, base)
        pairs = [(one[s]["step_seconds"], other[s]["step_seconds"]) for s in one.keys() & other.keys()]
        ratios = sorted(mine / theirs for mine, theirs in pairs if theirs)
        return ratios[len(ratios) // 2] if ratios else None


def word(estimate: Estimate | None) -> str:
    """What a difference in bits says."""
    if estimate is None:
        return "-"
    return "better" if estimate.high < 0 else "worse" if estimate.low > 0 else "undecided"


# --------------------------------------------------------------------- table
def rows(found: Found, groups: Sequence[CellGroup] = GROUPS) -> list[ProbeRow]:
    """A record for every cell with runs: its bits, its difference from the group's base, and what its tokens do."""
    made = []
    for group in groups:
        for cell in group.cells:
            runs = found.of(group.name, cell)
            if runs:
                made.append(_row(found, group, cell, runs))
    return made


def _row(found: Found, group: CellGroup, cell: str, runs: Mapping[int, Result]) -> ProbeRow:
    first = next(iter(runs.values()))
    less, less_other = (
        None if cell == group.base else found.difference(group.name, cell, group.base, each) for each in (BITS, OTHER)
    )
    means: dict[str, Any] = {
        each: _numbers(found.mean(group.name, cell, measure)) for each, measure in _NAMED.items()
    }
    return ProbeRow(
        group=group.name,
        cell=cell,
        words=CELLS[cell].words,
        base=group.base,
        seeds=len(runs),
        parameters=first["parameters"],
        redundant=first["redundant"],
        bits=_numbers(found.mean(group.name, cell, BITS)),
        less=_numbers(less),
        says=word(less) if less is not None else "",
        bits_other=_numbers(found.mean(group.name, cell, OTHER)),
        less_other=_numbers(less_other),
        says_other=word(less_other) if less_other is not None else "",
        **means,
        slower=found.slower(group.name, cell, group.base),
        **signs(list(runs.values())),
        runs=tuple(str(run["key"]) for run in runs.values()),
    )


_NAMED = dict(zip(("cosine", "rank", "radial", "dispersion", "noise", "longer", "moved"), BESIDE, strict=True))


def _numbers(found: Estimate | None) -> SeedMean | None:
    return None if found is None else SeedMean(found.mean, found.half, found.n)


def signs(runs: Sequence[Result]) -> dict[str, Any]:
    """Of all heads' V~ and all layers' U: the share of eigenvalues with a negative real part; and the verdicts.

    `held`: in how many runs every verdict was the promised one. `margin` is the least of those verdicts (0 for one
    head as wide as the model: LayerNorm leaves a direction unread); real parts of the spectra reach from `omega` to
    `alpha`.
    """
    kind = CELLS[runs[0]["config"]["cell"]].kind
    whose = "layers" if kind == "layer" else "heads"
    judged = [row for run in runs for row in run[whose]]
    margins = [row["margin"] for row in judged if row["margin"] is not None]
    said = {f"{row['verdict']} ({row['rule']}, {row['scope']})" if row["rule"] else row["verdict"] for row in judged}
    return {
        "negative_heads": _share(run for run in runs for run in run["heads"]),
        "negative_layers": _share(run for run in runs for run in run["layers"]),
        "promised": runs[0]["promised"],
        "held": None if runs[0]["promised"] is None else sum(bool(run["promise_held"]) for run in runs),
        "verdicts": tuple(sorted(said)),
        "margin": min(margins, default=None),
        "omega": min((row["omega"] for row in judged if row["omega"] is not None), default=None),
        "alpha": max((row["alpha"] for row in judged if row["alpha"] is not None), default=None),
        "exact": all(row["exact"] for row in judged),
    }


def _share(judged: Any) -> float | None:
    both = [(row["n_neg"], row["n_pos"] + row["n_neg"] + row["n_zero"]) for row in judged]
    total = sum(count for _, count in both)
    return sum(negative for negative, _ in both) / total if total else None


# -------------------------------------------------------------------- claims
def _hurts(group: str, kind: str, more: Sequence[str] = ()) -> Callable[[Found], Judgement]:
    def judge(found: Found) -> Judgement:
        return ahead(
            [found.difference(group, f"{kind}-nd", f"{kind}-pd", BITS)],
            [
                found.difference(group, f"{kind}-nd", f"{kind}-pd", OTHER),
                *(found.difference(each, f"{kind}-nd", f"{kind}-pd", BITS) for each in more),
            ],
        )

    return judge


def _refined(group: str) -> Callable[[Found], Judgement]:
    def judge(found: Found) -> Judgement:
        return ahead(
            [found.difference(group, "free", cell, BITS) for cell in ("full-pd", "full-half")],
            [found.difference(group, "free-identity", cell, BITS) for cell in ("full-pd", "full-half")],
        )

    return judge


def _diagonal(form: str) -> Callable[[Found], Judgement]:
    def judge(found: Found) -> Judgement:
        return ahead(
            [found.difference("heads", cell, form, BITS) for cell in ("free", "control")],
            [found.difference("heads", "free", "control", BITS), found.mean("heads", form, MOVED)],
        )

    return judge


def _released(found: Found) -> Judgement:
    return apart([found.difference("causal", "released-nd", "released-pd", BITS)])


def _together(found: Found) -> Judgement:
    return ahead(
        [found.difference(group, "full-nd", "full-pd", COSINE) for group in ("causal", "unmasked")],
        [found.difference(group, "full-pd", "full-nd", RANK) for group in ("causal", "unmasked")],
    )


_COMPARED = (
    "With a learned output projection, as there, positive and negative are one model class (see 'regimes are "
    "different models'). Here it is the identity."
)
CLAIMS = (
    PaperClaim(
        "convergence hurts: causal",
        "A model whose weights drive tokens together is worse than one whose weights drive them apart.",
        _COMPARED,
        "ahead: bits per byte on held-out years, full-nd less full-pd, causal and rotary.",
        _hurts("causal", "full", ("learned", "none")),
    ),
    PaperClaim(
        "convergence hurts: unmasked",
        "The same without a mask, where the Thm 3 and Thm 4 speak.",
        _COMPARED,
        "ahead: bits per hidden byte on held-out years, full-nd less full-pd, sinusoidal positions.",
        _hurts("unmasked", "full"),
    ),
    PaperClaim(
        "convergence hurts: layers",
        "The same, with nothing given up but the sign of U = sum O_h V_h in every layer.",
        "Not looked at.",
        "ahead: bits per byte on held-out years, layer-nd less layer-pd.",
        _hurts("heads", "layer"),
    ),
    PaperClaim(
        "convergence hurts: heads",
        "The same, with nothing given up but the sign of V~ = V_h O_h, which decides a causal head (Thm 6).",
        "Not looked at: the sign is imposed on the whole matrix, and the output projection is ignored.",
        "ahead: bits per byte on held-out years, head-nd less head-pd.",
        _hurts("heads", "head"),
    ),
    PaperClaim(
        "convergence brings tokens together",
        "Tokens of models in the convergent regime end up closer together.",
        "Not measured.",
        "ahead: mean cosine between tokens after the last layer, full-nd less full-pd, causal and unmasked.",
        _together,
    ),
    PaperClaim(
        "the refinement helps: causal",
        "Holding the positive (or half) regime makes a model better than leaving it free.",
        "The constraint is lost while training (see 'definiteness imposed').",
        "ahead: bits per byte on held-out years, free less full-pd, and free less full-half.",
        _refined("causal"),
    ),
    PaperClaim(
        "the refinement helps: unmasked",
        "The same for absolute positions without a mask.",
        "As above.",
        "ahead: bits per hidden byte on held-out years, free less full-pd, and free less full-half.",
        _refined("unmasked"),
    ),
    PaperClaim(
        "the diagonal helps: slice",
        "For rotary models, adding x_i^T D x_j with D > 0 to the logits makes a model better.",
        "Each head adds its slice of the coordinates; what is rotated there is the batch axis.",
        "ahead: bits per byte on held-out years, free less slice, and control less slice (as many numbers).",
        _diagonal("slice"),
    ),
    PaperClaim(
        "the diagonal helps: uniform",
        "The same with all coordinates in every head, the form that the bound is about.",
        "Not there.",
        "ahead: bits per byte on held-out years, free less uniform, and control less uniform.",
        _diagonal("uniform"),
    ),
    PaperClaim(
        "regimes differ as released",
        "With a learned output projection the negative scenario differs from the positive one.",
        "This is what is compared there.",
        "apart: bits per byte on held-out years, released-nd less released-pd. By symmetry the true difference over "
        "seeds is 0: an interval that excludes it would be chance, or a fault of ours.",
        _released,
    ),
)


def claims(found: Found) -> list[ReproducedClaim]:
    """A record for each claim."""
    return [_record(claim, claim.judge(found)) for claim in CLAIMS] + [kept(found)]


def numbers(found: Found) -> list[ClaimNumber]:
    """Every number behind a verdict, or beside it, with the whole keys of its runs."""
    return [number for claim in CLAIMS for number in claim.judge(found).numbers(claim.id, "described")]


def _record(claim: PaperClaim[[Found]], judgement: Judgement) -> ReproducedClaim:
    return ReproducedClaim(
        id=claim.id,
        claim=claim.claim,
        released_code=claim.released,
        measured=judgement.words,
        verdict=judgement.verdict,
        rule=claim.rule,
        runs=tuple(sorted(key[:SHORT_KEY] for key in judgement.runs)),
    )


def kept(found: Found) -> ReproducedClaim:
    """Whether trained models are in the regime they were held to."""
    promised = [run for run in found.all() if run["promised"] is not None]
    lost = [run for run in promised if not run["promise_held"]]
    return ReproducedClaim(
        id="the regime holds after training",
        claim="A model that is held to a regime is in it when training ends.",
        released_code="Definiteness is imposed on Q K^T, while the logits use Q^T K: it is lost.",
        measured=(f"{len(promised) - len(lost)} of {len(promised)} trained models: every verdict as promised",),
        verdict=ClaimVerdict.UNMEASURED if not promised else ClaimVerdict.FAILS if lost else ClaimVerdict.HOLDS,
        rule="`toposcope scan` of the saved models: the promised word for every head (kind layer: every layer).",
        runs=tuple(sorted(str(run["key"])[:SHORT_KEY] for run in lost)),
    )
