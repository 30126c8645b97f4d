"""What this machine carries, for `doctor`: measured in a capsule of its own, as a run does it."""

import subprocess
import sys
from typing import Final

from railyard.core.project import PROJECT

TIMEOUT_S: Final = 60.0


def frames_per_s() -> float | None:
    """Full frames a second through a switch; None if it could not be measured. About 4 s, from outside a capsule."""
    argv = [
        sys.executable,
        "-m",
        "railyard.core.sandbox",
        sys.executable,
        "-m",
        "railyard.experiments.commands.measure",
    ]
    try:
        done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        return float(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None


def main() -> None:
    """Inside: print the figure."""
    from railyard.controller.processes.clients import ControllerProcess
    from railyard.core.host import datapath_choice, detect
    from railyard.topologies.measure import capacity

    datapath, _ = datapath_choice(detect())
    print(capacity.measure(datapath, ControllerProcess()))


if __name__ == "__main__":
    main()
