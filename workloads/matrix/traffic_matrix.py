"""Traffic of a schedule on a fabric: bytes by pair and by port, and how long it takes at line rate.

Line rate means that every port sends at its rate and nothing is ever late: a list scheduling of the tasks. It serves to
choose byte sizes for a wished-for duration, and to check a schedule's shape against the equations; it is no prediction
(those are in `railyard.results.theory.predict`, and know nothing of tasks).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from statistics import median
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, Shares, policy_shares
from railyard.topologies.nics import RailOfRank, first_ranks
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import Numbers, Sizes
from railyard.workloads.columns import Columns
from railyard.workloads.schedule import Rates, Schedule
from railyard.workloads.tasks import Transfer

Side = Literal["hb", "rail"]
_Port = int  # 4 GPU + 2 for the rail link + 1 for its receiving side
_Use = tuple[float, float, int]  # of a port: from when to when, and the number of the phase
# tasks that numpy handles in the time that Python takes for one by one
MIN_BATCH: Final = 4


def line_rate_duration_s(schedule: Schedule, rates: Rates, fabric: FabricSpec | None = None) -> float:
    """Return the seconds from the first task to the end of the last.

    `fabric`: by default rail-only, to which durations in specifications refer.
    """
    if isinstance(schedule.tasks, Columns):
        hops = _hops(schedule, rates, fabric)
        ends = _batch_ends(schedule.tasks, hops)
        if len(ends) * MIN_BATCH <= len(schedule.tasks):
            return _batched_duration_s(schedule.tasks, hops, ends, 4 * schedule.gpus)
    return max((end for end, _ in _line_rate(schedule, rates, fabric, with_ports=False)), default=0.0)


class LineRate(NamedTuple):
    """A schedule at line rate: its seconds, and for each phase and each other phase, which share of a run the other
    one has a port of its own.

    A phase has a port from its first byte there to its last. The share is that of the port that shares most, in the
    median run.
    """

    seconds: float
    # the other phase's bytes in between are time that no formula of a phase alone has
    shared: Mapping[tuple[str, str], float]


# repeats have the same schedule, which may have a hundred thousand tasks
@lru_cache(maxsize=8)
def at_line_rate(schedule: Schedule, rates: Rates, fabric: FabricSpec) -> LineRate:
    """Return how long a schedule takes at line rate, and which phases share links then."""
    if len(schedule.phases) == 1:
        return LineRate(line_rate_duration_s(schedule, rates, fabric), {})
    seconds = 0.0
    runs = defaultdict[int, list[float]](lambda: [inf, 0.0])
    uses: defaultdict[_Port, list[_Use]] = defaultdict(list)
    for task, (end, hops) in zip(schedule.tasks, _line_rate(schedule, rates, fabric, with_ports=True), strict=True):
        seconds = max(seconds, end)
        for port, start, done in hops:
            uses[port].append((start, done, task.phase))
            run = runs[task.phase]
            run[:] = min(run[0], start), max(run[1], end)
    longest_s = _longest_shared_s(schedule, uses.values())
    shares: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    names = dict.fromkeys(name for _, name in longest_s)
    for phase, (begin, end) in runs.items():
        for name in names:
            share = 0.0
            if end > begin:
                share = longest_s.get((phase, name), 0.0) / (end - begin)
            shares[schedule.phases[phase].name, name].append(share)
    medians = {pair: median(values) for pair, values in shares.items()}
    return LineRate(seconds, {pair: share for pair, share in medians.items() if share})


def _longest_shared_s(schedule: Schedule, uses: Iterable[list[_Use]]) -> dict[tuple[int, str], float]:
    """Return how long the transfers of another phase take at a port between the first and last use by a phase's run.

    By the run's phase number and the other phase's name, at the port where that is longest. `uses`: those of each port.
    """
    longest_s: dict[tuple[int, str], float] = {}
    for port_uses in uses:
        port_uses.sort()
        first_use: dict[int, int] = {}
        last_use: dict[int, int] = {}
        for index, (_, _, phase) in enumerate(port_uses):
            first_use.setdefault(phase, index)
            last_use[phase] = index
        for phase, first in first_use.items():
            shared_s = defaultdict[str, float](float)
            for start, done, other_phase in port_uses[first : last_use[phase] + 1]:
                if other_phase != phase:
                    shared_s[schedule.phases[other_phase].name] += done - start
            for name, port_s in shared_s.items():
                longest_s[phase, name] = max(longest_s.get((phase, name), 0.0), port_s)
    return longest_s


def _rail_only(schedule: Schedule) -> FabricSpec:
    domains = max(1, schedule.gpus // schedule.rails)
    return FabricSpec.model_construct(kind="rail-only", domains=domains, rails=schedule.rails)


class _TaskHop(NamedTuple):
    """One hop of the tasks that have it, in order: its ports by number, and the seconds that the bytes take."""

    task: Numbers
    out: Numbers
    into: Numbers
    seconds: npt.NDArray[np.float64]


def _hops(schedule: Schedule, rates: Rates, fabric: FabricSpec | None) -> list[_TaskHop]:
    """Return all hops of all transfers, in the order of `_line_rate`."""
    columns = schedule.columns
    gpus = schedule.gpus
    task = np.flatnonzero(~columns.is_compute)
    pair = columns.src[task] * gpus + columns.dst[task]
    is_used = np.zeros(gpus**2, dtype=bool)
    is_used[pair] = True
    src, dst = np.divmod(np.flatnonzero(is_used), gpus)
    # by the place in `src` and `dst`
    pair = (np.cumsum(is_used) - 1)[pair]
    hops = []
    fabric = fabric or _rail_only(schedule)
    at_nic = nic_of_gpus(schedule.gpus, fabric)
    for way in ways(src, dst, schedule.rails, fabric):
        for a, b, port, rate in (
            (src, way.enter, 0, rates.hb),
            (way.enter, way.leave, 2, rates.rail),
            (way.leave, dst, 0, rates.hb),
        ):
            has_hop = ((a != b) & (way.share > 0))[pair]
            pair_of_task = pair[has_hop]
            seconds = way.share[pair_of_task] * columns.bytes[task[has_hop]] / rate
            near = a[pair_of_task]
            far = b[pair_of_task]
            if port:
                near = at_nic[near]
                far = at_nic[far]
            out = 4 * near + port
            into = 4 * far + port + 1
            hops.append(_TaskHop(task[has_hop], out, into, seconds))
    return [hop for hop in hops if len(hop.task)]


def _batch_ends(tasks: Columns, hops: Sequence[_TaskHop]) -> list[int]:
    """Split tasks into runs in which none waits for another one, or for its port; return where each one ends."""
    waiting = np.repeat(np.arange(len(tasks)), np.diff(tasks.after_end, prepend=0))
    # of the earlier tasks that a task must not share a run with
    latest = np.full(len(tasks), -1)
    np.maximum.at(latest, waiting, tasks.after)
    # every task that uses a port, and the port: each hop has two
    user_parts: list[Numbers] = [waiting[:0]]
    port_parts: list[Numbers] = [waiting[:0]]
    for hop in hops:
        user_parts += [hop.task, hop.task]
        port_parts += [hop.out, hop.into]
    users = np.concatenate(user_parts)
    ports = np.concatenate(port_parts)
    # numpy has a radix sort for 16 bits
    order = np.argsort(ports.astype(np.min_scalar_type(ports.max(initial=0))), kind="stable")
    if ((np.diff(users[order]) < 0) & (np.diff(ports[order]) == 0)).any():
        # a port has tasks of several hops
        order = np.lexsort((users, ports))
    users = users[order]
    ports = ports[order]
    follows = np.flatnonzero((ports[1:] == ports[:-1]) & (users[1:] != users[:-1]))
    np.maximum.at(latest, users[follows + 1], users[follows])
    ends = list[int]()
    start = 0
    end = 0
    while start < len(tasks):
        # a part at a time: with all later tasks looked at for each run, the time would grow with the square
        step = max(64, 2 * (end - start))
        end = start + 1
        start_of_run = start
        while end < len(tasks):
            conflicts = latest[end : end + step] >= start_of_run
            first = int(conflicts.argmax())
            if conflicts[first]:
                end += first
                break
            end = min(len(tasks), end + step)
        ends.append(end)
        start = end
    return ends


def _batched_duration_s(tasks: Columns, hops: Sequence[_TaskHop], batch_ends: Sequence[int], ports: int) -> float:
    """Return the end of the last task as `_line_rate` computes it, a run of independent tasks at a time."""
    waiting = np.repeat(np.arange(len(tasks)), np.diff(tasks.after_end, prepend=0))
    free_at = np.zeros(ports)
    ends = np.zeros(len(tasks))
    start = 0
    first_after = 0
    bounds = [np.searchsorted(hop.task, batch_ends).tolist() for hop in hops]
    last_after = tasks.after_end[np.array(batch_ends) - 1].tolist()
    first_hop = [0] * len(hops)
    for number, (end, after_end) in enumerate(zip(batch_ends, last_after, strict=True)):
        ready = np.zeros(end - start)
        np.maximum.at(ready, waiting[first_after:after_end] - start, ends[tasks.after[first_after:after_end]])
        done = ready + tasks.seconds[start:end]
        for n, hop in enumerate(hops):
            in_run = slice(first_hop[n], bounds[n][number])
            first_hop[n] = in_run.stop
            if in_run.start == in_run.stop:
                continue
            place = hop.task[in_run] - start
            out = hop.out[in_run]
            into = hop.into[in_run]
            hop_end = np.maximum(np.maximum(ready[place], free_at[out]), free_at[into]) + hop.seconds[in_run]
            free_at[out] = free_at[into] = hop_end
            done[place] = np.maximum(done[place], hop_end)
        ends[start:end] = done
        start = end
        first_after = after_end
    return float(ends.max(initial=0.0))


def _line_rate(
    schedule: Schedule, rates: Rates, fabric: FabricSpec | None, with_ports: bool
) -> Iterator[tuple[float, list[tuple[_Port, float, float]]]]:
    """Yield the end of each task at line rate, and, `with_ports`, from when to when it has which ports."""
    hops = _pair_hops(schedule, rates, fabric or _rail_only(schedule))
    free_at = [0.0] * (4 * schedule.gpus)  # of ports
    ends: list[float] = []
    for task in schedule.tasks:
        ready = 0.0
        # loops, as max() of an iterator takes three times as long
        for before in task.after:
            if ends[before] > ready:
                ready = ends[before]
        if not isinstance(task, Transfer):
            ends.append(ready + task.seconds)
            yield ends[-1], []
            continue
        end = ready
        used = list[tuple[_Port, float, float]]()
        for share, rate, sender, receiver in hops[task.src, task.dst]:
            # a forwarder passes packets on as they come, so a later hop may start with the first one
            start = ready
            if free_at[sender] > start:
                start = free_at[sender]
            if free_at[receiver] > start:
                start = free_at[receiver]
            done = start + share * task.bytes / rate
            free_at[sender] = free_at[receiver] = done
            if with_ports:
                used += [(sender, start, done), (receiver, start, done)]
            if done > end:
                end = done
        ends.append(end)
        yield end, used


def _pair_hops(
    schedule: Schedule, rates: Rates, fabric: FabricSpec
) -> defaultdict[tuple[int, int], list[tuple[float, float, _Port, _Port]]]:
    """Return the hops of each pair, way by way: their share of its bytes, their rate, and the ports at both ends."""
    hops: defaultdict[tuple[int, int], list[tuple[float, float, _Port, _Port]]] = defaultdict(list)
    sizes = Sizes.of(schedule.matrix)
    at_nic = nic_of_gpus(schedule.gpus, fabric).tolist()
    for way in ways(sizes.src, sizes.dst, schedule.rails, fabric):
        nodes = zip(sizes.src.tolist(), way.enter.tolist(), way.leave.tolist(), sizes.dst.tolist(), strict=True)
        for share, (src, enter, leave, dst) in zip(way.share.tolist(), nodes, strict=True):
            if share and src != enter:
                hops[src, dst].append((share, rates.hb, 4 * src, 4 * enter + 1))
            if share and enter != leave:
                hops[src, dst].append((share, rates.rail, 4 * at_nic[enter] + 2, 4 * at_nic[leave] + 3))
            if share and leave != dst:
                hops[src, dst].append((share, rates.hb, 4 * leave, 4 * dst + 1))
    return hops


def nic_of_gpus(gpu_count: int, fabric: FabricSpec) -> Numbers:
    """Return for each GPU number the first GPU at the same NIC, whose ports on the rail are those of the NIC."""
    gpus = np.arange(gpu_count)
    by_rank = fabric.rail_of_rank
    if not by_rank:
        return gpus
    rank = gpus % fabric.rails
    first_rank: Numbers = np.array(first_ranks(by_rank))[rank]
    return gpus - rank + first_rank


Matrix = npt.NDArray[np.int64]


def traffic_matrix(schedule: Schedule, kind: str | None = None) -> Matrix:
    """Return the payload bytes from row to column, by GPU number.

    `kind`: count one kind of traffic; default: all.
    """
    matrix = np.zeros((schedule.gpus, schedule.gpus), dtype=np.int64)
    for _, t in schedule.transfers:
        if kind is None or schedule.phases[t.phase].kind == kind:
            matrix[t.src, t.dst] += t.bytes
    return matrix


def bytes_by_kind(schedule: Schedule) -> dict[str, int]:
    """Payload bytes that all GPUs together send, of each kind that occurs."""
    columns = schedule.columns
    phases = columns.phase[~columns.is_compute]
    sent = np.zeros(len(schedule.phases), dtype=np.int64)
    np.add.at(sent, columns.phase, columns.bytes)
    total: Counter[str] = Counter()
    for number in dict.fromkeys(phases.tolist()):
        total[schedule.phases[number].kind] += int(sent[number])
    return dict(total)


def cross_rail_bytes(schedule: Schedule, nics: RailOfRank = ()) -> int:
    """Payload between GPUs that differ in rail and in domain: what only spines, or forwarding, can carry.

    Rail-only section III-B: none for dense LLMs. `nics`: the rail of each rank, where GPUs share NICs.
    """
    rail_of = nics or range(schedule.rails)
    total = 0
    for (src, dst), size in schedule.matrix.items():
        src_domain, src_rank = divmod(src, schedule.rails)
        dst_domain, dst_rank = divmod(dst, schedule.rails)
        if src_domain != dst_domain and rail_of[src_rank] != rail_of[dst_rank]:
            total += size
    return total


@dataclass(frozen=True)
class PortBytes:
    """Payload bytes through each GPU's interfaces, by GPU number, forwarded traffic included."""

    rail_in: Matrix
    rail_out: Matrix
    hb_in: Matrix
    hb_out: Matrix


