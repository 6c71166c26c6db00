"""What becomes of one model type: built, saved, read by Toposcope, run, compared."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import toposcope
from tests.architectures.builder import NotBuilt, build
from tests.architectures.compare import ATTENTION, at_input, differences
from tests.architectures.given import inputs
from tests.architectures.record import Record, record
from toposcope.core.errors import ToposcopeError

BATCH, LENGTH, SEED = 2, 21, 11


class Outcome(StrEnum):
    """What became of a type."""

    ADAPTER = "read by adapter"
    GENERIC = "read generically"
    PARTLY = "read in part"
    DIFFERENT = "read and different"
    REFUSED = "refused"
    NO_SOFTMAX = "no softmax attention"
    NOT_BUILT = "not built here"


READ = frozenset({Outcome.ADAPTER, Outcome.GENERIC, Outcome.PARTLY})


@dataclass(frozen=True)
class Judged:
    """One row of the table: the largest differences over all layers, and what else is to be said."""

    model_type: str
    group: str
    outcome: Outcome
    why: str = ""
    family: str = ""
    layers: int = 0  # compared
    calls: int = 0  # of attention, in the running model
    attention: float | None = None
    output: float | None = None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def judge(model_type: str, group: str, *, batch: int = BATCH, length: int = LENGTH, seed: int = SEED) -> Judged:
    """Build, save, read, run and compare one type."""
    fresh = patch.dict(os.environ, {"TOPOSCOPE_CACHE": "off"})  # what was measured once is measured again
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory, fresh:
        warnings.simplefilter("ignore")
        try:
            model = build(model_type, group)
            model.save_pretrained(directory)
            noted = record(model, inputs(model, batch, length, seed))
        except NotBuilt as error:
            return Judged(model_type, group, Outcome.NOT_BUILT, str(error))
        except Exception as error:  # noqa: BLE001 - of other people's code: saving or running at this length
            said = str(error).strip().splitlines() or [""]
            return Judged(model_type, group, Outcome.NOT_BUILT, f"{type(error).__name__}: {said[0][:160]}")
        try:
            with toposcope.load(Path(directory)) as ours:
                return _compared(model_type, group, ours, model, noted, batch)
        except ToposcopeError as error:
            outcome = Outcome.REFUSED if noted.attended or noted.unseen else Outcome.NO_SOFTMAX
            why = str(error).replace(directory, model_type)
            return Judged(model_type, group, outcome, why, calls=len(noted.attended))
        except Exception as error:  # noqa: BLE001 - a bug of ours: as bad as a wrong answer
            return Judged(model_type, group, Outcome.DIFFERENT, f"{type(error).__name__}: {error}"[:200])


def judge_pair(each: tuple[str, str]) -> Judged:
    """`judge` in another process, which finds it here: what stands in a `__main__` it does not."""
    return judge(*each)


def _compared(model_type: str, group: str, ours: Any, theirs: Any, noted: Record, batch: int) -> Judged:
    found, missing = differences(ours, theirs, noted, batch)
    faint = differences(ours, theirs, run, batch)[0] if (run := faint_run(theirs, batch)) is not None else []
    seen = {each.at for each in found}
    facts = {
        "family": ours.family,
        "layers": len(found),
        "calls": len(noted.attended),
        "attention": max((each.attention for each in (*found, *faint)), default=None),
        "output": max((each.output for each in (*found, *faint) if each.output is not None), default=None),
    }
    reasons = []
    outcome = Outcome.ADAPTER if ours.spec.compared is None else Outcome.GENERIC
    wrong = [each for each in (*found, *faint) if not each.agrees]
    if wrong or not found:
        outcome = Outcome.DIFFERENT
        reasons += [f"layer {each.layer}: {each.attention:.1e}, {each.output}" for each in wrong[:2]]
    elif len(seen) < len(noted.attended):
        stacks = {_stack(each.module) for each in noted.attended if each.at in seen}
        left = [each.module for each in noted.attended if each.at not in seen]
        if group != "image_text" or any(_stack(module) in stacks for module in left):  # there the text stack counts
            outcome = Outcome.PARTLY
        reasons.append(f"{len(left)} calls of attention are not described (as in {left[0]})")
    off, unnamed = at_input(ours, noted, batch)
    if off is not None and off > ATTENTION:
        outcome = Outcome.DIFFERENT
        reasons.append(f"positions at the input differ by {off:.1e}")
    if unnamed is not None:
        reasons.append(f"position also enters at the input ({unnamed}), which is not named")
    if missing:
        reasons.append(f"{len(missing)} layers not compared ({'; '.join(sorted(set(missing.values())))[:160]})")
    if found and not any(each.peaked for each in found):
        reasons.append("attention is nearly uniform: agreement says little")
    if any(each.place != "layer" for each in found):
        reasons.append("input taken at the norm or map")
    return Judged(model_type, group, outcome, "; ".join(reasons), **facts)


def faint_run(model: Any, batch: int) -> Record | None:
    """The same run with embeddings a thousand times smaller, where a norm's epsilon counts; None: it has none."""
    try:
        weight = getattr(model.get_input_embeddings(), "weight", None)
    except NotImplementedError:  # of several towers none is the one
        weight = None
    if weight is None:
        return None
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(1e-3)
        return record(model, inputs(model, batch, LENGTH, SEED))
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def _stack(module: str) -> str:
    """What stands before the number of a layer in a module's name."""
    parts = module.split(".")
    return ".".join(parts[: next((k for k, part in enumerate(parts) if part.isdigit()), len(parts))])
