"""Scan layers in several processes of this machine: a layer is a job, and the caller alone writes.

Threads would wait for one another: much of a small head's time is Python and LAPACK behind the interpreter's lock.
Every worker is a fresh interpreter that opens the checkpoint itself and holds one layer at a time. It ends with the
work, with an error, when the caller is interrupted, and when the caller is gone: its pipe then ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from toposcope.checkpoints.identity import identity
from toposcope.checkpoints.view import Layer, Model
from toposcope.core.cluster import TICK
from toposcope.core.errors import BadValue, ToposcopeError
from toposcope.core.fields import plain
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.layers import product_fits
from toposcope.scanning.layer import Entry, narrow
from toposcope.scanning.options import ScanOptions
from toposcope.spectra.of_heads import second_moment

LARGEST_LAYER = 64_000_000  # bytes in float64: of larger ones one is held, and threads share it
START = 0.8  # seconds until a worker is ready
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def pays(model: Model, numbers: Sequence[int], options: ScanOptions, workers: int) -> bool:
    """Whether the work is worth the start of so many interpreters, and their layers fit beside each other."""
    layers = [model.layers[number] for number in numbers]
    small = all(_bytes(layer) <= LARGEST_LAYER for layer in layers)
    seconds = sum(_seconds(layer, options) for layer in layers)
    return small and bool(sys.executable) and min(workers, len(numbers)) > 1 and seconds > 4 * START


def _bytes(layer: Layer) -> int:
    spec = layer.spec
    return 8 * spec.width * (spec.heads + spec.kv_heads) * (spec.head_dim + spec.value_width)


def _seconds(layer: Layer, options: ScanOptions) -> float:
    """About what one layer takes on one core: measured for heads of width 64 and sums of width 192."""
    spec = layer.spec
    judged = narrow(layer) if options.layer_sums is None else options.layer_sums
    heads = spec.heads * (0.008 + 0.008 * (spec.head_dim / 64) ** 3) * (1 + len(options.encoding) / 4)
    return heads + (0.08 * (min(spec.width, spec.kv_heads * spec.value_width) / 192) ** 3 if judged else 0.0)


def run(
    model: Model,
    numbers: Sequence[int],
    options: ScanOptions,
    keep: Callable[[Entry], None],
    *,
    where: Mapping[str, Any],
    workers: int,
) -> dict[int, Factored]:
    """Give `keep` one entry for each layer, as they come back; return what of them the stack needs."""
    with model.source.ledger.noted() as drawn:
        moment = second_moment(model)
    stays = product_fits(model.layers)
    job = (dict(where), identity(model, options.context), plain(options), (moment, dict(drawn)), stays)
    waiting, done = list(numbers), SimpleQueue[tuple[int, Any]]()
    factors: dict[int, Factored] = {}
    with _interpreters(min(workers, len(numbers))) as started:
        for process in started:
            threading.Thread(target=_serve, args=(process, job, waiting, done), daemon=True).start()
        for _ in numbers:
            number, answer = _next(done)
            if isinstance(answer, Exception):
                raise answer
            entry, parts = answer
            if parts is not None:
                factors[number] = parts
            keep(entry)
    return factors


def _next(done: SimpleQueue[tuple[int, Any]]) -> tuple[int, Any]:
    """The next answer; waiting for it can be interrupted."""
    while True:
        with suppress(Empty):
            return done.get(timeout=TICK)


@contextmanager
def _interpreters(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many workers, which are gone afterwards, whatever happens."""
    home = str(Path(__file__).parents[2])  # where the package lies, however it was found
    paths = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH")) if part)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "toposcope.scanning.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths},
                    start_new_session=True,  # an interrupt of the terminal reaches the caller alone, who ends them
                )
            )
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def _serve(
    process: subprocess.Popen[bytes], job: object, waiting: list[int], done: SimpleQueue[tuple[int, Any]]
) -> None:
    """Give one worker layer after layer, until none is left; an answer is an entry with its factors, or an error."""
    number = -1
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump(job, process.stdin)
        while waiting:
            try:
                number = waiting.pop(0)
            except IndexError:  # another worker took the last one
                return
            pickle.dump(number, process.stdin)
            process.stdin.flush()
            answer, words = pickle.load(process.stdout)
            done.put((number, answer if words is None else BadValue(words)))
    except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        done.put((number, _lost(number, process, error)))


def _lost(number: int, process: subprocess.Popen[bytes], error: Exception) -> ToposcopeError:
    with suppress(subprocess.TimeoutExpired):
        process.wait(TICK)
    return BadValue(
        f"layer {number}: its process ended with code {process.returncode} ({type(error).__name__}). If memory was "
        "short, scan with --jobs 1; with --out, finished layers are kept."
    )
