"""Mininet's reference controller for any number of switches: several test controllers of Open vSwitch, of 16 each.

    switches ── this program, ptcp:PORT ── ovs-testcontroller, ovs-testcontroller, ...

Mininet's installer patches its reference controller to take 4,096 switches. A learning switch decides for each switch
alone, so several controllers forward as one does. It is run by its path, with the standard library alone, which is
quicker: `reference_controller.py PROGRAM OPTIONS... ptcp:PORT`.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

# ovs-testcontroller accepts no other connection then
MAX_SWITCHES: Final = 16
BLOCK_BYTES: Final = 65_536
LISTENS_S: Final = 20.0
_POLL_S: Final = 0.005
_PORT: Final = re.compile(r"ptcp:(\d*)")
DEFAULT_PORT: Final = 6653


class Controllers:
    """Test controllers, each started when the ones before it have all the switches that they take."""

    def __init__(self, command: Sequence[str], folder: str) -> None:
        """`command`: a controller's, without where it listens. `folder`: for their sockets."""
        self._command = command
        self._folder = folder
        self._switches = list[int]()  # of each controller, connected ones

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a switch to a controller with room for it, and return when either end closes."""
        number = self._reserve()
        try:
            far_reader, far_writer = await _connect(self._path(number))
            copies = [
                asyncio.ensure_future(_copy(reader, far_writer)),
                asyncio.ensure_future(_copy(far_reader, writer)),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            # one end has closed: the other direction would wait for ever
            for copy in copies:
                copy.cancel()
            far_writer.close()
        finally:
            writer.close()
            self._switches[number] -= 1

    def _reserve(self) -> int:
        for number, switches in enumerate(self._switches):
            if switches < MAX_SWITCHES:
                self._switches[number] += 1
                return number
        self._switches.append(1)
        number = len(self._switches) - 1
        # it ends with this program, which Mininet kills
        subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self._command, f"punix:{self._path(number)}"])
        return number

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number}.sock"


async def _connect(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to a controller that was just started. OSError if it doesn't listen in time."""
    deadline = asyncio.get_running_loop().time() + LISTENS_S
    while True:
        try:
            return await asyncio.open_unix_connection(path)
        except OSError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_POLL_S)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(BLOCK_BYTES):
            target.write(data)
            await target.drain()


async def serve(port: int, command: Sequence[str]) -> None:
    """Serve switches that connect to a port, until a signal ends the process."""
    with tempfile.TemporaryDirectory(prefix="controllers-") as folder:
        server = await asyncio.start_server(Controllers(command, folder).serve, "0.0.0.0", port)
        await server.serve_forever()


def main(argv: Sequence[str]) -> None:
    """Take a test controller's path and arguments; run that program itself if it shall not listen at a TCP port."""
    *command, listening_at = argv
    match = _PORT.fullmatch(listening_at)
    if match is None:
        os.execv(argv[0], list(argv))
    asyncio.run(serve(int(match[1] or DEFAULT_PORT), command))


if __name__ == "__main__":
    main(sys.argv[1:])
