"""Ctrl-C before a command begins and after it has ended: one line, and the process ends at once.

While a command works, Ctrl-C raises KeyboardInterrupt, so that the command can clean up. While Python imports modules,
parses a command line or shuts down, that exception would be lost, or be printed with a traceback.
"""

import os
import signal
from types import FrameType
from typing import Final

STOPPED: Final = "stopped by Ctrl-C"
STATUS: Final = 128 + signal.SIGINT


def end_at_ctrl_c() -> None:
    """Let Ctrl-C end this process with one line, unless its caller made it ignore Ctrl-C."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _end)


def raise_at_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, unless this process ignores it."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(STATUS)
