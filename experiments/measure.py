"""What this machine carries, for `doctor`: measured in a capsule of its own, as a run does it."""

import subprocess
import sys
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).resolve().parent.parent
MOST_S: Final = 60.0


def frames_per_s() -> float | None:
    """Full frames a second through a switch; None if it could not be measured. About 4 s, from outside a capsule."""
    argv = [sys.executable, "-m", "topologies.capsule", sys.executable, "-m", "experiments.measure"]
    try:
        done = subprocess.run(argv, cwd=HOME, capture_output=True, text=True, check=True, timeout=MOST_S)
        return float(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None


def main() -> None:
    """Inside: print the figure."""
    from controller.handle import ControllerProcess
    from topologies import capacity
    from topologies.machine import datapath_choice, detect

    datapath, _ = datapath_choice(detect())
    print(capacity.measure(datapath, ControllerProcess()))


if __name__ == "__main__":
    main()
