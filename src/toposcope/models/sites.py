"""The places in a running model where attention happens, in the order in which a forward pass meets them.

Most models of transformers 5 ask its attention interface for the function that attends; there the queries and keys
can be seen and the heads' outputs changed. A few compute attention by themselves: there a hook on the output
projection reaches the heads' outputs, and the queries and keys follow from the input and the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from toposcope.core.errors import BadConfig, BadValue
from toposcope.core.ranges import is_whole

Route = Literal["interface", "lab", "hooks"]

# Models that compute attention by themselves, and the projection that the heads' outputs enter, side by side.
BYPASSING = {
    "BloomAttention": "dense",
    "FalconAttention": "dense",
    "MptAttention": "out_proj",
    "GPTJAttention": "out_proj",
    "CodeGenAttention": "out_proj",
    "GPTNeoSelfAttention": "out_proj",
}


@dataclass(frozen=True, eq=False)
class Site:
    """One attention of a forward pass. Shapes: H heads, G key-value heads, R head width, V value width.

    `number` counts attentions in the order of the forward pass; a module that runs several times (ALBERT) has a site
    for each time, and `turn` says which. For bypassing models the sizes of keys are those of the queries.
    """

    number: int
    turn: int
    module: Any
    name: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    cross: bool
    route: Route

    def __repr__(self) -> str:
        return f"<Site {self.number} ({self.name}, {self.heads} heads)>"


def checked_site(sites: tuple[Site, ...], layer: int) -> Site:
    """The site of a layer's number."""
    if not is_whole(layer):
        raise BadValue(f"a layer is named by its number, got {layer!r}.")
    if not 0 <= layer < len(sites):
        raise BadValue(f"there is no layer {layer}: the model has attention layers 0 to {len(sites) - 1}.")
    return sites[layer]


def checked_heads(site: Site, heads: tuple[int, ...]) -> tuple[int, ...]:
    """The heads, if the site has them all."""
    for head in heads:
        if not is_whole(head):
            raise BadValue(f"a head is named by its number in the layer, got {head!r}.")
        if not 0 <= head < site.heads:
            raise BadValue(
                f"there is no head {site.number}.{head}: layer {site.number} has heads 0 to {site.heads - 1}."
            )
    return heads


def bypassing(model: Any) -> list[Any]:
    """The attention modules of a model that does not use the attention interface."""
    return [module for module in model.modules() if type(module).__name__ in BYPASSING]


def no_sites(model: Any) -> BadConfig:
    """What to say of a model in which no attention was met."""
    return BadConfig(
        f"{type(model).__name__} computes attention in a way of its own: neither through transformers' attention "
        f"interface nor by one of {', '.join(sorted(BYPASSING))}. Its weights can still be read: 'toposcope scan'."
    )
