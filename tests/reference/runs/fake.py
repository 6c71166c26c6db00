"""A quick job that behaves as a training run does: steps, checkpoints by rename, a result written last.

Its result is a chain of hashes, so any step left out, repeated or begun from a wrong state changes it. Every
execution and every finished step is noted in a log that survives kills.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.core.files import write_json
from toposcope.runs import local
from toposcope.runs.directory import write_result
from toposcope.runs.jobs import Job, Report
from toposcope.runs.queue import Queue
from toposcope.runs.store import Store

KIND = "tests.reference.runs.fake:work"


def work(config: Mapping[str, Any], directory: Path, report: Report) -> None:
    if (directory / "result.json").exists():
        return
    started, log = time.perf_counter(), config.get("log")
    note(log, f"begin {config['name']}")
    if config.get("stubborn"):  # a step too long to be interrupted
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    checkpoint = directory / "checkpoint.json"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "chain": config["name"]}
    while state["step"] < config.get("steps", 6):
        if state["step"] == config.get("die_at") and not _died_before(directory, config.get("deaths", 0)):
            sys.stderr.write("my last words\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(config.get("pause", 0.01))
        chain = hashlib.sha256(state["chain"].encode()).hexdigest()
        state = {"step": state["step"] + 1, "chain": chain}
        write_json(checkpoint, state)
        note(log, f"step {config['name']} {state['step']}")
        report({"step": state["step"], "node": _node()})
    result = {"accuracy": int(state["chain"][:8], 16) / 2**32, "chain": state["chain"]}
    write_result(directory, result | {"seconds": time.perf_counter() - started})
    note(log, f"end {config['name']}")


def _node() -> str | None:
    """The node of a Ray cluster this runs on, if it does."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else None


def note(log: str | None, line: str) -> None:
    if log:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def _died_before(directory: Path, deaths: int) -> bool:
    """Whether the job has died as often as it was told to; each death is remembered in the directory."""
    count = len(list(directory.glob("death-*")))
    if count >= deaths:
        return True
    (directory / f"death-{count}").touch()
    return False


def job(name: str, **config: Any) -> Job:
    return Job(hashlib.sha256(name.encode()).hexdigest()[:16], KIND, {"name": name, **config})


def expected(name: str, steps: int = 6) -> str:
    """What the chain must be, computed without the job."""
    chain = name
    for _ in range(steps):
        chain = hashlib.sha256(chain.encode()).hexdigest()
    return chain


def timeless(path: Path) -> bytes:
    """A result's bytes without its timings, and the sum that they are in."""
    result = json.loads(path.read_text())
    del result["seconds"], result["sha256"]
    return json.dumps(result, sort_keys=True).encode()


def sweep(store: str, log: str, count: int, workers: int = 2, **config: Any) -> None:
    with Store(store) as opened:
        jobs = [job(f"job {i}", log=log, **config) for i in range(count)]
        local.run(Queue(opened, jobs), jobs=workers)
