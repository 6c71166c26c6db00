"""The ways of running one text: whole, piece by piece with a cache, padded, batched, by `generate`.

A way is laid out in columns, of which padding takes some; its passes are what attention saw, in the order in which it
ran.
Shapes: B sequences, T columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.generic.bounds import quiet
from toposcope.live.ruler import Positions
from toposcope.live.running import Running
from toposcope.live.subject import LiveSubject
from toposcope.live.watch import WatchedAttention, watched

NEW_TOKENS = 3  # that are decoded one by one after a prefill, and that `generate` writes


class NoCache(Exception):
    """A way with a cache, and a model that fills none."""


class Unreadable(Exception):
    """What was seen of a way of running cannot be assigned to its tokens; the sentence says why."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One run of the model over columns `start` to `stop`, and its attentions."""

    start: int
    stop: int
    attentions: tuple[WatchedAttention, ...]

    @property
    def columns(self) -> NDArray[np.intp]:
        return np.arange(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Way:
    """One way of running the text: which columns hold tokens, and the sizes of the pieces.

    `positions_BT` are given to the model where they are not None; with `exact` no shift of all tokens is allowed.
    `cache` is "none", "dynamic" or "static".
    """

    name: str
    real_BT: NDArray[np.bool_]
    pieces: tuple[int, ...]
    positions_BT: Positions | None = None
    cache: str = "none"
    masked: bool = False
    generates: bool = False
    exact: bool = False

    @property
    def places_BT(self) -> Positions:
        """Where the tokens should stand: each real token by how many stand before it (padding: 0)."""
        if self.positions_BT is not None:
            return self.positions_BT
        return np.maximum(self.real_BT.cumsum(-1) - 1, 0)

    @property
    def padded_B(self) -> NDArray[np.bool_]:
        """Which rows have padding before their first token."""
        return ~self.real_BT[:, 0]


def ways_of(running: Running, tokens: int, pad: int, *, causal: bool) -> tuple[list[Way], dict[str, str]]:
    """The ways that apply to this model, and why the others do not."""
    whole, left, right = _columns(tokens, [0]), _columns(tokens, [pad, 0], left=True), _columns(tokens, [0, pad])
    first, second = tokens * 7 // 20, tokens * 5 // 20
    pieces = (first, second, tokens - first - second)
    decoded = (tokens + pad - NEW_TOKENS, *[1] * NEW_TOKENS)
    ways, skipped = [Way("whole", whole, (tokens,))], {}
    if running.takes_positions:
        given = np.arange(tokens)[None] + 3
        ways.append(Way("whole, with position_ids from 3 on", whole, (tokens,), given, exact=True))
    else:
        skipped["position_ids"] = "the model takes none"
    if running.takes("attention_mask"):
        ways.append(Way("batched, padded on the right", right, (tokens + pad,), masked=True))
    if not (causal and running.takes("past_key_values")):
        skipped["with a cache"] = "the model keeps no cache" if causal else "the model reads in both directions"
        if running.takes("attention_mask") and not running.two_stacks:
            ways.append(Way("left-padded, the mask alone", left, (tokens + pad,), masked=True))
        return ways, skipped
    ways += [
        Way("token by token with a cache", whole, (1,) * tokens, cache="dynamic"),
        Way(f"in chunks of {', '.join(map(str, pieces))}", whole, pieces, cache="dynamic"),
    ]
    if running.two_stacks:
        skipped["with a static cache"] = "not looked at in models with an encoder"
        skipped["left-padded"] = "a decoder's text begins at its own first token"
        skipped["generate"] = "not looked at in models with an encoder"
        return ways, skipped
    ways.append(Way("with a static cache", whole, (tokens - NEW_TOKENS, *[1] * NEW_TOKENS), cache="static"))
    if running.takes("attention_mask"):
        if running.takes_positions:
            counted = np.maximum(left.cumsum(-1) - 1, 0)
            name = "left-padded with position_ids, then decoded"
            ways.append(Way(name, left, decoded, counted, cache="dynamic", masked=True))
        ways.append(Way("left-padded, the mask alone, then decoded", left, decoded, cache="dynamic", masked=True))
        if hasattr(running.model, "generate"):
            ways.append(Way("generate, left-padded", left, decoded, cache="dynamic", masked=True, generates=True))
        else:
            skipped["generate"] = "the model was loaded without the head that predicts tokens"
    return ways, skipped


def _columns(tokens: int, pads: Sequence[int], *, left: bool = False) -> NDArray[np.bool_]:
    """Rows of so many tokens as the widest has room for; row b has `pads[b]` columns of padding."""
    columns = tokens + max(pads)
    rows = [np.arange(columns) >= pad if left else np.arange(columns) < columns - pad for pad in pads]
    return np.stack(rows)


def run(subject: LiveSubject, way: Way) -> list[Pass]:
    """Run the model in this way."""
    return _generate(subject, way) if way.generates else _piecewise(subject, way)


def _piecewise(subject: LiveSubject, way: Way) -> list[Pass]:
    import torch

    running = subject.running
    ids_BT, mask_BT = subject.text.ids_BT(way.real_BT), torch.as_tensor(way.real_BT).long().to(running.device)
    cache = _static(running, way.real_BT.shape[1]) if way.cache == "static" else None
    start, passes = 0, []
    for size in way.pieces:
        stop = start + size
        more: dict[str, Any] = {"attention_mask": mask_BT[:, :stop]} if way.masked else {}
        if way.cache != "none":
            more |= {"use_cache": True, "past_key_values": cache}
        given = None if way.positions_BT is None else way.positions_BT[:, start:stop]
        with watched(running.model, rows=len(ids_BT)) as seen:
            out = running(ids_BT[:, start:stop], given, **more)
        passes.append(Pass(start, stop, tuple(seen)))
        if way.cache != "none":
            cache = getattr(out, "past_key_values", None)
            if cache is None:
                raise NoCache("the model gives no cache unless it is given one of its own")
        start = stop
    return passes


def _static(running: Running, columns: int) -> Any:
    from transformers import StaticCache

    return StaticCache(config=running.config, max_cache_len=columns)


def _generate(subject: LiveSubject, way: Way) -> list[Pass]:
    import torch

    running, text, per_pass = subject.running, subject.text, len(subject.modules)
    prompt = way.pieces[0]
    ids_BT = text.ids_BT(way.real_BT)[:, :prompt].to(running.device)
    mask_BT = torch.as_tensor(way.real_BT).long()[:, :prompt].to(running.device)
    options = {"max_new_tokens": NEW_TOKENS + 1, "do_sample": False, "num_beams": 1, "pad_token_id": text.padding}
    with watched(running.model, rows=len(ids_BT)) as seen, torch.no_grad(), quiet():
        running.model.generate(ids_BT, attention_mask=mask_BT, logits_processor=[_only(text.token)], **options)
    passes, stop = [], 0
    for first in range(0, len(seen), per_pass):
        some = tuple(seen[first : first + per_pass])
        count, columns = some[0].query_BHNR.shape[-2], stop + 1 if stop else prompt
        if count not in (1, columns) or (count == 1 and not stop) or columns > way.real_BT.shape[1]:
            raise Unreadable(
                f"attention met {count} queries in a run where {columns - stop} or {columns} were expected"
            )
        start, stop = columns - count, columns  # one more token, or all of them (again)
        passes.append(Pass(start, stop, some))
    return passes


def _only(token: int) -> Callable[[Any, Any], Any]:
    """What leaves `generate` no choice but this token, so that its text stays alike and does not end."""

    def force(ids_BT: Any, scores_BV: Any) -> Any:
        forced = scores_BV.new_full(scores_BV.shape, float("-inf"))
        forced[:, token] = 0
        return forced

    return force
