"""What adapters share: sizes, names, and tables of learned positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from toposcope.checkpoints.config_only import unread_table, without_weights
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec
from toposcope.core.config import Config as Config
from toposcope.core.errors import BadConfig, MissingTensor, UnknownFamily
from toposcope.encodings import Encoding, learned
from toposcope.encodings.registry import LARGEST as MOST

GPT2_SIZES = {  # what GPT-2 calls its sizes, for `LayerSizes.of`
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
}


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
    if without_weights(source):
        return ""
    seen = ", ".join(sorted(source.names())[:6])
    raise UnknownFamily(
        f"{source.path} holds no tensor named like '{endings[0]}', which this family has. It holds {seen}, ... "
        "Try another --family ('toposcope ls families')."
    )


def claimed_context(config: Config, *keys: str) -> int | None:
    """The length the configuration claims under the first of `keys` that is set; None where none is."""
    return config.integer(*keys) if any(config.get(key) is not None for key in keys) else None


def learned_table(source: TensorSource, name: str, *, offset: int = 0, width: int | None = None) -> Encoding:
    """The learned positions stored as tensor `name`; position i uses row i + offset. `width` None: any will do."""
    if without_weights(source):
        return unread_table(source, name)
    if name not in source.names():
        raise MissingTensor(f"{source.path} holds no tensor '{name}', the table of positions.")
    table = source.read(name)
    if table.ndim > 2 and table.shape[0] == 1:
        table = table[0]
    if table.ndim != 2 or len(table) <= offset or table.shape[1] != (width or table.shape[1]):
        raise MissingTensor(
            f"the position table '{name}' in {source.path} has shape {table.shape}; expected (n, {width or 'width'})."
        )
    return learned(table, offset=offset)


def with_note(encoding: Encoding, note: str) -> Encoding:
    """The encoding with one more remark."""
    return replace(encoding, notes=(*encoding.notes, note))
