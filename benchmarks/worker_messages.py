"""What a typed message between processes costs, beside plain dicts over multiprocessing.connection.

    .venv/bin/python -m benchmarks.worker_messages [--messages 5000] [--repeats 5]

No root. An event goes one way, as thousands do in a run; a round trip is a command and its answer. Both protocols take
their turn in every repeat, with the same data; a ratio is comparable between machines, microseconds are not. See
docs/benchmarks.md.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from railyard.core.errors import BadInput
from railyard.core.worker import Message, Parent, Worker

MODULE: Final = "benchmarks.worker_messages"
DETAIL: Final = {"gpu": "d0g1", "routes": 12, "paths": ["dr by rail 2", "rd by rail 1"], "why": ""}
PLAIN: Final = "plain"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Emit(Message):
    """Send so many events, then an Echo."""

    events: int


class Echo(Message):
    """A message that the child sends back."""

    number: int
    detail: dict[str, Any]


class _Typed:
    """The protocol of railyard.core.worker."""

    def __init__(self) -> None:
        self._worker = Worker(MODULE, "the echo", Echo)
        self.round_trip(0)

    def events(self, count: int) -> None:
        self._worker.ask(Emit(events=count), Echo)

    def round_trip(self, number: int) -> None:
        self._worker.ask(Echo(number=number, detail=DETAIL), Echo)

    def end(self) -> None:
        self._worker.end()


class _Plain:
    """Pickled dicts over multiprocessing.connection."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        self._connection = ours
        argv = [sys.executable, "-m", MODULE, PLAIN, str(theirs.fileno())]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        theirs.close()
        self.round_trip(0)

    def events(self, count: int) -> None:
        self._connection.send({"kind": "emit", "events": count})
        while self._connection.recv()["kind"] == "event":
            pass

    def round_trip(self, number: int) -> None:
        self._connection.send({"kind": "echo", "number": number, "detail": DETAIL})
        self._connection.recv()

    def end(self) -> None:
        self._connection.close()
        self._process.wait()


def measure(messages: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Return microseconds in each repeat, by "event" or "round trip" and by protocol, "typed" or "plain"."""
    found: dict[str, dict[str, list[float]]] = {what: {"typed": [], "plain": []} for what in ("event", "round trip")}
    ends: dict[str, _Typed | _Plain] = {"typed": _Typed(), "plain": _Plain()}
    for _ in range(repeats):
        for protocol, end in ends.items():
            began = time.perf_counter()
            end.events(messages)
            between = time.perf_counter()
            for number in range(messages):
                end.round_trip(number)
            found["event"][protocol].append((between - began) / messages * 1e6)
            found["round trip"][protocol].append((time.perf_counter() - between) / messages * 1e6)
    for end in ends.values():
        end.end()
    return found


def table_of(found: dict[str, dict[str, list[float]]]) -> Table:
    """Return the medians of both protocols and their ratio as a table."""
    table = Table(title="Messages between processes, median", title_justify="left")
    for column in ("message", "typed, us", "plain, us", "ratio"):
        table.add_column(column, justify="left" if column == "message" else "right")
    for what, by_protocol in found.items():
        typed, plain = median(by_protocol["typed"]), median(by_protocol["plain"])
        table.add_row(what, f"{typed:.1f}", f"{plain:.1f}", f"{typed / plain:.2f}")
    return table


def serve_plain(connection: "Connection[Any, Any]") -> None:
    """Answer plain messages until the other end is closed."""
    while True:
        try:
            command = connection.recv()
        except EOFError:
            return
        if command["kind"] == "emit":
            for _ in range(command["events"]):
                connection.send({"kind": "event", "what": "changed", "detail": DETAIL, "ns": time.monotonic_ns()})
        connection.send(command)


def serve_typed() -> None:
    """Answer typed messages until the parent ends."""
    parent = Parent(Emit, Echo)
    for command in parent:
        if isinstance(command, Emit):
            for _ in range(command.events):
                parent.emit("changed", DETAIL)
            parent.send(Echo(number=command.events, detail=DETAIL))
        else:
            parent.send(command)


@app.command()
def benchmark(messages: Annotated[int, typer.Option()] = 5000, repeats: Annotated[int, typer.Option()] = 5) -> None:
    """Measure an event and a round trip, typed and plain."""
    for field, value in (("--messages", messages), ("--repeats", repeats)):
        if value < 1:
            raise BadInput(field, value, "must be 1 or more")
    Console().print(table_of(measure(messages, repeats)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; in a child process, answer."""
    if arguments is None and len(sys.argv) == 3 and sys.argv[1] == PLAIN:
        serve_plain(Connection(int(sys.argv[2])))
        return 0
    if arguments is None and len(sys.argv) == 2 and sys.argv[1].isdigit():
        serve_typed()
        return 0
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
