"""`scan --engine ray` on two nodes on loopback addresses, one of which dies: the result is the local one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit import tiny
from toposcope.cli import main
from toposcope.core.errors import BadValue
from toposcope.scanning import on_ray
from toposcope.scanning.layer import Entry
from toposcope.scanning.options import ScanOptions
from toposcope.scanning.scan import assemble, scan_here

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]  # Ray leaves sockets and processes to the collector
ROOT = Path(__file__).parents[3]
QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
LAYERS = 10
OPTIONS = ScanOptions(random_baseline=True, context=64, encoding=("alibi",))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or a busy machine leaves the nodes no time at all
    head = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "_system_config": QUICK, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


def result(model: toposcope.Model, entries: dict[int, Entry], factors: Any) -> str:
    read = {number: dict(entries[number].read) for number in range(LAYERS)}
    return assemble(model, list(range(LAYERS)), entries, OPTIONS, factors).json() + json.dumps(read, sort_keys=True)


def test_a_node_dies_and_the_result_is_the_local_one(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tiny.write_llama(tmp_path / "model", num_hidden_layers=LAYERS)
    ours: dict[int, Entry] = {}
    with toposcope.load(place) as model:
        factors = scan_here(model, range(LAYERS), OPTIONS, lambda entry: ours.update({entry.layer: entry}))
        undisturbed = result(model, ours, factors)

    second = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.3")
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setattr(on_ray, "_remote", slow(marks, second.node_id))
    theirs: list[Entry] = []
    lost: list[str] = []

    def keep(entry: Entry) -> None:
        theirs.append(entry)
        if not lost and any(marks.glob("second-*")):
            lost.extend(path.name for path in marks.glob("second-*"))
            cluster.remove_node(second, allow_graceful=False)

    with toposcope.load(place) as model:
        on_ray.run(model, range(LAYERS), OPTIONS, keep, target=str(place), address=cluster.address)
        again = result(model, {entry.layer: entry for entry in theirs}, {})
    assert lost, "no layer was on the node that died, so nothing was shown"
    assert sorted(entry.layer for entry in theirs) == list(range(LAYERS))  # each once
    assert again == undisturbed
    begun = [path.name for path in marks.iterdir()]
    assert len(begun) > LAYERS, "no layer was tried again"
    assert not ray.is_initialized()


def slow(marks: Path, second: str) -> Any:
    """The job, noting which node begins it; on the second node it would take for ever."""
    whole = on_ray._remote

    def job(where: Any, expected: Any, number: int, *rest: Any) -> Any:
        import time

        import ray as there

        at_second = there.get_runtime_context().get_node_id() == second
        (marks / f"{'second' if at_second else 'first'}-{number}").touch()
        time.sleep(60.0 if at_second else 0.2)
        return whole(where, expected, number, *rest)

    return job


def test_another_checkpoint_on_a_node_is_said(cluster: Any, tmp_path: Path) -> None:
    place = tiny.write_llama(tmp_path / "model")
    with toposcope.load(place) as model:
        shutil.rmtree(place)
        tiny.write_llama(place, num_hidden_layers=4)
        with pytest.raises(BadValue, match="another checkpoint"):
            on_ray.run(model, range(3), OPTIONS, lambda _: None, target=str(place), address=cluster.address)
    with toposcope.load(place) as model:
        (place / "model.safetensors").unlink()  # the driver goes on with the file it has mapped
        (place / "model.safetensors").write_bytes(b"no checkpoint")
        with pytest.raises(BadValue, match=r"layer \d"):
            on_ray.run(model, range(3), OPTIONS, lambda _: None, target=str(place), address=cluster.address)


def test_an_address_needs_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["scan", str(tiny.write_llama(tmp_path)), "--ray-address", "nowhere:1"])
    assert ended.value.code == 2
    assert "--engine ray" in capsys.readouterr().err
