"""The application: pages, the data behind them, and how errors are told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from toposcope._version import __version__
from toposcope.core.errors import NotFound, ToposcopeError
from toposcope.core.fields import plain
from toposcope.encodings import kinds
from toposcope.report.page import readable
from toposcope.runs.words import title as run_title
from toposcope.web import explore_encoding, explore_flow
from toposcope.web.guard import LONGEST_QUERY
from toposcope.web.library import Library
from toposcope.web.models import ModelEntry, ModelRegistry
from toposcope.web.query import Query
from toposcope.web.reports import POLICY, report_of, words_of
from toposcope.web.texts import LONGEST_TEXT, MOST_TOKENS, TOKENS, Texts

KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
WORKERS = 3
PAGES = 2  # pages and reports made at a time
PATIENCE = 60.0  # seconds that anybody waits for an answer


@dataclass(frozen=True)
class Served:
    """What this server has to show."""

    library: Library
    registry: ModelRegistry


def application(served: Served) -> Starlette:
    """The whole application, without the guard that stands before it."""
    at_once = ThreadPoolExecutor(WORKERS, thread_name_prefix="maths")
    at_rest = ThreadPoolExecutor(
        1, thread_name_prefix="settled"
    )  # long answers wait for each other, never for short ones
    pages = ThreadPoolExecutor(PAGES, thread_name_prefix="pages")
    texts = Texts()

    async def worked(request: Request, pool: ThreadPoolExecutor, work: Callable[[], Response]) -> Response:
        """Do the work of a request beside the server's own thread, unless the browser has gone meanwhile."""
        waiting = asyncio.get_running_loop().run_in_executor(pool, work)
        until = time.monotonic() + PATIENCE
        try:
            while not waiting.done() and time.monotonic() < until:
                await asyncio.wait({waiting}, timeout=0.25)
                if not waiting.done() and await request.is_disconnected():
                    return Response(status_code=499)
            if waiting.done():
                return waiting.result()
        except asyncio.CancelledError:
            return _failure(request, 503, "the server is ending.", "Ended")
        finally:
            waiting.cancel()  # takes it out of the queue if it has not begun
        words = f"there was no answer within {PATIENCE:g} s. Ask for less, or use the command line."
        return _failure(request, 503, words, "Busy")

    def data(function: Callable[[Request, Query], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            def work() -> Response:
                answer = function(request, Query(request.query_params.multi_items()))
                return Response(encoded(answer), media_type="application/json")

            settled = request.query_params.get("settled") in ("1", "true")
            return await worked(request, at_rest if settled else at_once, work)

        return endpoint

    def on_text(function: Callable[[Request, Query], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            def work() -> Response:
                answer = function(request, Query(request.query_params.multi_items()))
                return Response(encoded(answer), media_type="application/json")

            entry = registry.get(request.path_params["id"])
            loading = await asyncio.get_running_loop().run_in_executor(at_once, texts.waits, entry)
            return await worked(request, at_once if loading else texts.pool, work)

        return endpoint

    def document(make: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await worked(request, pages, lambda: make(request))

        return endpoint

    def page(name: str, make: Callable[[Request], dict[str, Any]] = lambda request: {}) -> Callable[[Request], Any]:
        return document(
            lambda request: HTMLResponse(_templates().get_template(name).render(version=__version__, **make(request)))
        )

    library, registry = served.library, served.registry

    def home(request: Request) -> dict[str, Any]:
        found = {
            "here": "home",
            "models": registry.list(),
            "files": library.files(),
            "store": None if library.store is None else str(library.store),
        }
        try:
            return {**found, "runs": library.runs()[:8], "trouble": None}
        except ToposcopeError as error:
            return {**found, "runs": [], "trouble": str(error)}

    def run_page(request: Request) -> dict[str, Any]:
        found = library.run(request.path_params["key"])
        return {"here": "runs", "run": found, "text": _readable(found["result"])}

    def file_page(request: Request) -> dict[str, Any]:
        key = request.path_params["key"]
        name, found = library.file(key)
        return {
            "here": "results",
            "key": key,
            "name": name,
            "title": library.title(key, found),
            "found": found,
            "said": words_of(found),
            "text": _readable(found),
        }

    def model_page(request: Request) -> dict[str, Any]:
        return {"here": "models", "facts": registry.get(request.path_params["id"]).facts()}

    def flow_page(request: Request) -> dict[str, Any]:
        return {"here": "flow", "presets": explore_flow.presets(), "models": registry.list()}

    def report(request: Request) -> Response:
        key = request.path_params["key"]
        result = library.run(key)["result"] if request.url.path.startswith("/runs/") else library.file(key)[1]
        if result is None:
            raise NotFound(f"run '{key[:80]}' has no result yet, so there is nothing to report.")
        return HTMLResponse(report_of(result), headers={"content-security-policy": POLICY})

    def trained(request: Request) -> Response:
        key = request.path_params["key"]
        return RedirectResponse(f"/models/{registry.of_run(key, library.model_of(key))}", 303)

    def model_of(request: Request) -> ModelEntry:
        return registry.get(request.path_params["id"])

    def model(request: Request, query: Query) -> ModelEntry:
        query.close()
        return model_of(request)

    def text_page(request: Request) -> dict[str, Any]:
        limits = {"characters": LONGEST_TEXT, "tokens": TOKENS, "most": MOST_TOKENS, "address": LONGEST_QUERY - 400}
        return {"here": "text", "models": registry.list(), "kinds": _known_kinds(), "limits": limits}

    routes = [
        Route("/", page("home.html.j2", home)),
        Route("/encoding", page("encoding.html.j2", lambda request: {"here": "encoding", "kinds": _known_kinds()})),
        Route("/flow", page("flow.html.j2", flow_page)),
        Route("/text", page("text.html.j2", text_page)),
        Route("/models", page("models.html.j2", lambda request: {"here": "models", "models": registry.list()})),
        Route("/models/{id}", page("model.html.j2", model_page)),
        Route(
            "/runs",
            page("runs.html.j2", lambda request: {"here": "runs", "runs": library.runs(), "store": library.store}),
        ),
        Route("/runs/{key}", page("run.html.j2", run_page)),
        Route("/results/{key}", page("result.html.j2", file_page)),
        Route("/runs/{key}/model", document(trained)),
        Route("/runs/{key}/report", document(report)),
        Route("/results/{key}/report", document(report)),
        Route("/api/encodings", data(lambda request, query: _closed(query, _known_kinds()))),
        Route("/api/encoding", data(lambda request, query: explore_encoding.explore(query))),
        Route("/api/presets", data(lambda request, query: _closed(query, explore_flow.presets()))),
        Route("/api/flow", data(lambda request, query: explore_flow.explore(query, registry.head_problem))),
        Route("/api/models", data(lambda request, query: _closed(query, registry.list()))),
        Route("/api/models/{id}", data(lambda request, query: model(request, query).facts())),
        Route("/api/models/{id}/result", data(lambda request, query: model(request, query).scan_result().as_dict())),
        Route("/api/models/{id}/scan", data(lambda request, query: model(request, query).start_scan())),
        Route(
            "/api/models/{id}/heads/{layer:int}.{head:int}",
            data(
                lambda request, query: model(request, query).head(
                    request.path_params["layer"], request.path_params["head"]
                )
            ),
        ),
        Route("/api/models/{id}/text", on_text(lambda request, query: texts.losses(model_of(request), query))),
        Route("/api/models/{id}/text/heads", on_text(lambda request, query: texts.heads(model_of(request), query))),
        Route(
            "/api/models/{id}/text/{layer:int}.{head:int}",
            on_text(
                lambda request, query: texts.head(
                    model_of(request), query, request.path_params["layer"], request.path_params["head"]
                )
            ),
        ),
        Route("/api/runs", data(lambda request, query: _closed(query, library.runs()))),
        Route(
            "/api/runs/{key}", data(lambda request, query: _closed(query, library.run(request.path_params["key"])))
        ),
        Route("/api/results", data(lambda request, query: _closed(query, library.files()))),
        Route(
            "/api/results/{key}",
            data(lambda request, query: _closed(query, library.file(request.path_params["key"])[1])),
        ),
        Route("/static/{name:path}", static),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
    ]
    handlers: Any = {ToposcopeError: _told, HTTPException: _told, Exception: _broken}
    return Starlette(routes=routes, exception_handlers=handlers)


# ---------------------------------------------------------------- answers
def encoded(value: Any) -> bytes:
    """JSON without NaN: what is not finite becomes null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError):
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode()


def _closed(query: Query, value: Any) -> Any:
    query.close()
    return value


def _told(request: Request, error: Exception) -> Response:
    """A mistake of the asker: a sentence, never a traceback."""
    status = error.status_code if isinstance(error, HTTPException) else 404 if isinstance(error, NotFound) else 400
    words = f"There is no page {request.url.path[:80]!r} here." if isinstance(error, HTTPException) else str(error)
    return _failure(request, status, words, type(error).__name__)


def _broken(request: Request, error: Exception) -> Response:
    """A mistake of ours: the traceback goes to the terminal (uvicorn sees to that), the browser gets a sentence."""
    words = "something broke inside Toposcope; the terminal that runs the server shows what. Please report it."
    return _failure(request, 500, words, "InternalError")


def _failure(request: Request, status: int, words: str, kind: str) -> Response:
    if request.url.path.startswith("/api/"):
        return Response(encoded({"error": words, "kind": kind}), status, media_type="application/json")
    if request.url.path.startswith("/static/"):
        return PlainTextResponse(words + "\n", status)
    text = _templates().get_template("error.html.j2").render(version=__version__, here="", status=status, words=words)
    return HTMLResponse(text, status)


# ---------------------------------------------------------------- files of our own
@lru_cache(maxsize=1)
def assets() -> dict[str, bytes]:
    """Every file that may be asked for, by name: our own, and those of the report. Nothing else can be reached."""
    found = {}
    for prefix, place in (("", files("toposcope.web") / "static"), ("report/", files("toposcope.report") / "assets")):
        for entry in place.iterdir():
            if entry.is_file() and entry.name.rpartition(".")[2] in KINDS:
                found[prefix + entry.name] = entry.read_bytes()
    return found


async def static(request: Request) -> Response:
    """One of the files of `assets`."""
    name = request.path_params["name"]
    if name not in assets():
        raise NotFound(f"there is no file '{name[:80]}' here.")
    kind = KINDS[name.rpartition(".")[2]]
    return Response(assets()[name], media_type=kind, headers={"cache-control": "no-cache"})


@lru_cache(maxsize=1)
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("toposcope.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = _number
    made.filters["share"] = _share
    made.filters["moment"] = _moment
    made.filters["run_title"] = run_title
    return made


def _number(value: Any) -> str:
    """A value in a table: numbers short, words as they are."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return ", ".join(map(_number, value))
    if isinstance(value, int) and abs(value) >= 1000:
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _share(value: Any) -> str:
    """A share of 1 in percent; what is none as it is."""
    return f"{100 * value:.1f}%" if isinstance(value, int | float) else _number(value)


def _moment(value: Any) -> str:
    """A time as a store has it, to the minute."""
    try:
        return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except (TypeError, ValueError, OverflowError, OSError):  # none, or no time at all
        return _number(value)


def _readable(value: Any, most: int = 60_000) -> str:
    """A result as indented JSON, cut where a page would become too long."""
    text, left = [], most
    for part in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(value):
        text.append(part[:left])
        left -= len(part)
        if left < 0:
            return "".join(text) + "\n... (the file holds all of it)"
    return "".join(text)


@lru_cache(maxsize=1)
def _known_kinds() -> list[dict[str, Any]]:
    return [
        {
            "name": kind.name,
            "about": kind.summary,
            "mechanism": kind.mechanism,
            "parameters": [
                {
                    "name": each.name,
                    "type": each.type,
                    "default": plain(each.default),
                    "doc": each.doc,
                    "choices": each.choices,
                }
                for each in kind.parameters
            ],
        }
        for kind in kinds().values()
        if kind.mechanism != "content"
    ]
