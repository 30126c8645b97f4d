"""Live page of a finished run without a recording, by the run's events, flows and health scores.

The rate of a link is that of the flows whose pair's path, by the fabric's policy, crosses it, each spread evenly over
its time, and that of what measures recorded apart from flows. So detours of flows and the policies that steer are
not in it; queues and the packets' paths need a run with --live.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.live.paths import ALL_PAIRS_GPUS, Links
from railyard.experiments.live.phases import MAX_NAMED
from railyard.experiments.live.recorded import PAGE, page_of
from railyard.experiments.live.sampler import structure
from railyard.experiments.run.words import sentences_of_measures
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plans
from railyard.experiments.spec.parsing import parse
from railyard.results.measured import MEASURED, LinkTraffic
from railyard.results.runs.records import LIVE, Flow, Run
from railyard.topologies.addresses import Gpu, Pair, gpu_of_name
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.forwarding import Shares, hops, path_names
from railyard.topologies.plan import Plan, make_plan

PERIOD_NS: Final = 200_000_000
# of all samples of a fabric, in each direction: longer runs have longer periods, or the page would be too large
MAX_VALUES: Final = 600_000
Rates = npt.NDArray[np.int64]
Message = dict[str, Any]
CARRIER_EVENTS: Final = ("port-down", "port-up", "switch-down", "switch-up")


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
    """Yield what the run did, from when on: workloads, jobs, and faults."""
    for event in run.events:
        detail = event.detail
        if event.what == "started" and event.source in ("workload", "jobs"):
            names = [detail.get("fabric"), detail.get("workload"), detail.get("scene")]
            yield "step", {"ns": event.monotonic_ns, "text": ": ".join(filter(None, names))}
        elif event.source == "fault" and event.what != "repair":
            place = f"{event.what} at {detail.get('target', '')}"
            text = f"{detail.get('fabric', '')}: {place}, reroute {detail.get('reroute', '')}"
            yield "step", {"ns": event.monotonic_ns, "text": text}


def _phases(run: Run) -> Iterator[tuple[str, Message]]:
    """Yield the phases of workloads that were under way, from when on."""
    spans: dict[tuple[Any, str], tuple[int, int]] = {}
    for flow in run.flows:
        begin, end = spans.get((flow.interval, flow.phase), (flow.start_ns, flow.end_ns))
        # a flow without a start was never sent
        if flow.start_ns:
            spans[flow.interval, flow.phase] = min(begin, flow.start_ns), max(end, flow.end_ns)
    # (time, 0 or 1, phase): ends sort before what begins at the same time
    changes: list[tuple[int, int, str]] = []
    for (_, name), (begin, end) in spans.items():
        changes.append((begin, 1, name))
        changes.append((end, 0, name))
    names: list[str] = []
    for ns, group in groupby(sorted(changes), key=itemgetter(0)):
        for _, begins, name in group:
            if begins:
                names.append(name)
            else:
                names.remove(name)
        yield "phase", {"ns": ns, "names": names[:MAX_NAMED]}


@dataclass(frozen=True)
class _Fabric:
    """The records of one fabric, however often it was built."""

    run: Run
    label: str
    plan: FabricPlan

    def messages(self) -> Iterator[tuple[str, Message]]:
        """Yield its events, what measures show besides, the policy's paths, and samples."""
        events = self._events()
        shown_by_measures: list[tuple[str, Message]] = []
        for measure in MEASURED.values():
            for kind, data in measure.page_messages(self.run, self.label):
                if kind == "event":
                    events.append(data)
                else:
                    shown_by_measures.append((kind, data))
        events.sort(key=itemgetter("ns"))
        traffic = self._traffic()
        times = [*map(itemgetter("ns"), events), *traffic.times]
        if not times:
            return
        for event in events:
            yield "event", event
        yield from shown_by_measures
        if isinstance(self.plan, Plan) and len(self.plan.gpus) <= ALL_PAIRS_GPUS:
            yield "paths", {"ns": min(times), "paths": _policy_paths(self.plan)}
        yield from self._samples(events, traffic, min(times), max(times))

    def _traffic(self) -> "_Traffic":
        flows = [flow for flow in self.run.flows if flow.fabric == self.label and flow.end_ns > flow.start_ns > 0]
        links = _CrossedLinks(self.plan) if isinstance(self.plan, Plan) else None
        # no links: on other fabrics, measures record the traffic of each NIC
        crossed = links.crossed_on if links else _no_links
        recorded: list[LinkTraffic] = []
        for measure in MEASURED.values():
            recorded += measure.link_traffic(self.run, self.label, self.plan, crossed)
        return _Traffic(self.plan, links, flows, recorded)

    def _events(self) -> list[Message]:
        events: list[Message] = []
        # kind of the active fault, by target: the event of a repair doesn't have it
        injected: dict[str, str] = {}
        for event in self.run.events:
            if event.detail.get("fabric") != self.label:
                continue
            detail = {key: value for key, value in event.detail.items() if key != "fabric"}
            if event.source in ("controller", LIVE):
                events.append({"ns": event.monotonic_ns, "what": event.what, "detail": detail})
            elif event.source == "fault":
                target = str(detail.get("target", ""))
                action = "repair"
                if event.what != "repair":
                    action = "inject"
                    injected[target] = event.what
                detail = {"kind": injected.get(target, "fault"), "target": target}
                events.append({"ns": event.monotonic_ns, "what": action, "detail": detail})
        return events

    def _samples(
        self, events: Sequence[Message], traffic: "_Traffic", begin_ns: int, end_ns: int
    ) -> Iterator[tuple[str, Message]]:
        """Yield the carrier and the rates of all links for each period."""
        count = len(self.plan.links)
        period_ns = max(PERIOD_NS, (end_ns - begin_ns) * count // MAX_VALUES)
        periods = (end_ns - begin_ns) // period_ns + 2
        to_network, from_network = traffic.rates(begin_ns, period_ns, periods)
        carrier = [1] * count
        idle = [0] * count
        changes = deque(self._carrier_changes(events))
        for period in range(periods):
            # a sample has the rate of the time before it
            ns = begin_ns + (period + 1) * period_ns
            while changes and changes[0][0] <= ns:
                _, numbers, state = changes.popleft()
                for number in numbers:
                    carrier[number] = state
            columns = [list(carrier), to_network[:, period].tolist(), from_network[:, period].tolist(), idle, idle]
            yield "sample", {"ns": ns, "links": columns}

    def _carrier_changes(self, events: Sequence[Message]) -> Iterator[tuple[int, list[int], int]]:
        """Yield when which links lost their carrier (0) or had it again, as the controller saw it."""
        for event in events:
            if event["what"] not in CARRIER_EVENTS:
                continue
            switch = event["detail"].get("switch")
            port = event["detail"].get("port")
            numbers: list[int] = []
            for number, link in enumerate(self.plan.links):
                if link.b.node == switch and port in (None, link.a.node):
                    numbers.append(number)
            yield event["ns"], numbers, int(event["what"].endswith("up"))


def _policy_paths(plan: Plan) -> dict[str, Message]:
    """Return the paths of each pair by the fabric's policy, and their links."""
    links = Links(plan)
    paths: dict[str, Message] = {}
    for src, dst in permutations(plan.gpus, 2):
        paths[f"{src.name} {dst.name}"] = {
            "policy": path_names(plan.spec.paths(src, dst)),
            "policy_links": links.policy(src, dst),
            "links": [],
        }
    return paths


@dataclass(frozen=True)
class _Traffic:
    """What was sent on a fabric: flows, and what measures recorded on links. `links`: those that flows cross."""

    plan: FabricPlan
    links: "_CrossedLinks | None"
    flows: Sequence[Flow]
    recorded: Sequence[LinkTraffic]

    @property
    def times(self) -> list[int]:
        """When each flow and each recorded part began and ended, monotonic ns."""
        times: list[int] = []
        for flow in self.flows:
            times += [flow.start_ns, flow.end_ns]
        for traffic in self.recorded:
            times += [traffic.begin_ns, traffic.end_ns]
        return times

    def rates(self, begin_ns: int, period_ns: int, periods: int) -> tuple[Rates, Rates]:
        """Return the rates of all links to and from the network in each period, per mille of the link's own."""
        bits = np.zeros((2, len(self.plan.links), periods))
        if self.links:
            wire = 1 / payload_fraction(self.links.plan.spec.mtu)
            for flow in self.flows:
                begin = (flow.start_ns - begin_ns) / period_ns
                end = (flow.end_ns - begin_ns) / period_ns
                numbers = np.arange(int(begin), int(end) + 1)
                parts = np.minimum(numbers + 1, end) - np.maximum(numbers, begin)
                flow_bits = flow.delivered * 8 * wire * parts / (end - begin)
                for direction, number, share in self.links.crossed(flow.src, flow.dst):
                    bits[direction, number, numbers] += flow_bits * share
        for traffic in self.recorded:
            middles = traffic.begin_ns - begin_ns + traffic.bin_ns * (np.arange(traffic.bits.shape[2]) + 0.5)
            for number, middle in enumerate(middles.tolist()):
                bits[:, :, int(middle // period_ns)] += traffic.bits[:, :, number]
        rates_bps = np.array([link.rate_bps for link in self.plan.links])
        per_mille = np.round(bits / (rates_bps[:, None] * period_ns / 1e9) * 1000)
        # flows that share a link are not even over their time: their sum may exceed the link's rate
        per_mille = np.minimum(per_mille, 1000).astype(np.int64)
        return per_mille[0], per_mille[1]


def _no_links(pair: Pair, shares: Shares) -> tuple[tuple[int, int, float], ...]:
    """Return no link: of a fabric whose goodput is recorded for each NIC."""
    return ()


class _CrossedLinks:
    """The links that flows cross, and the share of their bytes on each.

    A link is (0 to the network or 1 from it, its number, the share).
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._links = Links(plan)
        self._by_names: dict[tuple[str, str], list[tuple[int, int, float]]] = {}

    def crossed(self, src: str, dst: str) -> list[tuple[int, int, float]]:
        """Return the links of a pair's flows by the fabric's policy."""
        if (src, dst) not in self._by_names:
            pair = gpu_of_name(src), gpu_of_name(dst)
            self._by_names[src, dst] = list(self.crossed_on(pair, self.plan.spec.paths(*pair)))
        return self._by_names[src, dst]

    def crossed_on(self, pair: Pair, shares: Shares) -> Iterator[tuple[int, int, float]]:
        """Yield the links of a pair whose flows take these paths."""
        src, dst = pair
        total_weight = sum(share.weight for share in shares)
        for share in shares:
            part = share.weight / total_weight
            for hop in hops(share.path, src, dst):
                for direction, gpu in enumerate((hop.a, hop.b)):
                    numbers = self._links.at_gpu(gpu, hop.side)
                    for number in numbers:
                        yield direction, number, part / len(numbers)
                    for number in self._links.at_nic(gpu, hop.side):
                        yield direction, number, part
                if hop.side == "rail":
                    yield from self._uplinks(hop.a, hop.b, part)

    def _uplinks(self, src: Gpu, dst: Gpu, part: float) -> Iterator[tuple[int, int, float]]:
        """Yield the links between switches that two GPUs' `part` of the bytes crosses."""
        if self.plan.spec.definition.is_graph:
            for number, direction, share in self._links.graph_uplinks(src, dst):
                yield direction, number, part * share
            return
        numbers = self._links.uplinks(src, dst)
        near_switches = self._links.switches_of(src)
        for number in numbers:
            direction = 0 if self.plan.links[number].a.node in near_switches else 1
            # half of them lead up to a spine, and half down from one
            yield direction, number, part * 2 / len(numbers)
