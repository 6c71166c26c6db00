"""GPTQ and AWQ: integers in words of 32 bits, a scale and a zero point for each group of inputs.

    w[o, i] = scales[g, o] * (q[i, o] - zero[g, o]),     g = g_idx[i]  (GPTQ)  or  i // group size

GPTQ packs along the inputs, as a stream of bits; AWQ packs eight columns to a word, in an order of its own. The first
version of GPTQ's format stores zero - 1, the second ("gptq_v2") zero. Where a zero point is 0 the first version wraps
round, and packages did that in different ways: AutoGPTQ each number for itself, GPTQModel the whole word, with a
carry into the next number. A file in which that matters is read if it says that GPTQModel made it. AutoRound packs as
one or the other, and says which (settings.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import (
    Form,
    Method,
    Tensors,
    Weight,
    beside,
    in_groups,
    label,
    modules,
    unpacked,
)
from toposcope.checkpoints.source import Stored

_GPTQ_BITS = (2, 3, 4, 8)
_AUTO_ROUND_BITS = (2, 3, 4, 5, 6, 7, 8)
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # number n of eight neighbours stands at place _AWQ_ORDER[n] of their word
_VERSIONS = {"gptq": 1, "gptq_v2": 2}


@dataclass(frozen=True)
class _Groups:
    bits: int
    count: int
    size: int


def find(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for module in modules(names, ".qweight"):
        parts = beside(names, module, codes="qweight", zeros="qzeros", scales="scales", groups="g_idx")
        yield Weight(f"{module}.weight", parts)


def _gptq_form(tensors: Tensors) -> Form:
    tensors.require_alone("scales", "zeros")
    if tensors.settings.method is None:
        raise tensors.bad("no config.json or quantize_config.json says how (or with AWQ); put it beside the weights")
    _require_version(tensors)
    rows, outputs = tensors.shape("codes", 2)
    count, _ = tensors.shape("scales", 2)
    tensors.require_shape("scales", (count, outputs))
    zero_rows, zero_words = tensors.shape("zeros", 2)
    bits = 32 * zero_words // max(outputs, 1)
    known = _AUTO_ROUND_BITS if tensors.settings.get("packing_format") else _GPTQ_BITS
    if bits not in known or 32 * zero_words != bits * outputs or zero_rows != count or not count:
        raise tensors.bad(
            f"its zero points of shape {(zero_rows, zero_words)} do not fit its scales of shape {(count, outputs)} "
            f"with {', '.join(map(str, known))} bits"
        )
    said = tensors.settings.integer("bits")
    if said not in (None, bits) and not tensors.settings.section("dynamic"):
        raise tensors.bad(f"its tensors have {bits} bits where the configuration says {said}")
    if 32 * rows % bits:
        raise tensors.bad(f"{rows} rows of 32 bits do not hold whole numbers of {bits} bits")
    inputs = 32 * rows // bits
    if tensors.has("groups"):
        tensors.require_shape("groups", (inputs,))
    size = _group_size(tensors, inputs, count)
    return Form((outputs, inputs), label(bits, "gptq", size, inputs), _Groups(bits, count, size))


def _gptq_read(tensors: Tensors, form: Form) -> Stored:
    groups: _Groups = form.facts
    outputs, inputs = form.shape
    codes = unpacked(np.ascontiguousarray(tensors.words("codes").T), groups.bits, inputs)
    zeros = _gptq_zeros(tensors, groups.bits, outputs)
    return in_groups(codes.astype(np.float32), tensors.floats("scales").T, zeros.T, _of(tensors, form))


def _of(tensors: Tensors, form: Form) -> NDArray[np.int64]:
    """The group of each input."""
    groups: _Groups = form.facts
    plain = np.arange(form.shape[1]) // groups.size
    if not tensors.has("groups"):
        return plain
    found = tensors.codes("groups", "I32", "I64").astype(np.int64)
    if found.min(initial=0) < 0 or found.max(initial=0) >= groups.count:
        raise tensors.bad(f"g_idx names group {found.max()} (or {found.min()}) of {groups.count}")
    settings = tensors.settings
    if settings.flag("desc_act") is False and not settings.flag("static_groups") and not np.array_equal(found, plain):
        raise tensors.bad("g_idx puts its inputs into another order, though the configuration says desc_act = false")
    return found


def _gptq_zeros(tensors: Tensors, bits: int, outputs: int) -> NDArray[np.float32]:
    words = tensors.words("zeros")
    stored, most = unpacked(words, bits, outputs), (1 << bits) - 1
    if _require_version(tensors) == 2:
        return stored.astype(np.float32)
    if not (stored == most).any():
        return stored.astype(np.float32) + 1
    if not _by_gptqmodel(tensors.settings):
        raise tensors.bad(
            "a zero point wraps round in the first version of its format, where AutoGPTQ and GPTQModel read "
            "different numbers; save it as gptq_v2"
        )
    if bits == 3:
        return ((stored.astype(np.int32) + 1) & most).astype(np.float32)
    ones = np.uint32(sum(1 << at for at in range(0, 32, bits)))
    with np.errstate(over="ignore"):
        return unpacked(words + ones, bits, outputs).astype(np.float32)


def _by_gptqmodel(settings: Settings) -> bool:
    made_by = settings.section("meta").get("quantizer")
    names = made_by if isinstance(made_by, list) else [made_by]
    return any(isinstance(name, str) and name.lower().startswith("gptqmodel") for name in names)


def _require_version(tensors: Tensors) -> int:
    said = tensors.settings.text("checkpoint_format", "format") or "gptq"
    if tensors.settings.text("format") not in (None, said):
        raise tensors.bad(f"the configuration names the formats '{said}' and '{tensors.settings.text('format')}'")
    if said not in _VERSIONS:
        raise tensors.bad(f"the configuration names the format '{said}'; expected {' or '.join(_VERSIONS)}")
    return _VERSIONS[said]


def _group_size(tensors: Tensors, inputs: int, count: int) -> int:
    """Inputs in a group: as the configuration says if that fits, all of them where there is one group."""
    said = tensors.settings.get("group_size", "q_group_size")
    if said is not None and type(said) is not int:
        raise tensors.settings.bad("group_size", "an integer")
    size = said if said is not None and said > 0 and not tensors.settings.section("dynamic") else -(-inputs // count)
    if size < 1 or -(-inputs // size) != count:
        raise tensors.bad(f"{inputs} inputs in groups of {size} do not make the {count} groups that are stored")
    return size


def _awq_form(tensors: Tensors) -> Form:
    tensors.require_alone("scales", "zeros")
    version = tensors.settings.text("version", "format") or "gemm"
    if version != "gemm":
        raise tensors.bad(f"the configuration names the layout '{version}'; expected gemm")
    for key in ("bits", "w_bit"):
        if tensors.settings.integer(key) not in (None, 4):
            raise tensors.bad(f"the configuration says {tensors.settings.integer(key)} bits; expected 4")
    if tensors.has("groups"):
        raise tensors.bad("it has a g_idx, as GPTQ has and AWQ has not")
    inputs, words = tensors.shape("codes", 2)
    count, outputs = tensors.shape("scales", 2)
    tensors.require_shape("zeros", (count, words))
    if outputs != 8 * words or not count:
        raise tensors.bad(f"its {words} words in a row do not hold {outputs} numbers of 4 bits")
    size = _group_size(tensors, inputs, count)
    if inputs % size:
        raise tensors.bad(f"its {inputs} inputs are no groups of {size}")
    return Form((outputs, inputs), label(4, "awq", size, inputs), _Groups(4, count, size))


def _awq_read(tensors: Tensors, form: Form) -> Stored:
    codes, zeros = (_awq_columns(tensors.words(role)) for role in ("codes", "zeros"))
    of = np.arange(form.shape[1]) // form.facts.size
    weight = np.ascontiguousarray(codes.T).astype(np.float32)
    return in_groups(weight, tensors.floats("scales").T, zeros.T.astype(np.float32), of)


def _awq_columns(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    found = np.empty((words.shape[0], 8 * words.shape[1]), dtype=np.uint8)
    for number, place in enumerate(_AWQ_ORDER):
        found[:, number::8] = (words >> np.uint32(4 * place)) & np.uint32(15)
    return found


METHODS = (
    Method("GPTQ", frozenset({"gptq"}), find, _gptq_form, _gptq_read),
    Method("AWQ", frozenset({"awq"}), find, _awq_form, _awq_read),
)
