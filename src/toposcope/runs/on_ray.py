"""Work on a queue with a Ray cluster: the same runs, the same results, the machines of others.

Workers see neither the store nor its disk. A run's files travel with it: those it has so far (a checkpoint, say) go
to a temporary directory of the node, and everything comes back as bytes, which the driver alone writes. While a run
goes on, its progress and now and then its checkpoint are sent to a post box beside the driver, so a lost node costs
minutes, not the run. Runs of a lost node are tried again elsewhere. Toposcope must be installed on every node, in
the same version.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toposcope.core.cluster import TICK, connect, stop_signals
from toposcope.core.errors import BadValue
from toposcope.runs.directory import pack, unpack, write_job
from toposcope.runs.jobs import Job
from toposcope.runs.queue import Failure, Queue
from toposcope.runs.store import Claim, said_plainly

POST_PROGRESS = 1.0  # seconds between two messages of one run
POST_FILES = 30.0  # seconds between two deliveries of its files


def run(
    queue: Queue,
    *,
    address: str | None = None,
    jobs: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    gpus: float = 0.0,
    post: float = POST_FILES,
) -> None:
    """Do all runs of the queue on the cluster at `address` (None: a Ray of this machine's own, while it lasts).

    Each run has `gpus` GPUs, or a share of one, to itself: Ray shows it no others.
    """
    ray = connect(address)
    try:
        with stop_signals() as stopped:
            box = _post_box(ray)
            task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_remote)
            out: dict[Any, Claim] = {}
            try:
                while queue.open:
                    if stopped.is_set():
                        raise KeyboardInterrupt
                    room = jobs or room_for_runs(ray.cluster_resources(), threads, gpus)
                    while len(out) < room and (claim := queue.next()):
                        job, files = claim.job, pack(claim.directory)
                        out[task.remote(job.kind, job.key, dict(job.config), files, threads, box, post, device)] = (
                            claim
                        )
                    _collect(ray, queue, out)
                    _empty(ray, box, queue, out)
            finally:
                for reference in out:
                    ray.cancel(reference, force=True)
                queue.give_back()
    finally:
        ray.shutdown()


def room_for_runs(resources: Mapping[str, float], threads: int, gpus: float) -> int:
    """How many runs a cluster takes at a time."""
    if gpus and resources.get("GPU", 0.0) < gpus:
        raise BadValue(
            f"each run needs {gpus:g} GPUs, and the cluster has {resources.get('GPU', 0.0):g} in all. Give a smaller "
            "--gpus-per-run, or --device cpu."
        )
    by_cores = int(resources.get("CPU", 1)) // threads
    return max(1, min(by_cores, int(resources["GPU"] / gpus)) if gpus else by_cores)


def _collect(ray: Any, queue: Queue, out: dict[Any, Claim]) -> None:
    """Write what has come back, and queue again what was lost."""
    ready, _ = ray.wait(list(out), num_returns=1, timeout=TICK) if out else ([], [])
    if not out:
        time.sleep(TICK)  # all that is left is being worked on by others
    for reference in ready:
        claim = out.pop(reference)
        try:
            files, failure = ray.get(reference)
        except ray.exceptions.RayError as error:
            queue.failed(claim, Failure(f"lost on the cluster: {type(error).__name__}: {str(error).strip()[:600]}"))
            continue
        with said_plainly(queue.store.path):
            unpack(claim.directory, files)
        if failure:
            queue.failed(claim, Failure(**failure))
        else:
            queue.finished(claim)


def _empty(ray: Any, box: Any, queue: Queue, out: Mapping[Any, Claim]) -> None:
    """Take progress and checkpoints from the post box."""
    by_key = {claim.job.key: claim for claim in out.values()}
    try:
        post = ray.get(box.take.remote(), timeout=60.0)
    except ray.exceptions.RayError:
        return  # the box is not there yet, or no longer: progress is a courtesy
    for key, (progress, files) in post.items():
        if key in by_key:
            if files:
                with said_plainly(queue.store.path):
                    unpack(by_key[key].directory, files)
            queue.progress(by_key[key], progress)


class _Box:
    """The latest news of every run. It lives on the driver's node, so no other node takes it along when it dies."""

    def __init__(self) -> None:
        self._news: dict[str, tuple[Mapping[str, Any], dict[str, bytes]]] = {}

    def put(self, key: str, progress: Mapping[str, Any], files: dict[str, bytes]) -> None:
        """Leave news; files that were not yet taken stay."""
        _, before = self._news.get(key, ({}, {}))
        self._news[key] = (progress, files or before)

    def take(self) -> dict[str, tuple[Mapping[str, Any], dict[str, bytes]]]:
        """Take all news."""
        news, self._news = self._news, {}
        return news


def _post_box(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(_Box).remote()


def _remote(
    kind: str,
    key: str,
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    threads: int,
    box: Any,
    post: float,
    device: str,
) -> tuple[dict[str, bytes], dict[str, Any] | None]:
    """On a node: do one run in a temporary directory; its files, and what went wrong if anything did."""
    from toposcope.runs.worker import attempt

    if "torch" in sys.modules or kind == "train":
        import torch

        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="toposcope-") as name:
        directory = Path(name)
        write_job(directory, Job(key, kind, config))  # its result must say whose it is
        unpack(directory, files)
        told, sent = time.monotonic(), time.monotonic()

        def report(progress: Mapping[str, Any]) -> None:
            nonlocal told, sent
            now = time.monotonic()
            if now - told < min(POST_PROGRESS, post):
                return
            told, due = now, now - sent >= post
            sent = now if due else sent
            box.put.remote(key, dict(progress), pack(directory) if due else {})

        failure = attempt(kind, config, directory, report, device)
        return pack(directory), asdict(failure) if failure else None
