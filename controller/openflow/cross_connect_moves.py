"""Which optical switch has to move which fibres: asked by names of GPUs, told in datapath ids and ports."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product

from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.optical import Layer
from railyard.topologies.plan import Plan
from railyard.topologies.ports import NETWORK_SIDE, fibre_port, optical_gpu, place_port


def moves_by_switch(plan: Plan, moves: Mapping[str, str], layers: Iterable[Layer]) -> dict[int, dict[int, int]]:
    """{"d0g4": "d0g1"}, d0g4's fibre to the place that is d0g1's by the plan, as {datapath id: {fibre: place}}.

    ValueError for a name that isn't one of the plan's GPUs, a layer without optical switches, two fibres to one place,
    and a fibre and a place that aren't at one optical switch: light can't get from the one to the other.
    """
    if len(set(moves.values())) < len(moves):
        raise ValueError(f"two fibres can't lead to one place: {dict(moves)}")
    pairs = [(gpu_of_name(fibre), gpu_of_name(place)) for fibre, place in moves.items()]
    if strangers := {gpu.name for pair in pairs for gpu in pair} - {gpu.name for gpu in plan.gpus}:
        raise ValueError(f"the fabric has no {', '.join(sorted(strangers))}")
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for layer, (fibre, place) in product(layers, pairs):
        near, far = plan.optical_switch(layer, fibre), plan.optical_switch(layer, place)
        if near is None or far is None:
            raise ValueError(f"layer {layer} has no optical switch")
        if near != far:
            raise ValueError(f"{fibre.name}'s fibre is at {near.name}, and {place.name}'s place at {far.name}")
        found[near.dpid][fibre_port(fibre)] = place_port(place)
    return dict(found)


def places_in(concerned: Mapping[int, Mapping[int, bool]]) -> dict[Gpu, bool]:
    """The places among ports that go dark, {datapath id: {port: whether it is lit again}}: whether at any switch one is
    lit again.
    """
    found: dict[Gpu, bool] = {}
    for port, is_lit in (entry for ports in concerned.values() for entry in ports.items()):
        if port > NETWORK_SIDE:
            place = optical_gpu(port)
            found[place] = found.get(place, False) or is_lit
    return found
