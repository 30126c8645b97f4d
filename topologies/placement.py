"""Placement of a fabric on several machines: which machine has which namespace, and which cables join two machines.

HB domains are whole on a machine, since their links are the fast ones, and neighbouring domains share one. Each rail
switch is on one machine, in turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from railyard.topologies.fabric_kinds import Link
from railyard.topologies.plan import Plan


@dataclass(frozen=True)
class Placement:
    """Machines are counted from 0; the first has the controller. `machine_of`: by the name of a namespace.

    `earlier_tunnels`: those of the run's earlier fabrics, which the kernel may not have removed yet.
    """

    plan: Plan
    machines: int
    machine_of: Mapping[str, int]
    earlier_tunnels: int = 0

    def nodes(self, machine: int) -> frozenset[str]:
        """Return the names of the namespaces of a machine."""
        return frozenset(node for node, place in self.machine_of.items() if place == machine)

    def domains(self, machine: int) -> tuple[int, ...]:
        """Return the HB domains of a machine."""
        return tuple(d for d, bridge in enumerate(self.plan.hb_bridges) if self.machine_of[bridge] == machine)

    @cached_property
    def tunnels(self) -> tuple[Link, ...]:
        """The cables between two machines; the place of one here is the number of its tunnel."""
        return tuple(link for link in self.plan.links if self.machine_of[link.a.node] != self.machine_of[link.b.node])


def place(plan: Plan, machines: int) -> Placement:
    """Place a fabric without spines and optical switches. ValueError if it has fewer domains than `machines`."""
    domains = plan.spec.domains
    if not 1 <= machines <= domains:
        raise ValueError(f"{domains} HB domains can't be placed whole on {machines} machines")
    machine_of_domain = [domain * machines // domains for domain in range(domains)]
    machine_of = dict(zip(plan.hb_bridges, machine_of_domain, strict=True))
    for gpu in plan.gpus:
        machine_of[gpu.name] = machine_of_domain[gpu.domain]
    for number, switch in enumerate(plan.switches):
        machine_of[switch.name] = number % machines
    return Placement(plan, machines, machine_of)
