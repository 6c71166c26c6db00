"""What each bug of the catalogue changes in a running model; its configuration and its weights stay as they are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from tests.zoo.rotary import (
    applied_by,
    around_forward,
    attentions,
    by_config,
    kinds,
    plain,
    rotaries,
    set_factor,
    set_frequencies,
    text_config,
)

Break = Callable[[nn.Module], AbstractContextManager[None]]


def _lasting(change: Callable[..., None]) -> Callable[..., Break]:
    """A break that changes the model itself, for good: models are made for one plant."""

    def asked(*args: Any, **kwargs: Any) -> Break:
        @contextmanager
        def planted(model: nn.Module) -> Iterator[None]:
            change(model, *args, **kwargs)
            yield

        return planted

    return asked


# ---------------------------------------------------------------------------------------------- frequencies
@_lasting
def theta_lost(model: nn.Module) -> None:
    """Plain frequencies of base 10000."""
    set_frequencies(model, lambda old, _: plain(len(old), 10000.0))


@_lasting
def scaling_dropped(model: nn.Module) -> None:
    """Plain frequencies of the configured base, and no factor."""
    for kind in {kind for rotary in rotaries(model) for kind in _layer_types(rotary)}:
        settings = text_config(model).rope_parameters
        base = (settings[kind] if kind else settings)["rope_theta"]
        set_frequencies(model, lambda old, at, kind=kind, base=base: plain(len(old), base) if at == kind else old)
    set_factor(model, lambda _: 1.0)


@_lasting
def uninitialised(model: nn.Module, how: str) -> None:
    """Frequencies as memory happens to be: zeros, NaN, or numbers in no order."""
    dice = torch.Generator().manual_seed(11)
    if how == "zeros":
        set_frequencies(model, lambda old, _: torch.zeros_like(old))
    elif how == "nan":
        set_frequencies(model, lambda old, _: torch.full_like(old, float("nan")))
    else:
        set_frequencies(model, lambda old, _: torch.rand(old.shape, generator=dice) ** 2 * 2.5)


@_lasting
def rounded(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
    """Frequencies cast to a short format before they meet the position."""
    set_frequencies(model, lambda old, _: old.to(dtype).to(torch.float32))


@_lasting
def cast_whole(model: nn.Module) -> None:
    """`model.to(bfloat16)` and back: parameters keep what they were, the buffer of the frequencies does not."""
    kept = {name: each.detach().clone() for name, each in model.named_parameters()}
    model.to(torch.bfloat16).to(torch.float32)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(kept[name])


@_lasting
def partial_ignored(model: nn.Module) -> None:
    """All channels of each head turn."""
    config = text_config(model)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    set_frequencies(model, lambda old, _: plain(width // 2, config.rope_parameters["rope_theta"]))
    for each in attentions(model):
        if hasattr(each, "rotary_ndims"):
            each.rotary_ndims = width


@_lasting
def other_settings(model: nn.Module, **changes: Any) -> None:
    """The frequencies (and the factor) of a scaling with one setting changed."""
    frequencies, factor = by_config(model, **changes)
    set_frequencies(model, lambda old, _: frequencies)
    set_factor(model, lambda _: factor)


@_lasting
def other_frequencies(model: nn.Module, **changes: Any) -> None:
    """The frequencies, but not the factor, of a scaling with one setting changed."""
    frequencies, _ = by_config(model, **changes)
    set_frequencies(model, lambda old, _: frequencies)


@_lasting
def factor_dropped(model: nn.Module) -> None:
    """The attention factor is 1."""
    set_factor(model, lambda _: 1.0)


@_lasting
def factor_twice(model: nn.Module) -> None:
    """The attention factor is squared."""
    set_factor(model, lambda factor: factor * factor)


@_lasting
def plain_logit_scale(model: nn.Module) -> None:
    """The softmax scale is 1 / sqrt(width) of a head, whatever scaling asks for."""
    for each in attentions(model):
        each.scaling = each.qk_head_dim**-0.5


# ---------------------------------------------------------------------------------------------- layers
@_lasting
def layer_types_swapped(model: nn.Module) -> None:
    """Sliding layers have the frequencies of full ones, and the other way round."""
    rotary = rotaries(model)[0]
    old = {kind: getattr(rotary, f"{kind}_inv_freq").clone() for kind in _layer_types(rotary)}
    other = dict(zip(old, reversed(old), strict=True))
    set_frequencies(model, lambda _, kind: old[other[kind]])


@_lasting
def one_table(model: nn.Module, kind: str) -> None:
    """All layers have the frequencies of one type."""
    frequencies = getattr(rotaries(model)[0], f"{kind}_inv_freq").clone()
    set_frequencies(model, lambda *_: frequencies)


@_lasting
def sliding_scaled(model: nn.Module) -> None:
    """The scaling of the full layers is applied to the sliding ones too, each at its own base."""
    settings = text_config(model).rope_parameters
    scaling = {key: value for key, value in settings["full_attention"].items() if key != "rope_theta"}
    frequencies, factor = by_config(model, layer_type="sliding_attention", **scaling)
    set_frequencies(model, lambda old, kind: frequencies if kind == "sliding_attention" else old)
    for rotary in rotaries(model):
        rotary.sliding_attention_attention_scaling = factor


@_lasting
def all_layers_rotated(model: nn.Module) -> None:
    """Layers that have no position turn as well."""
    for each in attentions(model):
        _rotate(each, True)


@_lasting
def pattern_inverted(model: nn.Module) -> None:
    """Layers that should turn do not, and those that should not, do."""
    for each in attentions(model):
        _rotate(each, not _rotates(each))


def _rotates(attention: nn.Module) -> bool:
    if hasattr(attention, "use_rope"):
        return bool(attention.use_rope)
    if hasattr(attention, "is_sliding"):
        return bool(attention.is_sliding)
    return attention.sliding_window is not None


def _rotate(attention: nn.Module, yes: bool) -> None:
    """Which attribute decides is the architecture's; masks are made elsewhere, from the configuration."""
    if hasattr(attention, "use_rope"):
        attention.use_rope = int(yes)
    elif hasattr(attention, "is_sliding"):
        attention.is_sliding = yes
    else:
        attention.sliding_window = 10**6 if yes else None


