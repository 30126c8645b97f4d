"""The loop over a sweep's runs on this machine alone, without Dask."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from railyard.experiments.sweep.answers import Outcome
from railyard.experiments.sweep.machine import Task, execute, identify, stop


class Local:
    """One machine, whose runs are children of this process."""

    def __init__(self) -> None:
        self._name = str(identify()["machine"])
        self._pool = ThreadPoolExecutor(1, "sweep")

    def names(self) -> Sequence[str]:
        """Return this machine."""
        return (self._name,)

    def submit(self, name: str, task: Task) -> "Future[Outcome]":
        """Start a task."""
        return self._pool.submit(execute, task)

    def lost(self, error: Exception) -> str:
        """No run is lost here, so raise the error."""
        raise error

    def stop(self) -> bool:
        """End the run under way."""
        stop()
        return True
