"""Quantised checkpoints, presented as the weights that they stand for, one module for each way to quantise.

Which way it is must follow from the configuration and from the names of the tensors; where the two contradict each
other, or a part is missing, the file is refused. docs/quantised.md has the table of what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from toposcope.checkpoints.quantised import affine, bitsandbytes, fp4, gptq, hqq, packed, scaled, ternary
from toposcope.checkpoints.quantised.settings import BESIDE, Settings, settings_of
from toposcope.checkpoints.quantised.source import QuantisedSource
from toposcope.checkpoints.quantised.stored import CODES, Method, Weight, kind
from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadFile
from toposcope.core.printable import printable

__all__ = ["BESIDE", "QuantisedSource", "dequantised"]

# In this order: the first that claims a weight has it.
_METHODS: tuple[Method, ...] = tuple(
    method for module in (bitsandbytes, packed, fp4, hqq, ternary, gptq, affine, scaled) for method in module.METHODS
)
_READ = frozenset(said for method in _METHODS for said in method.said)
# How tensors are called by those who quantise in ways that are not read.
_OTHERS = {
    ".codebooks": "AQLM",
    ".trellis": "EXL3",
    ".q_weight": "EXL2",
    ".Qidxs": "QuIP#",
    ".dense_weights": "SpQR",
    ".centroids.weight": "VPTQ",
    ".s_channel": "QQQ",
    ".weight._shift": "quanto in 2 or 4 bits, whose files do not say the shape of a weight,",
    ".weight_bitmask": "compressed-tensors (sparse)",
    ".bitmask": "compressed-tensors (sparse)",
}


def dequantised(
    source: TensorSource,
    config: Mapping[str, Any] | None,
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> QuantisedSource:
    """The same source with its quantised weights as the model has them, and no code shown as a weight.

    `config` is the content of config.json, `others` that of the files of BESIDE that lie beside it.
    """
    settings = settings_of(None if source.format == "gguf" else config, others)
    names = source.names()
    if not isinstance(names, set | frozenset | dict):
        names = set(names)
    if settings.method is not None and settings.method not in _READ:
        _refuse_other(source, settings.method)
    strange = next((name for name in names if name.endswith(tuple(_OTHERS))), None)
    if strange is not None:
        raise _not_read(source, strange, next(_OTHERS[end] for end in _OTHERS if strange.endswith(end)))
    found = {} if source.format == "gguf" else _found(source, names, settings)  # its own types are its reader's
    return QuantisedSource(source, found, settings)


def _found(source: TensorSource, names: Collection[str], settings: Settings) -> dict[str, tuple[Method, Weight]]:
    found: dict[str, tuple[Method, Weight]] = {}
    contradicted: dict[str, tuple[Method, Weight]] = {}
    for method in _METHODS:
        for weight in method.find(names, settings):
            if weight.name in found:
                continue
            if settings.method is not None and settings.method not in method.said:
                contradicted.setdefault(weight.name, (method, weight))
            elif weight.name in names and weight.name not in weight.parts.values():
                raise BadFile(
                    f"{printable(source.path)} holds '{printable(weight.name)}' both plainly and quantised with "
                    f"{method.name}, and it is not known which holds. Download the model again."
                )
            else:
                found[weight.name] = method, weight
    for name, (method, weight) in contradicted.items():
        if name not in found and kind(source.info(weight.parts["codes"]).dtype) in CODES:
            raise BadFile(
                f"'{printable(name)}' in {printable(source.path)} is stored as {method.name} stores it, and the "
                f"configuration says that the model is quantised with {printable(settings.method)}. Keep the "
                "configuration that came with the weights."
            )
    return found


def _refuse_other(source: TensorSource, method: str) -> None:
    """Refuse what is quantised in a way that is not read; a model whose tensors are all wide is as good as any."""
    for name in source.names():
        info = source.info(name)
        if len(info.shape) > 1 and kind(info.dtype) in CODES:
            raise _not_read(source, name, method)


def _not_read(source: TensorSource, name: str, method: str) -> BadFile:
    return BadFile(
        f"{printable(source.path)} is quantised with {printable(method)}, which is not read ('{printable(name)}'). "
        "Convert it to BF16, or use the model it was made from."
    )
