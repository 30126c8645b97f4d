"""Event-driven simulation of a schedule, whose transfers share links max-min fairly: flows of a fluid, and no packets.

Tasks begin as in a replay (workloads/replay): when all that they wait for has ended, and a transfer when its connection
is free. A transfer then is a flow over the ports of its path. Whenever a transfer begins or ends, all rates are fair
anew. Computing takes its seconds. It predicts traffic that no formula has: several jobs on the same links, phases that
overlap, links that change.

Units: bytes of payload, seconds, bytes a second.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from railyard.results.theory.fluid.departures import Departures, Network
from railyard.results.theory.fluid.outage import DeadParts
from railyard.results.theory.fluid.routes import Amounts, Numbers, Port, Routes, routes_in_outage, routes_of
from railyard.results.theory.fluid.sharing import max_min
from railyard.results.theory.path_seconds import PathSeconds
from railyard.topologies.spec import FabricSpec
from railyard.workloads.columns import Columns
from railyard.workloads.matrix.traffic_matrix import rail_of_gpus
from railyard.workloads.replay.job import Windows
from railyard.workloads.schedule import Rates, Schedule

NO_LATENCY: Final = PathSeconds(0.0, 0.0, 0.0)
# events that differ by rounding are at the same time
SAME_TIME: Final = 1 + 1e-10
MAX_REMEMBERED: Final = 20_000  # sets of flows whose rates are kept


@dataclass(frozen=True, slots=True)
class RateChange:
    """A change at `at_s`, from when on a port has `factor` times the rate of the plan: 0 for a dead link.

    A port that no transfer crosses makes no difference.
    """

    at_s: float
    port: Port
    factor: float


@dataclass(frozen=True, slots=True)
class Outage:
    """Dead parts of the fabric, from `start_s` to `end_s`.

    Meanwhile transfers take the paths that the controller and the switches choose then, from the first moment on; those
    without a path wait.
    """

    dead: DeadParts
    start_s: float = 0.0
    end_s: float = inf


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a simulation.

    `hash_seed`: of the hash that puts flows on planes, paths and uplinks; None: even shares. `one_way`: latency from
    the departure of a transfer to its receipt, by path. `changes`: of rates of ports. `outage`: of dead
    parts. `windows`: of connections, by which transfers leave their GPUs before they arrive; None: at the same time.
    """

    hash_seed: int | None = None
    one_way: PathSeconds = NO_LATENCY
    changes: tuple[RateChange, ...] = ()
    outage: Outage | None = None
    windows: Windows | None = None


@dataclass(frozen=True, eq=False)
class Pieces:
    """Parts of transfers in which the rate is constant, in arrays of one length: task number, times, rate."""

    task: Numbers
    start_s: Amounts
    end_s: Amounts
    rate: Amounts


@dataclass(frozen=True, eq=False)
class FluidRun:
    """A simulated schedule. `start_s` and `end_s` of each task by number; infinite if it never begins, or never ends.

    `flow`: of each task, its row in `routes`, those of the intact fabric; -1 for computing. A transfer ends at its
    receiver.
    """

    schedule: Schedule
    routes: Routes
    flow: Numbers
    start_s: Amounts
    end_s: Amounts
    pieces: Pieces

    @property
    def seconds(self) -> float:
        """The end of the last task; infinite if one never ends."""
        return float(self.end_s.max(initial=0.0))

    def spans(self) -> dict[int, tuple[float, float]]:
        """Return start and end of each transfer that ends, by task number, as a replay measures them."""
        is_ended = np.isfinite(self.end_s) & (self.flow >= 0)
        numbers = np.flatnonzero(is_ended)
        times = zip(self.start_s[numbers].tolist(), self.end_s[numbers].tolist(), strict=True)
        return dict(zip(numbers.tolist(), times, strict=True))


