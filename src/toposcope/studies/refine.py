"""`toposcope.refine`: add the diagonal to a trained rotary model, tune it, and say what it buys."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from toposcope.core import saved
from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.progress import Progress
from toposcope.core.result import Provenance, Result
from toposcope.core.sealed import SUM, read_sealed, write_sealed

Form = Literal["slice", "uniform"]
Condition = Literal["before", "start", "diagonal", "control"]  # as it is, with D at its start, D or the control tuned
RESULT, VALUES = "result.json", "diagonal.safetensors"
WRITTEN = (saved.NAME, RESULT, VALUES)


@dataclass(frozen=True)
class TuneSettings:
    """All that decides the numbers, beside the model and the texts. Learning rates fall linearly to 0.

    `diagonal` is "auto" (each layer starts small), "bound" (D stays above the bound of the theory; uniform form only)
    or a number to start at. `lr` is in units of D's start, `control_lr` in units of the factor.
    """

    diagonal: str = "auto"
    form: Form = "slice"
    steps: int = 200
    lr: float = 0.1
    control_lr: float = 0.005
    norms: bool = False
    norm_lr: float = 0.001
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise BadValue(f"--form takes slice or uniform, got '{self.form}'.")
        if self.steps < 1:
            raise BadValue(f"at least one step is needed, got {self.steps}.")
        if not min(self.lr, self.control_lr, self.norm_lr) > 0:
            raise BadValue("learning rates must be positive.")
        if self.diagonal == "bound" and self.form != "uniform":
            raise BadValue("the bound is about the whole x^T D x: --diagonal bound needs --form uniform.")
        if self.diagonal not in ("auto", "bound"):
            try:
                value = float(self.diagonal)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value > 0):
                raise BadValue(f"--diagonal takes 'auto', 'bound' or a positive number, got '{self.diagonal}'.")


@dataclass(frozen=True)
class Difference:
    """The mean of one condition's loss less another's over held-out sequences, and its half-width (None for one)."""

    of: Condition
    against: Condition
    mean: float
    half_width: float | None

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Moved:
    """How far D of one layer went from where it began, in units of that, and how it compares with the bound."""

    layer: int
    start: float
    least: float
    median: float
    largest: float
    bound: float


@dataclass(frozen=True)
class ConditionLosses:
    """The losses of held-out sequences in each condition."""

    before: tuple[float, ...]
    start: tuple[float, ...]
    diagonal: tuple[float, ...]
    control: tuple[float, ...]


@dataclass(frozen=True)
class ConditionMeans:
    """Their means."""

    before: float
    start: float
    diagonal: float
    control: float


@dataclass(frozen=True)
class ArmParameters:
    """How many parameters each arm tunes."""

    diagonal: int
    control: int


@dataclass(frozen=True)
class ArmLosses:
    """The loss of each step."""

    diagonal: tuple[float, ...]
    control: tuple[float, ...]


@dataclass(frozen=True)
class ArmSeconds:
    """The time of a step."""

    diagonal: float
    control: float


@dataclass(frozen=True, kw_only=True, eq=False)
class RefineResult(Result):
    """What a tuned diagonal buys, beside a control: losses in nats per token.

    `held_out` has for each condition one loss per sequence; `key` is the sha256 of all that decided them: model,
    texts, settings. `directory` holds D, where one was given.
    """

    kind = "refine"
    table = "differences"

    key: str
    settings: TuneSettings
    text: str
    held_text: str
    parameters: ArmParameters
    held_out: ConditionLosses
    held_out_mean: ConditionMeans
    differences: tuple[Difference, ...]
    training: ArmLosses
    seconds_per_step: ArmSeconds
    moved: tuple[Moved, ...]
    directory: str | None = None


def refine(
    model: Any,
    *,
    out: str | Path | None = None,
    text: str | Path = "wiki",
    diagonal: str | float = "auto",
    form: Form = "slice",
    steps: int = 200,
    tokens: int = 128,
    held_out: int = 24,
    lr: float = 0.1,
    control_lr: float = 0.005,
    norms: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    device: str | None = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    batch: int = 1,
    progress: Progress | None = None,
) -> RefineResult:
    """Add x_i^T D x_j to the logits of a trained rotary model, tune only D, and measure.

    Beside it a control tunes as many other parameters on the same data. `model` is a name, a path, or a loaded model
    of transformers (with its `tokenizer`, unless that lies in the files it was loaded from), which stays as it is.
    The last fifth of `text` is held out. `diagonal` says where D starts: small, above the bound, or at a number;
    `form` is "slice" (each head its slice of x) or "uniform" (all of it). With `out`, the result and D are kept in
    that directory, and an interrupted call goes on there. `batch` held-out sequences are run together (a step sees
    one); `device`, `dtype` and `device_map` say where a model is loaded to, and in which precision (docs/devices.md).
    """
    from toposcope.models.corpus import cut
    from toposcope.models.device import (
        computation,
        memory_told,
        placement,
        require_batch,
        running_on,
        with_doubts,
    )
    from toposcope.models.load import read_text, require
    from toposcope.models.rounding import with_rounding
    from toposcope.models.running import running, running_subject
    from toposcope.models.score import trial

    started = time.perf_counter()
    require("torch", "transformers")
    from toposcope.refinements.diagonal import save
    from toposcope.studies.tuning import key_of, tune

    settings = TuneSettings(str(diagonal), form, steps, lr, control_lr, norms=norms, seed=seed)
    asked = {
        "text": str(text), "tokens": tokens, "held_out": held_out, **vars(settings), "device": device, "dtype": dtype,
        "device_map": device_map, "batch": require_batch(batch),
    }  # fmt: skip
    content = read_text(text)
    edge = len(content) * 4 // 5
    where = placement(device, dtype, device_map)
    reference = running(model, head=True, attention="sdpa", tokenizer=tokenizer, place=where)
    train = cut(reference, content[:edge], tokens=tokens, count=steps, name=str(text))
    held = cut(reference, content, tokens=tokens, count=held_out, name=str(text), begin=edge)
    if len(held.sequences) < 2:
        raise BadValue(f"the last fifth of {text} holds one sequence, and an interval needs two. Give more text.")
    key = key_of(reference, train, held, settings)
    place = None if out is None else Path(out)
    result = None if place is None else _finished(place, key)
    if result is None:
        subject = running_subject(reference, model)
        kept = f"What was tuned so far is kept in {place}: the same command goes on there." if place else ""
        with memory_told(batch, kept), running_on(reference.model) as unsure:
            found, values = tune(reference, train, held, settings, directory=place, batch=batch, progress=progress)
            first = trial(reference, held.sequences[0])
            ran = with_rounding(computation(reference.model), reference.model, first)
        ran = with_doubts(ran, unsure)
        result = replace(found, provenance=Provenance((subject,), asked, time.perf_counter() - started, ran=ran))
        if place is not None:
            save(place / VALUES, values, form)
            write_sealed(place / RESULT, key, result.as_dict())
    if place is None:
        return result
    saved.clear(place)  # also what a call left that was killed just before this
    return replace(result, directory=str(place))


def _finished(place: Path, key: str) -> RefineResult | None:
    """The result that is there already, if it is of the same model, texts and options."""
    path = place / RESULT
    try:
        data = read_sealed(path, None, {"schema": RefineResult.schema_name()})
        found = RefineResult.from_dict({name: value for name, value in data.items() if name != SUM}, str(path))
    except NotFound:
        return None
    except BadFile as error:
        raise BadFile(f"{error} Remove it to tune again, or give another --out.") from error
    if found.key != key:
        raise BadValue(
            f"{place} holds the result of another model, text or options. Give another --out, or remove {path}."
        )
    return found
