"""What a process of the project's own tells: a line of JSON an event, with the monotonic clock in ns."""

import json
import sys
import threading
import time
from typing import Any


class EventWriter:
    """`tell(what, detail)`, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, what: str, detail: dict[str, Any]) -> None:
        line = json.dumps({"ns": time.monotonic_ns(), "what": what, "detail": detail})
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
