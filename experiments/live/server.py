"""Server of the live page: a child process of the run that samples the fabric and sends it to browsers.

Pages get server-sent events: `fabric` (structure), `sample`, `event`, `paths` (of pairs, when they changed), `step` and
`phase`, `jobs` (what the run does), `health` (scores), and `run` (title, active faults, script).
A new page gets what came before, apart from health scores, which come again soon. Requests of controls are passed to
the run's process, which answers them.
"""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import uvicorn
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from railyard.core.worker import Parent, Ready
from railyard.experiments.live.gate import MAX_HEAD, Connection, Gate
from railyard.experiments.live.messages import RECORD_ENDED, Answer, HideFabric, Serve, Show, ShowFabric, ToPage
from railyard.experiments.live.metrics import exposition
from railyard.experiments.live.page_state import MAX_PAGES, PageState
from railyard.experiments.live.watched_fabric import WatchedFabric
from railyard.topologies.addresses import gpu_of_name

STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
# a gray link is confirmed by test frames, which takes seconds on a slow link
ANSWER_S: Final = 20.0
MAX_CLICKS: Final = 32  # that wait for their answer
MAX_BODY: Final = 4096
BODY_S: Final = 5.0
# the measured traffic must not wait for the page
NICENESS: Final = 5


class PageServer:
    """The routes of the page, and the messages of the run. Everything runs in the event loop."""

    def __init__(self, serve: Serve, parent: Parent) -> None:
        self._serve = serve
        self._parent = parent
        self._state = PageState(serve, lambda reason: parent.emit(RECORD_ENDED, {"reason": reason}))
        self.fabric = WatchedFabric(self._state)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = count()

    @property
    def routes(self) -> list[Route]:
        """The page, its files, and what it asks for."""
        return [
            Route("/", self._file),
            Route("/static/{name}", self._file),
            Route("/events", self._stream),
            Route("/metrics", self._metrics),
            Route("/path", self._path),
            Route("/control", self._control, methods=["POST"]),
        ]

    def on_message(self, message: ToPage) -> None:
        """Take in a message of the run."""
        match message:
            case ShowFabric():
                self.fabric.begin(message)
            case HideFabric():
                self.fabric.end()
                self._state.show_fabric(None)
            case Show(what="health"):
                self._state.show_health(message.ns, message.detail)
            case Show(what="step" | "phase" | "jobs"):
                self._state.show_step(message.what, message.ns, message.detail)
            case Show():
                self._state.show_event(message.ns, message.what, message.detail)
                self.fabric.read_paths_soon()
            case Answer():
                future = self._answers.pop(message.number, None)
                if future and not future.done():
                    future.set_result(message.detail)

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        for path in STATIC.iterdir():
            if path.name == name and path.suffix in TYPES:
                return FileResponse(path, media_type=TYPES[path.suffix])
        return PlainTextResponse("not found\n", 404)

    async def _stream(self, request: Request) -> Response:
        if self._state.is_full:
            return PlainTextResponse(f"there are {MAX_PAGES} pages already\n", 503)
        messages = self._state.messages(request.scope["state"]["abort"])
        return StreamingResponse(messages, media_type="text/event-stream")

    async def _metrics(self, request: Request) -> Response:
        state = self._state
        text = exposition(state.run, state.fabric, self.fabric.last_sample, state.health)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _path(self, request: Request) -> Response:
        names = {name: request.query_params.get(name, "") for name in ("src", "dst")}
        plan = self.fabric.plan
        if plan is None:
            return JSONResponse({"error": "only a fabric of GPUs has paths to choose from"}, 400)
        for field, name in names.items():
            if name not in plan.hosts:
                return JSONResponse({"error": f"{field}: {name!r} is no GPU of the fabric"}, 400)
        if names["src"] == names["dst"]:
            return JSONResponse({"error": "dst: must be another GPU than src"}, 400)
        try:
            return JSONResponse(self.fabric.path(gpu_of_name(names["src"]), gpu_of_name(names["dst"])))
        except OSError as error:
            return JSONResponse({"error": f"the fabric is changing: {error.strerror}"}, 503)

    async def _control(self, request: Request) -> Response:
        if not self._serve.control:
            return JSONResponse({"error": "this page is read-only: start the run with --live control"}, 403)
        click = await _click_of(request)
        if isinstance(click, Response):
            return click
        if len(self._answers) >= MAX_CLICKS:
            return JSONResponse({"error": f"{MAX_CLICKS} clicks wait for their answer already"}, 503)
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._parent.emit("control", {"number": number, "request": click})
        try:
            answer = await asyncio.wait_for(self._answers[number], ANSWER_S)
        except TimeoutError:
            return JSONResponse({"error": f"the run did not answer within {ANSWER_S:g} s"}, 504)
        finally:
            self._answers.pop(number, None)
        status = 400 if "error" in answer else 200
        return JSONResponse(answer, status)


async def _click_of(request: Request) -> dict[str, Any] | Response:
    """Return the object in a request's body, or the answer that refuses it."""
    if request.headers.get("content-type") != "application/json":
        return JSONResponse({"error": "content-type must be application/json"}, 415)
    too_large = JSONResponse({"error": f"a request has {MAX_BODY} bytes or less"}, 413)
    # int can't fail: h11 accepts nothing but digits, 20 at most
    if int(request.headers.get("content-length", 0)) > MAX_BODY:
        return too_large
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return too_large
        # pydantic's parser bounds the nesting, and refuses halves of surrogate pairs
        click = from_json(body, allow_inf_nan=False)
    except TimeoutError:
        return JSONResponse({"error": f"the request did not come within {BODY_S:g} s"}, 408, {"connection": "close"})
    except (ValueError, ClientDisconnect):
        click = None
    if not isinstance(click, dict):
        return JSONResponse({"error": "a request is a JSON object"}, 400)
    return click


async def serve_page(serve: Serve, parent: Parent) -> None:
    """Serve until the parent ends."""
    page = PageServer(serve, parent)
    loop = asyncio.get_running_loop()

    def receive() -> None:
        for message in parent:
            loop.call_soon_threadsafe(page.on_message, message)

    threading.Thread(target=receive, name="receives", daemon=True).start()
    tasks = [loop.create_task(page.fabric.sample()), loop.create_task(page.fabric.follow_paths())]
    app = Gate(Starlette(routes=page.routes), serve)
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, "access_log": False}
    options["http"] = partial(Connection, serve, socket.socket(fileno=serve.diagnosis))
    # errors of requests go to their senders; logged, they would fill the memory
    options["log_level"] = "error"
    options["proxy_headers"] = False
    options["h11_max_incomplete_event_size"] = MAX_HEAD
    server = uvicorn.Server(uvicorn.Config(app, server_header=False, **options))
    # the run, or a command in its shell, handles Ctrl-C
    server.capture_signals = contextlib.nullcontext
    parent.send(Ready())
    await server.serve([socket.socket(fileno=serve.listener)])
    for task in tasks:
        task.cancel()


def main() -> None:
    """Serve the page until the run ends."""
    with contextlib.suppress(PermissionError):
        os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Parent(*ToPage.__subclasses__())
    asyncio.run(serve_page(parent.receive(), parent))


if __name__ == "__main__":
    main()
