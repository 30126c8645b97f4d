"""Migration of a rank's state to the GPU that replaces its own, from a peer with the same state.

Mixed-precision training with Adam keeps 16 bytes for each parameter: 2 + 2 for parameter and gradient in 16 bits, 12
for a 32-bit copy, momentum and variance (ZeRO, Rajbhandari et al. 2020, section 3.1). Ranks that sum their gradients
hold the same parameters, so each of them can give it.
"""

from collections import defaultdict
from collections.abc import Mapping, Set
from typing import Final

import numpy as np

from railyard.core.errors import BadInput
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import whole_bytes
from railyard.workloads.matrix.traffic_matrix import port_bytes
from railyard.workloads.scale import Scale
from railyard.workloads.schedule import Phase, Rates, Schedule
from railyard.workloads.spec import WORKLOADS, Workload
from railyard.workloads.tasks import Transfer

BYTES_PER_PARAMETER: Final = 16
STATE_PHASE: Final = "state"


def stateful_kinds() -> dict[str, type[Workload]]:
    """Return the kinds of workload of which each rank has one with the same state, by name."""
    kinds: dict[str, type[Workload]] = {}
    for name, kind in WORKLOADS.items():
        if kind.state_parameters is not Workload.state_parameters:
            kinds[name] = kind
    return kinds


def state_bytes(spec: Workload, scale: Scale, field: str) -> int:
    """Return the emulated bytes of one rank's state: of its layers and its share of them.

    BadInput for workloads that say nothing of parameters, or whose ranks hold some that no other rank has.
    """
    parameters = spec.state_parameters(scale)
    if parameters is None:
        kinds = " or ".join(sorted(stateful_kinds()))
        raise BadInput(f"{field}.kind", spec.kind, f"must be {kinds}: each rank has one with the same state")
    # without embeddings, which the emulated gradients leave out too
    return whole_bytes(BYTES_PER_PARAMETER * parameters * scale.bytes_factor)


def state_peers(schedule: Schedule) -> dict[int, frozenset[int]]:
    """For each GPU number, those that hold the same parameters: all that it sums gradients with, at however many steps.

    Only GPUs that do so are in it.
    """
    group: defaultdict[int, set[int]] = defaultdict(set)
    columns = schedule.columns
    is_dp = np.array([phase.kind == "DP" for phase in schedule.phases], dtype=bool)[columns.phase] & ~columns.is_compute
    for src, dst in np.unique(np.stack([columns.src[is_dp], columns.dst[is_dp]], axis=1), axis=0).tolist():
        merged = group[src] | group[dst] | {src, dst}
        for gpu in merged:
            group[gpu] = merged
    return {gpu: frozenset(members - {gpu}) for gpu, members in group.items()}


def state_senders(schedule: Schedule, moves: Mapping[int, int], dead: Set[int], field: str) -> dict[int, int]:
    """Return who sends the state of each GPU that moves (old: new place), as {new place: sender}.

    BadInput for a GPU whose peers all move or are dead.
    """
    sender_of: dict[int, int] = {}
    k = schedule.rails
    peers = state_peers(schedule)
    for old_gpu, new_gpu in sorted(moves.items()):
        candidates = peers.get(old_gpu, frozenset()) - dead - moves.keys()
        if not candidates:
            allowed = f"has no peer left with the state of GPU {old_gpu}: data parallelism must be 2 or more"
            raise BadInput(field, schedule.name, allowed)
        # as few receivers for each sender as possible; then a peer of the same rank, so that the state stays on a rail
        senders = list(sender_of.values())
        sender_of[new_gpu] = min(candidates, key=lambda gpu: (senders.count(gpu), gpu % k != old_gpu % k, gpu))
    return sender_of


def state_schedule(job: Schedule, state_sources: Mapping[int, int], size: int) -> Schedule:
    """`size` bytes from each giver to its receiver, {receiver: giver}, all at once, on the job's fabric."""
    step = Phase(STATE_PHASE, "collective", "point-to-point", 1, 2, size)
    tasks = tuple(Transfer(sender, receiver, size, 0) for receiver, sender in sorted(state_sources.items()))
    return Schedule(STATE_PHASE, job.gpus, job.rails, (step,), tasks)


def state_s(state: Schedule, rates: Rates, fabric: FabricSpec) -> float:
    """Return the least time in s: bytes over rate of its busiest port, on the paths of the fabric's policy."""
    ports = port_bytes(state, fabric)
    on_rails = max(ports.rail_in.max(), ports.rail_out.max())
    in_domains = max(ports.hb_in.max(), ports.hb_out.max())
    return float(max(on_rails / rates.rail, in_domains / rates.hb))
