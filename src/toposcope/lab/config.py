"""What decides a training run: a frozen record with a key of its own, checked before anything is trained."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from toposcope.core.errors import BadValue, MissingExtra, did_you_mean
from toposcope.core.plugins import BUILT_IN
from toposcope.encodings.registry import kind_origins
from toposcope.lab.mix import parse_mix
from toposcope.lab.profiles import Profile, find_profile
from toposcope.lab.quirks import Quirks
from toposcope.lab.settings import LATER, from_settings
from toposcope.lab.tasks import Task, find, task_origins

if TYPE_CHECKING:
    from toposcope.lab.model import ModelConfig

SCHEMA = 3  # of the canonical form; a change of meaning makes every key a new one (3: sentences share rows)
MAY_COLLIDE = ("distance",)  # tasks whose fillers can be triggers
VARIANTS = ("described", "published")
TOLD_LATER: Mapping[str, Any] = {**LATER, "curve_points": 20, "pairs": False, "ablation": True}
WRITTEN_LATER: Mapping[str, Any] = {**TOLD_LATER, "parameters": None}  # which shows in ff


@dataclass(frozen=True)
class RunConfig:
    """A task, an encoding, a seed and a profile; every other field of None takes the profile's value.

    `variant` "published" turns on every quirk of the released scripts; `quirks` switches single ones on
    ("raw_keys_values") or off ("-raw_keys_values"). `task_options` changes parameters of the task, as (name, value)
    pairs. `probes` records gradients, spectra and curvature during training; it does not change the training, nor do
    the `curve_points` at which accuracy is looked at. The stack of layers runs `loops` times with the same weights;
    logits are multiplied by `logit_scale`, position's own bias excepted; `latent_rank` and `shared_key` are MLA's.
    `ablation` removes every head in turn at the end, `pairs` every two of a layer as well. `parameters` chooses `ff`
    so that the model has as many, or as nearly as can be.
    """

    task: str
    encoding: str
    seed: int = 0
    profile: str = "laptop-s"
    variant: Literal["described", "published"] = "described"
    quirks: tuple[str, ...] = ()
    task_options: tuple[tuple[str, int | float | bool], ...] = ()
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ff: int | None = None
    dropout: float | None = None
    causal: bool = False
    probes: bool = True
    loops: int = 1
    logit_scale: float = 1.0
    latent_rank: int | None = None
    shared_key: bool = True
    curve_points: int = 20
    pairs: bool = False
    ablation: bool = True
    parameters: int | None = None

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise BadValue(f"'{self.variant}' is no variant. {did_you_mean(self.variant, VARIANTS)}")
        for name in ("steps", "batch", "curve_points", "parameters"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadValue(f"{name} must be at least 1, got {value}.")
        if self.pairs and not self.ablation:
            raise BadValue("pairs of heads are a part of ablation: leave out pairs, or ablation=False.")
        if not (math.isfinite(self.settings["lr"]) and self.settings["lr"] > 0):
            raise BadValue(f"the learning rate must be positive, got {self.lr}.")
        if not 0 <= self.settings["weight_decay"] < 1:
            raise BadValue(f"weight_decay must be in [0, 1), got {self.weight_decay}.")
        if not 0 <= self.seed < 2**31:
            raise BadValue(f"the seed must be a whole number from 0 to 2147483647, got {self.seed}.")
        # Written one way only: 'nope' and 'none' are one run, and lists from JSON are tuples.
        object.__setattr__(self, "encoding", str(parse_mix(self.encoding)))
        object.__setattr__(self, "quirks", tuple(self.quirks))
        object.__setattr__(self, "task_options", tuple((str(name), value) for name, value in self.task_options))
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra("training needs torch: pip install 'toposcope[torch]'.")
        self.model()

    @cached_property
    def profile_settings(self) -> Profile:
        return find_profile(self.profile)

    @property
    def settings(self) -> dict[str, Any]:
        """The training settings and sizes in force: the profile's, changed by what was given."""
        profile = self.profile_settings
        betas = profile.betas[::-1] if self.switches.swapped_betas else profile.betas
        base = {
            "steps": profile.steps_for(self.task),
            "kv_heads": None,
            "head_dim": None,
            **{name: getattr(profile, name) for name in _FROM_PROFILE},
        }
        given = {name: getattr(self, name) for name in base if getattr(self, name) is not None}
        given |= {} if self.parameters is None else {"ff": self._matched}
        return {**base, **given, "betas": list(betas)}

    @cached_property
    def _matched(self) -> int:
        """The width of the MLPs with which the model has `parameters`, or one as near as can be."""
        from toposcope.lab.model import Transformer
        from toposcope.lab.parameters import nearest_ff, trained_parameters

        if self.ff is not None:
            raise BadValue("parameters chooses ff: give one of the two.")
        plain = replace(self, parameters=None)
        return nearest_ff(
            lambda ff: trained_parameters(Transformer(replace(plain, ff=ff).model())), self.parameters or 1
        )

    @cached_property
    def switches(self) -> Quirks:
        """The quirks in force."""
        return (Quirks.published() if self.variant == "published" else Quirks()).changed(self.quirks)

    def make_task(self) -> Task:
        """The task in this run's size."""
        options = dict(self.task_options)
        if self.switches.colliding_fillers and self.task in MAY_COLLIDE:
            options = {"collide": True, **options}
        return find(self.task, self.profile_settings.task_size, **options)

    def model(self) -> ModelConfig:
        """The model in this run's size."""
        from toposcope.lab.model import ModelConfig

        task, settings = self.make_task(), self.settings
        return ModelConfig(
            vocabulary=task.vocabulary,
            classes=task.classes,
            length=task.length,
            encoding=self.encoding,
            reads=task.reads,
            causal=self.causal,
            seed=self.seed,
            quirks=self.switches,
            **{
                name: settings[name] for name in ("width", "layers", "heads", "kv_heads", "head_dim", "ff", "dropout")
            },
            **{name: getattr(self, name) for name in LATER},
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, from which `from_dict` makes the same configuration."""
        data = asdict(self)
        data["quirks"] = list(self.quirks)
        data["task_options"] = [list(option) for option in self.task_options]
        return {
            name: value for name, value in data.items() if name not in WRITTEN_LATER or value != WRITTEN_LATER[name]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The configuration written by `as_dict`."""
        return from_settings(cls, data)

    def canonical(self) -> str:
        """The one way to write what decides this run: all settings in force, names sorted."""
        told = {
            "schema": SCHEMA,
            "task": self.task,
            "task_settings": asdict(self.make_task()),
            "encoding": self.encoding,
            "seed": self.seed,
            "quirks": sorted(self.switches.names()),
            "causal": self.causal,
            "probes": self.probes,
            **{name: getattr(self, name) for name, usual in TOLD_LATER.items() if getattr(self, name) != usual},
            **self._brought_by(),
            **self.settings,
        }
        return json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def _brought_by(self) -> dict[str, Any]:
        """The packages, with their versions, whose task or encoding this run is of; empty where all is our own."""
        kinds = kind_origins()
        named = [kinds.get(item.spec.kind.name, BUILT_IN) for item in parse_mix(self.encoding).items]
        others = sorted({task_origins().get(self.task, BUILT_IN), *named} - {BUILT_IN})
        return {"plugins": others} if others else {}

    def key(self) -> str:
        """The first 16 hex digits of the canonical form's sha256: the name of this run."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]


_FROM_PROFILE = ("width", "layers", "heads", "ff", "batch", "lr", "weight_decay", "dropout")
