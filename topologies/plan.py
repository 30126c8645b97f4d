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
    UPLINK_PORT,
    Gpu,
    gpu_at,
    gpu_port,
    link_name,
    link_of_name,
    network_port,
    port_of,
    rail_device,
    role_of,
)
from railyard.topologies.fabric_kinds import LAYERS, End, FabricPlan, Layer, Link, Switch
from railyard.topologies.graph import FabricGraph
from railyard.topologies.nics import gpus_of_nic, nic_name
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
        return f"the {self.spec.kind} fabric of {self.spec.size_text}"

    @property
    def frame_s(self) -> float:
        """Seconds that a rail link takes to send a frame, by the clock."""
        return 8 * self.spec.mtu / self.rail_bps

    @property
    def control_processes(self) -> tuple[str, ...]:
        """The processes of the control plane that can fail."""
        return "controller", "registry"

    def link_names(self, layer: Layer) -> tuple[str, ...]:
        """Return the names of a layer's GPU links: the GPU's; in other planes with the interface (`d0g1:rail1`).

        Where GPUs share NICs, rail links have the names of these.
        """
        if layer == "rail" and self.nics:
            return self.nics
        planes = self.spec.definition.all_planes if layer == "rail" else (0,)
        return tuple(link_name(gpu, plane) for plane, gpu in product(planes, self.gpus))

    def link_name_of(self, gpu: Gpu, layer: Layer) -> str:
        """Return the name of a GPU's link of a layer, in plane 0: that of its NIC where GPUs share these."""
        return self.nic_of(gpu) if layer == "rail" and self.nics else gpu.name

    def link_of(self, name: str, layer: Layer) -> Link:
        """Return a GPU link by its name: `a` is the end of the GPU, or of the NIC."""
        if layer == "rail" and self.nics:
            return self.rail_link(self.gpus_of_nic[name][0])
        gpu, plane = link_of_name(name)
        return self.rail_link(gpu, plane) if layer == "rail" else self.hb_link(gpu)

    def ends_of(self, name: str, layer: Layer) -> tuple[End, End]:
        """Return the ends of a GPU link by its name: at the GPU, and in its network, behind any optical switch."""
        if layer == "rail" and self.nics:
            link = self.link_of(name, layer)
            return link.a, link.b
        gpu, plane = link_of_name(name)
        return self.link_of(name, layer).a, self.network_end(gpu, layer, plane)

    @cached_property
    def hb_bridges(self) -> tuple[str, ...]:
        """Names of the bridges of all HB domains."""
        return tuple(f"hb{d}" for d in range(self.spec.domains))

    @cached_property
    def nics(self) -> tuple[str, ...]:
        """Names of the NICs that GPUs share, domain by domain; none where each GPU has its own."""
        return tuple(self.gpus_of_nic)

    @cached_property
    def gpus_of_nic(self) -> dict[str, tuple[Gpu, ...]]:
        """The GPUs of each NIC, by its name; empty where each GPU has its own."""
        by_rank = self.spec.rail_of_rank
        if not by_rank:
            return {}
        places = product(range(self.spec.domains), range(self.spec.rail_count))
        return {nic_name(*place): gpus_of_nic(by_rank, *place) for place in places}

    def cables_behind(self, name: str) -> tuple[Link, ...]:
        """Return the connections of the GPUs of a shared NIC, by its name; none for the name of a GPU's own link."""
        return tuple(map(self.nic_cable, self.gpus_of_nic.get(name, ())))

    def nic_of(self, gpu: Gpu) -> str:
        """Return the name of the NIC that a GPU shares with others."""
        return nic_name(gpu.domain, self.spec.rail_of(gpu.rank))

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
        """GPUs, bridges, NICs that GPUs share, switches."""
        return self.hosts + self.hb_bridges + self.nics + tuple(switch.name for switch in self.switches)

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        """All OpenFlow switches: rails, spines, optical ones; or those of the kind's graph."""
        kind = self.spec.definition
        if kind.is_graph:
            return tuple(self._graph_switch(number, name) for number, name in enumerate(self.graph.switches))
        network = kind.rail_switches(self.spec.rail_count) + kind.spines(self.spec.spine_count)
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
        return self.spec.rail_switch(gpu.rank, plane)

    def gpus_at(self, dpid: int, port: int) -> tuple[Gpu, ...]:
        """Return the GPUs behind a switch's port: those of a NIC, or one; none behind a port to another switch."""
        if not self.nics:
            gpu = gpu_at(dpid, port)
            return () if gpu is None else (gpu,)
        role, rail = role_of(dpid)
        if role != "rail" or port >= UPLINK_PORT:
            return ()
        return self.gpus_of_nic[nic_name(port - 1, rail)]

    def port_name(self, dpid: int, port: int) -> str:
        """Return what events call a switch's port: the GPU or NIC behind it, or its number."""
        gpus = self.gpus_at(dpid, port)
        if not gpus:
            return f"port {port}"
        return self.nic_of(gpus[0]) if self.nics else gpus[0].name

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
        """The GPU's r-interface into its rail switch of a plane, or into the optical switch before it.

        Where GPUs share NICs, it is the link of the GPU's NIC.
        """
        if self.nics:
            return Link(End(self.nic_of(gpu), rail_device(0)), self.network_end(gpu, "rail"), "rail", self.rail_bps)
        kind = self.spec.definition
        rate_bps = self.rail_bps // len(kind.carrying(kind.all_planes))
        return Link(End(gpu.name, rail_device(plane)), self._far_end(gpu, "rail", plane), "rail", rate_bps)

    def rail_links(self, gpu: Gpu) -> tuple[Link, ...]:
        """Return all rail links of a GPU, one for each plane."""
        return tuple(self.rail_link(gpu, plane) for plane in self.spec.definition.all_planes)

    def nic_cable(self, gpu: Gpu) -> Link:
        """Return the connection of a GPU to the NIC that it shares: it has no shaper, since the NIC's link has."""
        return Link(End(gpu.name, rail_device(0)), End(self.nic_of(gpu), rail_device(0)), "nic", self.rail_bps)

    def gpu_links(self, gpu: Gpu) -> tuple[Link, ...]:
        """Return the links of a GPU's own interfaces: of the rails, then of the HB domain."""
        rail_links = (self.nic_cable(gpu),) if self.nics else self.rail_links(gpu)
        return (*rail_links, self.hb_link(gpu))

    @property
    def devices(self) -> tuple[str, ...]:
        """The interfaces of every GPU: hb0, rail0, and rail1, ... where there are several planes."""
        return ("hb0", *map(rail_device, self.spec.definition.all_planes))

    def network_end(self, gpu: Gpu, layer: Layer, plane: int = 0) -> End:
        """The GPU's place at its rail switch of a plane, or at the bridge of its HB domain."""
        if layer == "hb":
            return End(f"hb{gpu.domain}", gpu.name)
        switch = self.rail_switch(gpu, plane)
        interface = self.nic_of(gpu) if self.nics else gpu.name
        return End(switch.name, interface, port_of(switch.role, gpu))

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
            return self.spec.definition.uplinks(self.spec.rail_count, self.spec.spine_count, self.uplink_bps)
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
        # GPUs of a NIC have the same rail link
        rail_links = tuple(dict.fromkeys(chain.from_iterable(map(self.rail_links, self.gpus))))
        nic_cables = tuple(map(self.nic_cable, self.gpus)) if self.nics else ()
        return hb_links + nic_cables + rail_links + self.trunks + self.uplinks


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
