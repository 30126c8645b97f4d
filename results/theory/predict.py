"""How long a schedule should take by the papers' equations, to be set beside what was measured. Never tuned to it.

Rates are of payload, in bytes a second: `payload_rates` makes them of a fabric's link rates and MTU.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from railyard.results.theory import equations
from railyard.results.theory.bottleneck import bottleneck_port_s
from railyard.topologies.spec import FabricSpec
from railyard.workloads.jobs.experts import uneven_sizes
from railyard.workloads.scale import Rates, Scale
from railyard.workloads.schedule import Iteration, Phase, Schedule

WHOLE = ""
"""The phase name under which a whole iteration is reported."""


def predict_phase(phase: Phase, rates: Rates, fabric: FabricSpec) -> float:
    """Seconds for `phase.repeats` runs. The fabric matters only to a direct all-to-all, which alone crosses rails.

    Where packets are forwarded for it, or where spines are thinned out, a bound of our own takes the place of Eq. 2.
    """
    d, x, y, hb, rail = phase.data_bytes, phase.x, phase.y, rates.hb, rates.rail
    match phase.collective:
        case "all-to-all" if fabric.chosen_policy == "spine":
            thin = equations.all_to_all_thinned_s(d, x, y, y * rail / (fabric.oversubscription or 1))
            once = max(equations.all_to_all_direct_s(d, x, y, hb, rail), thin)
        case "all-to-all":
            once = equations.all_to_all_forwarded_s(d, x, y, hb, rail)
        case "all-to-all-in-rail":
            once = equations.all_to_all_in_rail_s(d, y, rail)
        case "all-to-all-two-phase":
            once = equations.all_to_all_two_phase_s(d, x, y, hb, rail)
        case "all-gather-ring" | "all-gather-hierarchical" | "reduce-scatter-ring" | "reduce-scatter-hierarchical":
            once = equations.all_gather_s(d, x, y, hb, rail)
        case "all-reduce-ring" | "all-reduce-hierarchical":
            once = equations.all_reduce_s(d, x, y, hb, rail)
        case "all-to-all-dispatch" | "all-to-all-combine":
            once = bottleneck_port_s(uneven_sizes(phase), x, y, rates, fabric)
        case "point-to-point":
            once = d / (rail if y > 1 else hb)
    return phase.repeats * once


@dataclass(frozen=True, slots=True)
class IterationTime:
    """The terms of Rail-only Eq. 6, and one that it leaves out; seconds.

    Eq. 7-8 count computing and pipeline traffic of the bubble, but not the collectives that a micro-batch waits for
    at every other stage as well. `bubble_collectives_s` is that time, (p - 1)/v micro-batches' worth: it vanishes
    with many micro-batches, and counts with few.
    """

    bubble_compute_s: float
    bubble_network_s: float
    last_stage_compute_s: float
    last_stage_network_s: float
    sync_s: float
    bubble_collectives_s: float

    @property
    def printed_s(self) -> float:
        """Rail-only Eq. 6: the sum of Eq. 7 to 11."""
        bubble = self.bubble_compute_s + self.bubble_network_s
        return bubble + self.last_stage_compute_s + self.last_stage_network_s + self.sync_s

    @property
    def critical_path_s(self) -> float:
        """Eq. 6 with the collectives of the bubble."""
        return self.printed_s + self.bubble_collectives_s


def predict_iteration(iteration: Iteration, rates: Rates, fabric: FabricSpec) -> IterationTime:
    """Rail-only Eq. 6-11 of an iteration whose stages are in HB domains of their own (p_l = p, p_h = 1)."""
    collectives_s = sum(predict_phase(p, rates, fabric) for p in iteration.each_micro_batch)
    boundary = iteration.boundary.data_bytes if iteration.boundary else 0.0
    m, p, v = iteration.micro_batches, iteration.stages, iteration.virtual_stages
    return IterationTime(
        bubble_compute_s=equations.bubble_compute_s(p, v, iteration.compute_s),
        bubble_network_s=equations.bubble_network_s(boundary, p, 1, rates.hb, rates.rail),
        last_stage_compute_s=equations.last_stage_compute_s(m, iteration.compute_s),
        last_stage_network_s=equations.last_stage_network_s(m, collectives_s, v, boundary, rates.rail),
        sync_s=sum(predict_phase(phase, rates, fabric) for phase in iteration.sync),
        bubble_collectives_s=(p - 1) / v * collectives_s,
    )


def predict_schedule(schedule: Schedule, rates: Rates, fabric: FabricSpec) -> dict[str, float]:
    """Seconds for one run of each phase, by name, and for the whole iteration under `WHOLE` (Eq. 6 as printed)."""
    times = {phase.name: predict_phase(phase, rates, fabric) for phase in dict.fromkeys(schedule.phases)}
    if schedule.iteration is not None:
        times[WHOLE] = predict_iteration(schedule.iteration, rates, fabric).printed_s
    return times


def phase_times(schedule: Schedule, spans: Mapping[int, tuple[float, float]]) -> dict[str, list[float]]:
    """Measured seconds of every run of each phase, by name and in order.

    `spans`: start and end of each transfer by task number. A run lasts from its first transfer's start to its last
    one's end; computing doesn't count. Runs of which a transfer is missing are left out.
    """
    runs: defaultdict[int, list[int]] = defaultdict(list)
    for number, transfer in schedule.transfers:
        runs[transfer.phase].append(number)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for phase, numbers in sorted(runs.items()):
        if all(n in spans for n in numbers):
            duration_s = max(spans[n][1] for n in numbers) - min(spans[n][0] for n in numbers)
            found[schedule.phases[phase].name].append(duration_s)
    return dict(found)


def project_to_full_size(
    scale: Scale, schedule: Schedule, seconds: Mapping[str, float], fabric: FabricSpec
) -> dict[str, float]:
    """Emulated seconds by phase (and `WHOLE`), as seconds of the published job at its full size.

    Measured over predicted, times the same equation at full size and real rates: so what the emulation took longer than
    its equation, the real cluster is taken to take longer too. Nothing for a workload that has no published job.
    """
    if scale.real is None:
        return {}
    emulated = predict_schedule(schedule, scale.emulated_rates, fabric)
    parts = (*scale.real.each_micro_batch, *scale.real.sync, *((scale.real.boundary,) if scale.real.boundary else ()))
    real = {part.name: predict_phase(part, scale.real_rates, fabric) / part.repeats for part in parts}
    real[WHOLE] = predict_iteration(scale.real, scale.real_rates, fabric).printed_s
    return {
        name: value / emulated[name] * real[name]
        for name, value in seconds.items()
        if emulated.get(name) and name in real
    }


@dataclass(frozen=True, slots=True)
class Slowdown:
    """All-to-all on rail-only over rail-optimized, as ratios: measured, 1 + C_S/C_F, and Eq. 3 over Eq. 2 exactly."""

    measured: float
    nominal: float
    exact: float


def moe_slowdown(rail_only_s: float, rail_optimized_s: float, x: int, y: int, rates: Rates) -> Slowdown:
    """Set two measured times of the same all-to-all beside the paper's claim (Rail-only section IV-B)."""
    return Slowdown(
        measured=rail_only_s / rail_optimized_s,
        nominal=1 + rates.rail / rates.hb,
        exact=1 + equations.forwarding_share(x, y, rates.hb, rates.rail),
    )
