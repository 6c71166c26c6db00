"""What a training run leaves: a result that says how it went, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from toposcope._version import __version__
from toposcope.core.errors import BadFile, NotFound
from toposcope.core.results import plain
from toposcope.core.sealed import COUNT, SHARE, SIZE, Expected, Number, read_sealed, write_sealed

SCHEMA = "toposcope/train/1"
NAME = "result.json"
_LAYER = {"layer": COUNT, "accuracy": [SHARE]}
_ABLATED = {"sentences": COUNT, "base": SHARE, "floor": SHARE, "zero": [_LAYER], "mean": [_LAYER]}
EXPECTED: Expected = {
    "schema": SCHEMA,
    "config": {},
    "finished": True,
    **dict.fromkeys(("step", "steps", "parameters"), COUNT),
    **dict.fromkeys(("accuracy", "floor", "prior", "ceiling"), SHARE),
    **dict.fromkeys(("loss", "seconds", "probe_seconds", "seconds_per_sample"), SIZE),
    "curve": [{"step": COUNT, "loss": SIZE, "accuracy": SHARE}],
    "gradients": [{"step": COUNT}],
    "spectra": [{"step": COUNT}],
    "hessian": [{"step": COUNT, "value": Number(missing=True)}],
    "ablation": _ABLATED,
}


@dataclass(frozen=True)
class TrainResult:
    """One run. `finished` is False where it was stopped before its last step.

    * `accuracy`, `loss`: on the fixed test sentences; `floor`, `prior`, `ceiling` are the task's, to set beside them
    * `curve`: step, training loss, and accuracy on the first test sentences, over training
    * `gradients`: norms by layer, and by head for q, k, v, o; `spectra`: rho and erank_ratio by layer and head;
      `hessian`: the largest eigenvalue and its residual
    * `ablation`: accuracy without each head on the test sentences, and the deposit index of each layer
      (`ablation.AblationMap`); None until the run is finished
    * `seconds`: of the whole run, evaluation and probes included, over all its sessions; `seconds_per_sample`: of the
      training steps alone
    """

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
    curve: list[dict[str, Any]]
    gradients: list[dict[str, Any]]
    spectra: list[dict[str, Any]]
    hessian: list[dict[str, Any]]
    ablation: dict[str, Any] | None
    seconds: float
    probe_seconds: float
    seconds_per_sample: float

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, with schema and version."""
        return {"schema": SCHEMA, "toposcope": __version__, **plain(asdict(self))}

    def write(self, directory: Path) -> Path:
        return write_sealed(directory / NAME, self.key, self.as_dict())

    @classmethod
    def read(cls, directory: str | Path) -> Self | None:
        """The result in a run's directory; None where there is none."""
        path = Path(directory) / NAME
        try:
            data = read_sealed(path, None, EXPECTED)
        except NotFound:
            return None
        try:
            return cls(**{each.name: data[each.name] for each in fields(cls)})
        except KeyError as error:
            raise BadFile(f"{path} is no result of a training run (no {error}). Remove it to train again.") from error
