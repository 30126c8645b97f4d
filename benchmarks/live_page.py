"""What the live page costs: the share of a core that its process takes while one page is open. Needs root.

The exit status is 1 if a share is above its limit: 2% at 16 GPUs, 5% at 64.

    sudo .venv/bin/python -m benchmarks.live_page [--seconds 20]

A shell holds the fabric, so nothing else runs in it. See docs/benchmarks.md.
"""

import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from railyard.core.installation import PROJECT
from railyard.experiments.live.watched_fabric import PERIOD_S

GRIDS: Final = ((4, 4, 0.02), (8, 8, 0.05))
"""Domains and rails of each fabric, and the share of a core that its page may take."""
WARM_UP_S: Final = 3.0
BUILT_S: Final = 120.0
ADDRESS: Final = re.compile(r"http://(127\.0\.0\.1):(\d+)(/\S+/)")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@contextmanager
def page_of(domains: int, rails: int) -> Iterator[tuple[str, int, str]]:
    """A fabric that is up, with its page's host, port and path. RuntimeError if it isn't up in time."""
    size = ("-o", f"domains={domains}", "-o", f"rails={rails}")
    rates = ("-o", "rail_rate=10Mbit", "-o", "hb_rate=120Mbit")
    command = [sys.executable, str(PROJECT / "run_experiment.py"), "shell", "collectives", *size, *rates, "--live"]
    with tempfile.NamedTemporaryFile("w") as output, Path(output.name).open() as printed:
        shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        try:
            text, end_s = "", time.monotonic() + BUILT_S
            while time.monotonic() < end_s and shell.poll() is None:
                text += printed.read()
                if "Mininet's CLI" in text and (found := ADDRESS.search(text)):
                    yield found[1], int(found[2]), found[3]
                    return
                time.sleep(0.2)
            raise RuntimeError(f"the fabric is not up:\n{text}")
        finally:
            shell.communicate(b"exit\n")


def server_of(port: int) -> psutil.Process:
    """Return the process that serves a port of this machine: of those that hold the socket, the nicest (NICENESS)."""
    found = [
        c.pid for c in psutil.net_connections("tcp4") if c.laddr[1:2] == (port,) and c.status == psutil.CONN_LISTEN
    ]
    return max((psutil.Process(pid) for pid in found if pid), key=psutil.Process.nice)


def read_page(host: str, port: int, path: str) -> socket.socket:
    """Open the page's stream of events, and read it until the socket is closed."""
    connection = socket.create_connection((host, port))
    connection.sendall(f"GET {path}events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())

    def read() -> None:
        while connection.recv(1 << 16):
            pass

    threading.Thread(target=read, daemon=True).start()
    return connection


@app.command()
def compare(
    seconds: Annotated[float, typer.Option(min=1, help="How long to count.")] = 20.0,
) -> None:
    """Measure the page's process on 16 and on 64 GPUs."""
    table, is_within = Table("GPUs", "links", "share of a core", "limit", "", "ms per sample"), True
    for domains, rails, limit in GRIDS:
        with page_of(domains, rails) as (host, port, path):
            server, page = server_of(port), read_page(host, port, path)
            time.sleep(WARM_UP_S)
            before, begin_s = server.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, end_s = server.cpu_times(), time.monotonic()
            page.shutdown(socket.SHUT_RDWR)
        used_s = after.user + after.system - before.user - before.system
        share = used_s / (end_s - begin_s)
        is_within &= share <= limit
        row = (f"{share:.2%}", f"{limit:.0%}", "ok" if share <= limit else "too much", f"{1e3 * share * PERIOD_S:.2f}")
        table.add_row(str(domains * rails), str(2 * domains * rails), *row)
    Console().print(table)
    if not is_within:
        raise typer.Exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
