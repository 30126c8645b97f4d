"""Everything that a multi-rail fabric consists of, worked out before the kernel is touched.

    n0    n1    n2    n3      every node has a NIC rail<r> on every rail r, and every rail a switch of its own;
    ||    ||    ||    ||      a rail that sums in the network has an aggregator at its switch
    |+----|+----|+----|+---- rail1 ---- agg1
    +-----+-----+-----+----- rail0

Rates are bit/s on the wire, per cable and direction. An aggregator's cable is the inside of a switch, which sums as
frames come in and sends a sum out on all its ports at once. So it has the rail's rate times the nodes squared: all
nodes' copies pass in an N-th of the time that one takes on a node's cable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.multirail.addresses import SWITCH_DPID, Nic, switch_name
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.topologies.multirail.scale import rail_rates, scale_of
from railyard.topologies.multirail.spec import MultirailSpec, RailSpec
from railyard.topologies.plan import End, Link, Switch


@dataclass(frozen=True)
class MultirailPlan:
    """A fabric with every rate decided. `spec` is what the user wrote; `rates_bps` and `scale` what came of it.

    `dilation`: how many times slower time passes in it, see `dilated`.
    """

    spec: MultirailSpec
    rates_bps: tuple[int, ...]
    scale: float
    dilation: float = 1.0

    def dilated(self, factor: float) -> "MultirailPlan":
        """The same fabric in slow motion: rates, set-up latencies and processor costs are all so many times slower, so
        what this machine itself costs weighs so many times less. Times measured there, divided by it, are this one's.

        Source: time dilation, Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation" (NSDI 2006).
        """
        rates = tuple(round(rate * self.dilation / factor) for rate in self.rates_bps)
        return replace(self, rates_bps=rates, dilation=factor)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for another process; `from_dict` makes the same plan of it again."""
        data = {"rates_bps": self.rates_bps, "scale": self.scale, "dilation": self.dilation}
        return {"spec": self.spec.model_dump(mode="json"), **data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MultirailPlan":
        spec = MultirailSpec.model_validate(data["spec"])
        return cls(spec, tuple(data["rates_bps"]), data["scale"], data["dilation"])

    @property
    def rails(self) -> tuple[RailSpec, ...]:
        return self.spec.rails

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"n{node}" for node in range(self.spec.nodes))

    @cached_property
    def aggregators(self) -> tuple[Nic | None, ...]:
        """By rail: the NIC of its aggregator, None where the rail doesn't sum in the network."""
        return tuple(
            Nic(rail, None) if RAIL_KINDS[spec.kind].sums_in_network else None for rail, spec in enumerate(self.rails)
        )

    def nics_on(self, rail: int) -> tuple[Nic, ...]:
        """All NICs on a rail, an aggregator's last."""
        aggregator = self.aggregators[rail]
        return tuple(Nic(rail, node) for node in range(self.spec.nodes)) + ((aggregator,) if aggregator else ())

    def nics_of(self, namespace: str) -> tuple[Nic, ...]:
        """All NICs of a node or aggregator."""
        return tuple(nic for rail in range(len(self.rails)) for nic in self.nics_on(rail) if nic.namespace == namespace)

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        return tuple(Switch(switch_name(r), "rail", r, SWITCH_DPID + r) for r in range(len(self.rails)))

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Nodes, aggregators, switches."""
        aggregators = tuple(nic.namespace for nic in self.aggregators if nic)
        return self.nodes + aggregators + tuple(switch.name for switch in self.switches)

    def link(self, nic: Nic) -> Link:
        """The cable of a NIC: `a` is the NIC, `b` the switch's end. An aggregator's is faster: see above."""
        is_aggregators = nic.node is None
        rate = self.rates_bps[nic.rail] * (self.spec.nodes**2 if is_aggregators else 1)
        a = End(nic.namespace, nic.interface)
        return Link(a, End(switch_name(nic.rail), nic.namespace, nic.port), "rail", rate)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return tuple(self.link(nic) for rail in range(len(self.rails)) for nic in self.nics_on(rail))

    def payload_bps(self, rail: int) -> float:
        """What TCP gets of a NIC's rate at most, bit/s: headers count."""
        return self.rates_bps[rail] * payload_fraction(self.spec.mtu)


def make_multirail_plan(spec: MultirailSpec, frames_per_s: float | None = None) -> MultirailPlan:
    """Decide every rate. `frames_per_s`: what the machine carries (capacity.py).

    BadInput if the rates that were asked for are more than that; ValueError if there is `auto` to decide and nothing
    to decide it by.
    """
    scale = scale_of(spec, frames_per_s)
    return MultirailPlan(spec, rail_rates(spec, scale, frames_per_s), scale)
