"""A Dask scheduler or worker on a machine that `sweep --on ssh:` has logged in to.

The first line of its input is an order, which has the key, so the key is in no file, environment or command line. It
prints a line with its address, and ends with its input: also when the sweep was killed.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final, Literal

import dask
from distributed import Nanny, Scheduler
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from railyard.experiments.sweep.keys import Keys

RESOURCE: Final = "railyard"
# a login shell may print lines of its own before the line with the address
MARK: Final = "railyard-dask "
MOST_ORDER: Final = 1024 * 1024  # bytes
END_S: Final = 10.0  # for Dask to end in order
_NO_PAGES: Final[dict[str, list[str]]] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Dask's web pages ask for no certificate. Their server is on loopback, and has nothing to show."""


class Order(TypedDict):
    """A scheduler or worker to start. `scheduler`: the address of a worker's. `config`: the sweep's Dask settings."""

    part: Literal["scheduler", "worker"]
    host: str
    scheduler: str
    private_key: str
    certificate: str
    config: dict[str, Any]


ORDER: Final = TypeAdapter(Order)


def main() -> int:
    """Read an order, and serve until the input ends."""
    try:
        order = ORDER.validate_json(sys.stdin.buffer.readline(MOST_ORDER))
    except ValidationError:
        print("error: the input must be an order of `sweep --on ssh:`", file=sys.stderr)
        return 2
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(_serve(order))
    return 0


def _end_with_input() -> None:
    """End this process in order when its input ends; at once if that takes too long."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os._exit(1)


async def _serve(order: Order) -> None:
    dask.config.update(dask.config.config, order["config"])
    dask.config.set(_NO_PAGES)
    is_over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, is_over.set)
    async with _server(order) as server:
        print(MARK + json.dumps({"address": server.address}), flush=True)
        _close_output()
        ends = [asyncio.ensure_future(server.finished()), asyncio.ensure_future(is_over.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)


def _server(order: Order) -> Any:
    security = Keys(order["private_key"], order["certificate"]).security()
    common = {"security": security, "protocol": "tls", "dashboard_address": "127.0.0.1:0", "dashboard": False}
    if order["part"] == "scheduler":
        return Scheduler(host=order["host"] or None, port=0, **common)
    return Nanny(order["scheduler"], nthreads=1, resources={RESOURCE: 1}, **common)


def _close_output() -> None:
    """Let nothing that Dask logs later wait for a reader."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null, stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
