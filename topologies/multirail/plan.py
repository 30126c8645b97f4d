"""Plan of a multi-rail fabric: its scale, rates, links and switches, decided before the kernel is touched.

Every node n<i> has a NIC rail<r> on every rail r, and every rail a switch of its own; a rail that sums in the network
has an aggregator agg<r> at its switch. Rates are bit/s on the wire, per link and direction. docs/topologies.md says why
scale and aggregators' rates are so.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil, log10
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.units import format_rate
from railyard.topologies.build.shaping import ETHERNET, payload_fraction
from railyard.topologies.fabric_kinds import FABRIC_KINDS, End, FabricPlan, Layer, Link, Switch
from railyard.topologies.multirail.spec import MultirailSpec, Nic, RailSpec, switch_name
from railyard.topologies.rail_kind import RAIL_KINDS

# part of the machine's frames that `auto` takes; nodes, which sum, and acknowledgements get the rest
SHARE: Final = 0.3
MAX_RATE_BPS: Final = 1_000_000_000
# for `auto` rails where no machine is measured: predicted times hardly depend on it
NOMINAL_SCALE: Final = 50.0
_STEPS: Final = (1, 2, 5, 10)


def frames_needed(spec: MultirailSpec, rates_bps: tuple[float, ...]) -> float:
    """Frames a second through switches when every rail is full."""
    passages_bps: float = 0
    for rail, rate_bps in zip(spec.rails, rates_bps, strict=True):
        # to the aggregator and back
        passages = 2 if RAIL_KINDS[rail.kind].sums_in_network else 1
        passages_bps += rate_bps * passages
    return spec.nodes * passages_bps / 8 / (spec.mtu + ETHERNET)


def scale_of(spec: MultirailSpec, frames_per_s: float | None) -> float:
    """The scale that was given; else that of the rates that were given, all of them together; else what the machine
    carries within `SHARE`: 1, 2 or 5 times a power of ten.
    """
    if spec.scale is not None:
        return spec.scale
    specified_bps = 0
    paper_bps: float = 0
    for rail in spec.rails:
        if isinstance(rail.rate, int):
            specified_bps += rail.rate
            paper_bps += RAIL_KINDS[rail.kind].effective_bps
    if specified_bps:
        return paper_bps / specified_bps
    if frames_per_s is None:
        raise ValueError("all rates are auto: what the machine carries must be known")
    all_paper_bps = tuple(RAIL_KINDS[rail.kind].effective_bps for rail in spec.rails)
    by_frames = frames_needed(spec, all_paper_bps) / (SHARE * frames_per_s)
    by_rate = max(all_paper_bps) / MAX_RATE_BPS
    return round_up(max(by_frames, by_rate))


def round_up(scale: float) -> float:
    """Return the scale rounded up to 1, 2 or 5 times a power of ten, and to 1 at least."""
    power = 10 ** max(0, ceil(log10(max(scale, 1))) - 1)
    for step in _STEPS:
        if step * power >= scale:
            break
    return float(step * power)


def rail_rates(spec: MultirailSpec, scale: float, frames_per_s: float | None) -> tuple[int, ...]:
    """bit/s of every rail; `auto` is what the paper's rail of that kind moves, to scale. BadInput if it's too much."""
    rates: list[int] = []
    for rail in spec.rails:
        if isinstance(rail.rate, int):
            rates.append(rail.rate)
        else:
            rates.append(round(RAIL_KINDS[rail.kind].effective_bps / scale))
    if frames_per_s is None:
        return tuple(rates)
    needed = frames_needed(spec, tuple(rates))
    if needed > frames_per_s:
        fastest = rates.index(max(rates))
        max_rate = format_rate(rates[fastest] * frames_per_s / needed, 2)
        allowed = f"is more than this machine carries: {max_rate}, all rails in this proportion, or auto"
        raise BadInput(f"fabric.rails.{fastest}.rate", format_rate(rates[fastest]), allowed)
    return tuple(rates)


@dataclass(frozen=True)
class MultirailPlan(FabricPlan):
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

    @property
    def rails(self) -> tuple[RailSpec, ...]:
        """The rails as specified."""
        return self.spec.rails

    @property
    def addresses(self) -> dict[str, str]:
        """The nodes' addresses on rail 0."""
        return {nic.namespace: nic.ip for nic in self.nics_on(0) if nic.node is not None}

    @property
    def title(self) -> str:
        """The fabric in words, for messages."""
        return f"the {self.spec.kind} fabric of {self.spec.nodes} nodes x {len(self.rails)} rails"

    @cached_property
    def _named_nics(self) -> dict[str, Nic]:
        return {f"{self.rails[nic.rail].name} of {nic.namespace}": nic for nic in self.nics}

    def link_names(self, layer: Layer) -> tuple[str, ...]:
        """Return the names of all rail links, as faults have them: `tcp0 of n1`."""
        return tuple(self._named_nics) if layer == "rail" else ()

    def link_of(self, name: str, layer: Layer) -> Link:
        """Return a link by its name: `a` is the NIC."""
        return self.link(self._named_nics[name])

    def ends_of(self, name: str, layer: Layer) -> tuple[End, End]:
        """Return the ends of a link by its name: at the node, and at the rail's switch."""
        link = self.link_of(name, layer)
        return link.a, link.b

    def place_of(self, target: str) -> tuple[int, int]:
        """Return the rail of a fault's target, a link or a switch, and a node at which its effect shows."""
        if target not in self._named_nics:
            return next(switch.index for switch in self.switches if switch.name == target), 1
        nic = self._named_nics[target]
        return nic.rail, 1 if nic.node is None else nic.node

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(f"n{node}" for node in range(self.spec.nodes))

    @cached_property
    def aggregators(self) -> tuple[Nic | None, ...]:
        """The NIC of each rail's aggregator, None where the rail doesn't sum in the network."""
        aggregators: list[Nic | None] = []
        for rail, spec in enumerate(self.rails):
            sums = RAIL_KINDS[spec.kind].sums_in_network
            aggregators.append(Nic(rail, None) if sums else None)
        return tuple(aggregators)

    @cached_property
    def nics(self) -> tuple[Nic, ...]:
        """All NICs, rail by rail."""
        return tuple(chain.from_iterable(map(self.nics_on, range(len(self.rails)))))

    def nics_on(self, rail: int) -> tuple[Nic, ...]:
        """All NICs on a rail, an aggregator's last."""
        nics = [Nic(rail, node) for node in range(self.spec.nodes)]
        aggregator = self.aggregators[rail]
        if aggregator:
            nics.append(aggregator)
        return tuple(nics)

    def nics_of(self, namespace: str) -> tuple[Nic, ...]:
        """All NICs of a node or aggregator."""
        return tuple(nic for nic in self.nics if nic.namespace == namespace)

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        """A switch for each rail."""
        return tuple(map(FABRIC_KINDS[self.spec.kind].rail_switch, range(len(self.rails))))

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Nodes, aggregators, switches."""
        aggregators = tuple(nic.namespace for nic in self.aggregators if nic)
        return self.hosts + aggregators + tuple(switch.name for switch in self.switches)

    def link(self, nic: Nic) -> Link:
        """The cable of a NIC: `a` is the NIC, `b` the switch's end. An aggregator's is faster: see above."""
        is_aggregators = nic.node is None
        rate = self.rates_bps[nic.rail] * (self.spec.nodes**2 if is_aggregators else 1)
        a = End(nic.namespace, nic.interface)
        return Link(a, End(switch_name(nic.rail), nic.namespace, nic.port), "rail", rate)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The cables of all NICs."""
        return tuple(map(self.link, self.nics))

    def payload_bps(self, rail: int) -> float:
        """Return the most that TCP gets of a NIC's rate, bit/s: headers count."""
        return self.rates_bps[rail] * payload_fraction(self.spec.mtu)


def nominal_plan(spec: MultirailSpec) -> MultirailPlan:
    """Return the fabric with `auto` rates at their nominal scale."""
    if spec.scale is None and all(rail.rate == "auto" for rail in spec.rails):
        spec = spec.model_copy(update={"scale": NOMINAL_SCALE})
    return make_multirail_plan(spec)


def make_multirail_plan(spec: MultirailSpec, frames_per_s: float | None = None) -> MultirailPlan:
    """Decide every rate. `frames_per_s`: what the machine carries (measure/rates.py).

    BadInput if the rates that were asked for are more than that; ValueError if there is `auto` to decide and nothing
    to decide it by.
    """
    scale = scale_of(spec, frames_per_s)
    return MultirailPlan(spec, rail_rates(spec, scale, frames_per_s), scale)
