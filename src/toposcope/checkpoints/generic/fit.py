"""One computation of attention, measured: where its channels come from and what position does to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.logits import Logits, measured
from toposcope.checkpoints.generic.match import Columns, ModuleFlow, before, columns, through
from toposcope.checkpoints.generic.record import Array, AttentionCall, Passed, Recorded, arrays, flat
from toposcope.checkpoints.generic.rotation import MeasuredTurning, by_position, turning


@dataclass(frozen=True, eq=False)
class Fitted:
    """One call: its arrays, the maps behind them, and what turns, scales and masks."""

    call: AttentionCall
    number: int  # among the calls of the run
    q: Array
    k: Array
    v: Array
    probabilities: Array
    logits: Logits
    linears: list[ModuleFlow]
    key_linears: list[ModuleFlow]  # the same unless keys are of another text, of another length
    norms: list[ModuleFlow]
    later_linears: list[ModuleFlow]
    later_norms: list[ModuleFlow]
    queries: Columns
    keys: Columns
    values: Columns
    turn: MeasuredTurning | None
    query_sizes_N: Array | None  # what multiplies a query by its own position
    norm_after: bool  # norms of queries and keys follow the rotation


def fit(noted: Recorded, number: int, *, earlier: bool = False) -> Fitted:
    """Explain call `number`. With `earlier` its maps are looked for in earlier layers too (shared keys)."""
    call = noted.calls[number]
    q, k, v, p = arrays(call, noted.texts)
    logits = measured(q, k, p, call.scaling, call.softcap)
    inside = call.layer or call.module.rpartition(".")[0]
    first = 0 if earlier else number

    def flows(passed: list[Passed], least: int, most: int, near: str, length: int = q.shape[2]) -> list[ModuleFlow]:
        found = []
        for each in passed:
            if least <= each.after <= most and _within(each.name, near):
                x, y = (flat(t, noted.texts, length) for t in (each.x, each.y))
                if x is not None and y is not None:
                    found.append(ModuleFlow(each.name, x, y, int(each.x.shape[-1]), each.after))
        return found

    linears = flows(noted.linears, first, number, "")
    norms = flows(noted.norms, first, number, "" if earlier else inside)
    same_length = k.shape[2] == q.shape[2]
    key_linears = linears if same_length else flows(noted.linears, first, number, "", k.shape[2])
    key_norms = norms if same_length else []
    found = {
        "queries": columns(q, linears, norms, "queries"),
        "keys": columns(k, key_linears, key_norms, "keys"),
        "values": columns(v, key_linears, key_norms, "values"),
    }
    turns, sizes, after = {}, {}, {}
    for side, target, maps in (("queries", q, linears), ("keys", k, key_linears)):
        turns[side], sizes[side], after[side] = _turned(found[side], maps, target)
    _agree(turns["queries"], turns["keys"])
    if sizes["keys"] is not None:
        raise Refused("keys are scaled by position")
    if None not in after.values() and after["queries"] != after["keys"]:
        raise Refused("queries are normed before they turn and keys after, or the reverse")
    return Fitted(
        call=call,
        number=number,
        q=q,
        k=k,
        v=v,
        probabilities=p,
        logits=logits,
        linears=linears,
        key_linears=key_linears,
        norms=norms,
        later_linears=flows(noted.linears, number + 1, number + 1, inside),
        later_norms=flows(noted.norms, number + 1, number + 1, inside),
        turn=turns["queries"],
        query_sizes_N=sizes["queries"],
        norm_after=True in after.values(),
        **found,
    )


def _within(name: str, near: str) -> bool:
    return not near or name == near or name.startswith(f"{near}.")


def _turned(
    found: Columns, linears: list[ModuleFlow], target: Array
) -> tuple[MeasuredTurning | None, Array | None, bool | None]:
    """The rotation of one side, its size by position where that is not 1, and whether a norm comes only after."""
    pre, after = before(found, linears, target)
    if after and found.norm is not None:
        target = through(found, found.norm.x, target.shape[1], target.shape[3])
    size = by_position(pre, target)
    turn = None
    if size is None:
        turn = turning(pre, target)
        size = turn.size_N
    size = size / size[0]
    return turn, size if np.abs(size - 1).max() > 1e-5 else None, after


def _agree(one: MeasuredTurning | None, other: MeasuredTurning | None) -> None:
    if (one is None) != (other is None):
        raise Refused("queries turn and keys do not, or the reverse")
    if one is None or other is None:
        return
    if not np.array_equal(one.pairs_F2, other.pairs_F2) or one.pairing != other.pairing:
        raise Refused("queries and keys turn in different pairs")
    if np.abs(one.frequencies_F - other.frequencies_F).max() > 1e-5:
        raise Refused("queries and keys turn by different angles")
