"""Which optical switch has to move which fibres: asked by names of GPUs, told in datapath ids and ports."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product

from railyard.topologies.addresses import (
    NETWORK_PORT_OFFSET,
    Gpu,
    gpu_of_name,
    gpu_of_optical_port,
    gpu_port,
    network_port,
)
from railyard.topologies.plan import Plan
from railyard.topologies.spec import Layer


def moves_by_switch(plan: Plan, moves: Mapping[str, str], layers: Iterable[Layer]) -> dict[int, dict[int, int]]:
    """{"d0g4": "d0g1"}, d0g4's fibre to the place that is d0g1's by the plan, as {datapath id: {fibre: place}}.

    ValueError for a name that isn't one of the plan's GPUs, a layer without optical switches, two fibres to one place,
    and a fibre and a place that aren't at one optical switch: light can't get from the one to the other.
    """
    if len(set(moves.values())) < len(moves):
        raise ValueError(f"two fibres can't lead to one place: {dict(moves)}")
    pairs = [(gpu_of_name(gpu_side), gpu_of_name(network_side)) for gpu_side, network_side in moves.items()]
    if unknown := {gpu.name for pair in pairs for gpu in pair} - {gpu.name for gpu in plan.gpus}:
        raise ValueError(f"the fabric has no {', '.join(sorted(unknown))}")
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for layer, (gpu_side, network_side) in product(layers, pairs):
        near, far = plan.optical_switch(layer, gpu_side), plan.optical_switch(layer, network_side)
        if near is None or far is None:
            raise ValueError(f"layer {layer} has no optical switch")
        if near != far:
            raise ValueError(
                f"{gpu_side.name}'s fibre is at {near.name}, and {network_side.name}'s place at {far.name}"
            )
        found[near.dpid][gpu_port(gpu_side)] = network_port(network_side)
    return dict(found)


def network_sides_in(affected_ports: Mapping[int, Mapping[int, bool]]) -> dict[Gpu, bool]:
    """The places among ports that go dark, {datapath id: {port: whether it is lit again}}: whether at any switch one is
    lit again.
    """
    found: dict[Gpu, bool] = {}
    for port, is_enabled in (entry for ports in affected_ports.values() for entry in ports.items()):
        if port > NETWORK_PORT_OFFSET:
            network_side = gpu_of_optical_port(port)
            found[network_side] = found.get(network_side, False) or is_enabled
    return found
