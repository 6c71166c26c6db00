"""A server with something of everything, asked without a socket."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.unit.runs.making import trained
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.runs.directory import Job, write_result
from toposcope.runs.store import Claim, Store
from toposcope.web.app import Served, application
from toposcope.web.guard import Guard
from toposcope.web.library import Library
from toposcope.web.models import ModelRegistry

PORT = 8123
HOSTILE = "<img src=x onerror=alert(1)>"
SCHEMA = "toposcope/spectrum/1"


def write_store(place: Path) -> Path:
    """A store with one finished run, one failed one and one that waits."""
    with Store(place) as store:
        jobs = [
            Job("aaaa1111", "train", {"task": "distance", "encoding": "rope", "seed": 0}),
            Job("bbbb2222", "train", {"task": HOSTILE, "encoding": "none", "seed": 1}),
            Job("cccc3333", "train", {"task": "count", "encoding": "alibi", "seed": 2}),
        ]
        store.add(jobs)
        done, failed = (store.claim(job) for job in jobs[:2])
        assert isinstance(done, Claim)
        assert isinstance(failed, Claim)
        curve = [{"step": 0, "loss": 2.0, "accuracy": 0.1}, {"step": 10, "loss": 1.0, "accuracy": 0.6}]
        write_result(done.directory, trained(accuracy=0.625, loss=1.0, curve=curve))
        write_llama(done.directory / "model", num_hidden_layers=1)
        store.finish(done)
        store.fail(failed, f"it broke: {HOSTILE}")
    return place


def write_file(place: Path, **changes: Any) -> Path:
    """A result file with hostile words in it."""
    content = {
        "schema": SCHEMA,
        "toposcope": "0",
        "seconds": 1.0,
        "options": {},
        "subject": {"path": HOSTILE},
        **changes,
    }
    place.write_text(json.dumps(content))
    return place


def write_spectrum(place: Path) -> Path:
    """A whole result, as the command writes it, with hostile words in it."""
    with contextlib.suppress(SystemExit):
        main(["spectrum", "rope", "alibi", "--context", "128", "--json", str(place)])
    content = json.loads(place.read_text())
    content["encodings"][0]["spec"] = content["encodings"][0]["title"] = f"</script>{HOSTILE}"
    place.write_text(json.dumps(content))
    return place


def make_registry(place: Path) -> ModelRegistry:
    return ModelRegistry([str(write_llama(place / f"tiny {HOSTILE}"))], with_installed=False)


def make_client(
    place: Path, registry: ModelRegistry | None = None, *, token: str | None = None, port: int = PORT
) -> TestClient:
    """A client of a whole server, guard included."""
    library = Library(write_store(place / "runs"), [write_file(place / f"{HOSTILE}.json")])
    app = application(Served(library, registry or make_registry(place)))
    guarded = Guard(app, port=port, names=("192.0.2.7",) if token else (), token=token)
    return TestClient(guarded, base_url=f"http://127.0.0.1:{port}", raise_server_exceptions=False)
