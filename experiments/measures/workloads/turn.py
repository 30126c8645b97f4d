"""One replay of a workload on a built fabric, and the conditions of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from railyard.core.records import IntervalId

if TYPE_CHECKING:
    from railyard.experiments.run.session import FabricSession
    from railyard.results.runs.records import Run
    from railyard.workloads.scale import Scale
    from railyard.workloads.schedule import Schedule
    from railyard.workloads.spec import TaskSpans


@dataclass(frozen=True)
class Workload:
    """A workload as it runs on one fabric. `iteration`: it is a training iteration, and not plain traffic.

    `measured_files`: see `Built`; a trace's own files with the times that were measured. `independent`: no pair waits
    for another pair.
    """

    label: str
    schedule: "Schedule"
    scale: "Scale"
    iteration: bool
    measured_files: "Callable[[TaskSpans], dict[str, bytes]] | None" = None
    independent: bool = False


@dataclass(frozen=True)
class Variant:
    """Conditions of a replay. `policy`: the one that steers routes; `scene`: the background load. "" for none."""

    scene: str = ""
    policy: str = ""


def _ignore_progress(delivered_bytes: int) -> None:
    """Take the bytes delivered so far, and show nothing."""


@dataclass(frozen=True)
class Turn:
    """One replay of a workload.

    `session`: of the fabric, with the policy of the variant. `run`: takes the records. `progress`: is called with the
    bytes delivered so far.
    """

    session: "FabricSession"
    workload: Workload
    repeat: int
    seed: int
    run: "Run"
    progress: Callable[[int], None] = _ignore_progress
    variant: Variant = Variant()

    @property
    def interval(self) -> IntervalId:
        """The identity of what is measured."""
        return self.session.interval(self.workload.label, self.repeat, self.variant.scene)
