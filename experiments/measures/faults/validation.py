"""Checks of faults and failure scripts against the rest of an experiment: its fabrics, machines and workloads."""

from collections.abc import Iterator, Sequence
from functools import cache

from railyard.core.errors import BadInput
from railyard.experiments.measures.faults.spec import ScriptSpec, check_script
from railyard.experiments.measures.workloads.spec import workload_labels, workloads_of
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.faults import FaultSpec, check_faults
from railyard.failure.faults import FAULTS, fault_kinds
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import build


def check(
    spec: ExperimentSpec, faults: Sequence[FaultSpec], scripts: Sequence[ScriptSpec], plans: Sequence[FabricPlan]
) -> None:
    """Raise BadInput for faults and scripts that the experiment can't have.

    `plans`: of its fabrics, at nominal rates.
    """
    if spec.machine_count > 1:
        _check_over_machines(spec, faults, scripts)
    check_faults(faults, plans)
    _check_scripts(spec, scripts)


def _check_over_machines(spec: ExperimentSpec, faults: Sequence[FaultSpec], scripts: Sequence[ScriptSpec]) -> None:
    """Raise BadInput for faults that need all GPUs on one machine, and for heartbeats."""
    if spec.heartbeats != "off" and "on" in spec.reroute:
        keys = spec.heartbeats.model_dump(mode="json")
        raise BadInput("heartbeats", keys, "must be off together with hosts: they need all GPUs on one machine")
    possible = _kinds_over_machines()
    for i, script in enumerate(scripts):
        if script.random_faults and not script.random_faults.mix:
            allowed = f"must be given together with hosts, of {', '.join(possible)}"
            raise BadInput(f"scripts.{i}.random_faults.mix", "", allowed)
    for field, kind in _kinds(faults, scripts):
        if kind not in possible:
            allowed = "can't be used together with hosts: it needs all GPUs on one machine; those that can are "
            raise BadInput(field, kind, allowed + ", ".join(possible))


def _kinds_over_machines() -> list[str]:
    """Return the kinds of faults that can be injected on a fabric of several machines."""
    kinds: list[str] = []
    for kind in fault_kinds():
        definition = FAULTS[kind]
        # other machines have no plugins
        is_built_in = type(definition).__module__.startswith("railyard.")
        if is_built_in and definition.spans_machines:
            kinds.append(kind)
    return kinds


def _kinds(faults: Sequence[FaultSpec], scripts: Sequence[ScriptSpec]) -> Iterator[tuple[str, str]]:
    """Yield each kind of fault that is given, after its key."""
    for i, fault in enumerate(faults):
        yield f"faults.{i}.kind", fault.kind
    for i, script in enumerate(scripts):
        for n, script_fault in enumerate(script.faults):
            yield f"scripts.{i}.faults.{n}.kind", script_fault.kind
        if script.random_faults:
            for kind in script.random_faults.mix or ():
                yield f"scripts.{i}.random_faults.mix", kind


def _check_scripts(spec: ExperimentSpec, scripts: Sequence[ScriptSpec]) -> None:
    """Raise BadInput for scripts that fabrics or workloads don't suit, or that have the same name."""
    names = [script.name for script in scripts]
    plans = [nominal_plan(fabric) for fabric in spec.gpu_fabrics]

    @cache
    def schedules(label: str) -> list[Schedule]:
        """Return the schedules of a workload, one for each fabric."""
        number = workload_labels(spec).index(label)
        workload = workloads_of(spec)[number]
        fabric_schedules: list[Schedule] = []
        for plan in plans:
            built = build(workload, plan.spec, plan.rail_bps, plan.hb_bps, f"workloads.{number}", spec.seed)
            fabric_schedules.append(built.schedule)
        return fabric_schedules

    for i, script in enumerate(scripts):
        if script.name in names[:i]:
            raise BadInput(f"scripts.{i}.name", script.name, "is the name of another one too")
        seeds = range(spec.seed, spec.seed + script.times(spec))
        check_script(script, f"scripts.{i}", plans, workload_labels(spec), schedules, seeds)
