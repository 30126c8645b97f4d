"""Which GPU sends background load to which, and how much: the flows that a spec's kinds mean on a fabric."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device
from railyard.workloads.background.kind import BACKGROUNDS, FlowPath, FullLoad
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.background.wave import Wave

PORT: Final = 9
"""UDP's discard port: the destination of all background load, by which links distinguish it from other traffic."""
_ORDER: Final[tuple[FlowPath, ...]] = ("r", "d", "spine")


@dataclass(frozen=True, slots=True)
class BackgroundFlow:
    """`bps` (bit/s on the wire, Ethernet header and all) from `src`'s `device` to `dst` while `wave` is on."""

    src: Gpu
    dst: Gpu
    device: Device
    path: FlowPath
    bps: float
    wave: Wave


def flows_of(spec: BackgroundSpec, plan: Plan) -> tuple[BackgroundFlow, ...]:
    """Return all flows of a spec that fits the plan (see check_background), by source, then by path."""
    return tuple(
        BackgroundFlow(src, load.dst, load.device, load.path, spec.load * load.bps, spec.wave)
        for src in plan.gpus
        for load in sorted(_full_loads(spec, src, plan), key=lambda load: _ORDER.index(load.path))
    )


def _full_loads(spec: BackgroundSpec, src: Gpu, plan: Plan) -> Iterator[FullLoad]:
    for kind, value in spec.patterns.items():
        yield from BACKGROUNDS[kind].flows(src, value, plan)
