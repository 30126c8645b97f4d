"""A measure: round-trip times of small datagrams on an idle fabric, which no formula predicts.

In an experiment's file: `latencies: [{src: d0g0, count: 200}]`, and `latency_repeats: 3` to repeat them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Annotated, ClassVar

from pydantic import Field

from railyard.core.config import OnFabrics
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import MEASURES, Measure, RunContext
from railyard.experiments.run.items import run_items
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Sample, Target, outcomes_by_fabric
from railyard.results.format import seconds
from railyard.results.measured import Check
from railyard.results.runs.records import Measurement, Run
from railyard.results.views.report import Section
from railyard.results.views.table import Column, Table, text, texts
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.build.namespaces import open_socket
from railyard.topologies.fabric_kinds import FabricPlan


class LatencySpec(OnFabrics):
    """`count` datagrams from GPU `src` to a GPU of each kind of pair, one by one; each is sent back."""

    src: str = "d0g0"
    count: Annotated[int, Field(ge=10, le=10_000)] = 200


def round_trips(src: Gpu, dst: Gpu, count: int) -> list[float]:
    """Return the times of those datagrams that came back within a second, s."""
    times = []
    with open_socket(src.name) as sender, open_socket(dst.name) as receiver:
        receiver.bind((dst.ip, 0))
        sender.settimeout(1.0)
        receiver.settimeout(1.0)
        for number in range(count):
            time.sleep(0.002)  # none waits for another
            content = number.to_bytes(8)
            begun_ns = time.monotonic_ns()
            sender.sendto(content, receiver.getsockname())
            with suppress(TimeoutError):
                receiver.sendto(*receiver.recvfrom(len(content)))
                if sender.recv(len(content)) == content:
                    times.append((time.monotonic_ns() - begun_ns) / 1e9)
    return times


@MEASURES.register("latency")
class Latency(Measure[LatencySpec]):
    """Round-trip times of small datagrams on an idle fabric."""

    key, repeats_key = "latencies", "latency_repeats"
    Spec = Annotated[tuple[LatencySpec, ...], Field(strict=False)]
    short_keys = frozenset({"src", "count"})
    sentences: ClassVar = {"latency-answered": ["{dst} sent {answers:datagram} back to {src}"]}

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        for i, item in enumerate(self.items(spec)):
            for number, plan in enumerate(plans):
                if item.is_on(number) and item.src not in plan.hosts:
                    raise BadInput(f"latencies.{i}.src", item.src, unknown_name_hint(item.src, plan.hosts))

    def seconds(self, spec: ExperimentSpec) -> float:
        return 5 + self.repeats(spec) * sum(0.015 * item.count for item in self.items(spec))

    def item_label(self, item: LatencySpec) -> str:
        return f"from {item.src}"

    def run(self, context: RunContext) -> None:
        run_items(context, self, self._measure)

    def _measure(self, session: FabricSession, item: LatencySpec, interval: IntervalId, run: Run) -> None:
        src = gpu_of_name(item.src)
        far = Gpu((src.domain + 1) % session.plan.spec.domains, (src.rank + 1) % session.plan.spec.rails)
        pairs = {"domain": Gpu(src.domain, far.rank), "rail": Gpu(far.domain, src.rank), "across rails": far}
        for phase, dst in pairs.items():
            times = round_trips(src, dst, item.count)
            run.measurements.append(Measurement(interval, phase, "lost", item.count - len(times), "datagrams"))
            if times:
                run.measurements.append(Measurement(interval, phase, "round_trip", median(times), "s"))
            session.record_event(interval, "latency", "answered", src=src.name, dst=dst.name, answers=len(times))

    def outcome_text(self, measured: Run) -> str:
        return ", ".join(f"{row.phase} {seconds(row.value)}" for row in measured.measured("round_trip"))

    def checks(self, analysis: Analysis) -> Iterator[Check]:
        if losses := analysis.run.measured("lost"):
            lost = sum(row.value for row in losses)
            yield Check("every datagram is sent back", lost == 0, f"{lost:g} lost", "lost", lost, 0, "datagrams")

    def targets(self, analysis: Analysis) -> list[Outcome]:
        target = Target(quantity="median round trip over a rail", median=5, source="a rail switch, there and back")
        over_rail = [row for row in analysis.run.measured("round_trip") if row.phase == "rail"]
        samples = [Sample(row.value * 1e3, row.workload, row.interval) for row in over_rail]
        return outcomes_by_fabric(target, samples, analysis.judgement)

    def sections(self) -> Mapping[str, type[Section]]:
        return {"latency": LatencySection}


class LatencySection(Section):
    title = "Latency"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.run.measured("round_trip"))

    def tables(self, analysis: Analysis) -> list[Table]:
        columns = [*texts("fabric", "workload", "phase"), Column("round trip", "value", unit="s")]
        return [Table([*columns, text("verdict", analysis.judgement.of_row)], analysis.run.measured("round_trip"))]
