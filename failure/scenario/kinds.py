"""What can break, as plain data: nothing here touches the kernel, so whoever only reads experiments may import it."""

from dataclasses import dataclass
from typing import Final, Literal

FaultKind = Literal[
    "link-down",
    "link-silent",
    "link-gray",
    "link-slow",
    "link-flapping",
    "hb-port-down",
    "rail-switch-crash",
    "rail-switch-hang",
    "rail-switch-reboot",
    "spine-crash",
    "gpu-crash",
    "gpu-hang",
    "server-crash",
    "controller-crash",
    "registry-crash",
]
LOSS: Final = 0.05
RATE: Final = 0.1
PERIOD_S: Final = 0.2
DOWN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """What to break: `target` is a GPU (link kinds: its rail link), a rail switch, a spine, an HB domain (hb1), or the
    word "controller" or "registry".

    For one kind each: `loss`, the share of packets that a gray link loses; `rate`, the share of its rate that a slow
    one keeps; `period`, seconds from one loss of carrier of a flapping one to the next; `down`, seconds that a
    reboot takes.
    """

    kind: FaultKind
    target: str
    loss: float = LOSS
    rate: float = RATE
    period: float = PERIOD_S
    down: float = DOWN_S
