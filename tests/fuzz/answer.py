"""What an input led to, and what is wrong with that."""

from dataclasses import dataclass
from typing import Final

from railyard.core import crash
from railyard.core.errors import MAX_LINE

MAX_CPU_S: Final = 10
MAX_WAIT_S: Final = 10
MAX_BYTES: Final = 2**30
STATUSES: Final = (0, 1, 2, 3)


@dataclass(frozen=True)
class Answer:
    """What an input led to. `status` is negative where a signal ended the process.

    `idle_s`: time that the machine's cores were idle meanwhile, in all.
    """

    number: int
    kind: str
    status: int
    errors: str
    wall_s: float
    cpu_s: float
    idle_s: float
    peak_bytes: int
    command: str

    @property
    def waited_s(self) -> float:
        """Time for which it waited for something else than a core."""
        return min(self.wall_s - self.cpu_s, self.idle_s)

    def problems(self) -> list[str]:
        """What is wrong with it, if anything."""
        lines = self.errors.splitlines()
        blamed = self.status == crash.STATUS and "loaded plugins: " in self.errors  # a plugin may return anything
        found = [f"exit status {self.status}"] if self.status not in STATUSES and not blamed else []
        found += ["a traceback"] if "Traceback" in self.errors else []
        lines = [line for line in lines if not line.startswith("damaged: ")]  # `report` names every record
        found += [f"{len(lines)} lines of errors"] if len(lines) > 1 or (self.status in (2, 3) and not lines) else []
        found += ["a line too long"] if any(len(line) > MAX_LINE for line in lines) else []
        found += [f"{self.cpu_s:.1f} s of CPU time"] if self.cpu_s > MAX_CPU_S else []
        found += [f"waited for {self.waited_s:.1f} s"] if self.waited_s > MAX_WAIT_S else []
        is_large = self.peak_bytes > MAX_BYTES or "not enough memory" in self.errors
        found += [f"{self.peak_bytes / 1e9:.2f} GB of memory"] if is_large else []
        return found
