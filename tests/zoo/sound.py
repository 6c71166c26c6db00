"""Sound controls: every family that is read, and every scaling in the architectures that take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from tests.architectures import build, page
from tests.architectures.judge import READ
from tests.zoo.models import DTYPES, tiny
from tests.zoo.plants import PLANTS, Settings, llama3, longrope, yarn
from toposcope.checkpoints.installed import MODELS
from toposcope.models.load import load_reference

PACKAGED = next(each for each in MODELS if each.name == "smollm2")
_PLAIN: Settings = {"base": 1e5, "width": 32, "context": 1024}
SCALINGS: dict[str, Settings] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": yarn(8.0, 128),
    "yarn, not truncated": yarn(8.0, 128, truncate=False),
    "yarn, factor stated": yarn(8.0, 128, attention_factor=1.4),
    "llama3": llama3(8.0, 128),
    "longrope": longrope(32, 128),
}
_SCALED = ("llama", "qwen3", "mistral", "smollm3", "gpt_oss", "cohere")


@dataclass(frozen=True)
class Control:
    """A sound model: what it is, and how it is made."""

    kind: str  # of what: "families", "scalings", "settings of plants", "trained"
    name: str
    make: Callable[[], nn.Module]
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}".replace(" ", "_")


@dataclass(frozen=True)
class _Built:
    """A tiny model of a type, made by tests.architectures."""

    model_type: str
    group: str

    def __call__(self) -> nn.Module:
        model = build(self.model_type, self.group)
        for part in model.modules():
            if isinstance(getattr(part, "chunk_size", None), int):
                part.chunk_size = (
                    8  # state-space layers pad every text to a chunk; of 256, hundreds of texts are slow
                )
        return model


@dataclass(frozen=True)
class _Tiny:
    """A tiny model with settings of the zoo."""

    architecture: str
    settings: Settings

    def __call__(self) -> nn.Module:
        return tiny(self.architecture, **self.settings)


def controls() -> Iterator[Control]:
    """All of them."""
    for (group, kind), outcome in page.read(page.PAGE.read_text()).items():
        if outcome in READ:
            yield Control("families", f"{group} {kind}", _Built(kind, group))
    for architecture in _SCALED:
        for name, scaling in SCALINGS.items():
            yield Control("scalings", f"{architecture} {name}", _Tiny(architecture, {**_PLAIN, "scaling": scaling}))
    seen = set()
    for plant in PLANTS:
        if (name := f"{plant.architecture} {plant.setting}") not in seen:
            seen.add(name)
            yield Control("settings of plants", name, plant.sound)
    if PACKAGED.path() is not None:  # half precision of a real size takes minutes on a CPU
        yield Control("trained", PACKAGED.name, _trained, dtypes=("float32",))


def _trained() -> nn.Module:
    return load_reference(PACKAGED.name, head=True, attention="sdpa", tokenizer=False).model
