"""What adapters share: a checked configuration, sizes, names, and tables of learned positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec
from toposcope.core.errors import BadConfig, MissingTensor, UnknownFamily
from toposcope.core.printable import printable
from toposcope.encodings import Encoding, learned
from toposcope.encodings.kinds import LARGEST as MOST

GPT2_SIZES = {  # what GPT-2 calls its sizes, for `LayerSizes.of`
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
}
LARGEST = 2**24  # no width, head count or context of a real model is larger; a damaged configuration's may be


class Config(Mapping[str, Any]):
    """A configuration with checked access: a wrong or missing value is an error that names the file and key."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def part(self, key: str) -> Config:
        """A nested configuration ('text_config', 'attn_config'); empty where absent."""
        inner = self._values.get(key) or {}
        if not isinstance(inner, Mapping):
            raise BadConfig(f"'{key}' in {self.where} is {inner!r}; expected an object with settings.")
        return Config(inner, f"{self.where} ({key})")

    def updated(self, **values: Any) -> Config:
        """The same configuration with some values replaced."""
        return Config({**self._values, **values}, self.where)

    def with_defaults(self, **values: Any) -> Config:
        """The same with the architecture's defaults for absent keys, which old files omit; null stays null."""
        return Config({**values, **self._values}, self.where)

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The first of `keys` that is set, a whole number from `least` to `most`; `default` where none is."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadConfig(
                f"'{keys[0]}' in {self.where} is {printable(repr(value), 60)}; "
                f"expected a whole number from {least} to {most:,}."
            )
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """The first of `keys` that is set, a finite number."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise BadConfig(f"'{keys[0]}' in {self.where} is {value!r}; expected a number.")
        return float(value)

    def flag(self, *keys: str, default: bool) -> bool:
        """The first of `keys` that is set, true or false."""
        value = self._first(keys, default)
        if not isinstance(value, bool):
            raise BadConfig(f"'{keys[0]}' in {self.where} is {value!r}; expected true or false.")
        return value

    def text(self, *keys: str, default: str) -> str:
        """The first of `keys` that is set, a string."""
        value = self._first(keys, default)
        if not isinstance(value, str):
            raise BadConfig(f"'{keys[0]}' in {self.where} is {value!r}; expected a name.")
        return value

    def listed(self, key: str, length: int) -> list[Any] | None:
        """A list with one entry per layer, or None where absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise BadConfig(f"'{key}' in {self.where} is not a list with an entry for each of the {length} layers.")
        return value

    def _first(self, keys: tuple[str, ...], default: Any) -> Any:
        for key in keys:
            if self._values.get(key) is not None:
                return self._values[key]
        if default is None:
            raise BadConfig(f"{self.where} lacks '{keys[0]}', without which the weights cannot be sorted into heads.")
        return default


@dataclass(frozen=True)
class LayerSizes:
    """How many layers and heads of what width, checked to fit together."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        layers: tuple[str, ...] = ("num_hidden_layers",),
        width: tuple[str, ...] = ("hidden_size",),
        heads: tuple[str, ...] = ("num_attention_heads",),
        kv_heads: tuple[str, ...] = ("num_key_value_heads",),
        head_dim: tuple[str, ...] = ("head_dim",),
    ) -> LayerSizes:
        """Read the sizes under their usual names, or under those given."""
        count, wide = config.integer(*layers), config.integer(*width)
        n_heads = config.integer(*heads, most=MOST["heads"])
        n_kv = config.integer(*kv_heads, default=n_heads)
        if count > 10_000:
            raise BadConfig(f"{config.where} claims {count} layers; expected at most 10000.")
        if n_heads % n_kv:
            raise BadConfig(
                f"{config.where} claims {n_heads} heads in {n_kv} key-value groups: not a whole number each."
            )
        if wide % n_heads and not any(config.get(key) for key in head_dim):
            raise BadConfig(f"{config.where} claims width {wide} for {n_heads} heads: not a whole number each.")
        return cls(
            count,
            wide,
            n_heads,
            n_kv,
            config.integer(*head_dim, default=max(wide // n_heads, 1), most=MOST["head_dim"]),
        )

    def layer(self, **described: Any) -> LayerSpec:
        """A layer of these sizes, its logits divided by the root of the head's width unless `described` differs."""
        usual = {"width": self.width, "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        scale = described.get("head_dim", self.head_dim) ** -0.5
        return LayerSpec(**{**usual, "scale": scale, **described})


def find_root(source: TensorSource, *endings: str) -> str:
    """The prefix before the names an adapter knows ('', 'model.', 'bert.', ...), found from a tensor's ending."""
    for ending in endings:
        roots = sorted((name.removesuffix(ending) for name in source.names() if name.endswith(ending)), key=len)
        if roots:
            return roots[0]
    seen = ", ".join(sorted(source.names())[:6])
    raise UnknownFamily(
        f"{source.path} holds no tensor named like '{endings[0]}', which this family has. It holds {seen}, ... "
        "Try another --family ('toposcope ls families')."
    )


def claimed_context(config: Config, *keys: str) -> int | None:
    """The length the configuration claims under the first of `keys` that is set; None where none is."""
    return config.integer(*keys) if any(config.get(key) is not None for key in keys) else None


def learned_table(source: TensorSource, name: str, *, offset: int = 0) -> Encoding:
    """The learned positions stored as tensor `name`; position i uses row i + offset."""
    if name not in source.names():
        raise MissingTensor(f"{source.path} holds no tensor '{name}', the table of positions.")
    table = source.read(name)
    if table.ndim > 2 and table.shape[0] == 1:
        table = table[0]
    if table.ndim != 2 or len(table) <= offset:
        raise MissingTensor(
            f"the position table '{name}' in {source.path} has shape {table.shape}; expected (n, width)."
        )
    return learned(table, offset=offset)


def with_note(encoding: Encoding, note: str) -> Encoding:
    """The encoding with one more remark."""
    return replace(encoding, notes=(*encoding.notes, note))
