"""Messages of the child process of test_worker, which imports this small module alone."""

from typing import Any

from railyard.core.worker import Message


class Do(Message):
    """What the child of these tests is to do."""

    send: Any = None
    raw: bool = False
    partial: bool = False
    fail: str = ""
    end: bool = False
    crash: str = ""
    lacks: str = ""
    busy_s: float = 0
    events: tuple[str, ...] = ()


class Echo(Message):
    """Its answer."""

    value: Any
