"""Server of the live page: a child process of the run that samples the fabric and sends it to browsers.

Pages get server-sent events: `fabric` (structure), `sample`, `event`, `paths` (of pairs, when they changed), `step` and
`phase` (what the run does), and `run` (title, active faults, script).
A new page gets what came before. Requests of controls are passed to the run's process, which answers them.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from railyard.core.worker import Parent, Ready
from railyard.experiments.live import access
from railyard.experiments.live.messages import RECORD_ENDED, Answer, HideFabric, Serve, Show, ShowFabric, ToPage
from railyard.experiments.live.metrics import exposition
from railyard.experiments.live.paths import Paths
from railyard.experiments.live.sampler import LinkSample, Sampler, structure
from railyard.topologies.addresses import Pair, gpu_of_name
from railyard.topologies.plan import Plan

STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
PERIOD_S: Final = 0.2
MIN_PERIOD_S: Final = 0.1  # after a late sample: in a shorter time a single burst would look like a high rate
KEPT_SAMPLES: Final = 600  # for a page that is opened later
KEPT_EVENTS: Final = 500
PATHS_SETTLE_S: Final = 0.02  # from an event until paths are read: the reaction to a fault has several events
PATHS_SHARE: Final = 0.02  # of the time is taken by reading paths, unless they would be older than
MAX_PATHS_GAP_S: Final = 1.0
ANSWER_S: Final = 20.0  # a gray link is confirmed by test frames, which takes seconds on a slow link
MAX_PAGES: Final = 64
MAX_QUEUED: Final = 64  # messages; a browser that reads more slowly is disconnected, and connects again
MAX_CLICKS: Final = 32  # that wait for their answer
PART_BYTES: Final = 1 << 16  # of what came before, at a time: the rest waits until a browser has read it
MAX_BODY: Final = 4096
MAX_HEAD: Final = 4096  # bytes of a request's target and headers
HEAD_S: Final = 5.0  # for the head of a request, from the connection or the answer before
BODY_S: Final = 5.0
MAX_CONNECTIONS: Final = 256  # of all who may connect, and as many of all others: a limit of files is never reached
STATE: Final = ("active", "running", "paused", "command")  # of the controls (controls.py)
NICENESS: Final = 5  # the measured traffic comes first
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Connection(H11Protocol):  # type: ignore[misc]  # uvicorn has no types here
    """A connection, and in `scope["state"]["user"]` of its requests the user at its other end.

    It is cut off if the head of a request doesn't come in `HEAD_S`, and if there are too many.
    """

    def __init__(self, serve: Serve, diagnosis: socket.socket, **options: Any) -> None:
        super().__init__(**options)
        self.app_state: dict[str, Any]
        self._serve = serve
        self._diagnosis = diagnosis
        # timer of the wait for a request's head
        self._waits: asyncio.TimerHandle | None = None
        self.is_strange = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Look who it is: here, where no header of a request can say otherwise."""
        super().connection_made(transport)
        user = None
        # there is no client if the connection is closed again
        if self.client:
            with contextlib.suppress(OSError):
                user = access.owner_of(self._diagnosis, self.client, (access.HOST, self._serve.port))
        self.app_state = {**self.app_state, "user": user, "abort": self.transport.abort}
        self.is_strange = user not in self._serve.users
        alike = (
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection.is_strange == self.is_strange
        )
        if sum(1 for _ in alike) > MAX_CONNECTIONS:
            self.transport.abort()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Pass it on, and wait for the rest of a head."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._end_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._end_wait()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._waits = self._waits or self.loop.call_later(HEAD_S, self.transport.abort)

    def _end_wait(self) -> None:
        if self._waits:
            self._waits.cancel()
            self._waits = None


