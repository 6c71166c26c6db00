"""Scan layers on a Ray cluster: a layer is a job, the driver alone writes, and a lost node's layers are tried again.

Nodes read the checkpoint themselves, under the path the driver was given: a shared file system, or a copy on each
node. A node that finds another checkpoint there says so. Every job uses one core, as many at once as the cluster has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toposcope.checkpoints.identity import difference, identity
from toposcope.checkpoints.view import Model
from toposcope.core.cluster import TICK, connect, stop_signals
from toposcope.core.errors import BadValue, ToposcopeError
from toposcope.core.fields import plain
from toposcope.scanning.elsewhere import entry_of
from toposcope.scanning.layer import Entry, Moment
from toposcope.scanning.options import ScanOptions
from toposcope.spectra.of_heads import second_moment

RETRIES = 3  # of one layer


def run(
    model: Model,
    numbers: Sequence[int],
    options: ScanOptions,
    keep: Callable[[Entry], None],
    *,
    target: str,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | None = None,
    address: str | None = None,
    workers: int | None = None,
) -> None:
    """Give `keep` one entry for each layer, in the order in which they come back from the cluster."""
    if not numbers:
        return
    with model.source.ledger.noted() as drawn:
        moment = second_moment(model)
    path = Path(target)
    where = {
        "target": str(path.resolve()) if path.exists() else target,
        "family": family,
        "num_heads": num_heads,
        "adapter": adapter,
    }
    ray = connect(address)
    try:
        with stop_signals() as stopped:
            task = ray.remote(num_cpus=1, max_retries=0)(_remote)
            shared, expected = ray.put((moment, drawn)), identity(model, options.context)
            waiting, lost, out = list(numbers), dict.fromkeys(numbers, 0), dict[Any, int]()
            try:
                while waiting or out:
                    if stopped.is_set():
                        raise KeyboardInterrupt
                    room = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
                    while waiting and len(out) < room:
                        number = waiting.pop(0)
                        out[task.remote(where, expected, number, plain(options), shared)] = number
                    for reference in ray.wait(list(out), num_returns=1, timeout=TICK)[0]:
                        number = out.pop(reference)
                        try:
                            entry, words = ray.get(reference)
                        except ray.exceptions.RayError as error:
                            lost[number] += 1
                            if lost[number] > RETRIES:
                                raise BadValue(_given_up(number, error)) from error
                            waiting.insert(0, number)
                            continue
                        if words is not None:
                            raise BadValue(f"layer {number}, on a node of the cluster: {words}")
                        name = difference(model.source, entry.read)
                        if name is not None:
                            raise BadValue(
                                f"layer {number}, on a node of the cluster: tensor '{name}' differs there from the "
                                f"driver's. Copy the checkpoint to every node."
                            )
                        keep(entry)
            finally:
                for reference in out:
                    ray.cancel(reference, force=True)
    finally:
        ray.shutdown()


def _given_up(number: int, error: Exception) -> str:
    return (
        f"layer {number} was lost {RETRIES + 1} times on the cluster ({type(error).__name__}: "
        f"{str(error).strip()[:300]}). See the nodes' memory and logs; with --out, finished layers are kept."
    )


def _remote(
    where: Mapping[str, Any],
    expected: Mapping[str, str],
    number: int,
    options: Mapping[str, Any],
    shared: tuple[Moment, Mapping[str, str]],
) -> tuple[Entry | None, str | None]:
    """On a node: one layer's entry, or why there can be none."""
    try:
        return entry_of(where, expected, number, options, shared)[0], None
    except ToposcopeError as error:
        return None, str(error)
