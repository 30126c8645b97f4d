"""Workload kind `rail-all-gather`: every node of a multi-rail fabric gets the buffers of all, over one rail or several.

    {kind: rail-all-gather, bytes: 8MiB, policies: [nezha, single:tcp0]}

A kind for multi-rail fabrics has `measure`, which runs what it likes on the built fabric and records what it finds, in
place of `build`. What a policy can't do here is recorded as skipped. `predictions` and `dry_run` need no fabric.

    sudo script/run run FILE --plugin docs/examples/all_gather_rails.py
"""

from collections.abc import Iterator
from statistics import median
from typing import Annotated

from pydantic import Field

from railyard.core.units import Size, format_size
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.workloads.allreduce.engine.jobs import Operations, latencies_s
from railyard.workloads.allreduce.engine_kind import rails_of
from railyard.workloads.allreduce.workload import ComparedWorkload, Prediction, RailSession, check_complete, sent_bytes
from railyard.workloads.spec import WORKLOADS


@WORKLOADS.register("rail-all-gather")
class RailAllGather(ComparedWorkload):
    """`bytes` of all nodes together, to scale; the median of `operations`, after one that checks every element."""

    bytes: Size
    operations: Annotated[int, Field(ge=1, le=1000)] = 20

    def measure(self, session: RailSession) -> None:
        """Time the operations under every policy, with new processes for each."""
        size = sent_bytes(self.bytes, session.plan.scale)
        predicted = {p.policy: p.seconds for p in self.predictions(session.number, session.plan)}
        for repeat in range(session.repeats):
            for policy in self.policies_on(session.number, session.plan.spec):
                with session.interval(self.result_name, policy, repeat) as interval, session.engine(policy) as ranks:
                    for count, check in ((1, True), (self.operations, False)):
                        operations = Operations("all_gather", "float32", size, count, session.seed, check=check)
                        reports = ranks.run(operations)
                        check_complete(reports)
                        wrong = sum(report.wrong for report in reports)
                        if check:
                            session.record(interval, "wrong_elements", wrong, "1")
                    session.record(interval, "completion_time", median(latencies_s(reports)), "s", predicted[policy])

    def predictions(self, number: int, plan: MultirailPlan) -> Iterator[Prediction]:
        """Yield a lower bound: each node receives the buffers of the others over all rails at once."""
        received, rate = (plan.spec.nodes - 1) / plan.spec.nodes, sum(rail.rate for rail in rails_of(plan))
        for policy in self.policies_on(number, plan.spec):
            seconds = sent_bytes(self.bytes, plan.scale) * received / rate
            yield Prediction(policy, self.result_name, "completion_time", seconds)

    def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str]:
        """Yield a sentence."""
        yield f"{self.operations} all-gathers of {format_size(sent_bytes(self.bytes, plan.scale))}, {repeats} x"
