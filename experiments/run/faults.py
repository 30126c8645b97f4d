"""Run all faults and scripts of one fabric of an experiment in turn, with heartbeats."""

from collections.abc import Callable

from railyard.experiments.run.fault_script import FaultInjector
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.session import FabricSession
from railyard.experiments.run.traffic import Workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.scripts import ScriptSpec
from railyard.failure.analysis.state_snapshot import snapshot_state
from railyard.failure.connectivity.check import ConnectivityChecker
from railyard.results.runs.records import Run


def inject_faults(
    session: FabricSession,
    number: int,
    reroute: str,
    make: Callable[[int], list[Workload]],
    spec: ExperimentSpec,
    run: Run,
    steps: Steps,
) -> None:
    """Run the faults of a fabric, then its scripts. `make` returns its workloads, from a seed.

    CheckFailed also if the fabric isn't as before at the end.
    """
    if not (spec.faults_on(number) or spec.scripts_on(number)):
        return
    heartbeats = spec.heartbeats if reroute == "on" else "off"
    with ConnectivityChecker(session.net) as connectivity, heartbeats_running(session, heartbeats, run):
        injector, before = FaultInjector(session, reroute, connectivity, run), snapshot_state(session.net.node_names)
        for fault in spec.faults_on(number):
            for repeat in range(spec.times(fault)):
                what = f"{session.label}: {fault.kind} {fault.target}, reroute {reroute}"
                with steps.step(what + _repeat_suffix(repeat, spec.times(fault)), total=2):
                    injector.fault(fault, repeat, steps.reached)
        for script in spec.scripts_on(number):
            for repeat in range(spec.times(script)):
                seed = spec.seed + repeat
                what = f"{session.label}: {script.name}, reroute {reroute}"
                with steps.step(what + _repeat_suffix(repeat, spec.times(script)), total=2 * script.size):
                    injector.script(script, repeat, seed, _workload(script, make, seed), steps.reached)
        injector.check_restored(before)


def _workload(script: ScriptSpec, make: Callable[[int], list[Workload]], seed: int) -> Workload | None:
    """Return the workload that runs beside a script."""
    return None if script.during is None else next(w for w in make(seed) if w.label == script.during)


def _repeat_suffix(repeat: int, repeats: int) -> str:
    return f", {repeat + 1} of {repeats}" if repeats > 1 else ""
