"""Limits of the fidelity of the emulation: of each quantity, above which value a measurement is degraded or invalid."""

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from railyard.core.host_load import FOREIGN_LIMIT, PAUSE_S
from railyard.results.analysis.aggregate import MAX_UNEXPLAINED
from railyard.results.format import digits, percent
from railyard.results.runs.records import LATE_S

Origin = Literal["machine", "network", "run"]
"""Of a deviation: the machine's load; links and queues, which a loaded machine slows down too; the run itself."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of a quantity: above `degraded` or `invalid` (in `unit`; "share" is 0 to 1) that is the verdict.

    `why`: the reason for these figures. `origin`: what a deviation says something about. Where links are slow, lag has
    a higher limit; limits of the same quantity are equal.
    """

    quantity: str
    degraded: float = field(compare=False)
    invalid: float = field(compare=False)
    unit: str
    origin: Origin
    why: str

    def show(self, value: float) -> str:
        """Return a value as text."""
        if math.isinf(value):
            return "never"
        if self.unit == "share":
            places = 1 if self.degraded >= 0.01 else 2
            return percent(value, places)
        return f"{digits(value, 3)} {self.unit}".strip()


# fmt: off
LINK_RATE: Final = Limit("link rate", 0.03, 0.10, "share", "network",
    "times are to be within 3 to 5% of the formulas; a link that is off by more hides what is being measured")
CPU_BUSY: Final = Limit("CPU busy", 0.85, 0.97, "share", "machine",
    "above 85% packets start to wait for a core instead of their link; at 97% the cores are the bottleneck")
CPU_FOREIGN: Final = Limit("CPU used by others", FOREIGN_LIMIT, 0.40, "share", "machine",
    "another program's load comes and goes, so it spoils repeats before it fills the cores")
LAG: Final = Limit("scheduling lag p99", PAUSE_S * 1e3, 50.0, "ms", "machine",
    "a quarter of the 20 ms in which a link-down is to be healed; without faults, of a frame's time, if that is longer")
RETRANSMITS: Final = Limit("retransmitted segments", 0.001, 0.02, "share", "network",
    "a GPU fabric is lossless; one segment in a thousand already costs TCP visible time, one in fifty governs it")
NEEDLESS: Final = Limit("segments retransmitted needlessly", 0.01, 0.10, "share", "network",
    "they take as much of their links as others, and a time may be off by 5%; a tenth is the limit of bytes on rails")
DROPS: Final = Limit("packets dropped", 0.001, 0.02, "share", "network",
    "as for retransmits: a queue of the emulation overflowed that a real, lossless fabric would have paused")
PORT_BYTES: Final = Limit("rail port counters off", 0.02, 0.10, "share", "run",
    "headers are in the expected figure; what is beyond 2% was sent twice, or took another way than it should have")
BYTES: Final = Limit("bytes not as asked for", 0.0, 0.0, "B", "run",
    "every byte must arrive once, where it was sent")
CPU_STOLEN: Final = Limit("CPU stolen", 0.05, 0.40, "share", "machine",
    "other guests of the host had these cores, as if their programs ran here; a twentieth of the time may show in it")
CPU_THROTTLED: Final = Limit("CPU throttled", 0.01, 0.10, "share", "machine",
    "a CPU quota stops every process of the run at once; at a tenth of the time no figure is the fabric's")
CPU_RESOLUTION: Final = Limit("resolution of CPU shares", 0.10, math.inf, "share", "machine",
    "the kernel counts in ticks of 10 ms: of less than 100 ms nothing says how busy the cores were, nor by whom")
PAUSED: Final = Limit("time in pauses", 0.05, 0.20, "share", "machine",
    "what a thread is late by beyond that limit adds up; a twentieth of the time is as much as a time may be off")
PAUSE: Final = Limit("longest pause", 10.0, 40.0, "ms", "machine",
    "in intervals with faults: half a bin of 20 ms of goodput may be missing; a link may take 40 ms to recover (p95)")
FOREIGN_BURST: Final = Limit("busiest 100 ms of others", 0.50, math.inf, "share", "machine",
    "a recovery or a short phase lies in a few of these windows; without other programs they show up to 21%")
UNEXPLAINED: Final = Limit("off its prediction, unexplained", MAX_UNEXPLAINED, math.inf, "share", "run",
    "an exact formula predicts this very time, and links are within 3 to 5% of theirs; what is more has another cause")
TOO_FAST: Final = Limit("faster than its links allow", 0.03, 0.03, "share", "run",
    "a shaper passes its rate and its idle credit, no more; rates are within 3%, so the clock or the count is wrong")
RESOLUTION: Final = Limit("share of idle credit or lag", 0.05, math.inf, "share", "run",
    "what idle credit (credit over message) or a late thread changes must not be more than what a row is judged by")
RAILS_MISSING: Final = Limit("points with a rail lost", 0.0, 0.0, "", "run",
    "without a rail that nothing cut, it is another fabric than the point is named for")
RAILS_REMEASURED: Final = Limit("times measured anew", 0.0, math.inf, "", "run",
    "a rail that nothing cut was taken for dead: the machine stood still, which it may have done unseen, too")
PROCESS_MISSING: Final = Limit("processes interrupted", 0.0, 0.0, "", "machine",
    "what a stopped or dead process should have sent, received or forwarded meanwhile is missing from the result")
CLOCKS: Final = Limit("clocks apart", 100e-6, math.inf, "s", "machine",
    "a transfer begins by one machine's clock and ends by another's; the shortest phases that are judged take ms")
UNDERLAY: Final = Limit("underlay bytes off", 0.25, math.inf, "share", "machine",
    "headers are counted, acknowledgements and control add up to 10%; what is more shares interfaces with the cables")
FAULT_LATE: Final = Limit("fault injected late", LATE_S, math.inf, "s", "machine",
    "faults less than 50 ms apart count as simultaneous; a later one meets another state of the fabric or workload")
BACKGROUND: Final = Limit("background not sent", 0.03, 0.10, "share", "machine",
    "as for link rates: beside less background than was asked for, a path is faster than its prediction")
LIMITS: Final = (
    LINK_RATE, CPU_BUSY, CPU_FOREIGN, CPU_STOLEN, CPU_THROTTLED, CPU_RESOLUTION, LAG, PAUSED, PAUSE, FOREIGN_BURST,
    RETRANSMITS, NEEDLESS, DROPS, PORT_BYTES, BYTES, UNEXPLAINED, TOO_FAST, RESOLUTION, RAILS_MISSING,
    RAILS_REMEASURED, PROCESS_MISSING, FAULT_LATE, BACKGROUND, CLOCKS, UNDERLAY)
# fmt: on


UNDERLAY_FLOOR_BYTES: Final = 1e6
"""Of fewer bytes between machines, control messages may be most."""
