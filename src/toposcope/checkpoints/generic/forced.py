"""A family that the user named for a type no adapter knows: its reading compared with transformers' own model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.generic import shrink
from toposcope.checkpoints.generic.bounds import Deadline, Refused, quiet, require_reasonable, understood
from toposcope.checkpoints.generic.compare import ATTENTION, OUTPUT, Taps, difference, readable
from toposcope.checkpoints.generic.copied import SmallCopy
from toposcope.checkpoints.spec import Compared, LayerSpec
from toposcope.core.errors import ToposcopeError, UnknownFamily


def compared(family: Family, values: dict[str, Any]) -> Compared:
    """How a family's reading of a small copy of this model agrees with the running copy; refused if it does not."""
    import transformers

    deadline = Deadline()
    require_reasonable(values)
    with quiet():
        with understood("its configuration does not make a model"):
            config = shrink.true_config(values)
            kind = shrink.model_class(config)
        reasons = []
        for small in shrink.attempts(config):
            try:
                copy = SmallCopy(kind, type(config), small, deadline)
                settings = {**values, **small, "model_type": values["model_type"]}
                layers = family.describe(Config(settings, "a small copy"), copy.source).layers
            except (Refused, ToposcopeError) as reason:
                reasons.append(str(reason))
                deadline.check()
                continue
            worst = _worst(family.name, copy, layers)
            return Compared(f"transformers {transformers.__version__}", *worst)
    raise Refused(reasons[0] if reasons else "no small copy of it could be made")


def _worst(name: str, copy: SmallCopy, layers: tuple[LayerSpec, ...]) -> tuple[float, float]:
    """The largest differences over all layers of a text's own attention."""
    modules = {
        copy.names.of(each)[0]: each.rpartition(".")[0] for each in copy.names.held if each.endswith(".weight")
    }
    noted = copy.run(21, 12)
    own = [layer for layer in layers if layer.kind == "self"]
    if len(own) != sum(each.layer is not None for each in noted.calls):
        raise UnknownFamily(
            f"--family {name} finds {len(own)} layers where the model computes attention {len(noted.calls)} times."
        )
    worst = [0.0, 0.0]
    for layer in own:
        o_module = modules.get(layer.o.weight, "")
        number = next((n for n, c in enumerate(noted.calls) if c.layer and o_module.startswith(f"{c.layer}.")), None)
        if number is None:
            raise Refused(f"no attention was seen where '{layer.o.weight}' belongs")
        bare = replace(layer, output_norm=None, output_gain=None)
        try:
            found = difference(readable(bare, copy.source), Taps("", o_module, None), noted, number)
        except (Refused, ToposcopeError) as reason:
            raise UnknownFamily(f"--family {name} does not fit this model: {reason}") from reason
        worst = [max(pair) for pair in zip(worst, found, strict=True)]
    if worst[0] > ATTENTION or worst[1] > OUTPUT:
        raise UnknownFamily(
            f"--family {name} reads this model differently from transformers: on a small copy, attention differs by "
            f"{worst[0]:.2g} and its output by {worst[1]:.2g}. Leave --family out to have the model measured instead."
        )
    return worst[0], worst[1]
