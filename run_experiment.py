#!/usr/bin/env python3
"""Run Railyard's command line: without arguments the quickstart; `--help` lists the commands.

Written for old Pythons too, so that one that can't run Railyard prints what to type instead.
"""

import os
import signal


def end(number: int, frame: object) -> None:
    """End at Ctrl-C with one line: until the program has begun, a KeyboardInterrupt would be a traceback."""
    os.write(2, b"stopped by Ctrl-C\n")
    os._exit(130)


if __name__ == "__main__":
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, end)
    if "RAILYARD_SANDBOX" not in os.environ:  # there, signals wait for the handlers of a run
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))  # script/run blocks it while Python starts

import shlex  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

PROJECT = Path(__file__).resolve().parent


def main() -> int:
    """Run the command line; exit status 3, with what to type instead, if this Python can't run it."""
    python, sudo = PROJECT / ".venv" / "bin" / "python", "sudo " if os.geteuid() == 0 else ""
    instead = (
        f"{sudo}{python} {PROJECT / 'run_experiment.py'}" if python.exists() else f"sudo {PROJECT / 'script' / 'run'}"
    )
    instead = f"{instead} {shlex.join(sys.argv[1:])}".rstrip()
    if sys.version_info < (3, 11):  # noqa: UP036 (an older one gets a message)
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        print(
            f"error: {sys.executable} is Python {version}, and 3.11 or later is needed; type: {instead}",
            file=sys.stderr,
        )
        return 3
    from railyard.__main__ import main as run

    return run(instead)


if __name__ == "__main__":
    sys.exit(main())
