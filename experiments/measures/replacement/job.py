"""A replacement planned before anything is built: the job on its GPUs before and after, and what has to be moved."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from railyard.core.config import check_numbers
from railyard.core.errors import BadInput
from railyard.core.units import format_time
from railyard.experiments.measures.replacement.spec import (
    WAYS,
    ReplacementMap,
    ReplacementSpec,
    Way,
    replacement_map,
    with_spares,
)
from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.probes.replacement import ProbePair
from railyard.results.theory.predict import predict_iteration, predict_schedule
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.plan import Plan
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.jobs.migration import state_bytes, state_s, state_schedule, state_senders
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.placement.layout import place_with_spares, relabelled
from railyard.workloads.scale import Scale
from railyard.workloads.schedule import Rates, Schedule, check_gpus, check_total, payload_rates
from railyard.workloads.spec import build

PROBED: Final = 3


@dataclass(frozen=True)
class ReplacementJob:
    """`before` and `after`: an iteration on the fabric of `plan`, which has the spares; `state`: what is moved between.

    Replacements that optical switches bring in take the failed ones' names, so then `after` is `before`.
    `iteration_s`, `after_s`: by Rail-only Eq. 6; None where no formula knows the placement.
    """

    plan: Plan
    way: Way
    replacement_map: ReplacementMap
    scale: Scale
    before: Schedule
    after: Schedule
    state: Schedule
    state_s: float
    iteration_s: float | None
    after_s: float | None
    estimated_s: float
    probed: tuple[ProbePair, ...]

    @property
    def replaced_by(self) -> str:
        """The replacements: a whole domain by its own name."""
        spares = list(self.replacement_map.to.values())
        if len(spares) == self.plan.spec.rails:
            return self.plan.hb_bridges[spares[0].domain]
        return ", ".join(spare.name for spare in spares)


def replacement_job(
    replacement: ReplacementSpec, fabric: FabricSpec, plan: Plan, seed: int, field: str
) -> ReplacementJob:
    """`fabric` is the job's own, `plan` that of the fabric with its spares. BadInput if the job can't be moved so."""
    way = replacement.way_on(fabric)
    gpu_map = replacement_map(replacement, fabric)
    schedule, scale, *_ = build(replacement.workload, fabric, plan.rail_bps, plan.hb_bps, f"{field}.workload", seed)
    places = place_with_spares((fabric.domains, fabric.rails), (plan.spec.domains, plan.spec.rails))
    numbers = dict(zip(plan.gpus, range(len(plan.gpus)), strict=True))
    new_numbers: dict[int, int] = {}
    for old, new in gpu_map.to.items():
        # a spare that optical switches bring in takes the failed GPU's name, and so its place
        new_numbers[numbers[old]] = numbers[old if way == "optical" else new]
    moved = [new_numbers.get(number, number) for number in places]
    before = relabelled(schedule, places, plan.spec.gpus, plan.spec.rails)
    after = relabelled(schedule, moved, plan.spec.gpus, plan.spec.rails)
    dead = frozenset(numbers[gpu] for gpu in gpu_map.dead)
    state_sources = state_senders(before, new_numbers, dead, f"{field}.workload")
    state = state_schedule(after, state_sources, state_bytes(replacement.workload, scale, f"{field}.workload"))
    rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    return ReplacementJob(
        plan=plan,
        way=way,
        replacement_map=gpu_map,
        scale=scale,
        before=before,
        after=after,
        state=state,
        state_s=state_s(state, rates, plan.spec),
        iteration_s=predict_schedule(schedule, rates, fabric).get(WHOLE),
        after_s=_after_s(way, schedule, rates, fabric),
        estimated_s=line_rate_duration_s(after, rates, plan.spec),
        probed=_probed(before, gpu_map, plan, way),
    )


def check_replacements(replacements: Sequence[ReplacementSpec], fabrics: Sequence[FabricSpec]) -> None:
    """Raise BadInput for what can't be on one of its fabrics."""
    first_with_failure: dict[tuple[object, ...], int] = {}
    tasks = 0
    for n, replacement in enumerate(replacements):
        field = f"replacements.{n}"
        check_numbers(replacement.on, len(fabrics), f"{field}.on")
        ways = list[Way]()
        for number, fabric in enumerate(fabrics):
            if not replacement.is_on(number):
                continue
            check_gpus(fabric.domains, fabric.rails, f"fabrics.{number}.domains")
            definition = fabric.definition
            way = replacement.way_on(fabric)
            fault = replacement.fault
            if not definition.takes_optics:
                kinds = " and ".join(name for name, kind in FABRIC_KINDS.items() if kind.takes_optics)
                raise BadInput(f"{field}.case", replacement.case, f"is for {kinds} fabrics, not {fabric.kind}")
            if way not in (allowed := WAYS[replacement.case][definition.joins_rails]):
                problem = f"is not for {replacement.case} on {fabric.kind}: {', '.join(allowed)} is"
                raise BadInput(f"{field}.way", replacement.way, problem)
            target_problem = fault.definition.target_problem(nominal_plan(fabric), fault.target)
            if target_problem:
                raise BadInput(f"{field}.failed", replacement.failed, target_problem)
            if replacement.gpus > fabric.rails:
                problem = f"must be {fabric.rails} or less: a domain has no more"
                raise BadInput(f"{field}.gpus", replacement.gpus, problem)
            job = replacement_job(replacement, fabric, nominal_plan(with_spares(replacement, fabric, field)), 0, field)
            tasks += len(job.before.tasks) + len(job.after.tasks) + len(job.state.tasks)
            check_total(tasks, fabric.gpus, f"{field}.workload", replacement.workload.kind)
            ways.append(way)
            earlier = first_with_failure.setdefault((replacement.case, way, replacement.failed, number), n)
            if earlier != n:
                same = f"is replacements.{earlier}'s too, with the same case and way on fabric {number}"
                raise BadInput(f"{field}.failed", replacement.failed, f"{same}: let another one fail")
        if replacement.switching_time is not None and "optical" not in ways:
            problem = f"is for way optical: {replacement.case} goes by {' and '.join(dict.fromkeys(ways))} here"
            raise BadInput(f"{field}.switching_time", format_time(replacement.switching_time), problem)


