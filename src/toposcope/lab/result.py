"""What a training run leaves: a result that says how it went, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from toposcope._version import __version__
from toposcope.errors import BadFile, BadValue
from toposcope.files import write_json
from toposcope.results import plain

SCHEMA = "toposcope/train/1"
NAME = "result.json"


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
        return write_json(directory / NAME, self.as_dict())

    @classmethod
    def read(cls, directory: str | Path) -> Self | None:
        """The result in a run's directory; None where there is none."""
        path = Path(directory) / NAME
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.get("schema") != SCHEMA:
                raise BadValue(f"its schema is {data.get('schema')!r}")  # noqa: TRY301
            return cls(**{each.name: data[each.name] for each in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, BadValue) as error:
            raise BadFile(
                f"{path} is no result of a training run ({error}). Delete it to train again, or choose another place."
            ) from error
