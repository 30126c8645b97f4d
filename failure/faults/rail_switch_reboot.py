"""Fault kind rail-switch-reboot."""

import threading
from collections.abc import Iterator, Sequence

from railyard.core.config import ConfigModel
from railyard.core.units import Time, format_time
from railyard.failure.faults.definition import ControllerEvent, fault
from railyard.failure.faults.support.processes import SwitchCrash
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import EmulatedNet


@fault("rail-switch-reboot")
class RailSwitchReboot(SwitchCrash):
    """The process of a rail switch is killed, and starts again by itself."""

    class Parameters(ConfigModel):
        """`down`: seconds until the process is started."""

        down: Time = 0.5

    order = 9
    weight = 1.0
    min_random_s = 0.8  # until the switch is back, with its connection to the controller
    is_intermittent = True

    def __init__(self) -> None:
        self._reboots: dict[str, threading.Timer] = {}

    def parameter_problems(self, p: Parameters, repair_s: float) -> Iterator[tuple[str, str]]:
        """Yield a reboot that takes as long as the fault or longer."""
        if p.down >= repair_s:
            yield "down", f"must be less than repair: {format_time(repair_s)} after the fault it is over"

    def inject(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Kill the switch's process, and start a thread that starts it later, if its namespace still exists."""

        def reboot() -> None:
            if namespaces.path(target).exists():
                SwitchCrash.repair(self, net, target, p)

        super().inject(net, target, p)
        self._reboots[target] = threading.Timer(p.down, reboot)
        self._reboots[target].daemon = True
        self._reboots[target].start()

    def repair(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Wait until the reboot is done."""
        self._reboots.pop(target).join()

    def end_ns(self, target: str, injected_ns: int, repair_start_ns: int, events: Sequence[ControllerEvent]) -> int:
        """Return when the switch was connected to the controller again."""
        returned = (at for at, kind, detail in events if (kind, detail.get("switch")) == ("switch-up", target))
        return min((at for at in returned if injected_ns <= at < repair_start_ns), default=repair_start_ns)
