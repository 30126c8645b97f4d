"""Sections `faults` and `scripts` of an experiment's file: single faults, and scripts of given or random faults."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from operator import attrgetter
from typing import Annotated, Final

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from railyard.controller.health.estimator import RegistryKind
from railyard.core.config import MISSING, ConfigModel, OnFabrics, PlainName, field_error
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.units import format_time
from railyard.experiments.spec.faults import FaultSpec, Repeats, ScriptFaultSpec
from railyard.failure.faults import FAULTS
from railyard.failure.scenario.random_faults import MAX_FAULTS, REPAIRED_IDLE_S, RandomFaults, idle_s
from railyard.failure.script import Script, Timed
from railyard.topologies.plan import Plan
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.schedule import Schedule, check_gpus, payload_rates

# Random faults have rounded times, and may be repeated as a list of faults.
_ROUNDING_S: Final = 0.001


class ScriptSpec(OnFabrics):
    """`faults` or `random_faults`, `repeats` times at most; beside streams, or the experiment's workload `during`."""

    name: PlainName
    faults: Annotated[tuple[ScriptFaultSpec, ...], Field(max_length=MAX_FAULTS, strict=False)] = ()
    random_faults: RandomFaults | None = None
    during: str | None = None
    repeats: Repeats | None = None

    @field_validator("random_faults")
    @classmethod
    def _no_faults_beside(cls, random_faults: RandomFaults | None, info: ValidationInfo) -> RandomFaults | None:
        if random_faults is not None and info.data.get("faults"):
            raise ValueError("can't be given together with faults: a script has one of them")
        return random_faults

    @model_validator(mode="after")
    def _is_complete(self) -> "ScriptSpec":
        if not self.faults and self.random_faults is None:
            raise field_error("faults", MISSING, "given, and no random_faults: a script has one of them")
        for i, fault in enumerate(self.faults):
            if fault.after is not None and self.during is None:
                allowed = "is for scripts with `during`: only a workload has phases"
                raise field_error(f"faults.{i}.after", fault.after, allowed)
            if fault.registry and fault.registry != self.registry:
                raise field_error(f"faults.{i}.registry", fault.registry, f"must be {self.registry}: a script has one")
        return self

    @property
    def label(self) -> str:
        """The name, as faults have a label too."""
        return self.name

    @property
    def injections(self) -> int:
        """Number of faults that a run of the script injects."""
        if self.random_faults:
            return self.random_faults.count
        return len(self.faults)

    def times(self, experiment: ConfigModel) -> int:
        """Return how often it runs on a fabric, in each mode of `reroute`."""
        limit: int = getattr(experiment, "script_repeats", 1)
        return min(self.repeats or limit, limit)

    @property
    def registry(self) -> RegistryKind | None:
        """Registry of health scores that runs meanwhile; None without a fault of one."""
        registries = [fault.registry for fault in self.faults]
        if self.random_faults:
            for kind in self.random_faults.mix or ():
                registries.append(FAULTS[kind].registry(FAULTS[kind].random_parameters()))
        return next(filter(None, registries), None)

    def script(self, plan: Plan, seed: int) -> Script:
        """Return the script for a fabric; random faults are drawn with this seed."""
        if self.random_faults:
            return self.random_faults.script(self.name, plan, seed)
        faults = [Timed(fault.fault, fault.at, fault.repair, fault.after or "") for fault in self.faults]
        return Script(self.name, tuple(faults))


Faults = Annotated[tuple[SerializeAsAny[FaultSpec], ...], Field(max_length=100, strict=False)]
"""The section `faults`."""
Scripts = Annotated[tuple[ScriptSpec, ...], Field(max_length=100, strict=False)]
"""The section `scripts`."""


