"""What a training run leaves: one record, which `toposcope.train` returns and the run's directory keeps, sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from toposcope.core import saved
from toposcope.core.errors import NotFound
from toposcope.core.result import Result
from toposcope.core.sealed import COUNT, SHARE, SIZE, SUM, Expected, Number, OrNull, read_sealed, write_sealed
from toposcope.models.deposit import Interval

NAME = "result.json"
ENOUGH = 0.9  # the accuracy at which a task counts as learned, for the steps it took
WRITTEN = (saved.NAME, "run.json", NAME, "model")  # into the directory of a run
ByHead = tuple[tuple[float | None, ...], ...]  # a number per layer and head


@dataclass(frozen=True)
class CurvePoint:
    """A moment of training: the loss of that step, and accuracy on the first test sentences."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class GradientNorms:
    """Norms of the gradient by layer, and by head for q, k, v, o."""

    step: int
    layers: tuple[float, ...]
    heads: Mapping[str, ByHead]


@dataclass(frozen=True)
class LogitSpectra:
    """By layer and head: the norm of the logits, and their effective rank, over those without position."""

    step: int
    rho: ByHead
    erank_ratio: ByHead


@dataclass(frozen=True)
class Sharpness:
    """The largest eigenvalue of the loss's Hessian, and its residual."""

    step: int
    value: float | None
    residual: float | None


@dataclass(frozen=True)
class LayerAblation:
    """One layer: accuracy without each head, and its deposit (`models.deposit`).

    `interval` is that of the index over resampled sentences, `same_head` the share of draws with the same worst head.
    """

    layer: int
    accuracy: tuple[float, ...]
    d_max: float
    d_rel: float | None
    share: float | None
    gini: float | None
    di: float | None
    head: int | None
    second: int | None
    same_head: float | None
    interval: Interval | None


@dataclass(frozen=True)
class JointAblation:
    """The head that matters most in each layer, all removed together. `alone`: accuracy without each of them.

    Where `accuracy` is far below the least of `alone`, the layers stood in for each other.
    """

    heads: tuple[tuple[int, int], ...]
    accuracy: float
    alone: tuple[float, ...]


@dataclass(frozen=True)
class PairAblation:
    """One layer without each two of its heads, by zero, on the first test sentences; `alone`: without each one."""

    layer: int
    sentences: int
    base: float
    heads: tuple[tuple[int, int], ...]
    accuracy: tuple[float, ...]
    alone: tuple[float, ...]


@dataclass(frozen=True)
class AblationMap:
    """All heads of a model, by zero and by mean. `base` is the whole model's accuracy on the same sentences.

    `pairs` are there where the run was asked for them.
    """

    sentences: int
    base: float
    floor: float
    zero: tuple[LayerAblation, ...]
    mean: tuple[LayerAblation, ...]
    joint: JointAblation | None
    draws: int
    level: float
    pairs: tuple[PairAblation, ...] = ()


@dataclass(frozen=True)
class RemovedHead:
    """Accuracy without one head, which was replaced by nothing (zero) or by its mean."""

    layer: int
    head: int
    method: str
    accuracy: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LabAblateResult(Result):
    """What a trained small model loses on its own task with each of its heads."""

    kind = "lab-ablate"
    table = "heads"

    task: str
    ablation: AblationMap
    heads: tuple[RemovedHead, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainResult(Result):
    """One run. `finished` is False where it was stopped before its last step.

    * `accuracy`, `loss`: on the fixed test sentences; `floor`, `prior`, `ceiling` are the task's, to set beside them
    * `curve`, `gradients`, `spectra`, `hessian`: what was measured on the way
    * `ablation`: what each head is worth on the test sentences; None until it is finished, or where not asked for
    * `seconds`: of the whole run, evaluation and probes included, over all its sessions; `seconds_per_sample`: of the
      training steps alone
    * `steps_to_90`: the first point of the curve with an accuracy of 90%; None where there is none
    * `device`: what it was trained on; after a resumption elsewhere all of them, in order
    * `directory`: where the run is kept; the file in it does not say. `trained_now` is False where the run had been
      finished before it was asked for
    """

    kind = "train"
    table = "curve"

    key: str
    config: Mapping[str, Any]
    finished: bool
    step: int
    steps: int
    accuracy: float | None
    loss: float | None
    floor: float
    prior: float
    ceiling: float
    parameters: int
    curve: tuple[CurvePoint, ...]
    gradients: tuple[GradientNorms, ...]
    spectra: tuple[LogitSpectra, ...]
    hessian: tuple[Sharpness, ...]
    ablation: AblationMap | None
    seconds: float
    probe_seconds: float
    seconds_per_sample: float
    device: str = "cpu"
    steps_to_90: int | None = None
    directory: str | None = None
    trained_now: bool = True

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "the result") -> Self:
        """As for every result; a run kept before `steps_to_90` existed has it off its curve."""
        return super().from_dict({"steps_to_90": steps_to(data.get("curve")), **data}, where)

    def write(self, directory: Path) -> Path:
        """Seal the result in its run's directory."""
        return write_sealed(directory / NAME, self.key, self.as_dict())

    @classmethod
    def stored(cls, directory: str | Path, key: str | None = None) -> TrainResult | None:
        """The result in a run's directory, which must be of this key (None: any); None where there is none."""
        path = Path(directory) / NAME
        try:
            data = read_sealed(path, key, EXPECTED)
        except NotFound:
            return None
        return cls.from_dict({name: value for name, value in data.items() if name != SUM}, str(path))


def steps_to(curve: Any) -> int | None:
    """The step of a curve's first point with enough accuracy; None where there is none, or no curve."""
    points = curve if isinstance(curve, list | tuple) else ()
    for point in points:
        right = point.get("accuracy") if isinstance(point, Mapping) else None
        if isinstance(right, int | float) and right >= ENOUGH:
            return point.get("step")
    return None


_LAYER = {"layer": COUNT, "accuracy": [SHARE]}
_ABLATED = {"sentences": COUNT, "base": SHARE, "floor": SHARE, "zero": [_LAYER], "mean": [_LAYER]}
EXPECTED: Expected = {
    "schema": TrainResult.schema_name(),
    "config": {},
    "finished": True,
    **dict.fromkeys(("step", "steps", "parameters"), COUNT),
    **dict.fromkeys(("accuracy", "floor", "prior", "ceiling"), SHARE),
    **dict.fromkeys(("loss", "seconds", "probe_seconds", "seconds_per_sample"), SIZE),
    "curve": [{"step": COUNT, "loss": SIZE, "accuracy": SHARE}],
    "gradients": [{"step": COUNT}],
    "spectra": [{"step": COUNT}],
    "hessian": [{"step": COUNT, "value": Number(missing=True)}],
    "ablation": OrNull(_ABLATED),  # a run may be asked to leave it out
}
