"""Runs all measures of an experiment: first those that share a built fabric, then those that build their own."""

import sys
from contextlib import ExitStack
from typing import Final

from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import (
    RunContext,
    SharedFabric,
    measures_of,
    shared_reroutes,
    sharing_measures,
)
from railyard.experiments.run.session import built, check_links, surviving_interruptions
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import SLOWDOWN, Measurement

SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that computes yields after so long, not after 5 ms: other threads react to events of the controller."""


def run_measures(context: RunContext) -> None:
    """Run all measures, and add the ratios of times on different fabrics."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    spec = context.spec
    run = context.run
    if sharing_measures(spec):
        for number, label in enumerate(spec.labels):
            with surviving_interruptions(run, IntervalId(label)):
                run_on_shared_fabrics(context, number)
    for measure in measures_of(spec):
        if not measure.shares_fabric:
            measure.run(context)
    # a slow-down compares two fabrics, so it is known only when all of them have been measured
    for slowdown in Analysis(run).slowdowns:
        values = (slowdown.measured, "ratio", slowdown.predicted)
        run.measurements.append(Measurement(slowdown.interval, slowdown.row.phase, SLOWDOWN, *values))


def shared_steps(spec: ExperimentSpec) -> int:
    """Return the number of builds and calibrations of shared fabrics, for the progress bar."""
    if not sharing_measures(spec):
        return 0
    fabrics = len(spec.fabrics)
    builds = sum(len(shared_reroutes(spec, number)) for number in range(fabrics))
    calibrations = fabrics
    return builds + calibrations


def run_on_shared_fabrics(context: RunContext, number: int) -> None:
    """Build a fabric for each mode of `reroute` that a measure needs, and run the measures that share it.

    `number`: of the fabric in the experiment. Its links are calibrated once.
    """
    spec = context.spec
    plan = context.plans[number]
    label = spec.labels[number]
    modes = shared_reroutes(spec, number)
    for reroute in modes:
        is_first = reroute == modes[0]
        with ExitStack() as stack:
            with context.steps.step(f"{label}: building"):
                fabric = built(label, plan, context.datapath, reroute == "on", context.run)
                session = stack.enter_context(fabric)
            if is_first:
                with context.steps.step(f"{label}: calibrating links"):
                    check_links(session, context.run)
            shared = SharedFabric(context, session, number, reroute, is_first)
            for measure in sharing_measures(spec):
                measure.run_on(shared)
