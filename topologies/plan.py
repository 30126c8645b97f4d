"""Plan of a fabric: everything that it consists of, worked out before the kernel is touched.

A plan is frozen and holds concrete rates. The plan of the running fabric is kept in the sandbox's own /run, for
programs that enter a live run from outside.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Final

from railyard.core import plugins
from railyard.topologies.addresses import (
    OPTICAL_DPID,
    Gpu,
    gpu_port,
    link_name,
    link_of_name,
    network_port,
    port_of,
    rail_device,
)
from railyard.topologies.fabric_kinds import LAYERS, End, FabricPlan, Layer, Link, Switch
from railyard.topologies.graph import FabricGraph
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec


@dataclass(frozen=True)
class Plan(FabricPlan):
    """A fabric with every rate decided. `spec` is what the user wrote."""

    spec: FabricSpec
    rail_bps: int
    hb_bps: int

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Domain by domain, so that GPU number n is G(n // K, n % K)."""
        return tuple(Gpu(d, g) for d in range(self.spec.domains) for g in range(self.spec.rails))

    @property
    def title(self) -> str:
        """The fabric in words, for messages."""
        return f"the {self.spec.kind} fabric of {self.spec.domains} domains x {self.spec.rails} rails"

    @property
    def frame_s(self) -> float:
        """Seconds that a rail link takes to send a frame, by the clock."""
        return 8 * self.spec.mtu / self.rail_bps

    @property
    def control_processes(self) -> tuple[str, ...]:
        """The processes of the control plane that can fail."""
        return "controller", "registry"

    def link_names(self, layer: Layer) -> tuple[str, ...]:
        """Return the names of a layer's GPU links: the GPU's; in other planes with the interface (`d0g1:rail1`)."""
        planes = self.spec.definition.all_planes if layer == "rail" else (0,)
        return tuple(link_name(gpu, plane) for plane, gpu in product(planes, self.gpus))

    def link_of(self, name: str, layer: Layer) -> Link:
        """Return a GPU link by its name: `a` is the GPU's end."""
        gpu, plane = link_of_name(name)
        return self.rail_link(gpu, plane) if layer == "rail" else self.hb_link(gpu)

    def ends_of(self, name: str, layer: Layer) -> tuple[End, End]:
        """Return the ends of a GPU link by its name: at the GPU, and in its network, behind any optical switch."""
        gpu, plane = link_of_name(name)
        return self.link_of(name, layer).a, self.network_end(gpu, layer, plane)

    @cached_property
    def hb_bridges(self) -> tuple[str, ...]:
        """Names of the bridges of all HB domains."""
        return tuple(f"hb{d}" for d in range(self.spec.domains))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The GPUs' names."""
        return tuple(gpu.name for gpu in self.gpus)

    @property
    def addresses(self) -> dict[str, str]:
        """The GPUs' addresses."""
        return {gpu.name: gpu.ip for gpu in self.gpus}

    @property
    def namespaces(self) -> tuple[str, ...]:
        """GPUs, bridges, switches."""
        return self.hosts + self.hb_bridges + tuple(switch.name for switch in self.switches)

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        """All OpenFlow switches: rails, spines, optical ones; or those of the kind's graph."""
        kind = self.spec.definition
        if kind.is_graph:
            return tuple(self._graph_switch(number, name) for number, name in enumerate(self.graph.switches))
        network = kind.rail_switches(self.spec.rails) + kind.spines(self.spec.spine_count)
        return network + tuple(chain.from_iterable(self.optics.values()))

    def _graph_switch(self, number: int, name: str) -> Switch:
        return Switch(name, self.graph.role(name), number, self.graph.dpids[name])

    @property
    def graph(self) -> FabricGraph:
        """The NIC network as a graph."""
        return self.spec.graph

    def rail_switch(self, gpu: Gpu, plane: int = 0) -> Switch:
        """Return the switch that a GPU's rail link of a plane leads to."""
        if self.spec.definition.is_graph:
            return self._switches_by_name[self.graph.switch_of[gpu]]
        return self.spec.definition.rail_switch(gpu.rank, plane)

    @cached_property
    def _switches_by_name(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def optics(self) -> dict[Layer, tuple[Switch, ...]]:
        """The optical switches of each layer that goes through any: one for each domain, or one for all."""
        optical = self.spec.optical
        if optical is None:
            return {}
        count = self.spec.domains if optical.is_per_domain else len(LAYERS)
        switches = tuple(Switch(f"ocs{i}", "optical", i, OPTICAL_DPID + i) for i in range(count))
        if optical.is_per_domain:
            return {"rail": switches}
        return {layer: (switches[i],) for i, layer in enumerate(LAYERS) if layer in optical.layers}

    def optical_switch(self, layer: Layer, gpu: Gpu) -> Switch | None:
        """Return the optical switch between a GPU and its network in a layer; None if there is none."""
        layer_switches = self.optics.get(layer)
        if not layer_switches:
            return None
        if len(layer_switches) == 1:
            return layer_switches[0]
        return layer_switches[gpu.domain]

    @cached_property
    def electrical(self) -> "Plan":
        """The fabric as packets see it before any cross-connect moves: without its optical switches."""
        return replace(self, spec=self.spec.model_copy(update={"optical": None}))

    @property
    def uplink_bps(self) -> int:
        """Rate of one rail-to-spine cable: full bisection divided by the oversubscription, spread over the spines.

        In a graph, that of the slowest cable between switches.
        """
        if self.spec.definition.is_graph:
            return min((link.rate_bps for link in self.uplinks), default=self.rail_bps)
        oversubscription = self.spec.oversubscription or 1.0
        return round(self.rail_bps * self.spec.domains / oversubscription / max(1, self.spec.spine_count))

    def hb_link(self, gpu: Gpu) -> Link:
        """The GPU's d-interface into its HB domain, or into the optical switch before it."""
        return Link(End(gpu.name, "hb0"), self._far_end(gpu, "hb"), "hb", self.hb_bps)

    def rail_link(self, gpu: Gpu, plane: int = 0) -> Link:
        """The GPU's r-interface into its rail switch of a plane, or into the optical switch before it."""
        kind = self.spec.definition
        rate_bps = self.rail_bps // len(kind.carrying(kind.all_planes))
        return Link(End(gpu.name, rail_device(plane)), self._far_end(gpu, "rail", plane), "rail", rate_bps)

    def rail_links(self, gpu: Gpu) -> tuple[Link, ...]:
        """Return all rail links of a GPU, one for each plane."""
        return tuple(self.rail_link(gpu, plane) for plane in self.spec.definition.all_planes)

    @property
    def devices(self) -> tuple[str, ...]:
        """The interfaces of every GPU: hb0, rail0, and rail1, ... where there are several planes."""
        return ("hb0", *map(rail_device, self.spec.definition.all_planes))

    def network_end(self, gpu: Gpu, layer: Layer, plane: int = 0) -> End:
        """The GPU's place at its rail switch of a plane, or at the bridge of its HB domain."""
        if layer == "hb":
            return End(f"hb{gpu.domain}", gpu.name)
        switch = self.rail_switch(gpu, plane)
        return End(switch.name, gpu.name, port_of(switch.role, gpu))

    def _far_end(self, gpu: Gpu, layer: Layer, plane: int = 0) -> End:
        switch = self.optical_switch(layer, gpu)
        if switch is None:
            return self.network_end(gpu, layer, plane)
        return End(switch.name, gpu.name, gpu_port(gpu))

    def cables(self, gpu: Gpu, layer: Layer) -> tuple[Link, ...]:
        """Return the cables from a GPU to its network: its own, and with an optical switch the one behind that."""
        gpu_links = self.rail_links(gpu) if layer == "rail" else (self.hb_link(gpu),)
        switch = self.optical_switch(layer, gpu)
        if not switch:
            return gpu_links
        near = End(switch.name, f"{gpu.name}-net", network_port(gpu))
        far = self.network_end(gpu, layer)
        return (*gpu_links, Link(near, far, layer, gpu_links[0].rate_bps))

    @cached_property
    def trunks(self) -> tuple[Link, ...]:
        """The cables between optical switches and the network: one for each GPU's place there, at the GPU's rate."""
        trunks: list[Link] = []
        for layer, gpu in product(self.optics, self.gpus):
            trunks += self.cables(gpu, layer)[1:]
        return tuple(trunks)

    @cached_property
    def uplinks(self) -> tuple[Link, ...]:
        """The cables between rail switches and spines, or between the switches of a graph."""
        if not self.spec.definition.is_graph:
            return self.spec.definition.uplinks(self.spec.rails, self.spec.spine_count, self.uplink_bps)
        links: list[Link] = []
        for ends, rate in self.graph.uplinks.items():
            a, b = sorted(ends, key=self.graph.switches.index)
            near = End(a, b, self.graph.ports[a][b])
            far = End(b, a, self.graph.ports[b][a])
            links.append(Link(near, far, "uplink", round(self.rail_bps * rate)))
        return tuple(links)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """All cables."""
        hb_links = tuple(map(self.hb_link, self.gpus))
        rail_links = tuple(chain.from_iterable(map(self.rail_links, self.gpus)))
        return hb_links + rail_links + self.trunks + self.uplinks


def make_plan(spec: FabricSpec, auto_rail_bps: int) -> Plan:
    """Decide every rate: an auto rail gets `auto_rail_bps`, and an auto HB link the platform's C_F/C_S times that."""
    rail = auto_rail_bps if spec.rail_rate == "auto" else spec.rail_rate
    hb = round(rail * PLATFORMS[spec.platform].ratio) if spec.hb_rate == "auto" else spec.hb_rate
    return Plan(spec, rail, hb)


PLAN_FILE: Final = Path("/run/railyard/plan.json")


def write_active_plan(plan: Plan) -> None:
    """Store the plan of the running fabric."""
    PLAN_FILE.parent.mkdir(parents=True, exist_ok=True)
    # renamed when it is whole, so that no reader gets half a plan
    temporary = PLAN_FILE.with_suffix(".half")
    spec = plan.spec.model_dump(mode="json")
    # with the plugins of this process, since the kind and the policy may be theirs
    temporary.write_text(json.dumps([plugins.for_other_processes(), spec, plan.rail_bps, plan.hb_bps]))
    temporary.rename(PLAN_FILE)


def read_active_plan() -> Plan | None:
    """Return the plan of the running fabric, and load its plugins; None if there is none.

    Its reader has the rights of the run's owner, whose plugins these are.
    """
    try:
        variables, spec, *rates_bps = json.loads(PLAN_FILE.read_text())
    except FileNotFoundError:
        return None
    plugins.load_from(variables)
    return Plan(FabricSpec.model_validate(spec), *rates_bps)
