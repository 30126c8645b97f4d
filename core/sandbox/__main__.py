"""`python -m railyard.core.sandbox COMMAND...`: run any command in a sandbox, for tests and for looking around."""

import signal
import subprocess
import sys
from typing import NoReturn

from railyard.core.installation import module_command
from railyard.core.sandbox import init, launcher


def main() -> NoReturn:
    """Start a sandbox, or inside one run the command."""
    if not init.inside():
        own_command = module_command("railyard.core.sandbox")
        sys.exit(launcher.enter(own_command, {"command": sys.argv[1:] or ["bash"]}))
    command: list[str] = init.prepare()["command"]
    signals = launcher.Signals(drop=(signal.SIGINT,))
    with signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, launcher.STOP_SIGNALS)
        process = subprocess.Popen(command)
        status = signals.wait(process, process.send_signal)
    sys.exit(status)


if __name__ == "__main__":
    main()
