"""Links that pairs of GPUs cross on a fabric, and how jobs use them by the measured times of their transfers."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.records import JobLink, LinkSharing
from railyard.results.theory.fluid.outage import DeadParts
from railyard.results.theory.fluid.routes import Port, routes_of
from railyard.results.theory.fluid.simulation import FluidRun, Pieces
from railyard.results.theory.fluid.usage import PortUse, Sharing, port_uses, shared_times
from railyard.topologies.addresses import Pair, gpu_of_name
from railyard.topologies.fabric_kinds import End
from railyard.topologies.plan import Plan
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.schedule import Rates, Schedule, payload_rates

MIN_SHARING_S: Final = 0.005
"""Times of sharing that are closer together are one, and shorter ones are left out: a queue is as long."""
MAX_SHARINGS: Final = 5_000


def rates_of(plan: Plan) -> Rates:
    """Return the payload rates of a fabric's links."""
    return payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)


def pairs_by_end(schedule: Schedule, plan: Plan, outages: Sequence[DeadParts] = ()) -> dict[End, list[Pair]]:
    """Return the pairs whose traffic leaves each end of a link, for the ends that need a queue for each pair.

    An end needs them if several pairs leave there, or if it forwards the traffic of a pair beside acknowledgements of
    others. Where a hash chooses the uplink of a pair, the pair counts at every uplink. `outages`: dead parts of faults,
    whose detours count too.
    """
    sending = set(schedule.matrix)
    # a pair's acknowledgements take the path back
    answering = {(dst, src) for src, dst in sending} - sending
    sent = _crossing(sending, plan, outages)
    answered = _crossing(answering, plan, outages)
    result: dict[End, list[Pair]] = {}
    for end, pairs in sent.items():
        # behind a whole window of forwarded traffic, acknowledgements would hold up other flows
        if len(pairs) > 1 or (end in answered and _is_forwarding(end, pairs, plan)):
            result[end] = list(pairs)
    return result


def _is_forwarding(end: End, pairs: Collection[Pair], plan: Plan) -> bool:
    """Return whether any of these pairs is forwarded at the end of a link, and does not begin at its node."""
    if any(end in (link.a, link.b) for link in plan.uplinks):
        return True
    if end.node in plan.gpus_of_nic:
        senders = plan.gpus_of_nic[end.node]
    elif end.node in plan.hosts:
        senders = (gpu_of_name(end.node),)
    else:
        # all traffic to a GPU is for it or its domain, and is not served apart from its acknowledgements
        return False
    return any(src not in senders for src, _ in pairs)


def _crossing(
    numbers: Collection[tuple[int, int]], plan: Plan, outages: Sequence[DeadParts]
) -> dict[End, dict[Pair, None]]:
    """Return the pairs that leave each end, with all parts alive and in each outage. `numbers`: GPUs of each pair."""
    pairs: defaultdict[End, dict[Pair, None]] = defaultdict(dict)
    src, dst = np.array(sorted(numbers), dtype=np.int64).reshape(-1, 2).T
    for dead in (None, *outages):
        routes = routes_of(src, dst, rates_of(plan), plan.spec, dead=dead)
        ends = [ends_of(port, plan) for port in routes.ports]
        flow, place = np.nonzero(routes.shares)
        for number, port in zip(flow.tolist(), routes.crossed[flow, place].tolist(), strict=True):
            pair = (plan.gpus[int(src[number])], plan.gpus[int(dst[number])])
            for end in ends[port]:
                pairs[end][pair] = None
    return pairs


def ends_of(port: Port, plan: Plan) -> tuple[End, ...]:
    """Return the ends of links that traffic leaves over a port: several where the port stands for several links."""
    if port.side == "uplink":
        return _uplink_ends(port, plan)
    if port.side == "hb":
        gpu = gpu_of_name(port.node)
        return (plan.hb_link(gpu).a if port.is_out else plan.network_end(gpu, "hb"),)
    gpus = plan.gpus_of_nic.get(port.node)
    gpu = gpus[0] if gpus else gpu_of_name(port.node)
    if port.is_out:
        return tuple(link.a for link in plan.rail_links(gpu))
    return tuple(plan.network_end(gpu, "rail", plane) for plane in plan.spec.definition.all_planes)