def check_script(
    script: ScriptSpec,
    field: str,
    plans: Sequence[Plan],
    workloads: Sequence[str],
    schedules: Callable[[str], Sequence[Schedule]],
    seeds: Iterable[int],
) -> None:
    """Raise BadInput for an unknown fabric, target, workload or phase, and for random faults that outlast a workload.

    `plans`: all the experiment's fabrics. `schedules`: those of a workload, by its label, on each fabric. `seeds` of
    the script's repeats. A list of faults may be longer than the workload would take on an intact fabric: the faults
    may slow it down, and those that come too late fail the run.
    """
    during = script.during
    random_faults = script.random_faults
    if during is not None and during not in workloads:
        allowed = "is no workload: the experiment has none"
        if workloads:
            allowed = unknown_name_hint(during, workloads)
        raise BadInput(f"{field}.during", during, allowed)
    for number, plan in enumerate(plans):
        if not script.is_on(number):
            continue
        _check_listed_faults(script, field, plan, partial(_schedule_of, schedules, during, number))
        _check_not_hidden(script, f"{field}.faults", plan)
        if not random_faults:
            continue
        check_gpus(plan.spec.domains, plan.spec.rails, f"fabrics.{number}.domains")
        kinds = list(random_faults.mix or random_faults.weights)
        if not any(FAULTS[kind].targets(plan) for kind in kinds):
            allowed = f"can't break: {plan.title} has nothing of these kinds"
            raise BadInput(f"{field}.random_faults.mix", kinds, allowed)
        if during is not None:
            _check_outlasts(script, field, number, plan, schedules(during)[number], seeds)


def _schedule_of(schedules: Callable[[str], Sequence[Schedule]], workload: str | None, number: int) -> Schedule:
    """Return the schedule of a workload, by its label, on a fabric, by its number."""
    return schedules(str(workload))[number]


def _check_listed_faults(script: ScriptSpec, field: str, plan: Plan, schedule: Callable[[], Schedule]) -> None:
    """Raise BadInput for a fault whose target the fabric lacks, or whose phase the workload lacks.

    `schedule`: returns that of the workload on the fabric.
    """
    for i, fault in enumerate(script.faults):
        problem = FAULTS[fault.kind].target_problem(plan, fault.target)
        if problem:
            raise BadInput(f"{field}.faults.{i}.target", fault.target, problem)
        if fault.after is None or script.during is None:
            continue
        phases = schedule().phases
        numbers = {transfer.phase for _, transfer in schedule().transfers}
        names = {phases[number].name for number in numbers}
        if fault.after not in names:
            allowed = unknown_name_hint(fault.after, names).replace("known", f"a phase of {script.during}", 1)
            raise BadInput(f"{field}.faults.{i}.after", fault.after, allowed)


def _check_outlasts(
    script: ScriptSpec, field: str, number: int, plan: Plan, schedule: Schedule, seeds: Iterable[int]
) -> None:
    """Raise BadInput for random faults that outlast the workload on a fabric, by its number."""
    rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    lasts_s = line_rate_duration_s(schedule, rates, plan.spec)
    over_s = 0.0
    for seed in seeds:
        for timed in script.script(plan, seed).faults:
            over_s = max(over_s, timed.at_s + timed.repair_s)
    if over_s > lasts_s:
        label = f"on fabric {number} takes {lasts_s:.1f} s, and the random faults {over_s:.1f} s"
        allowed = f"{label}: make it longer, or {field}.random_faults.count less"
        raise BadInput(f"{field}.during", script.during, allowed)


def _check_not_hidden(script: ScriptSpec, field: str, plan: Plan) -> None:
    """Raise BadInput for two faults at once of which one would hide the other; those with `after` aren't checked."""
    timed = [(i, fault) for i, fault in enumerate(script.faults) if fault.after is None]
    for (i, fault), (j, other) in combinations(timed, 2):
        first, second = sorted((fault, other), key=attrgetter("at"))
        apart_s = second.at - first.at - first.repair + _ROUNDING_S
        if apart_s >= REPAIRED_IDLE_S:
            continue
        min_gap_s = idle_s(first.fault.scope(plan), second.fault.scope(plan))
        if min_gap_s > max(apart_s, 0.0):
            allowed = (
                f"is hidden by {fault.kind} at {fault.target} (fault {i}), or hides it: "
                f"one must begin {format_time(min_gap_s)} after the other's repair"
            )
            raise BadInput(f"{field}.{j}.target", other.target, allowed)
