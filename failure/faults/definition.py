"""What a kind of fault is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from railyard.failure.scenario.kinds import Fault
from railyard.topologies.build.network import FabricNet

FaultHook = Callable[[FabricNet, Fault], None]


def no_op(net: FabricNet, fault: Fault) -> None:
    """Most kinds need no preparation."""


@dataclass(frozen=True, slots=True)
class FaultDefinition:
    """How to break it (`apply`, at once), how to mend it, and what shows that it is broken.

    `symptoms`: a truth for each part of it, at least one; all true while it is broken, all false when it is whole.
    `prepare`: what takes programs, and changes nothing yet.
    """

    apply: FaultHook
    repair: FaultHook
    symptoms: Callable[[FabricNet, Fault], Sequence[bool]]
    prepare: FaultHook = no_op