def simulate(schedule: Schedule, rates: Rates, fabric: FabricSpec, conditions: Conditions | None = None) -> FluidRun:
    """Simulate a schedule on a fabric whose GPUs have links of these rates. Default: even shares, no latency."""
    conditions = conditions or Conditions()
    columns = schedule.columns
    is_transfer = ~columns.is_compute
    ends = np.column_stack((columns.src, columns.dst, columns.stripe))[is_transfer]
    # a pair has a connection for each stripe, on which its transfers go one after the other
    flows, place = np.unique(ends, axis=0, return_inverse=True)
    flow = np.full(len(columns), -1, dtype=np.int64)
    flow[is_transfer] = place.ravel()
    src = flows[:, 0]
    dst = flows[:, 1]
    changes: list[RateChange | _RouteChange] = list(conditions.changes)
    outage = conditions.outage
    if outage is None:
        routes = routes_of(src, dst, rates, fabric, conditions.hash_seed)
    else:
        routes, routes_around = routes_in_outage(src, dst, rates, fabric, conditions.hash_seed, outage.dead)
        changes += [_RouteChange(outage.start_s, routes_around), _RouteChange(outage.end_s, routes)]
    latency_s = _latency_s(src, dst, fabric, conditions.one_way)
    departures = None
    if conditions.windows is not None:
        departures = Departures(flows, fabric, conditions.windows)
    simulation = _Simulation(columns, flow, routes, latency_s, changes, departures)
    simulation.run()
    return FluidRun(schedule, routes, flow, simulation.start_s, simulation.end_s, simulation.pieces())


def _latency_s(src: Numbers, dst: Numbers, fabric: FabricSpec, one_way: PathSeconds) -> Amounts:
    """Return the latency of each flow."""
    in_domain = src // fabric.rails == dst // fabric.rails
    on_rail = rail_of_gpus(src, fabric.rails, fabric) == rail_of_gpus(dst, fabric.rails, fabric)
    between = np.where(on_rail, one_way.rail, one_way.cross_rail)
    return np.where(in_domain, one_way.hb, between)


@dataclass(frozen=True, slots=True)
class _RouteChange:
    """A change at `at_s`, from when on flows take other routes, with the same numbers of ports."""

    at_s: float
    routes: Routes


class _Dependents:
    """Tasks by what they wait for: the departure of a transfer from its own GPU, or its receipt, or a computation."""

    def __init__(self, columns: Columns) -> None:
        self.counts = np.diff(columns.after_end, prepend=0).tolist()
        self.on_departure: defaultdict[int, list[int]] = defaultdict(list)
        self.on_receipt: defaultdict[int, list[int]] = defaultdict(list)
        waiting = np.repeat(np.arange(len(columns)), np.diff(columns.after_end, prepend=0))
        before = columns.after
        is_receipt = ~columns.is_compute[before] & (columns.dst[before] == columns.src[waiting])
        edges = zip(before.tolist(), waiting.tolist(), is_receipt.tolist(), strict=True)
        for earlier, task, at_receiver in edges:
            group = self.on_receipt if at_receiver else self.on_departure
            group[earlier].append(task)


