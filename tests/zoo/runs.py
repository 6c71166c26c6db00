"""Ways to run a model on the same tokens; by comparing them a plant proves what it is, and what it is not.

Every way gives logits (float64) for some tokens. None of them knows anything of queries, keys or angles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.zoo.models import VOCABULARY
from tests.zoo.rotary import text_config

TOKENS, PADDING = 20, 5


def tokens(count: int, seed: int = 5) -> torch.Tensor:
    """Random ids, the same for every model."""
    return torch.randint(5, VOCABULARY - 9, (1, count), generator=torch.Generator().manual_seed(seed))


def original(model: nn.Module) -> int:
    """The length at which this model's scaling sets in."""
    config = text_config(model)
    settings = config.rope_parameters
    return int(settings.get("original_max_position_embeddings") or config.max_position_embeddings)


def _call(model: nn.Module, ids: torch.Tensor, **more: Any) -> Any:
    if "position_ids" in more and "attention_mask" not in more:  # else a jump of positions would begin another text
        more["attention_mask"] = torch.ones_like(ids)
    with torch.no_grad():
        return model(input_ids=ids, **more)


def _logits(out: Any) -> torch.Tensor:
    """The logits, or the last states of a model that has no head."""
    return (out.logits if getattr(out, "logits", None) is not None else out[0]).double()


def _plain(model: nn.Module, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    cached = "use_cache" in vars(text_config(model)) or hasattr(text_config(model), "use_cache")
    out = _call(model, ids, **({"use_cache": False} if cached else {}), **more)
    return _logits(out)


def whole(model: nn.Module, count: int = TOKENS) -> torch.Tensor:
    """In one pass."""
    return _plain(model, tokens(count))


def one_token(model: nn.Module) -> torch.Tensor:
    """A text of one token."""
    return whole(model, 1)


def _apart(model: nn.Module, distance: int) -> torch.Tensor:
    """Six tokens at the beginning, and six `distance` later."""
    at = torch.cat([torch.arange(6), torch.arange(6) + distance])[None]
    return _plain(model, tokens(12), position_ids=at)


def near(model: nn.Module) -> torch.Tensor:
    """Twelve neighbours."""
    return _apart(model, 6)


def far(model: nn.Module) -> torch.Tensor:
    """Six tokens at the beginning of the context, and six at its end."""
    return _apart(model, text_config(model).max_position_embeddings - 6)


def _cached(model: nn.Module, ids: torch.Tensor, ends: list[int], **more: Any) -> torch.Tensor:
    cache, begin, out = None, 0, []
    for end in ends:
        given = {key: value[:, begin:end] if key == "position_ids" else value[:, :end] for key, value in more.items()}
        step = _call(model, ids[:, begin:end], past_key_values=cache, use_cache=True, **given)
        cache, begin = step.past_key_values, end
        out.append(_logits(step))
    return torch.cat(out, 1)


def stepwise(model: nn.Module) -> torch.Tensor:
    """Token by token, with a cache."""
    return _cached(model, tokens(TOKENS), list(range(1, TOKENS + 1)))


def chunks(model: nn.Module) -> torch.Tensor:
    """In three chunks, with a cache."""
    return _cached(model, tokens(TOKENS), [7, 12, TOKENS])


def _padded(model: nn.Module) -> dict[str, torch.Tensor]:
    ids = torch.cat([torch.full((1, PADDING), 4), tokens(TOKENS)], 1)
    mask = (torch.arange(PADDING + TOKENS) >= PADDING).long()[None]
    return {"ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def padded(model: nn.Module) -> torch.Tensor:
    """Padded on the left, positions given, the last three tokens decoded."""
    given = _padded(model)
    end = PADDING + TOKENS
    return _cached(model, given.pop("ids"), [end - 3, end - 2, end - 1, end], **given)[:, PADDING:]


def _generated(model: nn.Module, count: int, new: int, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.cat([torch.full((1, padding), 4), tokens(count)], 1)
    mask = (torch.arange(padding + count) >= padding).long()[None]
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    got = torch.stack([each.double() for each in out.logits], 1)
    want = _plain(model, out.sequences[:, padding:])[:, count - 1 : -1]
    return got, want


def generated(model: nn.Module) -> torch.Tensor:
    """By generate(), against one pass over what it wrote."""
    got, want = _generated(model, 8, 4)
    return got - want


def generated_padded(model: nn.Module) -> torch.Tensor:
    """By generate() after left padding, against one pass over what it wrote."""
    got, want = _generated(model, 8, 4, PADDING)
    return got - want


def generated_across(model: nn.Module) -> torch.Tensor:
    """By generate() from below the original length to above it, against one pass: tokens above it alone."""
    got, want = _generated(model, original(model) - 2, 7)
    return (got - want)[:, 3:]


def below(model: nn.Module) -> torch.Tensor:
    """One token less than the original length."""
    return whole(model, original(model) - 1)


def at(model: nn.Module) -> torch.Tensor:
    """Just the original length."""
    return whole(model, original(model))


def above(model: nn.Module) -> torch.Tensor:
    """One token more than the original length."""
    return whole(model, original(model) + 1)


def twice(model: nn.Module) -> torch.Tensor:
    """Twice the original length."""
    return whole(model, 2 * original(model))


def short_after_long(model: nn.Module) -> torch.Tensor:
    """A short text, after one of twice the original length."""
    whole(model, 2 * original(model))
    return whole(model, min(TOKENS, original(model) - 2))


def short(model: nn.Module) -> torch.Tensor:
    """A text below the original length."""
    return whole(model, min(TOKENS, original(model) - 2))


def grid(model: nn.Module) -> torch.Tensor:
    """Tokens placed like patches of an image: time, height and width differ."""
    count = 18
    steps = torch.arange(count)
    axes = torch.stack([steps // 9, steps // 3 % 3 * 5, steps % 3 * 7])
    return _plain(model, tokens(count), position_ids=axes[:, None])


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, in units of the spread of the first; infinite where one of them is no number."""
    if not (torch.isfinite(one).all() and torch.isfinite(other).all()):
        return float("inf")
    return float((one - other).abs().max() / one.std().clamp(min=1e-6))


WAYS: dict[str, Callable[[nn.Module], torch.Tensor]] = {
    way.__name__: way
    for way in (
        whole, one_token, near, far, stepwise, chunks, padded, below, at, above, twice, short, short_after_long, grid
    )
}  # fmt: skip
# These compare a model with itself: what they give is 0 in a sound one.
SELF: dict[str, Callable[[nn.Module], torch.Tensor]] = {
    way.__name__: way for way in (generated, generated_padded, generated_across)
}
