"""What `check --live` says of a plant or of a sound model, as a record of a few words."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn

import toposcope
from tests.zoo.breaks import Break
from tests.zoo.models import DTYPES, cast
from tests.zoo.plants import PLANTS, Plant
from tests.zoo.runs import chunks, generated, generated_padded, padded, stepwise, whole
from tests.zoo.sound import Control, controls
from toposcope.checks.findings import Finding
from toposcope.core.errors import ToposcopeError


@dataclass(frozen=True)
class Said:
    """A finding that is no 'ok'."""

    id: str
    status: str
    bug: str
    probe: str
    title: str
    explanation: str
    own: bool = False  # told to be what transformers' own class does as well


@dataclass(frozen=True)
class Record:
    """What was said of one model in one precision; `error` where it was not checked."""

    case: str  # "plant", or the kind of a sound control
    bug: str
    name: str
    setting: str
    dtype: str
    said: tuple[Said, ...] = ()
    error: str = ""
    seconds: float = 0.0
    outputs: str = ""  # of a sound model with a fault of parity: in which ways its outputs differ from one pass

    @property
    def faults(self) -> tuple[Said, ...]:
        """What was called a fault of the running model; weights and configuration are those of a sound one anyway."""
        return tuple(each for each in self.said if each.status == "fault" and each.probe != "files")

    @property
    def found(self) -> bool:
        """Whether the check saw that something is wrong, the reference's own way of being so included."""
        return bool(self.faults) or any(each.own and each.bug == self.bug for each in self.said)

    @property
    def named(self) -> bool:
        """Whether what was found carries the name of the bug that was planted."""
        return any(each.bug == self.bug for each in (*self.faults, *self.own))

    @property
    def own(self) -> tuple[Said, ...]:
        """What was told to be the reference's own."""
        return tuple(each for each in self.said if each.own)

    @property
    def others(self) -> tuple[str, ...]:
        """Other bugs that it was taken for as well."""
        return tuple(sorted({each.bug for each in self.faults} - {self.bug, ""}))

    @property
    def where(self) -> str:
        """The case in words, as the page lists it."""
        return ", ".join(each for each in (self.bug, self.name, self.setting, self.dtype) if each)

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes that found something."""
        return tuple(sorted({each.probe for each in (*self.faults, *self.own)}))


def check(model: nn.Module) -> tuple[Finding, ...]:
    """The check under test."""
    return toposcope.check(model, live=True, weights=False).findings


def of_plant(plant: Plant, dtype: str) -> Record:
    """Plant it, check it."""
    return _judged("plant", plant.bug, plant.architecture, plant.setting, dtype, plant.sound, plant.plant)


def of_control(control: Control, dtype: str) -> Record:
    """Check a sound model; where tokens are said to stand elsewhere, see whether its outputs say so too."""
    record = _judged(control.kind, "", control.name, "", dtype, control.make, lambda _: nullcontext())
    if any(each.probe == "parity" for each in record.faults):
        return replace(record, outputs=_apart(control))
    return record


def _apart(control: Control) -> str:
    """Ways of running in which the outputs of transformers' own model, in float32, are not those of one pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, off = control.make(), {}
        try:
            once = whole(model)
        except Exception:  # noqa: BLE001 - a model of several inputs: nothing is proven
            return ""
        for way in (stepwise, chunks, padded, generated, generated_padded):
            try:
                got = way(model)
                apart = got if way in (generated, generated_padded) else got - once  # the former differ from one pass
            except Exception:  # noqa: BLE001 - not every model runs in every way
                continue
            off[way.__name__] = float(apart.abs().max() / once.std())
    return ", ".join(f"{name.replace('_', ' ')} {size:.2g}" for name, size in off.items() if size > 1e-2)


Case = tuple[str, str, str]  # plant or sound, its name, the precision


def cases(plants: list[str], dtypes: list[str], sound: bool) -> Iterator[Case]:
    """What there is to judge: plants of these bugs (of all, if none is named), sound models, in each precision."""
    for dtype in dtypes:
        for plant in PLANTS:
            if not plants or plant.bug in plants:
                yield "plant", str(plant), dtype
        for control in controls() if sound else ():
            if dtype in control.dtypes:
                yield "sound", str(control), dtype


def judge(case: Case) -> Record:
    """One of the cases, for a pool of processes."""
    kind, name, dtype = case
    torch.set_num_threads(1)
    if kind == "plant":
        return of_plant(next(each for each in PLANTS if str(each) == name), dtype)
    return of_control(next(each for each in controls() if str(each) == name), dtype)


def _judged(
    case: str, bug: str, name: str, setting: str, dtype: str, make: Callable[[], nn.Module], breaks: Break
) -> Record:
    begun = time.process_time()
    said: tuple[Said, ...] = ()
    error = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = make()
            with breaks(model):
                findings = check(cast(model, DTYPES[dtype]))
            said = tuple(
                Said(
                    each.id,
                    each.status,
                    str(each.evidence.get("bug") or ""),
                    str(each.evidence.get("probe") or "files"),
                    each.title,
                    each.explanation,
                    bool(each.evidence.get("reference_behaviour")),
                )
                for each in findings
                if each.status != "ok"
            )
        except ToposcopeError as refused:
            error = f"{type(refused).__name__}: {str(refused).splitlines()[0]}"
        except Exception as broken:  # noqa: BLE001 - a crash is a result here, and is listed
            error = f"crash: {type(broken).__name__}: {str(broken).splitlines()[0] if str(broken) else ''}"
    return Record(case, bug, name, setting, dtype, said, error, time.process_time() - begun)