def port_bytes(schedule: Schedule, fabric: FabricSpec) -> PortBytes:
    """Return what each port should carry in all, if every pair takes the policy's paths from beginning to end."""
    ports = PortBytes(*(np.zeros(schedule.gpus, dtype=np.int64) for _ in range(4)))
    sizes = Sizes.of(schedule.matrix)
    for share, enter, leave in ways(sizes.src, sizes.dst, schedule.rails, fabric):
        # pairs with several paths are split by their weights, to whole bytes
        part = np.rint(share * sizes.bytes).astype(np.int64)
        for a, b, outs, ins in (
            (sizes.src, enter, ports.hb_out, ports.hb_in),
            (enter, leave, ports.rail_out, ports.rail_in),
            (leave, sizes.dst, ports.hb_out, ports.hb_in),
        ):
            moved = a != b
            np.add.at(outs, a[moved], part[moved])
            np.add.at(ins, b[moved], part[moved])
    return ports


def rail_of_gpus(gpus: Numbers, rails: int, fabric: FabricSpec) -> Numbers:
    """Return the rail of each of these GPUs, by number, of domains with `rails` GPUs."""
    rank = gpus % rails
    if not fabric.rail_of_rank:
        return rank
    rail: Numbers = np.array(fabric.rail_of_rank)[rank]
    return rail