def _layer_types(rotary: nn.Module) -> list[str]:
    return [each.removesuffix("_") for each in kinds(rotary)]


# ---------------------------------------------------------------------------------------------- partners
def permuted(order: Callable[[int, int], torch.Tensor]) -> Break:
    """Channels are brought into another order before they are rotated, and back after.

    `order(width, rotated)` says which channel comes where: `width` enters the rotation, `rotated` of it turn.
    """

    @contextmanager
    def planted(model: nn.Module) -> Iterator[None]:
        turning = 2 * len(rotaries(model)[0].inv_freq)

        def changed(apply: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
            to = order(q.shape[-1], min(turning, q.shape[-1]))
            back = torch.argsort(to)
            return tuple(each[..., back] for each in apply(q[..., to], k[..., to]))

        with applied_by(model, changed):
            yield

    return planted


def to_interleaved(width: int, rotated: int) -> torch.Tensor:
    """Neighbours stand half the rotated width apart: half-split rotation turns them together."""
    even = torch.arange(0, rotated, 2)
    return torch.cat([even, even + 1, torch.arange(rotated, width)])


def to_half_split(width: int, rotated: int) -> torch.Tensor:
    """Channels half the rotated width apart become neighbours: interleaved rotation turns them together."""
    pairs = torch.stack([torch.arange(rotated // 2), torch.arange(rotated // 2, rotated)], 1)
    return torch.cat([pairs.reshape(-1), torch.arange(rotated, width)])


def second_half_reversed(width: int, rotated: int) -> torch.Tensor:
    """Channel i meets the last but i."""
    half = rotated // 2
    return torch.cat([torch.arange(half), torch.arange(half, rotated).flip(0), torch.arange(rotated, width)])


def second_half_rolled(width: int, rotated: int) -> torch.Tensor:
    """Channel i meets the partner of its neighbour."""
    half = rotated // 2
    return torch.cat([torch.arange(half), torch.arange(half, rotated).roll(1), torch.arange(rotated, width)])


def odd_rolled(width: int, rotated: int) -> torch.Tensor:
    """Of neighbours, every second channel meets the one two further."""
    order = torch.arange(width)
    order[1:rotated:2] = order[1:rotated:2].roll(1)
    return order


def half_of_the_head(width: int, rotated: int) -> torch.Tensor:
    """Channel i of a head that turns in part meets i + half the head instead of i + half the rotated part."""
    first = torch.arange(rotated // 2)
    turning = torch.cat([first, first + width // 2])
    still = torch.tensor([each for each in range(width) if each not in set(turning.tolist())], dtype=torch.int64)
    return torch.cat([turning, still])


def rotated_twice(which: str) -> Break:
    """Queries and keys, or one of them, go through the rotation twice."""

    @contextmanager
    def planted(model: nn.Module) -> Iterator[None]:
        def changed(apply: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
            once = apply(q, k)
            again = apply(*once)
            return (again[0] if "q" in which else once[0], again[1] if "k" in which else once[1])

        with applied_by(model, changed):
            yield

    return planted


# ---------------------------------------------------------------------------------------------- positions
def _inner(model: nn.Module) -> nn.Module:
    """The part that makes positions where none are given: the model below the head."""
    return model.base_model if model.base_model is not model else model


def _past(cache: Any) -> int:
    return int(cache.get_seq_length()) if cache is not None else 0


def _places(tokens: torch.Tensor, start: int) -> torch.Tensor:
    return (torch.arange(tokens.shape[1]) + start)[None].expand(tokens.shape[0], -1)


@_lasting
def padding_counted(model: nn.Module, decoding: bool) -> None:
    """Where a mask hides padding, positions are counted from the left edge: in prefill, or in `decoding` as well."""

    def changed(forward: Any, **given: Any) -> Any:
        mask, tokens = given.get("attention_mask"), given.get("input_ids")
        padded = torch.is_tensor(mask) and mask.ndim == 2 and bool((mask == 0).any())
        past = _past(given.get("past_key_values"))
        if padded and tokens is not None and (decoding or not past):
            given["position_ids"] = _places(tokens, past)
        return forward(**given)

    around_forward(_inner(model), changed)


@_lasting
def cache_offset(model: nn.Module, start: Callable[[int], int]) -> None:
    """After a cache of n tokens positions begin at start(n)."""

    def changed(forward: Any, **given: Any) -> Any:
        past, tokens = _past(given.get("past_key_values")), given.get("input_ids")
        if past and tokens is not None:
            given["position_ids"] = _places(tokens, start(past))
        return forward(**given)

    around_forward(_inner(model), changed)


@_lasting
def rotated_in_cache(model: nn.Module) -> None:
    """Keys are turned once more when a cache stores them: what a single pass uses is right."""
    rotary, where = rotaries(model)[0], attentions(model)[0]
    apply = sys.modules[type(where).__module__].apply_rotary_pos_emb

    def changed(forward: Any, **given: Any) -> Any:
        past = _past(given.get("past_key_values"))
        out = forward(**given)
        cache = out.past_key_values
        if cache is not None:
            for layer in cache.layers:
                new = layer.keys[..., past:, :]
                at = (torch.arange(new.shape[-2]) + past)[None]
                table = rotary(new, at)
                layer.keys[..., past:, :] = apply(new, new, *table)[1]
        return out

    around_forward(_inner(model), changed)


@_lasting
def axes_dropped(model: nn.Module, dropped: tuple[int, ...] = (1, 2)) -> None:
    """Positions of some axes are replaced by those of the first."""
    for rotary in rotaries(model):

        def changed(forward: Any, **given: Any) -> Any:
            at = given["position_ids"]
            if at.ndim == 3:
                first = at.shape[0] - 3  # some models put text positions before the three axes
                at = at.clone()
                for axis in dropped:
                    at[first + axis] = at[first]
                given["position_ids"] = at
            return forward(**given)

        around_forward(rotary, changed)


# ---------------------------------------------------------------------------------------------- lengths
@_lasting
def longrope_by(model: nn.Module, long: Callable[[int, int], bool]) -> None:
    """The long factors are in force where long(length, original) says so."""
    settings = text_config(model).rope_parameters
    original = settings["original_max_position_embeddings"]
    lists = {each: by_config(model, length=original + each)[0] for each in (0, 1)}
    for rotary in rotaries(model):

        def changed(forward: Any, rotary: nn.Module = rotary, **given: Any) -> Any:
            length = int(given["position_ids"].max()) + 1
            chosen = lists[int(long(length, original))]
            rotary.original_inv_freq = chosen.clone()
            rotary.long_inv_freq = chosen.clone()
            return forward(**given)

        around_forward(rotary, changed)


def renew_cache(model: nn.Module) -> None:
    """Let generate() begin anew when it crosses the original context, as Phi-3 does and other models do not."""
    from transformers.generation.utils import GenerationMixin

    original = text_config(model).rope_parameters["original_max_position_embeddings"]
    prepare = GenerationMixin.prepare_inputs_for_generation.__get__(model)

    def renewing(input_ids: torch.Tensor, past_key_values: Any = None, **more: Any) -> Any:
        if past_key_values is not None and _past(past_key_values) <= original < input_ids.shape[1]:
            past_key_values, more["next_sequence_length"] = None, None
        return prepare(input_ids, past_key_values=past_key_values, **more)

    renewing.__signature__ = inspect.signature(prepare)  # type: ignore[attr-defined]
    model.prepare_inputs_for_generation = renewing


@_lasting
def cache_kept(model: nn.Module) -> None:
    """generate() keeps the cache when it crosses the original context, where the architecture would renew it."""
    from transformers.generation.utils import GenerationMixin

    model.prepare_inputs_for_generation = GenerationMixin.prepare_inputs_for_generation.__get__(model)


@_lasting
def dynamic_kept(model: nn.Module) -> None:
    """Frequencies that a long text has stretched stay: the reset is never reached."""
    for rotary in rotaries(model):
        rotary.original_max_seq_len = 0


@_lasting
def dynamic_constant(model: nn.Module, length: int) -> None:
    """The frequencies of one long text are used for all texts."""
    frequencies, _ = by_config(model, length=length)
    for rotary in rotaries(model):

        def changed(forward: Any, rotary: nn.Module = rotary, **given: Any) -> Any:
            rotary.max_seq_len_cached = 10**9  # neither growth nor reset
            rotary.original_max_seq_len = 0
            rotary.inv_freq = frequencies.clone()
            return forward(**given)

        around_forward(rotary, changed)
