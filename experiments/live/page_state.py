"""State of a live page: each message goes to all browsers and to the recording, and is kept for later pages.

Everything runs in the event loop of the server.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

from railyard.experiments.live.messages import Serve

MAX_PAGES: Final = 64
KEPT_SAMPLES: Final = 600  # for a page that is opened later
KEPT_EVENTS: Final = 500
# a browser that reads more slowly is disconnected, and connects again
MAX_QUEUED: Final = 64
# what came before is sent in parts, so that the rest waits until a browser has read the first
PART_BYTES: Final = 1 << 16
STATE: Final = ("active", "running", "paused", "command")  # of the controls (controls.py)


class PageState:
    """Messages of the pages. `on_record_error` is called with the reason when the recording can't be written."""

    def __init__(self, serve: Serve, on_record_error: Callable[[str], None]) -> None:
        self.run: dict[str, Any] = {"title": serve.title, "control": serve.control, "active": []}
        self.run |= {"choices": serve.choices, "begin_ns": serve.begin_ns, "sentences": serve.sentences}
        self.fabric: dict[str, Any] | None = None
        self.health: dict[str, Any] = {}
        self._on_record_error = on_record_error
        self._record = os.fdopen(serve.record, "w", buffering=1) if serve.record >= 0 else None
        # the messages for each page, and the function that ends its connection
        self._pages: dict[asyncio.Queue[bytes], Callable[[], None]] = {}
        self._samples: deque[bytes] = deque(maxlen=KEPT_SAMPLES)
        self._events: deque[bytes] = deque(maxlen=KEPT_EVENTS)
        # steps, phases of workloads, and jobs
        self._steps: deque[bytes] = deque(maxlen=KEPT_EVENTS)
        self._path_changes: deque[dict[str, Any]] = deque()
        self._publish("run", self.run)

    @property
    def is_full(self) -> bool:
        """True if no further page may connect."""
        return len(self._pages) >= MAX_PAGES

    async def messages(self, abort: Callable[[], None]) -> AsyncIterator[bytes]:
        """Yield server-sent events for a page: what came before, then each message. `abort` ends its connection."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED)
        state = [_message("run", _as_json(self.run)), _message("fabric", _as_json(self.fabric))]
        # added before the first wait, so that no message is missed
        self._pages[queue] = abort
        try:
            paths = [_message("paths", _as_json(change)) for change in self._path_changes]
            for part in _parts([*state, *self._steps, *self._events, *paths, *self._samples]):
                yield part
            while queue in self._pages:
                yield await queue.get()
        finally:
            self._pages.pop(queue, None)

    def show_fabric(self, fabric: dict[str, Any] | None) -> None:
        """Show a fabric that is up, None without one."""
        self.fabric = fabric
        if fabric is None:
            self._events.clear()
        self._publish("fabric", fabric)

    def forget_fabric(self) -> None:
        """Keep no samples and paths of a fabric that is gone."""
        self.fabric = None
        self._samples.clear()
        self._path_changes.clear()

    def show_health(self, ns: int, detail: dict[str, Any]) -> None:
        """Show health scores of a time, monotonic ns."""
        self.health = detail
        self._publish("health", {"ns": ns, **detail})

    def show_step(self, kind: str, ns: int, detail: dict[str, Any]) -> None:
        """Show what the run does: `kind` is step, phase or jobs."""
        self._steps.append(self._publish(kind, {"ns": ns, **detail}))

    def show_event(self, ns: int, name: str, detail: dict[str, Any]) -> None:
        """Show an event, and the state of the controls if it has that."""
        state: dict[str, Any] = {key: detail[key] for key in STATE if key in detail}
        if state:
            self.run = {**self.run, **state}
            self._publish("run", self.run)
        detail = {key: value for key, value in detail.items() if key not in STATE}
        self._events.append(self._publish("event", {"ns": ns, "what": name, "detail": detail}))

    def show_sample(self, ns: int, columns: list[list[int]]) -> None:
        """Show a sample of all links: a list for each figure."""
        self._samples.append(self._publish("sample", {"ns": ns, "links": columns}))

    def show_paths(self, ns: int, changed: dict[str, Any]) -> None:
        """Show the paths of pairs that changed."""
        self._path_changes.append({"ns": ns, "paths": changed})
        self._publish("paths", self._path_changes[-1])
        # a page that connects later needs the oldest state whole
        if len(self._path_changes) > KEPT_EVENTS:
            oldest = self._path_changes.popleft()
            following = self._path_changes[0]
            following["paths"] = {**oldest["paths"], **following["paths"]}

    def _publish(self, kind: str, data: object) -> bytes:
        """Record a message, and put it into the queue of each page; return it."""
        text = _as_json(data)
        if self._record:
            try:
                self._record.write(f'{{"kind":"{kind}","data":{text}}}\n')
            except OSError as error:
                # the disk is full: the page goes on
                self._record = None
                self._on_record_error(error.strerror or str(error))
        message = _message(kind, text)
        for page in list(self._pages):
            try:
                page.put_nowait(message)
            except asyncio.QueueFull:
                abort = self._pages.pop(page)
                abort()
        return message


def _as_json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), default=str)


def _message(kind: str, text: str) -> bytes:
    """Return a server-sent event."""
    return f"event: {kind}\ndata: {text}\n\n".encode()


def _parts(messages: Sequence[bytes]) -> Iterator[bytes]:
    """Yield messages together, at least `PART_BYTES` at a time."""
    part: list[bytes] = []
    for message in messages:
        part.append(message)
        if sum(map(len, part)) >= PART_BYTES:
            yield b"".join(part)
            part.clear()
    yield b"".join(part)
