"""The claims about content-position coupling, and the runs that put them to the test.

Described models are the clean ones; published ones have every quirk of the released scripts on, side by side.
"The released code" means what is public; the authors may have used other code for their paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.lab.config import RunConfig
from toposcope.lab.result import TrainResult
from toposcope.studies.reproduce.claims import Judgement, PaperClaim, ahead, apart, below, beyond
from toposcope.studies.reproduce.evidence import (
    ACCURACY,
    ANY_DEPOSIT,
    DEPOSIT,
    DROP,
    POINTS,
    RHO_FIRST,
    RHO_LAST,
    SHARPNESS,
    SKILL,
    STEPS,
    Estimate,
    Evidence,
    RunMeasure,
)
from toposcope.studies.reproduce.result import ClaimVerdict

NOTHING_LEARNED = 10.0  # points above the floor: below, the deposit index is undefined too
ONE_HEAD_CARRIES = 0.5  # half of the skill, beyond what the next head carries
SUFFICES = 90.0  # percent
ADDED, BIASED = ("sinusoidal", "learned"), ("t5", "alibi")
FIRST_LAYER, LATER_LAYERS = "rope@layers:0", "rope@layers:1-"


@dataclass(frozen=True)
class CouplingSize:
    """How large the grid is. `seconds` is what a run takes on one core before any has been timed."""

    name: str
    profile: str
    seeds: int
    seconds: float
    more: tuple[str, ...] = ()  # encodings beyond those the claims need


SIZES = {
    "demo": CouplingSize("demo", "laptop-s", 3, 25.0),
    "full": CouplingSize("full", "laptop-m", 5, 60.0, ("xpos", "fire", "rope@heads:0-3")),
}
REPORTED: Mapping[
    str, Mapping[str, float | None]
] = {  # from a public summary of the paper, in percent; None: reported as failing
    "distance": {"rope": 92.64, "mla": 88.34, "none": None, "alibi": None},
    "count": {"rope": 69.43, "mla": 97.41, "none": 77.69},
}
_EIGHT = ("none", *ADDED, *BIASED, "rope", "rope@heads:0", "mla")
_PUBLISHED = {
    "distance": ("none", "sinusoidal", "alibi", "rope", "rope@heads:0", "mla"),
    "count": ("none", "alibi", "rope", "mla"),
}


def find_size(name: str) -> CouplingSize:
    """The size of that name."""
    if name not in SIZES:
        raise BadValue(f"'{name}' is not a size of a reproduction. {did_you_mean(name, SIZES)}")
    return SIZES[name]


def grid(size: CouplingSize, seeds: Sequence[int]) -> list[RunConfig]:
    """All runs the claims need, seed by seed."""
    found = []
    for seed in seeds:
        for task in ("distance", "count"):
            timing = (FIRST_LAYER, LATER_LAYERS) if task == "distance" else ()
            for encoding in (*_EIGHT, *timing, *size.more):
                found.append(RunConfig(task, encoding, seed, size.profile))
            for encoding in _PUBLISHED[task]:
                found.append(RunConfig(task, encoding, seed, "published", "published"))
    return found


def _all(
    evidence: Evidence, variant: str, task: str, encodings: Sequence[str], measure: RunMeasure[TrainResult]
) -> list[Estimate | None]:
    return [evidence.mean(variant, task, encoding, measure) for encoding in encodings]


def _over(
    evidence: Evidence, variant: str, task: str, first: str, others: Sequence[str], measure: RunMeasure[TrainResult]
) -> list[Estimate | None]:
    return [evidence.difference(variant, task, first, other, measure) for other in others]


def _rope_ahead(evidence: Evidence, variant: str) -> Judgement:
    others = ("none", *ADDED, *BIASED)
    return ahead(
        _over(evidence, variant, "distance", "rope", others, POINTS),
        _all(evidence, variant, "distance", ("rope", "mla", *others), ACCURACY),
    )


def _fail(evidence: Evidence, variant: str) -> Judgement:
    return below(
        _all(evidence, variant, "distance", ("none", "alibi"), SKILL),
        NOTHING_LEARNED,
        _all(evidence, variant, "distance", ("none", "alibi"), ACCURACY),
    )


def _pays(evidence: Evidence, variant: str) -> Judgement:
    return ahead(
        [evidence.difference(variant, "count", other, "rope", POINTS) for other in ("none", "mla")],
        _all(evidence, variant, "count", ("rope", "none", "mla"), ACCURACY),
    )


def _alibi_worst(evidence: Evidence, variant: str) -> Judgement:
    others = [each for each in _EIGHT if each not in ("alibi", "rope@heads:0")]
    return ahead(
        [evidence.difference(variant, "count", other, "alibi", POINTS) for other in others],
        _all(evidence, variant, "count", ("alibi",), ACCURACY),
    )


def _single_head(evidence: Evidence, variant: str) -> Judgement:
    mean = evidence.mean(variant, "distance", "rope", DEPOSIT)
    beside = [
        evidence.mean(variant, "distance", "rope", DROP),
        evidence.mean(variant, "distance", "rope", ANY_DEPOSIT),
        evidence.mean(variant, "distance", "rope@heads:0", DEPOSIT),
    ]
    if mean is None and evidence.of(variant, "distance", "rope"):
        return Judgement(ClaimVerdict.SCALE, (), tuple(each for each in beside if each is not None))
    return beyond([mean], ONE_HEAD_CARRIES, beside)


def _rope_alone(evidence: Evidence, variant: str) -> Judgement:
    return ahead(
        _over(evidence, variant, "distance", "rope", ADDED, DEPOSIT),
        _all(evidence, variant, "distance", ("rope", *ADDED), ANY_DEPOSIT),
    )


def _suffices(evidence: Evidence, variant: str) -> Judgement:
    return beyond(
        [evidence.mean(variant, "distance", "rope@heads:0", ACCURACY)],
        SUFFICES,
        [
            evidence.difference(variant, "distance", "rope", "rope@heads:0", POINTS),
            evidence.mean(variant, "distance", "rope@heads:0", DEPOSIT),
            evidence.mean(variant, "distance", "rope@heads:0", ANY_DEPOSIT),
        ],
    )


def _mitigates(evidence: Evidence, variant: str) -> Judgement:
    return ahead(
        [evidence.difference(variant, "distance", "rope", "mla", DEPOSIT)],
        [
            evidence.difference(variant, "distance", "rope", "mla", ANY_DEPOSIT),
            evidence.difference(variant, "distance", "rope", "mla", POINTS),
            *_all(evidence, variant, "distance", ("rope", "mla"), DROP),
        ],
    )


def _timing(evidence: Evidence, variant: str) -> Judgement:
    return apart(
        [evidence.difference(variant, "distance", FIRST_LAYER, LATER_LAYERS, POINTS)],
        [
            *_all(evidence, variant, "distance", (FIRST_LAYER, LATER_LAYERS, "rope"), ACCURACY),
            evidence.difference(variant, "distance", "rope", FIRST_LAYER, POINTS),
        ],
    )


def _method(evidence: Evidence, variant: str) -> Judgement:
    return ahead(
        _over(evidence, variant, "distance", "rope", (*ADDED, *BIASED), POINTS),
        _all(evidence, variant, "distance", ("rope", *ADDED, *BIASED), STEPS),
    )


def _contracts(evidence: Evidence, variant: str) -> Judgement:
    return below(
        [evidence.mean(variant, "distance", "rope", measure) for measure in (RHO_FIRST, RHO_LAST)],
        1.0,
        [
            *_all(evidence, variant, "distance", (*ADDED, *BIASED), RHO_LAST),
            evidence.mean(variant, "count", "rope", RHO_LAST),
        ],
    )


def _speeds(evidence: Evidence, variant: str) -> Judgement:
    others = [evidence.difference(variant, "distance", other, "rope", STEPS) for other in ADDED]
    sharper = [evidence.difference(variant, "distance", other, "rope", SHARPNESS) for other in ADDED]
    return ahead([*others, *sharper], _all(evidence, variant, "distance", ("rope", *ADDED), STEPS))


def _elsewhere(evidence: Evidence, variant: str) -> Judgement:
    return Judgement(ClaimVerdict.UNMEASURED)


CLAIMS = (
    PaperClaim(
        "rope ahead",
        "On a task that needs position RoPE is ahead of the other encodings (reported on distance: RoPE 92.64 %, MLA "
        "88.34 %).",
        "Its `rope` also adds a sinusoid to the embeddings: it is absolute and rotary at once. Keys and values of "
        "every layer come from the raw embeddings. Fillers may be triggers, so the best possible accuracy at the "
        "paper's size is 96.4 %, and two rules that know no position handling reach 95.6 % and 92.0 %; one seed.",
        "ahead: accuracy on distance, rope less each of none, sinusoidal, learned, t5, alibi.",
        _rope_ahead,
    ),
    PaperClaim(
        "no position fails",
        "Without position (NoPE) and with ALiBi the distance is not learned.",
        "ALiBi's slopes are e^(-h/H), between 0.37 and 1, far steeper than ALiBi's own 2^(-8h/H). The sentence "
        "length leaks the distance: a length-only guess reaches 5 % at the paper's size, 24 % here.",
        f"below: accuracy less the task's floor, none and alibi, under {NOTHING_LEARNED:g} points.",
        _fail,
    ),
    PaperClaim(
        "rope pays on count",
        "On a task that needs no position RoPE is behind NoPE and MLA (reported on counting: RoPE 69.43 %, NoPE "
        "77.69 %, MLA 97.41 %).",
        "Class 0 is skipped by loss and accuracy for all but MLA, and it is a real class of this task. The MLA model "
        "has self-attention, a mask, GELU, a final norm and other training lengths, which the others lack.",
        "ahead: accuracy on count, none less rope, and mla less rope.",
        _pays,
    ),
    PaperClaim(
        "alibi worst on count",
        "ALiBi is worst on the task that needs no position.",
        "With the steep slopes a head sees little beyond its neighbours.",
        "ahead: accuracy on count, each of none, sinusoidal, learned, t5, rope, mla less alibi.",
        _alibi_worst,
    ),
    PaperClaim(
        "single-head deposit",
        "In a RoPE model one head of the first layer holds the position: removing it costs about 60 points on "
        "distance.",
        "Removed heads are not all restored: the last head of a layer stays missing while later layers are measured. "
        "Training and test data are mixed; one seed.",
        f"beyond: deposit index of layer 0 of rope on distance, at least {ONE_HEAD_CARRIES:g} (the head carries half "
        "of the skill more than the next one does). A drop in points alone says little: most heads cost much on some "
        "tasks.",
        _single_head,
    ),
    PaperClaim(
        "deposit is rope's own",
        "The deposit belongs to RoPE: encodings that are added to the input do not show it.",
        "As above; what is called RoPE has both.",
        "ahead: deposit index of layer 0 on distance, rope less sinusoidal, rope less learned.",
        _rope_alone,
    ),
    PaperClaim(
        "one rotary head suffices",
        "One rotary head suffices for about 90 % on distance.",
        "As above: the sinusoid that is added tells every head where it is, whether it turns or not.",
        f"beyond: accuracy on distance of rope@heads:0, at least {SUFFICES:g} %. Its deposit index stands beside it: "
        "near 1 where the skill needs no second head, turning or not.",
        _suffices,
    ),
    PaperClaim(
        "mla mitigates",
        "MLA mitigates the deposit.",
        "MLA differs from the others in six more ways, so the comparison is confounded. Its rotary is no rotation: a "
        "[sin | cos] table is read with stride 2. Its ablation zeroes latent channels of all heads instead of a "
        "head, and for heads 8 to 15 nothing at all.",
        "ahead: deposit index of layer 0 on distance, rope less mla. In the described models they differ in nothing "
        "but how attention is built.",
        _mitigates,
    ),
    PaperClaim(
        "timing matters",
        "When position is coupled, in which layer, matters.",
        "Every layer reads keys and values from the raw embeddings, so there is no early and late for them.",
        "apart: accuracy on distance, rope in the first layer only less rope in the later layers only.",
        _timing,
    ),
    PaperClaim(
        "method matters",
        "How position is coupled matters: multiplied (RoPE) it is ahead of added to the input or to the logits.",
        "What is multiplied is added as well.",
        "ahead: accuracy on distance, rope less each of sinusoidal, learned, t5, alibi.",
        _method,
    ),
    PaperClaim(
        "rope contracts",
        "Multiplying content by a positional kernel contracts the spectrum of the logits.",
        "No spectrum, eigenvalue, singular value or Toeplitz matrix is computed anywhere in it.",
        "below: ||S|| / ||S without position||, median over heads and layers, at the first and the last step, under "
        "1. No theorem says so for all content: isotropic content is untouched, shared content contracts.",
        _contracts,
    ),
    PaperClaim(
        "contraction speeds up",
        "The contraction makes optimisation easier.",
        "Not measured; AdamW's betas are (0.98, 0.9), which look interchanged.",
        "ahead: steps to 90 % on distance, and log10 of the largest Hessian eigenvalue (mean over five moments of "
        "training), sinusoidal less rope and learned less rope. A run that never gets to 90 % counts with all its "
        "steps.",
        _speeds,
    ),
    PaperClaim(
        "convergence hurts",
        "Weights that drive tokens together hurt.",
        "See `toposcope reproduce dynamics`.",
        "Needs training with constrained weights, which `reproduce dynamics` will do.",
        _elsewhere,
    ),
)
