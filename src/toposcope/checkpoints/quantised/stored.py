"""One quantised weight as a file stores it: several tensors, each with a part to play, none of them to be trusted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.source import Stored, TensorInfo, TensorSource
from toposcope.core.errors import BadFile
from toposcope.core.printable import printable

Codes = NDArray[np.integer[Any]]
LONGEST_TEXT = 1 << 16  # bytes of JSON or of a name that are stored as a tensor
LONGEST_LIST = 8  # sizes of a shape that is stored as a tensor

# torch's names of types, as safetensors calls them.
_TORCH = {
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}
_INTEGERS: dict[str, Any] = {
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
}
WIDE = frozenset({"F16", "BF16", "F32", "F64"})
SMALL_FLOATS = frozenset({"F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"})
# Types whose numbers mean nothing as weights until something says what they stand for.
CODES = frozenset(_INTEGERS) | SMALL_FLOATS | {"F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"}

# What may stand beside a quantised weight without changing it: of input and output, of the cache of keys and values.
OF_CACHE = frozenset({"q_scale", "k_scale", "v_scale", "k_zero_point", "v_zero_point"})
OF_INPUT = frozenset(
    {
        *("input_scale", "input_scale_ub", "input_zero_point", "input_global_scale", "activation_scale"),
        *("output_scale", "output_zero_point", "qscale_act"),
    }
)


def kind(dtype: str) -> str:
    """The type as safetensors calls it."""
    return _TORCH.get(dtype, dtype)


@dataclass(frozen=True)
class Weight:
    """A weight of the model: its name there, and which stored tensor plays which part."""

    name: str
    parts: Mapping[str, str]


@dataclass(frozen=True)
class Form:
    """What a quantised weight is once read; `label` says how it is stored, as a type, and begins with Q and its bits
    where they are integers. `facts` is what the headers told, for whoever reads the codes."""

    shape: tuple[int, ...]
    label: str
    facts: Any = None


@dataclass(frozen=True)
class Method:
    """A way to quantise: how its weights are found by name, what a header tells of one, and how it is read.

    `said` are the names that configurations give it; `aside` are tensors of a module that tell nothing of its weight.
    """

    name: str
    said: frozenset[str]
    find: Callable[[Collection[str], Settings], Iterator[Weight]]
    form: Callable[[Tensors], Form]
    read: Callable[[Tensors, Form], Stored]
    aside: frozenset[str] = frozenset()

    def idle(self) -> frozenset[str]:
        """The tensors of a module that do not change its weight, by the last part of their names."""
        return OF_CACHE | OF_INPUT | self.aside


@dataclass(frozen=True)
class Tensors:
    """The stored tensors of one weight, by the part they play; what does not fit is refused in a sentence."""

    source: TensorSource
    weight: Weight
    settings: Settings
    method: str
    strange: tuple[str, ...] = ()  # what else stands in the same module, and nobody knows

    def has(self, role: str) -> bool:
        return role in self.weight.parts

    def info(self, role: str) -> TensorInfo:
        return self.source.info(self._name(role))

    def shape(self, role: str, dimensions: int | None = None) -> tuple[int, ...]:
        """Its shape, of so many dimensions."""
        found = self.info(role).shape
        if dimensions is not None and len(found) != dimensions:
            raise self.bad(f"{self._called(role)} has shape {found}, and {dimensions} dimensions were expected")
        return found

    def kind(self, role: str) -> str:
        return kind(self.info(role).dtype)

    def codes(self, role: str, *kinds: str) -> Codes:
        """Its integers, of one of these types."""
        self._require_kind(role, kinds)
        found = self.source.read(self._name(role))  # as float64, which holds all of 32 bits
        return found.astype(_INTEGERS[self.kind(role)])

    def words(self, role: str) -> NDArray[np.uint32]:
        """Its words of 32 bits, without sign."""
        return self.codes(role, "I32", "U32").view(np.uint32)

    def floats(self, role: str, *kinds: str) -> NDArray[np.float32]:
        """Its numbers as float32, of one of these types (one of the wide ones where none is named)."""
        self._require_kind(role, kinds or WIDE)
        return self.source.read(self._name(role)).astype(np.float32, copy=False)

    def powers_of_two(self, role: str) -> NDArray[np.float32]:
        """Scales that are stored as exponents in a byte: 2^(e - 127), and 255 for what is no number."""
        if self.kind(role) == "F8_E8M0":
            return self.floats(role, "F8_E8M0")
        exponents = self.codes(role, "U8")
        if exponents.size and exponents.max() == 255:
            raise self.bad(f"{self._called(role)} holds the exponent 255, which stands for no number")
        return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127).astype(np.float32)

    def number(self, role: str) -> float:
        """The one number it holds."""
        if self.info(role).shape not in ((), (1,)):
            raise self.bad(f"{self._called(role)} has shape {self.info(role).shape}, and one number was expected")
        return float(self.source.read(self._name(role)).reshape(()))

    def integer(self, role: str) -> int:
        found = self.number(role)
        if found != int(found):
            raise self.bad(f"{self._called(role)} holds {found:g}, and an integer was expected")
        return int(found)

    def sizes(self, role: str) -> tuple[int, ...]:
        """The shape that it holds."""
        (count,) = self.shape(role, 1)
        if not 0 < count <= LONGEST_LIST:
            raise self.bad(f"{self._called(role)} holds {count} sizes, and a shape was expected")
        found = tuple(int(size) for size in self.codes(role, "I64", "I32"))
        if min(found) < 1:
            raise self.bad(f"{self._called(role)} holds the shape {found}, and sizes of at least 1 were expected")
        return found

    def text(self, role: str) -> str:
        """The words that it holds as bytes."""
        (count,) = self.shape(role, 1)
        if count > LONGEST_TEXT:
            raise self.bad(f"{self._called(role)} holds {count:,} bytes, and a few words were expected")
        try:
            return self.codes(role, "U8").tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"{self._called(role)} is not UTF-8 text") from error

    def require_shape(self, role: str, *shapes: tuple[int, ...]) -> None:
        if self.info(role).shape not in shapes:
            expected = " or ".join(map(str, shapes))
            raise self.bad(f"{self._called(role)} has shape {self.info(role).shape}; expected {expected}")

    def require_alone(self, *roles: str) -> None:
        """Refuse where one of these parts is missing, or something unknown stands there: it may change the weight."""
        for role in roles:
            if not self.has(role):
                raise self.bad(f"its {role} is not there" if not role.endswith("s") else f"its {role} are not there")
        if self.strange:
            raise self.bad(f"beside it stands '{printable(self.strange[0])}', and what that does to it is not known")

    def bad(self, why: str) -> BadFile:
        method = printable(self.settings.method or self.method)
        return BadFile(
            f"'{printable(self.weight.name)}' in {printable(self.source.path)} is quantised with {method}, and "
            f"{why}. The file may be damaged or of a version that is not read: download it again, or convert it to "
            "BF16 first."
        )

    def _require_kind(self, role: str, kinds: Collection[str]) -> None:
        if self.kind(role) not in kinds:
            expected = ", ".join(sorted(kinds))
            raise self.bad(f"{self._called(role)} is stored as {self.info(role).dtype}; expected {expected}")

    def _called(self, role: str) -> str:
        return f"'{printable(self._name(role))}'"

    def _name(self, role: str) -> str:
        return self.weight.parts[role]


def label(bits: int, method: str, group: int, of: int) -> str:
    """A type's name for integers with one scale for each group of so many of a row's numbers."""
    return f"Q{bits} {method} ({'rows' if group >= of else f'groups of {group}'})"


def modules(names: Collection[str], suffix: str) -> Iterator[str]:
    """The modules that hold a tensor of this name, given with its dot."""
    for name in names:
        if name.endswith(suffix) and len(name) > len(suffix):
            yield name.removesuffix(suffix)


def beside(names: Collection[str], module: str, **roles: str) -> dict[str, str]:
    """The parts of a module's weight that are there, by role."""
    return {role: f"{module}.{leaf}" for role, leaf in roles.items() if f"{module}.{leaf}" in names}


