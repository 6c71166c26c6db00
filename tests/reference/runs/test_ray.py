"""A real Ray cluster of two nodes on loopback addresses: the results are local ones, even when a node dies."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reference.runs.fake import job, sweep, timeless
from toposcope.core.errors import BadValue
from toposcope.runs import local, on_ray
from toposcope.runs.grid import grid
from toposcope.runs.grid import jobs as training_jobs
from toposcope.runs.queue import Queue, RunEvent
from toposcope.runs.store import Store

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]  # Ray leaves sockets and processes to the collector
ROOT = Path(__file__).parents[3]
QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
STEPS, PAUSE = 30, 0.1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else a busy machine starves them
    head = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "_system_config": QUICK, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


def test_a_node_dies_midway_and_results_equal_local_ones(cluster: Any, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=2, node_ip_address="127.0.0.3")
    log = tmp_path / "log"
    events: list[RunEvent] = []
    killed: list[str] = []
    jobs = [job(f"job {i}", steps=STEPS, pause=PAUSE, log=str(log)) for i in range(5)]

    def watch(event: RunEvent) -> None:
        events.append(event)
        if event.data.get("node") == second.node_id and not killed:
            killed.append(event.job.key)
            cluster.remove_node(second, allow_graceful=False)

    with Store(tmp_path / "store") as store:
        on_ray.run(Queue(store, jobs, watch=watch), address=cluster.address, jobs=3, post=0.1)
        assert Counter(row.status for row in store.rows()) == {"done": 5}
    happened = Counter(event.what for event in events)
    assert happened["done"] == 5
    assert happened["retried"] >= 1, "no run was lost with the node, so nothing was shown"
    assert killed[0] in {event.job.key for event in events if event.what == "retried"}
    assert happened["progress"] > 0
    lost = [event.data["words"] for event in events if event.what == "retried"]
    assert all("cluster" in words for words in lost)

    sweep(str(tmp_path / "local"), str(tmp_path / "local.log"), 5, steps=STEPS, pause=0)
    for each in jobs:
        ours = tmp_path / "store" / each.key
        assert timeless(ours / "result.json") == timeless(tmp_path / "local" / each.key / "result.json")
    _went_on_from_a_checkpoint(log.read_text().splitlines())
    assert not ray.is_initialized()


def test_trainings_on_a_cluster_that_loses_a_node_equal_local_ones(cluster: Any, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.3")
    small = {"width": 16, "heads": 2, "ff": 16, "steps": 120, "probes": False}
    configs = grid(["distance"], ["rope", "t5", "mla"], [0], profile="laptop-s", variant="described", changes=small)
    events: Counter[str] = Counter()
    at_work: set[str] = set()

    def watch(event: RunEvent) -> None:
        events[event.what] += 1
        if event.what == "progress" and len(at_work) < 2:
            at_work.add(event.job.key)
            if len(at_work) == 2:  # one on each node
                cluster.remove_node(second, allow_graceful=False)

    with Store(tmp_path / "ray") as store:
        on_ray.run(Queue(store, training_jobs(configs), watch=watch), address=cluster.address, jobs=2, post=0.1)
    with Store(tmp_path / "local") as store:
        local.run(Queue(store, training_jobs(configs)), jobs=1, threads=1)
    assert events["done"] == 3
    assert events["retried"] >= 1, "no run was lost with the node, so nothing was shown"
    for config in configs:
        ours, theirs = (tmp_path / where / config.key() for where in ("ray", "local"))
        assert _but_for_times(ours) == _but_for_times(theirs)
        assert (ours / "model" / "model.safetensors").read_bytes() == (
            theirs / "model" / "model.safetensors"
        ).read_bytes()


def _but_for_times(directory: Path) -> dict[str, Any]:
    found = json.loads((directory / "result.json").read_text())
    return {name: value for name, value in found.items() if "seconds" not in name and name != "sha256"}


def _went_on_from_a_checkpoint(noted: list[str]) -> None:
    """Lost runs did not begin from nothing: fewer steps were done than two whole runs each."""
    begun = Counter(line.removeprefix("begin ") for line in noted if line.startswith("begin"))
    again = [name for name, count in begun.items() if count > 1]
    assert again
    assert any(sum(line.startswith(f"step {name} ") for line in noted) < 2 * STEPS - 1 for name in again)


def test_failures_come_back_with_their_words(cluster: Any, tmp_path: Path) -> None:
    events: list[RunEvent] = []
    jobs = [job("good"), job("dies", die_at=2, deaths=9), job("bad", pause="no number")]
    with Store(tmp_path / "store") as store:
        queue = Queue(store, jobs, retries=1, watch=events.append)
        on_ray.run(queue, address=cluster.address, post=0.1)
        rows = {row.config["name"]: row for row in store.rows()}
    assert {name: row.status for name, row in rows.items()} == {"good": "done", "dies": "failed", "bad": "failed"}
    assert "cluster" in (rows["dies"].words or "")
    assert "TypeError" in (rows["bad"].words or "")
    assert Counter(event.what for event in events)["retried"] == 2


def test_no_cluster_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RAY_gcs_rpc_server_connect_timeout_s", "1")
    with Store(tmp_path) as store, pytest.raises(BadValue, match="at nowhere"):
        on_ray.run(Queue(store, [job("a")]), address="nowhere")
