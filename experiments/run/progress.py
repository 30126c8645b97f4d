"""Progress bars of a run: one over all its steps, one over the step that is going on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


def repeat_suffix(repeat: int, repeats: int) -> str:
    """Return `, 2 of 3` for the title of a step that is repeated; nothing for a single one."""
    return f", {repeat + 1} of {repeats}" if repeats > 1 else ""


class Steps:
    """Progress bars: `with Steps(console, total) as steps: with steps.step("build"): ...`. Silent without a console."""

    def __init__(self, console: Console | None, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, disable=console is None, transient=True)
        self._overall = self._bars.add_task("run", total=total)
        self._step = self._bars.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def step(self, what: str, total: float | None = None) -> Iterator[None]:
        """One step; `total` where `reached` is called."""
        self._bars.reset(self._step, total=total, description=what, visible=True)
        yield
        self._bars.advance(self._overall)

    def reached(self, amount: float) -> None:
        """Set the progress of the step, on the way to its total."""
        self._bars.update(self._step, completed=amount)