class Gate:
    """ASGI middleware that refuses every request that `access.refusal` names, and adds headers to the others."""

    def __init__(self, app: ASGIApp, serve: Serve) -> None:
        self._app = app
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, without the token in its path, or refuse it with status 403."""
        if scope["type"] != "http":
            return
        serve = self._serve
        # h11 bounds a head that comes in parts, and not one that is whole when it looks
        head_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        head_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if head_bytes > MAX_HEAD:
            too_large = f"refused: the head of a request has {MAX_HEAD} bytes or less\n"
            await PlainTextResponse(too_large, 431, {**HEADERS, "connection": "close"})(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        why = access.refusal(scope["path"], headers, serve.port, serve.token, scope["state"]["user"], serve.users)
        if why:
            await PlainTextResponse(f"refused: {why}\n", 403, HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        path = scope["path"].removeprefix(f"/{serve.token}")
        await self._app({**scope, "path": path or "/", "raw_path": path.encode()}, receive, send_with_headers)


class Live:
    """State of the page: what browsers get. Everything runs in the event loop."""

    def __init__(self, serve: Serve, parent: Parent) -> None:
        self._serve = serve
        self._parent = parent
        # the messages for each page, and the function that ends its connection
        self._pages: dict[asyncio.Queue[bytes], Callable[[], None]] = {}
        self._samples: deque[bytes] = deque(maxlen=KEPT_SAMPLES)
        self._events: deque[bytes] = deque(maxlen=KEPT_EVENTS)
        # steps and phases of workloads
        self._steps: deque[bytes] = deque(maxlen=KEPT_EVENTS)
        self._path_changes: deque[dict[str, Any]] = deque()
        self._paths: Paths | None = None
        self._paths_due = asyncio.Event()
        self._fabric: dict[str, Any] | None = None
        self._sampler: Sampler | None = None
        self._plan: object = None
        self._run: dict[str, Any] = {"title": serve.title, "control": serve.control, "active": []}
        self._run |= {"choices": serve.choices, "begin_ns": serve.begin_ns, "sentences": serve.sentences}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = count()
        self._record = os.fdopen(serve.record, "w", buffering=1) if serve.record >= 0 else None
        self.last: tuple[int, list[LinkSample]] = (0, [])
        self.health: dict[str, Any] = {}
        self._publish("run", self._run)

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
                self._end_fabric()
                # the fabric may be gone already
                with contextlib.suppress(OSError):
                    self._sampler = Sampler(message.plan)
                    self._fabric = structure(message.label, message.plan)
                    self._plan = message.plan
                    self._paths = Paths(message.plan) if isinstance(message.plan, Plan) else None
                self._publish("fabric", self._fabric)
                self._paths_due.set()
            case HideFabric():
                self._end_fabric()
                self._events.clear()
                self._publish("fabric", None)
            case Show(what="health"):
                self.health = message.detail
                self._publish("health", {"ns": message.ns, **message.detail})
            case Show(what="step" | "phase"):
                self._steps.append(self._publish(message.what, {"ns": message.ns, **message.detail}))
            case Show():
                state: dict[str, Any] = {key: message.detail[key] for key in STATE if key in message.detail}
                if state:
                    self._run = {**self._run, **state}
                    self._publish("run", self._run)
                detail = {key: value for key, value in message.detail.items() if key not in STATE}
                event = {"ns": message.ns, "what": message.what, "detail": detail}
                self._events.append(self._publish("event", event))
                self._paths_due.set()
            case Answer():
                future = self._answers.pop(message.number, None)
                if future and not future.done():
                    future.set_result(message.detail)

    async def sample(self) -> None:
        """Sample the fabric and send it, for as long as the process lives."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + PERIOD_S, time.monotonic() + MIN_PERIOD_S)
            await asyncio.sleep(due_s - time.monotonic())
            if self._sampler is None:
                continue
            try:
                at_ns, links = self.last = self._sampler.sample()
            except OSError:  # the fabric is going away
                self._end_fabric()
                continue
            columns = [[*column] for column in zip(*links, strict=True)]
            self._samples.append(self._publish("sample", {"ns": at_ns, "links": columns}))

    async def follow_paths(self) -> None:
        """Read the paths of pairs after events, and send those that changed, for as long as the process lives."""
        while True:
            await self._paths_due.wait()
            await asyncio.sleep(PATHS_SETTLE_S)
            self._paths_due.clear()
            # time of this thread: on a busy machine reading takes longer, but costs no more
            begun_s = time.thread_time()
            # the fabric may be going away
            with contextlib.suppress(OSError):
                self._read_paths()
            await asyncio.sleep(min(MAX_PATHS_GAP_S, (time.thread_time() - begun_s) / PATHS_SHARE))

    def _read_paths(self, *asked: Pair) -> None:
        if self._paths is None:
            return
        ns, changed = self._paths.read(*asked)
        if changed:
            self._path_changes.append({"ns": ns, "paths": changed})
            self._publish("paths", self._path_changes[-1])
        # a page that connects later needs the oldest state whole
        if len(self._path_changes) > KEPT_EVENTS:
            oldest = self._path_changes.popleft()
            following = self._path_changes[0]
            following["paths"] = {**oldest["paths"], **following["paths"]}

    def _end_fabric(self) -> None:
        if self._sampler:
            self._sampler.close()
        self._sampler = self._fabric = self._plan = self._paths = None
        self._samples.clear()
        self._path_changes.clear()
        self.last = (0, [])

    def _publish(self, kind: str, data: object) -> bytes:
        text = _as_json(data)
        if self._record:
            try:
                self._record.write(f'{{"kind":"{kind}","data":{text}}}\n')
            except OSError as error:  # the disk is full: the page goes on
                self._record = None
                self._parent.emit(RECORD_ENDED, {"reason": error.strerror or str(error)})
        message = _message(kind, text)
        for page in list(self._pages):
            try:
                page.put_nowait(message)
            except asyncio.QueueFull:
                self._pages.pop(page)()
        return message

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        path = next((path for path in STATIC.iterdir() if path.name == name and path.suffix in TYPES), None)
        if path is None:
            return PlainTextResponse("not found\n", 404)
        return FileResponse(path, media_type=TYPES[path.suffix])

    async def _stream(self, request: Request) -> Response:
        if len(self._pages) >= MAX_PAGES:
            return PlainTextResponse(f"there are {MAX_PAGES} pages already\n", 503)
        queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED)

        async def messages() -> AsyncIterator[bytes]:
            state = [_message(kind, _as_json(data)) for kind, data in (("run", self._run), ("fabric", self._fabric))]
            # added before the first wait, so that no message is missed
            self._pages[queue] = request.scope["state"]["abort"]
            try:
                paths = [_message("paths", _as_json(change)) for change in self._path_changes]
                for part in _parts([*state, *self._steps, *self._events, *paths, *self._samples]):
                    yield part
                while queue in self._pages:
                    yield await queue.get()
            finally:
                self._pages.pop(queue, None)

        return StreamingResponse(messages(), media_type="text/event-stream")

    async def _metrics(self, request: Request) -> Response:
        text = exposition(self._run, self._fabric, self.last[1], self.health)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _path(self, request: Request) -> Response:
        names = {name: request.query_params.get(name, "") for name in ("src", "dst")}
        if self._paths is None or not isinstance(self._plan, Plan):
            return JSONResponse({"error": "only a fabric of GPUs has paths to choose from"}, 400)
        for field, name in names.items():
            if name not in self._plan.hosts:
                return JSONResponse({"error": f"{field}: {name!r} is no GPU of the fabric"}, 400)
        if names["src"] == names["dst"]:
            return JSONResponse({"error": "dst: must be another GPU than src"}, 400)
        try:
            src, dst = map(gpu_of_name, names.values())
            self._read_paths((src, dst))
            return JSONResponse(self._paths.last(src, dst))
        except OSError as error:
            return JSONResponse({"error": f"the fabric is changing: {error.strerror}"}, 503)

    async def _control(self, request: Request) -> Response:
        if not self._serve.control:
            return JSONResponse({"error": "this page is read-only: start the run with --live control"}, 403)
        asked = await _click_of(request)
        if isinstance(asked, Response):
            return asked
        if len(self._answers) >= MAX_CLICKS:
            return JSONResponse({"error": f"{MAX_CLICKS} clicks wait for their answer already"}, 503)
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._parent.emit("control", {"number": number, "request": asked})
        try:
            answer = await asyncio.wait_for(self._answers[number], ANSWER_S)
        except TimeoutError:
            return JSONResponse({"error": f"the run did not answer within {ANSWER_S:g} s"}, 504)
        finally:
            self._answers.pop(number, None)
        return JSONResponse(answer, 400 if "error" in answer else 200)


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
        asked = from_json(body, allow_inf_nan=False)
    except TimeoutError:
        return JSONResponse({"error": f"the request did not come within {BODY_S:g} s"}, 408, {"connection": "close"})
    except (ValueError, ClientDisconnect):
        asked = None
    if not isinstance(asked, dict):
        return JSONResponse({"error": "a request is a JSON object"}, 400)
    return asked


def _as_json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), default=str)


def _parts(messages: Sequence[bytes]) -> Iterator[bytes]:
    """Yield messages together, at least `PART_BYTES` at a time."""
    part = list[bytes]()
    for message in messages:
        part.append(message)
        if sum(map(len, part)) >= PART_BYTES:
            yield b"".join(part)
            part.clear()
    yield b"".join(part)


def _message(kind: str, text: str) -> bytes:
    """Return a server-sent event."""
    return f"event: {kind}\ndata: {text}\n\n".encode()


async def serve_page(serve: Serve, parent: Parent) -> None:
    """Serve until the parent ends."""
    live = Live(serve, parent)
    loop = asyncio.get_running_loop()

    def receive() -> None:
        for message in parent:
            loop.call_soon_threadsafe(live.on_message, message)

    threading.Thread(target=receive, name="receives", daemon=True).start()
    tasks = [loop.create_task(live.sample()), loop.create_task(live.follow_paths())]
    app = Gate(Starlette(routes=live.routes), serve)
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
