"""A rail as its user describes it: rate, set-up latency, CPU cost, kind; and the three rails of the paper.

Source: Nezha section 2.3, Eq. 2 (`T_setup` is paid for each message), Table 1 and 2, Fig. 2, Fig. 13. Units: bytes,
seconds, bytes per second.

`paper_rails` is fitted to what the text states, since figures give no numbers:

| what | stated | fitted on 4 nodes |
|---|---|---|
| SHARP, 1 KB, 8 MB, 64 MB (Table 1) | 9, 22,140, 181,484 us | 9, 22,396, 179,111 us |
| TCP, 1 KB, 8 MB, 64 MB (Table 1) | 982, 37,137, 316,323 us | 982, 38,765, 303,252 us |
| SHARP over TCP at 32 KB (section 2.3.1) | 12 times the throughput | 12 times |
| GLEX above SHARP (section 2.3.1) | from 64 KB, SHARP best under 256 KB | from 128 KB |
| TCP beside GLEX (section 5.2.2) | gains 46% (beside SHARP 52%) | ideal 53% (60%): the same 12% is lost to contention |

Table 1's TCP slows down from 232 to 213 MB/s between 8 and 64 MB, which a straight line can't: it stays within 5%.
All three stay far below their NIC's 100 or 128 Gbit/s (Table 2), so what binds them is the CPU (Fig. 13).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from railyard.core.errors import BadInput, unknown_name_hint

Kind = Literal["tcp", "sharp", "glex"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Rail:
    """One network that every node has a NIC on.

    `rate` in bytes per second and direction, `setup_s` for each message that waits for the one before,
    `cpu_s_per_byte` for each byte that a node sends while it receives another. `nominal`: what its data sheet calls
    it, bytes per second, for MRIB, who knows nothing else of a rail and weighs ratios alone; `rate` where 0.
    """

    name: str
    kind: Kind
    rate: float
    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    nominal: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"rails.{self.name}.kind", self.kind, unknown_name_hint(self.kind, KINDS))
        if not 0 < self.rate < math.inf:
            raise BadInput(
                f"rails.{self.name}.rate", self.rate, "must be above 0: a rail without a rate carries nothing"
            )
        for field in ("setup_s", "cpu_s_per_byte", "nominal"):
            value = getattr(self, field)
            if not 0 <= value < math.inf:
                raise BadInput(f"rails.{self.name}.{field}", value, "must be 0 or more")

    @property
    def s_per_byte(self) -> float:
        """Seconds per byte on the wire: chunks are pipelined, so the slower of link and CPU sets it (Fig. 13)."""
        return max(1 / self.rate, self.cpu_s_per_byte)


def scaled(rail: Rail, factor: float) -> Rail:
    """A rail that is `factor` times slower, in bytes: with sizes divided by it too, all times stay as they were.
    Its data sheet is the same."""
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: {factor} must be above 0")
    return replace(rail, rate=rail.rate / factor, cpu_s_per_byte=rail.cpu_s_per_byte * factor)


def combined_rail(rails: Sequence[Rail]) -> Rail:
    """What MPTCP makes of them: as fast as all together, with what a message costs on the first."""
    cpus = [rail.cpu_s_per_byte for rail in rails]
    cpu = 1 / sum(1 / cost for cost in cpus) if all(cpus) else 0.0
    return Rail("mptcp", "tcp", sum(rail.rate for rail in rails), rails[0].setup_s, cpu)


def paper_rails() -> dict[Kind, Rail]:
    """The paper's rails at their full rate; on 4 nodes a ring has 6 messages and moves 3/2 of the buffer."""
    return {
        "tcp": Rail("tcp", "tcp", 100e9 / 8, 977.4e-6 / 6, 4.504e-9 / 1.5),
        "sharp": Rail("sharp", "sharp", 100e9 / 8, 6.3e-6 / 2, 2.669e-9),
        "glex": Rail("glex", "glex", 128e9 / 8, 43.4e-6 / 6, 2.386e-9 / 1.5),
    }