class _Simulation:
    """State of a simulation at `now_s`: the tasks that are ready, transfers under way, and events that will come."""

    def __init__(
        self,
        columns: Columns,
        flow: Numbers,
        routes: Routes,
        latency_s: Amounts,
        changes: Sequence[RateChange | _RouteChange],
        departures: Departures | None,
    ) -> None:
        self.now_s = 0.0
        self.start_s = np.full(len(columns), inf)
        self.end_s = np.full(len(columns), inf)
        self._is_compute = columns.is_compute.tolist()
        self._seconds = columns.seconds.tolist()
        self._bytes = columns.bytes.tolist()
        self._flow = flow.tolist()
        self._routes = routes
        self._has_path = routes.has_path.tolist()
        self._latency_s = latency_s.tolist()
        self._departures = departures
        self._dependents = _Dependents(columns)
        self._ready = deque(task for task, count in enumerate(self._dependents.counts) if not count)
        count = len(routes.crossed)
        self._queues: list[deque[int]] = [deque() for _ in range(count)]
        # of each flow: the transfer under way, or -1; its rate, and what remained of it when that rate began
        self._task = np.full(count, -1, dtype=np.int64)
        self._rate = np.zeros(count)
        self._remaining = np.zeros(count)
        self._since_s = np.zeros(count)
        self._finish_s = np.full(count, inf)
        # of each group of flows: whether its rates have to be computed anew
        self._is_stale = np.zeros(count, dtype=bool)
        self._port_rates = routes.rates.copy()
        self._rates_of_flows: dict[bytes, Amounts] = {}
        self._pieces: list[tuple[Numbers, Amounts, Amounts, Amounts]] = []
        # when computations end, and when transfers that have left arrive
        self._timers: list[tuple[float, int]] = []
        self._changes = deque(sorted(changes, key=lambda change: change.at_s))

    def run(self) -> None:
        """Go from event to event until nothing more happens."""
        while True:
            self._begin_ready()
            self._share()
            # whichever comes first: a transfer that has left, a timer, a change of a rate
            next_s = float(self._finish_s.min(initial=inf))
            if self._timers:
                next_s = min(next_s, self._timers[0][0])
            if self._changes:
                next_s = min(next_s, self._changes[0].at_s)
            if self._departures is not None:
                next_s = min(next_s, float(self._departures.at_s.min(initial=inf)))
            if next_s == inf:
                return
            self.now_s = next_s
            self._apply_changes()
            self._leave()
            self._depart(np.flatnonzero(self._finish_s <= self.now_s * SAME_TIME))
            while self._timers and self._timers[0][0] <= self.now_s * SAME_TIME:
                _, task = heapq.heappop(self._timers)
                self._end(task)

    def pieces(self) -> Pieces:
        """Return all pieces, in the order of their ends."""
        if not self._pieces:
            nothing = np.zeros(0)
            return Pieces(np.zeros(0, dtype=np.int64), nothing, nothing, nothing)
        task, start_s, end_s, rate = map(np.concatenate, zip(*self._pieces, strict=True))
        return Pieces(task, start_s, end_s, rate)

    def _begin_ready(self) -> None:
        """Begin every task that waits for nothing; a transfer whose connection is taken queues for it."""
        while self._ready:
            task = self._ready.popleft()
            if self._is_compute[task]:
                self.start_s[task] = self.now_s
                # computations of a GPU overlap, as in a replay: a schedule orders them by what they wait for
                heapq.heappush(self._timers, (self.now_s + self._seconds[task], task))
                continue
            flow = self._flow[task]
            # it waits for ever, as does all that waits for it: no outage gives it a path
            if not self._has_path[flow]:
                continue
            if self._task[flow] < 0:
                self._begin_transfer(flow, task)
            else:
                self._queues[flow].append(task)

    def _begin_transfer(self, flow: int, task: int) -> None:
        """Put a transfer on its connection. `_share` gives it a rate."""
        self.start_s[task] = self.now_s
        self._task[flow] = task
        self._rate[flow] = 0.0
        self._remaining[flow] = self._bytes[task]
        self._since_s[flow] = self.now_s
        if self._departures is not None:
            self._departures.begin(flow)
        self._is_stale[self._routes.groups[flow]] = True

    def _share(self) -> None:
        """Give the transfers under way of stale groups their fair rates."""
        # what began or ended elsewhere makes no difference to a group
        flows = np.flatnonzero((self._task >= 0) & self._is_stale[self._routes.groups])
        self._is_stale[:] = False
        if not len(flows):
            return
        # iterations repeat the same sets of flows
        key = flows.tobytes()
        rates = self._rates_of_flows.get(key)
        if rates is None:
            if len(self._rates_of_flows) >= MAX_REMEMBERED:
                self._rates_of_flows.clear()
            rates = self._fair_rates(flows)
            self._rates_of_flows[key] = rates
        # a transfer whose rate stays needs no new end, and no new piece
        is_changed = rates != self._rate[flows]
        changed = flows[is_changed]
        self._end_pieces(changed)
        self._rate[changed] = rates[is_changed]
        finish_s = np.full(len(changed), inf)
        np.divide(self._remaining[changed], self._rate[changed], out=finish_s, where=self._rate[changed] > 0)
        self._finish_s[changed] = self.now_s + finish_s
        if self._departures is not None:
            remaining = self._remaining[flows] - rates * (self.now_s - self._since_s[flows])
            network = Network(self._routes, self._port_rates)
            self._departures.update(flows, self.now_s, remaining, rates, network)

    def _fair_rates(self, flows: Numbers) -> Amounts:
        """Return the fair rate of each of these flows; 0 for one whose path is dead."""
        rates = np.zeros(len(flows))
        has_path = self._routes.has_path[flows]
        rates[has_path] = max_min(self._routes, flows[has_path], self._port_rates)
        return rates

    def _end_pieces(self, flows: Numbers) -> None:
        """Record what these flows have sent at their rates so far."""
        since_s = self._since_s[flows]
        rate = self._rate[flows]
        is_sent = (since_s < self.now_s) & (rate > 0)
        sent = flows[is_sent]
        if len(sent):
            end_s = np.full(len(sent), self.now_s)
            self._pieces.append((self._task[sent], since_s[is_sent], end_s, rate[is_sent]))
        self._remaining[flows] = np.maximum(0.0, self._remaining[flows] - rate * (self.now_s - since_s))
        self._since_s[flows] = self.now_s

    def _leave(self) -> None:
        """Free what waits for the departure of transfers that have left their GPUs and have yet to arrive."""
        if self._departures is None:
            return
        for flow in self._departures.leave(self.now_s * SAME_TIME).tolist():
            self._release(self._dependents.on_departure.get(int(self._task[flow]), ()))

    def _depart(self, flows: Numbers) -> None:
        """End the transfers under way of these flows: their last byte has passed the slowest link."""
        if not len(flows):
            return
        self._end_pieces(flows)
        self._finish_s[flows] = inf
        self._is_stale[self._routes.groups[flows]] = True
        tasks = self._task[flows].tolist()
        self._task[flows] = -1
        for flow, task in zip(flows.tolist(), tasks, strict=True):
            if self._departures is None or not self._departures.has_left(flow):
                self._release(self._dependents.on_departure.get(task, ()))
            latency_s = self._latency_s[flow]
            if latency_s:
                heapq.heappush(self._timers, (self.now_s + latency_s, task))
            else:
                self._end(task)
            if self._queues[flow]:
                self._begin_transfer(flow, self._queues[flow].popleft())

    def _end(self, task: int) -> None:
        """End a computation, or a transfer at its receiver."""
        self.end_s[task] = self.now_s
        if self._is_compute[task]:
            self._release(self._dependents.on_departure.get(task, ()))
        else:
            self._release(self._dependents.on_receipt.get(task, ()))

    def _release(self, tasks: Iterable[int]) -> None:
        """Count down what these tasks wait for; those that wait for nothing more are ready."""
        for task in tasks:
            self._dependents.counts[task] -= 1
            if not self._dependents.counts[task]:
                self._ready.append(task)

    def _apply_changes(self) -> None:
        """Give ports the rates, and flows the routes, that they have from now on, and let all flows share anew."""
        while self._changes and self._changes[0].at_s <= self.now_s * SAME_TIME:
            change = self._changes.popleft()
            if isinstance(change, _RouteChange):
                self._routes = change.routes
            elif change.port in self._routes.ports:
                number = self._routes.number(change.port)
                self._port_rates[number] = change.factor * self._routes.rates[number]
            # they were fair for the rates and routes until now
            self._rates_of_flows.clear()
            self._is_stale[:] = True
