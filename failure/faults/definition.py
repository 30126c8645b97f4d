"""What a kind of fault is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from railyard.failure.scenario.kinds import Fault
from railyard.topologies.build.network import FabricNet

Act = Callable[[FabricNet, Fault], None]


def nothing(net: FabricNet, fault: Fault) -> None:
    """Most kinds need no preparation."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """How to break it (`strike`, at once), how to mend it, and what shows that it is broken.

    `signs`: a truth for each part of it, at least one; all true while it is broken, all false when it is whole.
    `prepare`: what takes programs, and changes nothing yet.
    """

    strike: Act
    mend: Act
    signs: Callable[[FabricNet, Fault], Sequence[bool]]
    prepare: Act = nothing
