"""Kinds of faults of a multi-rail fabric: of a NIC's link, or of a rail's switch.

A kind is one module of `rail_faults/`, or a plugin: an instance of a subclass of `RailFault` in `RAIL_FAULTS`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from railyard.core.registry import Registry
from railyard.topologies.multirail.spec import Nic

if TYPE_CHECKING:
    from railyard.topologies.multirail.net import MultirailNet


class RailFault:
    """Definition of a kind. `is_link`: it is at the link of one node; else at the switch of the rail, for all nodes."""

    is_link: ClassVar[bool] = False

    def inject(self, net: "MultirailNet", node: str, rail: int) -> int:
        """Inject it at a node (namespace, also of an aggregator) and a rail; return when, ns of CLOCK_MONOTONIC.

        RuntimeError where the kernel lacks what it needs.
        """
        raise NotImplementedError

    def repair(self, net: "MultirailNet", node: str, rail: int) -> None:
        """Repair it. Repairing what works changes nothing."""
        raise NotImplementedError


def nic_of(net: "MultirailNet", node: str, rail: int) -> Nic:
    """Return a node's NIC on a rail. ValueError if there is none."""
    found = next((nic for nic in net.plan.nics_of(node) if nic.rail == rail), None)
    if found is None:
        raise ValueError(f"{node} has no NIC on rail {rail}")
    return found


def _problems(name: str, fault: object) -> Iterator[str]:
    if not isinstance(fault, RailFault):
        yield "must be an instance of a subclass of RailFault"
        return
    for method in ("inject", "repair"):
        if getattr(type(fault), method) is getattr(RailFault, method):
            yield f"the method {method}(net, node, rail) is missing"


RAIL_FAULTS: Final = Registry[RailFault](
    "rail fault kind", "railyard.topologies.multirail.rail_faults", check=_problems
)
