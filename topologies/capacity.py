"""Cost of packets through emulated switches on a machine, and the rates of links that follow from it. Pure."""

from collections.abc import Sequence
from itertools import product
from math import inf
from typing import Final, NamedTuple

from railyard.topologies.build.shaping import ETHERNET, max_gso_segments
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import FabricSpec

BUSY: Final = 0.6
"""Share of the cores' time that `auto` lets full rails take: above 85%, frames wait for a core."""
# more than for rails, since collectives fill HB domains for a small part of their time
HB_BUSY: Final = 0.8
# easy to read, and none more than 1.5 times (2 to 3) the one before
STEPS: Final = (1, 1.5, 2, 3, 5, 7)
MAX_RAIL_BPS: Final = 1_000_000_000


class Capacity(NamedTuple):
    """Capacity of a machine: its cores, and the CPU time (s) of packets that come singly.

    `frame_s` of a frame from sender to receiver through a switch; `switch_s` of each further switch; `hb_s` of a packet
    within an HB domain. `batched_s` of a frame through a switch where frames come many at once; 0 if not measured.
    """

    cores: float
    frame_s: float = 0.0
    switch_s: float = 0.0
    hb_s: float = 0.0
    batched_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return what was measured as plain data, for provenance.json: frames a second, costs in us."""
        costs = {name: cost for name, cost in self._asdict().items() if name != "cores" and cost}
        of_packets = {name.replace("_s", "_us"): round(1e6 * cost, 1) for name, cost in costs.items()}
        return {"frames_per_s": round(min(self.single_frames_per_s, self.frames_per_s)), **of_packets}

    @property
    def frames_per_s(self) -> float:
        """Frames that come many at once through a switch, if all cores do nothing else; infinite if not measured."""
        if not self.batched_s:
            return inf
        return self.cores / self.batched_s

    @property
    def single_frames_per_s(self) -> float:
        """The same of frames that come singly."""
        if not self.frame_s:
            return inf
        return self.cores / self.frame_s


def switches_passed(spec: FabricSpec) -> tuple[float, float]:
    """Return how many switches a frame of a full rail passes, and how many frames of full HB links pass switches.

    The former is a mean over pairs of GPUs in a graph. The latter by the frames of a rail. With spines half of the
    rails' frames are taken to change rails, which makes one switch three. Optical switches are passed twice, at the
    sender and at the receiver, be it one or two, and in the HB layer by frames that pass no other.
    """
    if spec.definition.is_graph:
        return spec.graph.switches_passed, 0.0
    on_rails = 1
    in_hb = 0.0
    if spec.spine_count:
        on_rails += 1
    if spec.optical and "rail" in spec.optical.layers:
        on_rails += 2
    if spec.optical and "hb" in spec.optical.layers:
        in_hb = _hb_ratio(spec)
    return on_rails, in_hb


def frames_per_s(spec: FabricSpec, rail_bps: float) -> float:
    """Return the frames a second of all rails when they are full."""
    return spec.domains * spec.rail_count * rail_bps / 8 / (spec.mtu + ETHERNET)


def rails_cores(spec: FabricSpec, rail_bps: float, frame_s: float, switch_s: float) -> float:
    """Return the cores that are busy when every link that goes through a switch is full."""
    on_rails, in_hb = switches_passed(spec)
    of_frame = frame_s + (on_rails - 1) * switch_s + in_hb * (frame_s + switch_s)
    return frames_per_s(spec, rail_bps) * of_frame


def _hb_ratio(spec: FabricSpec) -> float:
    """Return C_F/C_S by the rates that are specified, or else by the platform."""
    if isinstance(spec.hb_rate, int) and isinstance(spec.rail_rate, int):
        return spec.hb_rate / spec.rail_rate
    return PLATFORMS[spec.platform].ratio


def hb_packets_needed(spec: FabricSpec, rail_bps: int) -> float:
    """Return the packets a second through HB domains when every HB link is full.

    The NIC of a slow link hands on single frames: at 60 Mbit/s it sends as many packets as at 180 Mbit/s.
    """
    if spec.rails == 1:
        return 0.0
    hb_bps = round(rail_bps * _hb_ratio(spec))
    packet = max_gso_segments(hb_bps, spec.mtu) * (spec.mtu + ETHERNET)
    return spec.gpus * hb_bps / 8 / packet


def max_rail_bps(spec: FabricSpec, capacity: Capacity) -> float:
    """Return the rail rate at which the switches would take all of the machine, if frames came many at once."""
    cores = rails_cores(spec, 1, capacity.batched_s, capacity.batched_s)
    return capacity.cores / cores if cores else inf


def fits(spec: FabricSpec, rail_bps: int, capacity: Capacity) -> bool:
    """Return whether `auto` may choose a rate: full rails, and full HB domains, leave enough of the machine."""
    on_rails = rails_cores(spec, rail_bps, capacity.frame_s, capacity.switch_s)
    in_hb = hb_packets_needed(spec, rail_bps) * capacity.hb_s
    return on_rails <= BUSY * capacity.cores and in_hb <= HB_BUSY * capacity.cores


def auto_rail_bps(specs: Sequence[FabricSpec], capacity: Capacity) -> int:
    """Return one rail rate for fabrics to compare: a step times a power of ten, the highest that fits each."""
    rates: list[int] = sorted(round(step * 10**power) for power, step in product(range(6, 10), STEPS))
    chosen = rates[0]
    for rate in rates:
        if rate <= MAX_RAIL_BPS and all(fits(spec, rate, capacity) for spec in specs):
            chosen = rate
    return chosen


def needs_batched(spec: FabricSpec, capacity: Capacity) -> bool:
    """Return whether a given rate is so high that the machine carries it only if frames come many at once."""
    rate = spec.rail_rate
    return rate != "auto" and rails_cores(spec, rate, capacity.frame_s, capacity.switch_s) > capacity.cores