def _uplink_ends(port: Port, plan: Plan) -> tuple[End, ...]:
    """Return the ends of the uplinks of a switch: its own, or those of the switches above for traffic into it."""
    ends: list[End] = []
    for link in plan.uplinks:
        for near, far in ((link.a, link.b), (link.b, link.a)):
            if near.node == port.node and port.far in ("", far.node):
                ends.append(near if port.is_out else far)
    return tuple(ends)


def measured_uses(
    predicted: FluidRun, spans: Mapping[int, tuple[float, float]], jobs: CombinedSchedule
) -> list[PortUse]:
    """Return the use of each port by each job, by the measured times of transfers: s after the start, by task number.

    `predicted`: a simulation of the same schedule, whose routes the transfers take.
    """
    columns = jobs.schedule.columns
    ended = np.array(sorted(spans), dtype=np.int64)
    tasks = ended[~columns.is_compute[ended]]
    times = np.array(list(map(spans.__getitem__, tasks.tolist()))).reshape(-1, 2)
    start_s, end_s = times.T
    # small transfers may end in the same tick of the clock
    seconds = np.maximum(end_s - start_s, 1e-9)
    pieces = Pieces(tasks, start_s, end_s, columns.bytes[tasks] / seconds)
    return port_uses(replace(predicted, pieces=pieces), jobs.job_of_task)


def link_records(
    interval: IntervalId, uses: list[PortUse], jobs: CombinedSchedule
) -> tuple[list[JobLink], list[LinkSharing]]:
    """Return a row for each port and job, and the times when jobs shared ports."""
    names = [job.name for job in jobs.jobs]
    shared_s: defaultdict[tuple[Port, int], float] = defaultdict(float)
    partners: defaultdict[tuple[Port, int], set[int]] = defaultdict(set)
    sharings: list[LinkSharing] = []
    # the sums count every moment, the list leaves short ones out
    for sharing in shared_times(uses):
        for job in sharing.jobs:
            shared_s[sharing.port, job] += sharing.end_s - sharing.start_s
            partners[sharing.port, job].update(sharing.jobs)
    for sharing in _merged(shared_times(uses)):
        sharers = ", ".join(map(names.__getitem__, sharing.jobs))
        link = (port_name(sharing.port), direction(sharing.port))
        sharings.append(LinkSharing(interval, *link, sharers, sharing.start_s, sharing.end_s))
    links: list[JobLink] = []
    for use in uses:
        key = (use.port, use.job)
        sharing_jobs = sorted(partners[key] - {use.job})
        row = JobLink(
            interval=interval,
            link=port_name(use.port),
            direction=direction(use.port),
            job=names[use.job],
            bytes=round(use.bytes),
            busy_s=sum(end_s - start_s for start_s, end_s in use.intervals),
            shared_s=shared_s[key],
            shared_with=", ".join(map(names.__getitem__, sharing_jobs)),
        )
        links.append(row)
    return links, sharings[:MAX_SHARINGS]


def _merged(sharings: Iterator[Sharing]) -> Iterator[Sharing]:
    """Yield times of sharing with short gaps closed, without short ones."""
    last: Sharing | None = None
    for sharing in sharings:
        if last is None:
            last = sharing
            continue
        is_same = (sharing.port, sharing.jobs) == (last.port, last.jobs)
        if is_same and sharing.start_s - last.end_s < MIN_SHARING_S:
            last = last._replace(end_s=sharing.end_s)
            continue
        if last.end_s - last.start_s >= MIN_SHARING_S:
            yield last
        last = sharing
    if last is not None and last.end_s - last.start_s >= MIN_SHARING_S:
        yield last


def port_name(port: Port) -> str:
    """Return the name of a port's link: `d0g1 rail`, `rail0 uplink spine1`."""
    plane = f" plane {port.plane}" if port.plane else ""
    return " ".join(filter(None, (port.node, port.side, port.far))) + plane


def direction(port: Port) -> str:
    """Return whether a port is out of its node or into it."""
    return "out" if port.is_out else "in"
