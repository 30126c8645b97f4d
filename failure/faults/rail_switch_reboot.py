"""Fault kind rail-switch-reboot."""

import threading
import time
from collections.abc import Iterator, Sequence

from railyard.core.config import ConfigModel
from railyard.core.units import Time, format_time
from railyard.failure.faults.definition import ControllerEvent, fault
from railyard.failure.faults.support.processes import SwitchFault, is_dead, kill, start
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet


class _Reboot(threading.Thread):
    """Start a dead switch after a while, if its namespace still exists."""

    def __init__(self, net: FabricNet, switch: str, down_s: float) -> None:
        super().__init__(name=f"reboot of {switch}", daemon=True)
        self._net, self._switch, self._down_s = net, switch, down_s

    def run(self) -> None:
        """Wait, then start the switch."""
        time.sleep(self._down_s)
        if namespaces.path(self._switch).exists():
            start(self._net, self._switch)


@fault("rail-switch-reboot")
class RailSwitchReboot(SwitchFault):
    """The process of a rail switch is killed, and starts again by itself."""

    class Parameters(ConfigModel):
        """`down`: seconds until the process is started."""

        down: Time = 0.5

    order, weight = 9, 1.0
    min_random_s = 0.8  # until the switch is back, with its connection to the controller
    is_intermittent = True

    def __init__(self) -> None:
        self._reboots: dict[str, _Reboot] = {}

    def parameter_problems(self, p: Parameters, repair_s: float) -> Iterator[tuple[str, str]]:
        """Yield a reboot that takes as long as the fault or longer."""
        if p.down >= repair_s:
            yield "down", f"must be less than repair: {format_time(repair_s)} after the fault it is over"

    def inject(self, net: FabricNet, target: str, p: Parameters) -> None:
        """Kill the switch's process, and start a thread that starts it later."""
        kill(net, target)
        self._reboots[target] = _Reboot(net, target, p.down)
        self._reboots[target].start()

    def repair(self, net: FabricNet, target: str, p: Parameters) -> None:
        """Wait until the reboot is done."""
        self._reboots.pop(target).join()

    def symptoms(self, net: FabricNet, target: str, p: Parameters) -> Sequence[bool]:
        """Return whether the process has ended."""
        return (is_dead(net, target),)

    def end_ns(self, target: str, injected_ns: int, repair_start_ns: int, events: Sequence[ControllerEvent]) -> int:
        """Return when the switch was connected to the controller again."""
        returned = (at for at, kind, detail in events if (kind, detail.get("switch")) == ("switch-up", target))
        return min((at for at in returned if injected_ns <= at < repair_start_ns), default=repair_start_ns)
