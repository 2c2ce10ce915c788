"""The routes: the page, the JSON API that it uses, and its documentation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from whence import __version__
from whence.errors import WhenceError
from whence.server import asks, documentation, export, questions, written
from whence.server.asks import Desk
from whence.server.browse import Browsed, Filter
from whence.server.given import settled
from whence.server.jobs import Event, Jobs, Work, told
from whence.server.limits import Limits, Refused
from whence.server.models import Models
from whence.server.schema import Ask, Export, Predict, RowsWanted
from whence.server.security import Access, Guard
from whence.views.components import style

STATIC = Path(__file__).with_name("static")


def build(models: Models, access: Access, run: Browsed | None = None, limits: Limits | None = None) -> Guard:
    """The application, guarded."""
    limits = limits or Limits()
    desk = Desk(models, limits)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.jobs = Jobs(limits)
        sweeper = asyncio.ensure_future(app.state.jobs.sweep())
        yield
        sweeper.cancel()
        app.state.ended = await asyncio.to_thread(app.state.jobs.close)

    app = FastAPI(title="Whence", version=__version__, docs_url=None, redoc_url=None, lifespan=life)
    app.state.desk = desk
    _errors(app)
    _models(app, desk)
    _work(app, desk)
    _exports(app, desk)
    _run(app, run, models.names)
    _documentation(app)
    _static(app)
    return Guard(app, access, limits)


# ---- errors ----


def _errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return _error(422, "request", f"{place or 'The body'}: {first['msg']}.\n  See /docs for what is asked for.")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, "http", f"{error.detail}: {request.url.path[:200]}")

    @app.exception_handler(WhenceError)
    async def ours(request: Request, error: WhenceError) -> Response:
        return answered(told(error))

    @app.exception_handler(Exception)
    async def other(request: Request, error: Exception) -> Response:
        return answered(told(error))


def answered(found: dict[str, Any]) -> Response:
    return _error(found["status"], found["kind"], found["error"])


def _error(status: int, kind: str, text: str) -> Response:
    retry = {"Retry-After": "2"} if status == 503 else {}
    return JSONResponse({"error": text, "kind": kind}, status, headers=retry)


# ---- models ----


def _models(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/models")
    async def list_models() -> list[dict[str, Any]]:
        """The models that this server offers."""
        return desk.models.listed()

    @app.get("/api/models/{name}")
    async def describe_model(name: str, request: Request) -> Response:
        """One model: its classes, examples, methods (with why some cannot run) and the methods to begin with."""
        return await _answer(request, lambda job: job.tell("result", desk.models.described(name)))

    @app.get("/api/models/{name}/examples/{number}")
    async def example(name: str, number: int) -> Response:
        """An example that is an image."""
        wrapped = await asyncio.to_thread(desk.models.get, name)
        if wrapped.task != "image-classification" or not 0 <= number < len(wrapped.examples):
            raise Refused(404, "unknown", f"There is no image {number} among the examples.")
        return FileResponse(wrapped.examples[number])

    @app.post("/api/predict")
    async def predict(body: Predict, request: Request) -> Response:
        """What the model predicts, and what the input consists of."""
        return await _answer(request, lambda job: job.tell("result", asks.predict(desk, body)))


async def _answer(request: Request, work: Work) -> Response:
    """The one result of a short job."""
    events = await request.app.state.jobs.result(work, request.is_disconnected)
    found = next((data for name, data in events if name == "result"), None)
    return _ended(events) if found is None else JSONResponse(found)


def _ended(events: list[Event]) -> Response:
    """Why a job has no result."""
    failed = next((data for name, data in events if name == "failed_all"), None)
    return answered(failed) if failed is not None else _error(503, "cancelled", "The work was cancelled.\n  Ask again.")


# ---- jobs ----


def _work(app: FastAPI, desk: Desk) -> None:
    @app.post("/api/ask")
    async def ask(body: Ask, request: Request) -> Response:
        """The same as a job, answered at once when all of it is done."""
        events = await request.app.state.jobs.result(work_of(desk, body), request.is_disconnected)
        name, last = events[-1]
        if name != "done":
            return _ended(events)
        by = {kind: [data for event, data in events if event == kind] for kind in ("result", "failed")}
        return JSONResponse({"results": by["result"], "failed": by["failed"], "done": last})

    @app.post("/api/jobs")
    async def start_job(body: Ask, request: Request) -> dict[str, str]:
        """Start a piece of work; listen to its events, or it is cancelled."""
        return {"id": request.app.state.jobs.start(work_of(desk, body)).id}

    @app.delete("/api/jobs/{job}")
    async def cancel_job(job: str, request: Request) -> dict[str, bool]:
        """Stop a job before its next pass."""
        request.app.state.jobs.cancel(job)
        return {"cancelled": True}

    @app.get("/api/jobs/{job}/events")
    async def job_events(job: str, request: Request) -> Response:
        """Server-sent events: progress, result, failed; then done, cancelled or failed_all."""
        found = request.app.state.jobs.get(job)
        last = request.headers.get("last-event-id", "")
        after = int(last) + 1 if last.isdecimal() and len(last) < 10 else 0
        if found.ended and after >= len(found.events):
            return Response(status_code=204)  # a browser does not come back after that
        return StreamingResponse(_stream(found, after), media_type="text/event-stream")


async def _stream(job: Any, after: int) -> AsyncIterator[str]:
    async for number, (name, data) in job.follow(after):
        yield f"id: {number}\nevent: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def work_of(desk: Desk, body: Ask) -> Work:
    kinds: dict[str, Callable[[Desk, Ask, Any], None]] = {
        "explain": asks.explain_all, "remove": questions.remove, "deletion": questions.deletion,
        "attention": questions.attention, "generate": written.generate,
    }  # fmt: skip
    return lambda job: kinds[body.kind](desk, settled(body), job)


# ---- exports ----


def _exports(app: FastAPI, desk: Desk) -> None:
    @app.post("/api/export")
    async def export_file(body: Export, request: Request) -> Response:
        """What is on the screen as HTML, JSON or PNG, or the Python or shell command that gives it again."""
        sent: list[export.Sent] = []

        def work(job: Any) -> None:
            sent.append(export.export(desk, settled(body)))

        events = await request.app.state.jobs.result(work, request.is_disconnected)
        if not sent:
            return _ended(events)
        content, kind, name = sent[0]
        headers = {**export.HEADERS, "content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=kind, headers=headers)


# ---- a run ----


def _run(app: FastAPI, run: Browsed | None, served: list[str]) -> None:
    def opened() -> Browsed:
        if run is None:
            raise Refused(404, "unknown", "This server has no run.\n  Start it with --run FOLDER.")
        return run

    @app.get("/api/run")
    async def about_run() -> Response:
        """The run that was named when the server started, and its summary when it is computed; null without a run."""
        return JSONResponse(None if run is None else await asyncio.to_thread(run.about, served))

    @app.get("/api/run/rows")
    async def run_rows(
        wanted: Annotated[RowsWanted, Query()],
    ) -> Response:
        """Some of its rows, filtered and sorted."""
        given = wanted.model_dump()
        how = {name: given.pop(name) for name in ("offset", "limit", "values")}
        return JSONResponse(await asyncio.to_thread(opened().rows, Filter(**given), **how))

    @app.get("/api/run/rows/{row}")
    async def run_row(row: int) -> Response:
        """One row with its explanations."""
        return JSONResponse(await asyncio.to_thread(opened().row, row))


# ---- the page ----


def _documentation(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(documentation.page(app.openapi()), media_type="text/html")


def _static(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/static/style.css", include_in_schema=False)
    async def styles() -> Response:
        return Response(style(), media_type="text/css")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        file = STATIC / name
        if file.parent != STATIC or file.suffix not in _TYPES or not file.is_file():
            raise Refused(404, "unknown", "There is no such file.")
        return FileResponse(file, media_type=_TYPES[file.suffix])


_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
