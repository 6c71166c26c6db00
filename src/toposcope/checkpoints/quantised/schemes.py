"""Which scheme of compressed-tensors' configuration a module was quantised by: bits, type, groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.core.errors import BadConfig
from toposcope.core.printable import printable

_UNREAD_FORMATS = ("sparse", "marlin", "mxfp6")
_MOST_PATTERN = 500  # letters of a pattern that is tried on names
_REPEATED = re.compile(r"[*+}]\s*\)\s*[*+{]")  # a repetition of a repetition takes for ever on some names


@dataclass(frozen=True)
class Scheme:
    """How the weights of a group of modules are stored."""

    bits: int
    floating: bool
    symmetric: bool
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None
    reordered: bool


def scheme_of(settings: Settings, module: str) -> Scheme:
    """The scheme of the first group that names the module: by name, by pattern, else by being a linear layer."""
    _require_known(settings)
    groups = [each for each in settings.section("config_groups").values() if isinstance(each, Mapping)]
    found = [(_match(group, module), number) for number, group in enumerate(groups)]
    ranked = sorted((rank, number) for rank, number in found if rank is not None)
    if not ranked:
        raise BadConfig(
            f"the quantisation settings name no group for '{printable(module)}', which is stored quantised. Download "
            "the model's configuration again."
        )
    weights = groups[ranked[0][1]].get("weights")
    if not isinstance(weights, Mapping):
        raise BadConfig(
            f"the quantisation settings say nothing of the weights of '{printable(module)}', which are stored "
            "quantised. Download the model's configuration again."
        )
    return _scheme(weights, module)


def _require_known(settings: Settings) -> None:
    form = settings.text("format") or ""
    sparse = settings.section("sparsity_config").get("format")
    if isinstance(sparse, str) and sparse not in ("dense", ""):
        form = sparse
    if form.startswith(_UNREAD_FORMATS):
        raise BadConfig(
            f"the model is quantised with compressed-tensors in the format '{printable(form)}', which is not read. "
            "Save it decompressed, in BF16."
        )
    if settings.section("transform_config").get("config_groups"):
        raise BadConfig(
            "the model is quantised with compressed-tensors and its weights are rotated (transform_config), which is "
            "not undone here. Use the model it was made from."
        )


def _match(group: Mapping[str, Any], module: str) -> int | None:
    """How well a group's targets name a module: 0 is best, None not at all."""
    targets = group.get("targets")
    best: int | None = None
    for target in targets if isinstance(targets, list) else []:
        if not isinstance(target, str):
            continue
        if target.startswith("re:"):
            rank = 1 if _fits(target[3:], module) else None
        elif target == module:
            rank = 0
        else:
            rank = 2 if "." not in target and target[:1].isupper() else None  # a class of modules: Linear
        if rank is not None and (best is None or rank < best):
            best = rank
    return best


def _fits(pattern: str, module: str) -> bool:
    if len(pattern) > _MOST_PATTERN or _REPEATED.search(pattern):
        raise BadConfig(f"the quantisation settings hold the pattern '{printable(pattern, 60)}', which is not tried.")
    try:
        return re.match(pattern, module) is not None
    except (re.error, RecursionError, OverflowError) as error:
        raise BadConfig(
            f"the quantisation settings hold the pattern '{printable(pattern, 60)}', which is none."
        ) from error


def _scheme(weights: Mapping[str, Any], module: str) -> Scheme:
    bits, group = weights.get("num_bits", 8), weights.get("group_size")
    strategy, block = weights.get("strategy"), weights.get("block_structure")
    if isinstance(block, str):
        block = [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in block.split("x")]
    sound = type(bits) is int and 1 <= bits <= 8 and (group is None or (type(group) is int and group >= -1))
    sound = sound and (
        block is None
        or (isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block))
    )
    if not sound or group == 0 or weights.get("type", "int") not in ("int", "float"):
        raise BadConfig(
            f"the quantisation settings of '{printable(module)}' make no sense: {printable(dict(weights), 200)}. "
            "Download the model's configuration again."
        )
    if strategy is None:
        strategy = "tensor" if group is None else "group" if group > 0 else "channel"
    return Scheme(
        bits=bits,
        floating=weights.get("type", "int") == "float",
        symmetric=weights.get("symmetric", True) is not False,
        strategy=str(strategy),
        group_size=group if group is not None and group > 0 else None,
        block=None if block is None else (block[0], block[1]),
        reordered=weights.get("actorder") in (True, "group", "dynamic"),
    )
