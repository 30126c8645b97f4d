"""Live page of a finished run without a recording, by the run's events, flows and health scores.

The rate of a link is that of the flows whose pair's path, by the fabric's policy, crosses it, each spread evenly over
its time, and that of the streams around faults (derived_faults.py). So detours of flows and the policies that steer are
not in it; queues and the packets' paths need a run with --live.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, permutations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.live.derived_faults import LinkTraffic, traffic_of
from railyard.experiments.live.paths import ALL_PAIRS_GPUS, Links
from railyard.experiments.live.phases import MAX_NAMED
from railyard.experiments.live.recorded import PAGE, page_of
from railyard.experiments.live.sampler import structure
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.run.observers import FIRST_PACKET
from railyard.experiments.run.words import sentences_of_measures
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plans
from railyard.experiments.spec.parsing import parse
from railyard.results.measured import MEASURED
from railyard.results.runs.records import LIVE, Event, Flow, Run
from railyard.topologies.addresses import Gpu, Pair, gpu_of_name
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.forwarding import Shares, hops, path_names
from railyard.topologies.plan import Plan, make_plan

PERIOD_NS: Final = 200_000_000
MAX_VALUES: Final = 600_000  # of all samples of a fabric, in each direction: longer runs have longer periods
Rates = npt.NDArray[np.int64]
Message = dict[str, Any]


def write_page(folder: Folder, run: Run) -> None:
    """Write live.html of a run without a record, from its other records. BadInput if they don't suffice."""
    if not any(fabric.label for fabric in run.fabrics):
        raise BadInput("--open", run.name, "has no fabric whose time could be shown")
    folder.write(PAGE, page_of(record_of(run)).encode())


def record_of(run: Run) -> bytes:
    """Return what the page's server would have recorded of a run, as far as its records have it (recorded.py).

    BadInput if the run's specification can't be read, such as without its plugins.
    """
    spec = parse({**run.spec, "plugins": []})
    title = {"title": run.name, "active": [], "derived": True, "begin_ns": _zero_ns(run)}
    title["sentences"] = sentences_of_measures()
    messages: list[tuple[str, Any]] = [("run", title), *_steps(run), *_phases(run)]
    for row in run.fabrics:
        fabric = _Fabric(run, row.label, _plan_of(spec, row.label, row.rail_bps))
        messages += [("fabric", structure(row.label, fabric.plan)), *fabric.messages(), ("fabric", None)]
    text = ""
    for kind, data in messages:
        line = json.dumps({"kind": kind, "data": data}, separators=(",", ":"), default=str)
        text += f"{line}\n"
    return text.encode()


def _zero_ns(run: Run) -> int:
    """Return the time of the run's first record."""
    times = [event.monotonic_ns for event in run.events]
    times += [flow.start_ns for flow in run.flows if flow.start_ns]
    return min(times, default=0)


def _plan_of(spec: ExperimentSpec, label: str, rail_bps: int) -> FabricPlan:
    number = spec.labels.index(label)
    if spec.gpu_fabrics:
        return make_plan(spec.gpu_fabrics[number], rail_bps)
    return nominal_plans(spec)[number]


def _steps(run: Run) -> Iterator[tuple[str, Message]]:
    """Yield what the run did, from when on: workloads, and faults."""
    for event in run.events:
        detail = event.detail
        if (event.source, event.what) == ("workload", "started"):
            text = ": ".join(filter(None, (detail.get("fabric"), detail.get("workload"), detail.get("scene"))))
            yield "step", {"ns": event.monotonic_ns, "text": text}
        elif event.source == "fault" and event.what != "repair":
            place = f"{event.what} at {detail.get('target', '')}"
            text = f"{detail.get('fabric', '')}: {place}, reroute {detail.get('reroute', '')}"
            yield "step", {"ns": event.monotonic_ns, "text": text}


def _phases(run: Run) -> Iterator[tuple[str, Message]]:
    """Yield the phases of workloads that were under way, from when on."""
    spans = dict[tuple[Any, str], tuple[int, int]]()
    for flow in run.flows:
        begin, end = spans.get((flow.interval, flow.phase), (flow.start_ns, flow.end_ns))
        # a flow without a start was never sent
        if flow.start_ns:
            spans[flow.interval, flow.phase] = min(begin, flow.start_ns), max(end, flow.end_ns)
    changes = [(begin, 1, name) for (_, name), (begin, _) in spans.items()]
    changes += [(end, 0, name) for (_, name), (_, end) in spans.items()]
    names = list[str]()
    for ns, group in groupby(sorted(changes), key=lambda change: change[0]):
        for _, begins, name in group:
            (names.append if begins else names.remove)(name)
        yield "phase", {"ns": ns, "names": names[:MAX_NAMED]}


