"""Fault kind link-flapping."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import field_validator

from railyard.core.config import ConfigModel
from railyard.core.units import Time, format_time
from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.links import CableFault, cut, rail_link
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import End

_POLL_S: Final = 0.002
_MIN_PERIOD_S: Final = 0.02
_MAX_PERIOD_S: Final = 1.0


class _Flapper(threading.Thread):
    """Set an interface up and down every half period, until `end` or until its namespace is gone; then up."""

    def __init__(self, end: End, period_s: float) -> None:
        super().__init__(name=f"flapping {end.interface}", daemon=True)
        self._end, self._half_s = end, period_s / 2
        self._end_requested = threading.Event()

    def run(self) -> None:
        """Begin with up: the interface is down already."""
        from pyroute2 import IPRoute  # slow to import, and only needed on a fabric

        namespaces.enter(self._end.node)
        state = "up"
        with IPRoute() as netlink:
            index = socket.if_nametoindex(self._end.interface)
            while not self._end_requested.wait(self._half_s) and namespaces.path(self._end.node).exists():
                netlink.link("set", index=index, state=state)
                state = "down" if state == "up" else "up"
            netlink.link("set", index=index, state="up")

    def end(self) -> None:
        """Stop flapping."""
        self._end_requested.set()
        self.join()


@fault("link-flapping")
class LinkFlapping(CableFault):
    """The rail cable of a GPU loses its carrier and gets it back, again and again."""

    class Parameters(ConfigModel):
        """`period`: seconds from one loss of carrier to the next."""

        period: Time = 0.2

        @field_validator("period")
        @classmethod
        def _check_bounds(cls, period: float) -> float:
            if not _MIN_PERIOD_S <= period <= _MAX_PERIOD_S:
                raise ValueError(f"must be {format_time(_MIN_PERIOD_S)} to {format_time(_MAX_PERIOD_S)}")
            return period

    order, weight = 5, 1.0
    is_intermittent = True
    loses_packets_throughout = True

    def __init__(self) -> None:
        self._flappers: dict[str, _Flapper] = {}

    def parameter_problems(self, p: Parameters, repair_s: float) -> Iterator[tuple[str, str]]:
        """Yield a period that is longer than the fault."""
        if p.period > repair_s:
            yield "period", f"must be repair or less: the fault lasts {format_time(repair_s)}"

    def inject(self, net: FabricNet, target: str, p: Parameters) -> None:
        """Set the switch's end down, and start a thread that continues."""
        end = rail_link(net, target).b
        cut(end)
        self._flappers[target] = _Flapper(end, p.period)
        self._flappers[target].start()

    def repair(self, net: FabricNet, target: str, p: Any) -> None:
        """End the thread, which sets the interface up."""
        self._flappers.pop(target).end()

    def symptoms(self, net: FabricNet, target: str, p: Parameters) -> Sequence[bool]:
        """Return whether the GPU's carrier changes within a period, and whether it changes or is lost."""
        from pyroute2 import IPRoute

        with namespaces.inside(target), IPRoute() as netlink:
            index = socket.if_nametoindex("rail0")
            first = link = netlink.get_links(index=index)[0]
            deadline = time.monotonic() + p.period
            while link.get("carrier_changes") == first.get("carrier_changes") and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                link = netlink.get_links(index=index)[0]
        changed = link.get("carrier_changes") != first.get("carrier_changes")
        return changed, changed or link.get("operstate") != "UP"
