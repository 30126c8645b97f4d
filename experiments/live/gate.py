"""Protection of the live page: limits of connections, and the refusal of requests from elsewhere."""

import asyncio
import contextlib
import socket
from typing import Any, Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from railyard.experiments.live import access
from railyard.experiments.live.messages import Serve

MAX_HEAD: Final = 4096  # bytes of a request's target and headers
HEAD_S: Final = 5.0  # for the head of a request, from the connection or the answer before
# strangers have as many of their own: neither keeps the other out, and the limit of open files is never reached
MAX_CONNECTIONS: Final = 256
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
        # strangers have a limit of their own, so that they can't keep the page's users out
        count = 0
        for connection in self.connections:
            if isinstance(connection, Connection) and connection.is_strange == self.is_strange:
                count += 1
        if count > MAX_CONNECTIONS:
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