@dataclass(frozen=True)
class _Fabric:
    """The records of one fabric, however often it was built."""

    run: Run
    label: str
    plan: FabricPlan

    def messages(self) -> Iterator[tuple[str, Message]]:
        """Yield its events, health scores, the policy's paths, and samples."""
        events = sorted(self._events(), key=lambda event: event["ns"])
        flows = [flow for flow in self.run.flows if flow.fabric == self.label and flow.end_ns > flow.start_ns > 0]
        crossed = _Crossed(self.plan) if isinstance(self.plan, Plan) else None
        around = list(traffic_of(self.run, self.label, self.plan, crossed.by if crossed else _no_links))
        times: list[int] = [event["ns"] for event in events]
        for flow in flows:
            times += [flow.start_ns, flow.end_ns]
        for traffic in around:
            times += [traffic.begin_ns, traffic.end_ns]
        if not times:
            return
        for event in events:
            yield "event", event
        for measure in MEASURED.values():
            yield from measure.page_messages(self.run, self.label)
        if isinstance(self.plan, Plan) and len(self.plan.gpus) <= ALL_PAIRS_GPUS:
            yield "paths", {"ns": min(times), "paths": self._paths(self.plan)}
        yield from self._samples(events, flows, around, min(times), max(times))

    def _own(self) -> Iterator[Event]:
        return (event for event in self.run.events if event.detail.get("fabric") == self.label)

    def _events(self) -> Iterator[Message]:
        # kind of the active fault, by target
        injected = dict[str, str]()
        for event in self._own():
            detail = {key: value for key, value in event.detail.items() if key != "fabric"}
            if event.source in ("controller", LIVE):
                yield {"ns": event.monotonic_ns, "what": event.what, "detail": detail}
            elif event.source == "fault":
                target = str(detail.get("target", ""))
                action = "repair" if event.what == "repair" else "inject"
                if action == "inject":
                    injected[target] = event.what
                kind = injected.get(target, "fault")
                yield {"ns": event.monotonic_ns, "what": action, "detail": {"kind": kind, "target": target}}
        for row in self.run.rows(RECOVERIES):
            if row.fabric == self.label and row.first_packet_ms is not None:
                detail = {"kind": row.fault, "target": row.target, "ms": round(row.first_packet_ms, 1)}
                yield {"ns": row.t_fault + round(row.first_packet_ms * 1e6), "what": FIRST_PACKET, "detail": detail}

    @staticmethod
    def _paths(plan: Plan) -> dict[str, Message]:
        links = Links(plan)
        paths: dict[str, Message] = {}
        for src, dst in permutations(plan.gpus, 2):
            names = path_names(plan.spec.paths(src, dst))
            paths[f"{src.name} {dst.name}"] = {
                "policy": names,
                "policy_links": links.policy(src, dst),
                "links": [],
            }
        return paths

    def _samples(
        self,
        events: Sequence[Message],
        flows: Sequence[Flow],
        around: Sequence[LinkTraffic],
        begin_ns: int,
        end_ns: int,
    ) -> Iterator[tuple[str, Message]]:
        count = len(self.plan.links)
        period_ns = max(PERIOD_NS, (end_ns - begin_ns) * count // MAX_VALUES)
        bins = (end_ns - begin_ns) // period_ns + 2
        to_network, from_network = self._rates(flows, around, begin_ns, period_ns, bins)
        carrier = [1] * count
        idle = [0] * count
        changes: Iterator[tuple[int, list[int], int]] = chain(self._carriers(events), [(1 << 62, [], 0)])
        at, numbers, state = next(changes)
        for n in range(bins):
            # a sample has the rate of the time before it
            ns = begin_ns + (n + 1) * period_ns
            while at <= ns:
                for number in numbers:
                    carrier[number] = state
                at, numbers, state = next(changes)
            columns = [list(carrier), to_network[:, n].tolist(), from_network[:, n].tolist(), idle, idle]
            yield "sample", {"ns": ns, "links": columns}

    def _carriers(self, events: Sequence[Message]) -> Iterator[tuple[int, list[int], int]]:
        """Yield when which links lost their carrier (0) or had it again, as the controller saw it."""
        for event in events:
            event_name = event["what"]
            switch = event["detail"].get("switch")
            if event_name in ("port-down", "port-up", "switch-down", "switch-up"):
                port = event["detail"].get("port")
                changes = [
                    number
                    for number, link in enumerate(self.plan.links)
                    if link.b.node == switch and port in (None, link.a.node)
                ]
                yield event["ns"], changes, int(event_name.endswith("up"))

    def _rates(
        self, flows: Sequence[Flow], around: Sequence[LinkTraffic], begin_ns: int, period_ns: int, bins: int
    ) -> tuple[Rates, Rates]:
        """Return the rates of all links to and from the network in each period, per mille of the link's own."""
        link_rates = np.zeros((2, len(self.plan.links), bins))
        if flows and isinstance(self.plan, Plan):
            shares = _Crossed(self.plan)
            wire = 1 / payload_fraction(self.plan.spec.mtu)
            for flow in flows:
                begin = (flow.start_ns - begin_ns) / period_ns
                end = (flow.end_ns - begin_ns) / period_ns
                first = int(begin)
                last = int(end)
                times = np.minimum(np.arange(first, last + 1) + 1, end) - np.maximum(np.arange(first, last + 1), begin)
                bits = flow.delivered * 8 * wire * times / (end - begin)
                for direction, number, share in shares.of(flow.src, flow.dst):
                    link_rates[direction, number, first : last + 1] += bits * share
        for traffic in around:
            middles = traffic.begin_ns - begin_ns + traffic.bin_ns * (np.arange(traffic.bits.shape[2]) + 0.5)
            for number, middle in enumerate(middles.tolist()):
                link_rates[:, :, int(middle // period_ns)] += traffic.bits[:, :, number]
        if flows or around:
            rates = np.array([link.rate_bps for link in self.plan.links])
            link_rates = np.round(link_rates / (rates[:, None] * period_ns / 1e9) * 1000)
            # flows that share a link are not even over their time
            link_rates = np.minimum(link_rates, 1000)
        return link_rates[0].astype(np.int64), link_rates[1].astype(np.int64)


def _no_links(pair: Pair, shares: Shares) -> tuple[tuple[int, int, float], ...]:
    """Return no link: of a fabric whose goodput is recorded for each NIC."""
    return ()


class _Crossed:
    """The links that a pair's flows cross by the policy, and the share of their bytes on each."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._links = plan, Links(plan)
        self._found = dict[tuple[str, str], list[tuple[int, int, float]]]()

    def of(self, src: str, dst: str) -> list[tuple[int, int, float]]:
        """Return (0 to the network or 1 from it, the number of the link, the share) of each link."""
        if (src, dst) not in self._found:
            pair = gpu_of_name(src), gpu_of_name(dst)
            self._found[src, dst] = list(self.by(pair, self._plan.spec.paths(*pair)))
        return self._found[src, dst]

    def by(self, pair: Pair, shares: Shares) -> Iterator[tuple[int, int, float]]:
        """Yield the same of a pair whose flows take these paths."""
        src, dst = pair
        for share in shares:
            part = share.weight / sum(weight for _, weight in shares)
            for hop in hops(share.path, src, dst):
                for direction, gpu in enumerate((hop.a, hop.b)):
                    numbers = self._links.at_gpu(gpu, hop.side)
                    for number in numbers:
                        yield direction, number, part / len(numbers)
                if hop.side == "rail":
                    yield from self._uplinks(hop.a, hop.b, part)

    def _uplinks(self, src: Gpu, dst: Gpu, part: float) -> Iterator[tuple[int, int, float]]:
        """Yield the same of the links between switches that two GPUs' `part` of the bytes crosses."""
        if self._plan.spec.definition.is_graph:
            for number, direction, share in self._links.graph_uplinks(src, dst):
                yield direction, number, part * share
            return
        numbers = self._links.uplinks(src, dst)
        near_switches = {self._plan.links[number].b.node for number in self._links.at_gpu(src, "rail")}
        for number in numbers:
            direction = 0 if self._plan.links[number].a.node in near_switches else 1
            yield direction, number, part * 2 / len(numbers)
