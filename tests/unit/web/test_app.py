"""Every page and every address of data, and what hostile requests get."""

from __future__ import annotations

import html
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.unit.web.making import HOSTILE, write_file, write_spectrum, write_store
from toposcope.core.errors import BadFile
from toposcope.runs.words import title
from toposcope.web import app, explore_flow
from toposcope.web.app import assets, encoded
from toposcope.web.library import Library
from toposcope.web.models import ModelRegistry
from toposcope.web.query import Query
from toposcope.web.reports import words_of

PAGES = (
    "/",
    "/encoding",
    "/flow",
    "/text",
    "/models",
    "/runs",
    "/runs/aaaa1111",
    "/runs/bbbb2222",
    "/runs/cccc3333",
    "/results/r0",
)

MISSING = (
    "/nowhere", "/runs/zzzz", "/results/r1", "/models/none", "/api/nowhere", "/api/runs/zzzz", "/api/results/r1",
    "/api/models/none", "/api/models/none/scan", "/api/models/none/heads/0.0", "/api/models/none/text",
    "/runs/zzzz/report", "/results/r9/report", "/static/none.js", "/runs/cccc3333/report",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_pages(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.text
    assert "<main" in text
    assert HOSTILE not in text
    assert not re.search(r"<script(?![^>]*(src=\"/static/|type=\"application/json\"))", text)  # no inline code
    assert not re.search(
        r"\son\w+=|\sstyle=|javascript:", re.sub(r"&lt;.*?&gt;|<script.*?</script>", "", text, flags=re.S)
    )
    assert not re.search(r"https?://", text.replace("http://www.w3.org/2000/svg", ""))


def test_a_result_opens_in_words_and_one_of_another_version_as_it_is_stored(tmp_path: Path) -> None:
    result = write_spectrum(tmp_path / "s.json")
    library = Library(None, [result, write_file(tmp_path / "old.json")])
    client = TestClient(app.application(app.Served(library, ModelRegistry([], with_installed=False))))
    page, old = client.get("/results/r0").text, client.get("/results/r1").text
    said = words_of(json.loads(result.read_text()))
    assert said is not None
    assert said.splitlines()[-1] in html.unescape(page)
    assert page.count("<pre") == 2
    assert '<details class="more">' in page
    assert old.count("<pre") == 1
    assert '<details class="more" open>' in old


def test_model_page(client: TestClient, registry: ModelRegistry) -> None:
    answer = client.get(f"/models/{registry.list()[0]['id']}")
    assert answer.status_code == 200
    assert HOSTILE not in answer.text
    assert html.escape(HOSTILE) in answer.text


def test_every_file_a_page_asks_for_is_there(client: TestClient, registry: ModelRegistry) -> None:
    for path in (*PAGES, f"/models/{registry.list()[0]['id']}"):
        asked = re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", client.get(path).text)
        assert asked
        for each in asked:
            answer = client.get(each)
            assert answer.status_code == 200
            kind = "text/css" if each.endswith("css") else "text/javascript"
            assert answer.headers["content-type"].startswith(kind)


def test_data_addresses(client: TestClient, registry: ModelRegistry) -> None:
    name = registry.list()[0]["id"]
    kinds = client.get("/api/encodings").json()
    assert {"rope", "alibi", "none"} <= {kind["name"] for kind in kinds}
    assert {"cope", "pope"}.isdisjoint(kind["name"] for kind in kinds)
    assert client.get("/api/encoding?encoding=rope&context=64").json()["context"] == 64
    assert client.get("/api/flow?n=3").json()["tokens"] == 3
    assert client.get("/api/flow?n=3&settled=1").json()["observables"]["time"][0] == 0
    assert len(client.get("/api/presets").json()) == len(explore_flow.presets())
    assert client.get("/api/models").json()[0]["id"] == name
    facts = client.get(f"/api/models/{name}").json()
    assert (facts["layers"], facts["heads"], facts["width"], facts["context"]) == (3, 4, 16, 64)
    assert client.get(f"/api/models/{name}/scan").json()["state"] in ("running", "done")
    head = client.get(f"/api/models/{name}/heads/1.2").json()
    assert (head["layer"], head["head"]) == (1, 2)
    flow = client.get(f"/api/flow?source=head&model={name}&layer=1&head=2&n=4&settled=1&horizon=1").json()
    assert flow["tokens"] == 4
    assert flow["dims"] == 3
    assert flow["verdict"]["verdict"] == head["verdict"]


def test_runs(client: TestClient) -> None:
    runs = client.get("/api/runs").json()
    assert [(run["key"], run["status"]) for run in runs] == [
        ("cccc3333", "queued"),
        ("bbbb2222", "failed"),
        ("aaaa1111", "done"),
    ]
    one = client.get("/api/runs/aaaa1111").json()
    assert one["result"]["accuracy"] == 0.625
    assert client.get("/api/runs/cccc3333").json()["result"] is None
    assert html.escape(HOSTILE) in client.get("/runs/bbbb2222").text
    assert "62.5%" in client.get("/runs").text
    for page in ("/", "/runs/aaaa1111"):
        assert title({"task": "distance", "encoding": "rope", "seed": 0}) in client.get(page).text


def test_the_model_a_run_has_trained(client: TestClient) -> None:
    assert "aaaa1111/model" in client.get("/runs/aaaa1111").text
    assert "bbbb2222/model" not in client.get("/runs/bbbb2222").text
    moved = client.get("/runs/aaaa1111/model", follow_redirects=False)
    assert moved.status_code == 303
    assert moved.headers["location"] == "/models/run-aaaa1111"
    assert client.get("/runs/aaaa1111/model").status_code == 200
    assert client.get("/api/models/run-aaaa1111").json()["layers"] == 1
    names = [each["id"] for each in client.get("/api/models").json()]
    assert names.count("run-aaaa1111") == 1
    for key in ("bbbb2222", "zzzz", "..%2faaaa1111"):
        assert client.get(f"/runs/{key}/model", follow_redirects=False).status_code == 404


def test_a_long_answer_does_not_hold_up_a_short_one(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let_go = threading.Event(), threading.Event()
    true = explore_flow.explore

    def slow(asked: Query, head_problem: Any) -> dict[str, Any]:
        if asked.flag("settled", False):
            begun.set()
            assert let_go.wait(30)
        return true(asked, head_problem)

    monkeypatch.setattr(explore_flow, "explore", slow)
    with ThreadPoolExecutor(3) as pool:
        long = [pool.submit(client.get, "/api/flow?n=2&settled=1") for _ in range(2)]
        assert begun.wait(30)
        assert client.get("/api/flow?n=2").json()["tokens"] == 2
        assert not any(each.done() for each in long)
        let_go.set()
        assert all(each.result(30).status_code == 200 for each in long)


def test_results(client: TestClient) -> None:
    (only,) = client.get("/api/results").json()
    assert (only["id"], only["name"]) == ("r0", f"{HOSTILE}.json")
    assert client.get("/api/results/r0").json()["schema"] == "toposcope/spectrum/1"


def test_what_is_not_there(client: TestClient) -> None:
    for path in MISSING:
        answer = client.get(path)
        assert answer.status_code == 404, path
        if path.startswith("/api/"):
            assert answer.json()["error"]
        assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/errors.py",
        "/static/report/../../errors.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/web.css%00.js",
        "/runs/..%2f..%2fetc",
        "/runs/%2e%2e",
        "/api/runs/..",
        "/api/runs/..%2faaaa1111",
        "/api/runs/aaaa1111%2f..%2fbbbb2222",
        "/api/runs/AAAA1111",
        "/api/results/..%2f",
        "/api/models/..%2f..%2fetc%2fpasswd",
        "/api/models/%2Fetc%2Fpasswd/heads/0.0",
    ],
)
def test_no_way_out(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert "import" not in answer.text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("encoding?context=nan", "'context' is nan; expected a whole number"),
        ("encoding?context=1e3", "whole number"),
        ("encoding?context=-1", "whole number"),
        ("encoding?context=99999999999999999999", "whole number"),
        ("encoding?encoding=<script>alert(1)</script>", "unknown encoding"),
        ("encoding?encoding=rope:base=nan", "'base' is nan"),
        ("encoding?context=1&context=2", "given twice"),
        ("flow?horizon=inf", "'horizon' is inf"),
        ("flow?n=100000", "from 1 to 256"),
        ("flow?v1=nan", "'v1' is nan"),
        ("flow?source=head&model=none&layer=0&head=0", "no model 'none'"),
        ("runs?x=1", "no parameter 'x'"),
        ("encoding?settled=2", "expected 1 or 0"),
    ],
)
def test_mistakes_get_a_sentence(client: TestClient, query: str, words: str) -> None:
    answer = client.get(f"/api/{query}")
    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"] == "application/json"
    assert words in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_a_bug_gets_a_sentence_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(explore_flow, "explore", broken)
    answer = client.get("/api/flow")
    assert answer.status_code == 500
    assert "broke inside" in answer.json()["error"]
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_only_our_own_files_are_served() -> None:
    names = set(assets())
    assert {"web.css", "page.js", "report/core.js", "report/toposcope.css"} <= names
    assert all(name.endswith((".js", ".css", ".svg")) for name in names)


