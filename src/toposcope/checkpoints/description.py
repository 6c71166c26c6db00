"""Who describes a model: the adapter of its family, the one that the user names, or a measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toposcope.checkpoints.families import choose_family, claims, not_compared
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.core.errors import UnknownFamily


@dataclass(frozen=True)
class Description:
    """A model's description, remarks on how it was had, and whether the user forced a family on another type."""

    spec: ModelSpec
    remarks: tuple[str, ...] = ()
    forced: bool = False


def described(config: Config, source: TensorSource, family: str | None = None) -> Description:
    """The description of a model; a type that no adapter knows is measured, a family that was forced is compared."""
    try:
        chosen = choose_family(config, source, family)
    except UnknownFamily:
        from toposcope.checkpoints.generic.reader import measured_spec

        spec = None if family is not None else measured_spec(config, source)
        if spec is None:
            raise
        return _compared(spec)
    spec = chosen.describe(config, source)
    if family is None or claims(chosen, config, source):
        return Description(spec)
    from toposcope.checkpoints.generic.reader import checked

    agrees = checked(chosen, config, source)
    if isinstance(agrees, str):
        return Description(spec, (not_compared(chosen, config, source, agrees),), forced=True)
    return replace(_compared(replace(spec, compared=agrees)), forced=True)


def _compared(spec: ModelSpec) -> Description:
    return Description(spec, () if spec.compared is None else (spec.compared.sentence,))
