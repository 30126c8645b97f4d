"""Fault kind link-flapping: a link flap, repeated with a period."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Annotated, Any, Final

from railyard.core.config import ConfigModel
from railyard.core.units import Time, format_time, time_between
from railyard.core.wait import poll
from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.links import CutLink, is_up, link_state, set_link
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import End

_POLL_S: Final = 0.002


def _flap(end: End, period_s: float, ended: threading.Event) -> None:
    """Set an interface up and down every half period, until `ended` or until its namespace is gone; then up.

    It begins with up: the interface is down already.
    """
    states = cycle(("up", "down"))
    with suppress(FileNotFoundError):  # the namespace is gone
        while not ended.wait(period_s / 2):
            set_link(end, next(states))
        set_link(end, "up")


@fault("link-flapping")
class LinkFlapping(CutLink):
    """The rail link of a GPU (d0g1; that of plane 1: d0g1:rail1) loses its carrier and gets it back repeatedly."""

    class Parameters(ConfigModel):
        """`period`: seconds from one loss of carrier to the next."""

        period: Annotated[Time, time_between(0.02, 1.0)] = 0.2

    order = 5
    weight = 1.0
    is_intermittent = True
    loses_packets_throughout = True

    def __init__(self) -> None:
        self._flapping: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def parameter_problems(self, p: Parameters, repair_s: float) -> Iterator[tuple[str, str]]:
        """Yield a period that is longer than the fault."""
        if p.period > repair_s:
            yield "period", f"must be repair or less: the fault lasts {format_time(repair_s)}"

    def inject(self, net: EmulatedNet, target: str, p: Parameters) -> None:
        """Set the switch's end down, and start a thread that continues."""
        super().inject(net, target, p)
        if not net.has(self.link(net, target).b.node):
            return
        ended = threading.Event()
        thread = threading.Thread(target=_flap, args=(self.link(net, target).b, p.period, ended), daemon=True)
        self._flapping[target] = thread, ended
        thread.start()

    def repair(self, net: EmulatedNet, target: str, p: Any) -> None:
        """End the thread, which sets the interface up."""
        if target in self._flapping:
            # of several machines, on that of the switch
            thread, ended = self._flapping.pop(target)
            ended.set()
            thread.join()

    def symptoms(self, net: EmulatedNet, target: str, p: Parameters) -> Sequence[bool]:
        """Return whether the GPU's carrier changes within a period, and whether it changes or is lost."""
        end = self.link(net, target).a
        if not net.has(end.node):
            return ()
        before = link_state(end).get("carrier_changes")
        changed = poll(lambda: link_state(end).get("carrier_changes") != before, p.period, _POLL_S)
        return changed, changed or not is_up(end)
