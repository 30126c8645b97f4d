"""Messages between a run and the server of its live page."""

from typing import Any, Final

from railyard.core.worker import Message

RECORD_ENDED: Final = "record-ended"
"""Event of the server: it can't write to the record any more. Its `reason` is that of the system."""


class ToPage(Message):
    """A message to the server of the page. Serve is the first."""


class Serve(ToPage):
    """Serve on the inherited socket `listener`.

    `diagnosis`: an inherited socket for NETLINK_SOCK_DIAG of the machine's namespace; `users`: who may connect;
    `record`: an open file for what the page shows, or -1; `choices`: what the page offers to start (choices.py);
    `begin_ns`: the run's time zero, monotonic; `sentences`: events of measures in words, by name (words.py).
    """

    listener: int
    diagnosis: int
    record: int
    port: int
    token: str
    users: tuple[int, ...]
    control: bool
    choices: dict[str, dict[str, str]]
    begin_ns: int
    title: str
    sentences: dict[str, list[str]]


class ShowFabric(ToPage):
    """A fabric is up. `plan` is a FabricPlan."""

    label: str
    plan: Any


class HideFabric(ToPage):
    """The fabric is about to be taken down: close what is open in its namespaces."""


class Show(ToPage):
    """An event of the run, for the page's list."""

    ns: int
    what: str
    detail: dict[str, Any]


class Answer(ToPage):
    """The answer to request `number` of a control."""

    number: int
    detail: dict[str, Any]