def test_json_never_holds_nan() -> None:
    assert json.loads(encoded({"a": float("nan"), "b": [float("inf"), 1.5]})) == {"a": None, "b": [None, 1.5]}


def test_an_empty_place(tmp_path: Path) -> None:
    from toposcope.web.app import Served, application
    from toposcope.web.library import Library

    app = application(Served(Library(tmp_path / "no runs"), ModelRegistry([], with_installed=False)))
    client = TestClient(app)
    for path in ("/", "/runs", "/models", "/flow"):
        assert client.get(path).status_code == 200
    assert client.get("/api/runs").json() == []
    assert client.get("/api/runs/aaaa1111").status_code == 404
    assert not (tmp_path / "no runs").exists()


def test_what_has_gone_bad_since_the_start_does_not_take_the_rest_along(tmp_path: Path) -> None:
    from toposcope.web.app import Served, application
    from toposcope.web.library import Library

    good, bad = write_file(tmp_path / "good.json"), write_file(tmp_path / "bad.json")
    store = write_store(tmp_path / "runs")
    library = Library(store, [good, bad])
    client = TestClient(application(Served(library, ModelRegistry([], with_installed=False))))
    bad.write_text("{")
    (store / "index.sqlite").write_bytes(b"no database" * 1000)
    page = client.get("/")
    assert page.status_code == 200
    assert "good.json" in page.text
    assert [each["schema"] for each in client.get("/api/results").json()] == ["toposcope/spectrum/1", "not readable"]
    assert client.get("/results/r0").status_code == 200
    for path in ("/results/r1", "/results/r1/report", "/api/results/r1", "/runs", "/api/runs"):
        answer = client.get(path)
        assert answer.status_code == 400
        assert "bad.json" in answer.text or "index" in answer.text