def _after_s(way: Way, schedule: Schedule, rates: Rates, fabric: FabricSpec) -> float | None:
    """An iteration by Rail-only Eq. 6 with the job where it is then, in s; None where no formula knows the placement.

    Optical switches and migration leave it as it was. So does a GPU of the same HB domain but of another rail, which
    spines reach at the same rate unless they are thinned out. A member of another HB domain slows "the HB domain into a
    NIC domain" (IV-C): the group's ring goes at the pace of its slowest part, as one of t GPUs in t domains does.
    """
    iteration = schedule.iteration
    thinned = (fabric.oversubscription or 1) > 1
    if iteration is None or schedule.is_uneven or (thinned and way in ("direct", "any-gpu")):
        return None
    if way != "any-gpu":
        return predict_iteration(iteration, rates, fabric)
    for part in iteration.each_micro_batch:
        is_ring = ALGORITHMS[part.collective].algorithm == "ring"
        if not is_ring or part.y != 1:
            return None
    if not iteration.each_micro_batch or any(part.x > 1 for part in iteration.sync):
        return None
    by_nic = tuple(replace(part, x=1, y=part.x) for part in iteration.each_micro_batch)
    return predict_iteration(replace(iteration, each_micro_batch=by_nic), rates, fabric)


def _probed(before: Schedule, gpu_map: ReplacementMap, plan: Plan, way: Way) -> tuple[ProbePair, ...]:
    """Return some pairs of a GPU that stays and one that is replaced, evenly chosen of those that exchange traffic."""
    pairs: list[tuple[Gpu, Gpu]] = []
    for src_number, dst_number in before.matrix:
        src = plan.gpus[src_number]
        dst = plan.gpus[dst_number]
        is_staying = src not in gpu_map.to and src not in gpu_map.dead
        if is_staying and dst in gpu_map.to:
            pairs.append((src, dst))
    if not pairs:
        return ()
    pairs.sort()
    chosen = [pairs[n * (len(pairs) - 1) // (PROBED - 1)] for n in range(PROBED)]
    probe_pairs: list[ProbePair] = []
    for src, old in dict.fromkeys(chosen):
        new = gpu_map.to[old]
        # a spare that optical switches bring in takes the failed GPU's address
        address = old.ip if way == "optical" else new.ip
        probe_pairs.append(ProbePair(src.name, new.name, address))
    return tuple(probe_pairs)
