"""Analysis of a run: what views show, each part computed once, and its records as pandas frames."""

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from railyard.results.analysis import aggregate, allreduce, recovery, steering
from railyard.results.runs.allreduce import AllreduceResults
from railyard.results.runs.checks import Check, checks
from railyard.results.runs.fidelity import judge
from railyard.results.runs.records import Run
from railyard.results.runs.targets import Outcome, recovery_outcomes
from railyard.results.theory.spine_condition import Cell, cells

T = TypeVar("T")


def _of_run(compute: Callable[[Run], T]) -> "cached_property[T]":
    """Return a property that is computed once, from the records of the analysis's run."""
    return cached_property(lambda analysis: compute(analysis.run))


class Analysis:
    """A run with everything that is derived from its records. The run must not change any more."""

    labels = _of_run(aggregate.labels)  # (fabric, policy) -> the label in tables
    measurements = _of_run(aggregate.measurements_frame)  # a row for each measurement
    judgement = _of_run(judge)  # the verdict of fidelity, with its evidence
    intervals = _of_run(steering.intervals)  # those in which a policy steered
    recovery_rows = _of_run(recovery.recovery_rows)  # faults that were injected alone, repeats together
    script_rows = _of_run(recovery.script_runs)  # repeats of failure scripts
    allreduce = _of_run(AllreduceResults.of)  # allreduces on several rails

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Claims that passed or failed."""
        return checks(self.run, self.judgement, self.outcomes, self.intervals, self.performance, self.allreduce.skipped)

    @cached_property
    def rows(self) -> tuple[aggregate.Row, ...]:
        """Measurements, repeats together."""
        return aggregate.rows_of(self.run, self.measurements)

    @cached_property
    def times(self) -> tuple[aggregate.Row, ...]:
        """Rows that are times, each workload's whole iteration first."""
        works = list(dict.fromkeys(row.work for row in self.rows))
        timed = (row for row in self.rows if row.metric in aggregate.TIME_METRICS)
        return tuple(sorted(timed, key=lambda r: (works.index(r.work), aggregate.TIME_METRICS.index(r.metric))))

    @cached_property
    def slowdowns(self) -> tuple[aggregate.Slowdown, ...]:
        """Rail-only over rail-optimized."""
        return aggregate.slowdowns(self.run, self.times)

    @cached_property
    def heartbeat_rows(self) -> tuple[aggregate.Row, ...]:
        """The cost of heartbeats."""
        return tuple(row for row in self.rows if row.work.workload == aggregate.HEARTBEATS)

    @cached_property
    def policy_rows(self) -> dict[steering.FabricWorkload, tuple[steering.PolicyRow, ...]]:
        """Results of each policy, by fabric and workload."""
        return steering.policy_rows(self.run, self.measurements, self.intervals)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The papers' condition for the spine, scene by scene."""
        return cells(self.run, self.intervals)

    @cached_property
    def performance(self) -> tuple[Outcome, ...]:
        """Performance targets, measured or not; none without allreduces on several rails."""
        return allreduce.outcomes(self.allreduce) if self.allreduce else ()

    @cached_property
    def replacement_rows(self) -> tuple[recovery.ReplacementRow, ...]:
        """Replacements of GPUs and domains, repeats together."""
        return recovery.replacement_rows(self.run, self.judgement)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every recovery target, measured or not."""
        return recovery_outcomes(self.run, self.recovery_rows, self.script_rows)

    @cached_property
    def target_outcomes(self) -> tuple[Outcome, ...]:
        """The recovery targets; none where nothing failed, or rerouting was off."""
        has_targets = any(r.reroute == "on" for r in self.run.recoveries) or self.run.replacements
        return self.outcomes if has_targets else ()

    @cached_property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)