def unpacked(words: NDArray[np.uint32], bits: int, count: int) -> NDArray[np.uint8]:
    """The first `count` integers in each row of words: a stream of bits, the lowest of each word first."""
    per_run, run = (32 // bits, 1) if 32 % bits == 0 else (32, bits)  # so many integers fill so many words
    rows, width = words.shape
    if width % run:
        words = np.concatenate([words, np.zeros((rows, run - width % run), np.uint32)], axis=1)
    found = np.empty((rows, words.shape[1] // run * per_run), dtype=np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for i in range(per_run):
        word, shift = divmod(i * bits, 32)
        value = words[:, word::run] >> np.uint32(shift)
        if shift + bits > 32:
            value = value | (words[:, word + 1 :: run] << np.uint32(32 - shift))
        found[:, i::per_run] = value & mask
    return found[:, :count]


def in_groups(
    codes_RC: NDArray[np.float32],
    scale_RG: NDArray[np.float32],
    zero_RG: NDArray[np.float32],
    group_of_C: NDArray[np.int64],
) -> NDArray[np.float32]:
    """The codes, changed in place to scale * (code - zero) with those of each column's group."""
    order = np.argsort(group_of_C, kind="stable")
    in_order = np.array_equal(order, np.arange(len(order)))
    ends = np.searchsorted(group_of_C[order], np.arange(scale_RG.shape[1] + 1)).tolist()
    for group, (start, end) in enumerate(pairwise(ends)):
        columns = slice(start, end) if in_order else order[start:end]
        codes_RC[:, columns] = (codes_RC[:, columns] - zero_RG[:, group, None]) * scale_RG[:, group, None]
    return codes_RC