def test_an_answer_that_does_not_come_is_given_up(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(explore_flow, "explore", lambda *given: let_go.wait(30))
    monkeypatch.setattr(app, "PATIENCE", 0.3)
    answer = client.get("/api/flow")
    let_go.set()
    assert answer.status_code == 503
    assert answer.json()["kind"] == "Busy"


def test_a_file_that_cannot_be_read_gets_an_error_page(
    client: TestClient, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = registry.list()[0]["id"]
    words = "model.safetensors ends at byte 12."

    def cut(*_: object) -> None:
        raise BadFile(words)

    monkeypatch.setattr(registry.get(name), "open", cut)
    page = client.get(f"/models/{name}")
    assert page.status_code == 400
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert words in page.text
    for path in (f"/api/models/{name}/heads/0.0", f"/api/models/{name}/scan", f"/api/flow?source=head&model={name}"):
        answer = client.get(path)
        assert answer.status_code == 400
        assert answer.json() == {"error": words, "kind": "BadFile"}
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OSError, KeyError, AssertionError])
def test_any_exception_is_a_page(client: TestClient, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def broken(*_: object) -> None:
        raise error("secret words")

    monkeypatch.setattr(Library, "files", broken)
    page = client.get("/")
    assert page.status_code == 500
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "secret" not in page.text


def test_a_report_that_cannot_be_made_is_told(client: TestClient) -> None:
    answer = client.get("/results/r0/report")  # the file of these tests holds nothing but its schema
    assert answer.status_code == 400
    assert "Traceback" not in answer.text
    assert HOSTILE not in answer.text
    assert "Traceback" not in answer.text


def test_a_report_under_the_server(tmp_path: Path) -> None:
    from toposcope.web.app import Served, application
    from toposcope.web.library import Library

    library = Library(None, [write_spectrum(tmp_path / "spectrum.json")])
    answer = TestClient(application(Served(library, ModelRegistry([], with_installed=False)))).get(
        "/results/r0/report"
    )
    assert answer.status_code == 200
    assert HOSTILE not in answer.text
    policy = answer.headers["content-security-policy"]
    assert re.findall(r"sandbox ([^;]*)", policy) == ["allow-scripts allow-downloads"]
    assert "'unsafe-" not in policy
    # the policy inside the file names no code that ours does not
    inner = re.search(r'Content-Security-Policy" content="([^"]+)"', answer.text)
    assert inner
    assert set(re.findall(r"sha256-[\w+/=]+", html.unescape(inner[1]))) <= set(re.findall(r"sha256-[\w+/=]+", policy))