class Way(NamedTuple):
    """One path of each of many pairs: its share of the pair's traffic, and the GPUs at the ends of its rail hop.

    A pair sends over hb from its source to `enter`, over rails to `leave`, and over hb to its destination; hops from a
    GPU to itself don't exist.
    """

    share: npt.NDArray[np.float64]
    enter: Numbers
    leave: Numbers


def ways(src: Numbers, dst: Numbers, rails: int, fabric: FabricSpec) -> list[Way]:
    """Return the paths of pairs of GPU numbers by the fabric's policy.

    As many ways as the pair with most paths has; a pair with fewer has shares of 0 in the others. A pair without a path
    has shares of 0 in all: `without_path` finds these.
    """
    policy = fabric.chosen_policy
    shape = Fabric(fabric.kind, fabric.domains, rails, fabric.rail_of_rank[:rails])
    d1, g1 = np.divmod(src, rails)
    d2, g2 = np.divmod(dst, rails)
    is_on_rail = (d1 != d2) & (rail_of_gpus(src, rails, fabric) == rail_of_gpus(dst, rails, fabric))
    turns = np.flatnonzero((d1 != d2) & ~is_on_rail)
    # a policy that looks at ranks alone is asked once for each pair of ranks: a large fabric has far more pairs of GPUs
    if FORWARDING_POLICIES[policy].by_rank:
        _, first, row = np.unique(g1[turns] * rails + g2[turns], return_index=True, return_inverse=True)
    else:
        first = row = np.arange(len(turns))
    shares_of_pairs: list[Shares] = []
    for pair in turns[first]:
        near = Gpu(*divmod(int(src[pair]), rails))
        far = Gpu(*divmod(int(dst[pair]), rails))
        shares_of_pairs.append(policy_shares(policy, near, far, shape))
    result = []
    # one at least: pairs of one domain, or one rank, have a path whatever the policy
    most_paths = max(1, max(map(len, shares_of_pairs), default=1))
    for number in range(most_paths):
        # for pairs with fewer paths: none
        weights = np.zeros(len(shares_of_pairs))
        rails_of_pairs = np.zeros(len(shares_of_pairs), dtype=np.int64)
        are_spine = np.zeros(len(shares_of_pairs), dtype=bool)
        for place, shares in enumerate(shares_of_pairs):
            if number < len(shares):
                path, weight = shares[number]
                weights[place] = weight / sum(share.weight for share in shares)
                rails_of_pairs[place] = path.rail
                are_spine[place] = path.kind == "spine"
        share = np.full(len(src), float(number == 0))
        share[turns] = weights[row]
        rail = g1.copy()
        rail[turns] = rails_of_pairs[row]
        is_spine = np.zeros(len(src), dtype=bool)
        is_spine[turns] = are_spine[row]
        is_direct = is_spine | is_on_rail
        enter = np.where(is_direct, src, d1 * rails + rail)
        leave = np.where(is_direct, dst, d2 * rails + rail)
        result.append(Way(share, enter, leave))
    return result


def without_path(routes: Sequence[Way]) -> npt.NDArray[np.bool_]:
    """Return which pairs have no path. `routes`: of `ways`."""
    has_path: npt.NDArray[np.bool_] = np.logical_or.reduce([way.share > 0 for way in routes])
    return ~has_path
