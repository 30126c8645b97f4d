"""From a trace to a schedule: its steps become the algorithms of all workloads.

Rank n is GPU number n. A group that is a grid (the same ranks of each of its HB domains) takes the hierarchical
algorithms; any other is one ring in the group's order, or pairs.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from typing import Final

from railyard.core.units import format_size
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.schedule import Grid, Phase, Program, Schedule, TooManyTasks
from railyard.workloads.traces.common import Call, Gap, Measured, NodeId, Recv, Send, Trace
from railyard.workloads.traces.steps import Step, steps

BARRIER_BYTES: Final = 1


def _send_chain(program: Program, order: Sequence[int], size: int, phase: int) -> None:
    """Send `size` bytes from the first of `order` to the last by way of all between, each slice as it comes."""
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for part in algorithms.sliced(size):
        for src, dst in pairwise(order):
            after = [sent[src]] if src in sent else list(program.last(src))
            if src in received:
                after.append(received[src])
            task = program.send(src, dst, part, phase, tuple(after))
            sent[src] = task
            received[dst] = task
    for gpu in order:
        ends = [sent[gpu]] if gpu in sent else list(program.last(gpu))
        if gpu in received:
            ends.append(received[gpu])
        program.wait_for(gpu, ends)


def _send_barrier(program: Program, group: Sequence[int], phase: int) -> None:
    """Send a barrier: in round k each GPU sends to the GPU 2^k places on."""
    # after log2 n rounds every GPU depends on all others, directly or through another one
    n = len(group)
    step = 1
    while step < n:
        sends: list[int] = []
        for index, src in enumerate(group):
            dst = group[(index + step) % n]
            sends.append(program.send(src, dst, BARRIER_BYTES, phase, program.last(src)))
        for index, gpu in enumerate(group):
            program.wait_for(gpu, (sends[index], sends[index - step]))
        step *= 2


@dataclass(frozen=True)
class Lowered:
    """A trace as a schedule.

    `tasks`: which tasks an operation is on its own rank (none if it only orders others).
    """

    trace: Trace
    schedule: Schedule
    tasks: Mapping[NodeId, tuple[int, ...]]


def lower(
    trace: Trace, domains: int, rails: int, bytes_factor: float, time_factor: float, all_to_all: str = "all-to-all"
) -> Lowered:
    """The trace on a fabric of this shape, with its bytes and seconds times these.

    BadInput says what can't be, TooManyTasks how much of it can.
    """
    program = Program(domains, rails)
    lowering = _Lowering(trace, program, bytes_factor, time_factor, all_to_all)
    all_steps = steps(trace)
    fitting_count = 0
    try:
        for number, step in enumerate(all_steps, 1):
            lowering.add_step(step)
            if program.fits:
                fitting_count = number
        schedule = program.schedule(trace.name)
    except TooManyTasks as error:
        raise TooManyTasks(f"{error}; the first {fitting_count:,} of its {len(all_steps):,} steps fit") from error
    tasks_of_phase: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, transfer in schedule.transfers:
        tasks_of_phase[transfer.phase, transfer.src].append(number)
        tasks_of_phase[transfer.phase, transfer.dst].append(number)
    tasks = dict(lowering.gaps)
    for node_id, phase in lowering.phases.items():
        tasks[node_id] = tuple(tasks_of_phase[phase, node_id[0]])
    return Lowered(trace, schedule, tasks)


def as_grid(group: tuple[int, ...], rails: int) -> Grid | None:
    """The group as rows of HB domains, if each of them has the same ranks of it; None if not."""
    rows = [tuple(row) for _, row in groupby(sorted(group), lambda gpu: gpu // rails)]
    ranks_of_first_row = [gpu % rails for gpu in rows[0]]
    for row in rows:
        if [gpu % rails for gpu in row] != ranks_of_first_row:
            return None
    return tuple(rows)


def durations(lowered: Lowered, spans: Mapping[int, tuple[int, int]], time_factor: float) -> dict[NodeId, Measured]:
    """Return when each operation began on its rank and how long it took, in s of the job on the real platform.

    An operation lasts from the start of the first of its tasks on a rank to the end of the last; a receive begins with
    its sender's first task. `spans`: start and end of tasks in ns, on one clock. Operations with a task that did not
    end are left out. Emulated seconds are divided by `time_factor` (`railyard.workloads.schedule`).
    """
    origin_ns = min((start for start, _ in spans.values()), default=0)
    measured: dict[NodeId, Measured] = {}
    for node_id, tasks in lowered.tasks.items():
        if tasks and all(task in spans for task in tasks):
            start_ns = min(spans[task][0] for task in tasks)
            end_ns = max(spans[task][1] for task in tasks)
            start_s = (start_ns - origin_ns) / 1e9
            seconds = (end_ns - start_ns) / 1e9
            measured[node_id] = Measured(start_s / time_factor, seconds / time_factor)
    return measured


class _Lowering:
    def __init__(
        self, trace: Trace, program: Program, bytes_factor: float, time_factor: float, all_to_all: str
    ) -> None:
        self.trace = trace
        self.program = program
        self.bytes_factor = bytes_factor
        self.time_factor = time_factor
        self.all_to_all = all_to_all
        self._ends: dict[NodeId, tuple[int, ...]] = {}
        self.gaps: dict[NodeId, tuple[int, ...]] = {}
        self.phases: dict[NodeId, int] = {}
        self._names: dict[Phase, str] = {}
        self._count = 0

    def add_step(self, step: Step) -> None:
        """Append the tasks of one step: each of its GPUs goes on from what its own operation waits for."""
        program = self.program
        for node_id, dependencies in zip(step.members, step.after, strict=True):
            tasks: list[int] = []
            for dependency in dependencies:
                tasks += self._ends[dependency]
            program.wait_for(node_id[0], tasks)
        node_id = step.members[0]
        rank = node_id[0]
        action = self.trace.node(node_id).action
        phase = None
        if isinstance(action, Gap):
            seconds = action.seconds * self.time_factor
            if seconds > 0:
                # it counts to the step of the network that was begun last, which times nothing
                program.compute(rank, seconds, max(self._count - 1, 0))
                self.gaps[node_id] = program.last(rank)
        elif isinstance(action, Send):
            size = self._scaled(action.bytes)
            name = "send in HB domain"
            # x and y of two GPUs: of one HB domain, or of one rail
            x, y = (2, 1)
            if rank // program.rails != action.dst // program.rails:
                name = "send over rails"
                x, y = (1, 2)
            phase = self._phase(Phase(name, "collective", "point-to-point", x, y, size), action.bytes)
            program.wait_for(rank, [program.send(rank, action.dst, size, phase, program.last(rank))])
        elif isinstance(action, Recv):
            assert step.sent is not None
            phase = self.phases[step.sent]
            program.wait_for(rank, [*program.last(rank), *self._ends[step.sent]])
        elif len(action.group) > 1:
            phase = self._call(step, action)
        for node_id in step.members:
            self._ends[node_id] = program.last(node_id[0])
            if phase is not None:
                self.phases[node_id] = phase

    def _scaled(self, size: float) -> int:
        return algorithms.whole_bytes(size * self.bytes_factor)

    def _phase(self, phase: Phase, trace_bytes: float) -> int:
        """Append a phase, named by what is sent, among how many GPUs, and the trace's own bytes; return its number."""
        # phases that are alike share a name, so that they are reported together; others of the same name are numbered
        if phase not in self._names:
            name = phase.name
            if trace_bytes:
                name += f", {format_size(trace_bytes)}"
            same_name_count = sum(used_name.split(" #")[0] == name for used_name in self._names.values())
            if same_name_count:
                name += f" #{same_name_count + 1}"
            self._names[phase] = name
        self._count += 1
        return self.program.phase(replace(phase, name=self._names[phase]))

    def _call(self, step: Step, call: Call) -> int | None:
        """Append a collective; return the number of its phase, None if it sends nothing."""
        grid = as_grid(call.group, self.program.rails)
        if call.op == "barrier":
            return self._barrier(call, grid)
        if call.op in ("broadcast", "reduce"):
            return self._chain(call)
        if call.op in ("all-reduce", "all-gather", "reduce-scatter") or (call.op == "all-to-all" and grid):
            return self._even_collective(call, grid)
        return self._exchange(step, call, grid)

    def _barrier(self, call: Call, grid: Grid | None) -> int:
        number = self._phase(self._port_phase(call, 1), 0)
        lines: list[Sequence[int]] = [call.group]
        if grid:
            lines = [*grid, *algorithms.columns(grid)]
        for line in lines:
            _send_barrier(self.program, line, number)
        return number

    def _chain(self, call: Call) -> int | None:
        """Append a broadcast, from the root round the group, or a reduce, the other way."""
        if not call.data_bytes:
            return None
        start = call.group.index(_root(call))
        order = call.group[start:] + call.group[:start]
        if call.op == "reduce":
            order = order[::-1]
        size = self._scaled(call.data_bytes)
        number = self._phase(self._port_phase(call, size), call.data_bytes)
        _send_chain(self.program, order, size, number)
        return number

    def _even_collective(self, call: Call, grid: Grid | None) -> int | None:
        """Append a collective in which all pairs have the same bytes: all-to-all on a grid, rings of one or of all."""
        if not call.data_bytes:
            return None
        rows = grid or tuple((gpu,) for gpu in call.group)
        y = len(rows)
        x = len(rows[0])
        is_wide = x > 1 and y > 1
        if call.op == "all-to-all":
            size = self._scaled(call.data_bytes)
            # in one row or column all pairs are direct
            algorithm = self.all_to_all if is_wide else "all-to-all"
        else:
            size = self._scaled(call.data_bytes / (x * y)) * x * y
            form = "hierarchical" if is_wide else "ring"
            algorithm = f"{call.op}-{form}"
        phase = Phase(_name(call, x, y), call.kind, algorithm, x, y, size, communicator=call.group_name)
        number = self._phase(phase, call.data_bytes)
        algorithms.ALGORITHMS[algorithm].emit(self.program, phase, number, rows)
        return number

    def _port_phase(self, call: Call, size: float) -> Phase:
        """A step that is bound by one GPU's port: its bytes over the rail, if the group has more than one domain."""
        domains = {rank // self.program.rails for rank in call.group}
        # x and y of two GPUs: of one HB domain, or of one rail
        shape = (1, 2) if len(domains) > 1 else (2, 1)
        name = _name(call, len(call.group))
        return Phase(name, call.kind, "point-to-point", *shape, size, communicator=call.group_name)

    def _exchange(self, step: Step, call: Call, grid: Grid | None) -> int | None:
        """Pair by pair, each with its own bytes: v-collectives, gather and scatter, and groups that are no grid."""
        trace_sizes = self._pair_sizes(step, call)
        sizes: dict[tuple[int, int], int] = {}
        for (src, dst), size in trace_sizes.items():
            if size and src != dst:
                sizes[src, dst] = self._scaled(size)
        if not sizes:
            return None
        if grid:
            y = len(grid)
            x = len(grid[0])
            rounds = algorithms.grid_shifts(grid)
        else:
            y = len(call.group)
            x = 1
            rounds = algorithms.shifts(call.group)
        data_bytes = self._bottleneck_bytes(sizes, x, y)
        phase = Phase(_name(call, x, y), call.kind, "all-to-all", x, y, data_bytes, communicator=call.group_name)
        number = self._phase(phase, sum(trace_sizes[pair] for pair in sizes))
        exchange = algorithms.UnevenExchange(rounds, sizes)
        self.program.check_count(exchange.count())
        exchange.emit(self.program, number)
        return number

    def _pair_sizes(self, step: Step, call: Call) -> dict[tuple[int, int], float]:
        """Return the trace's bytes of each pair (src, dst)."""
        group = call.group
        if call.op == "all-to-all":
            return dict.fromkeys(product(group, group), call.data_bytes)
        if call.op == "scatter":
            return {(_root(call), dst): call.data_bytes for dst in group}
        if call.op == "gather":
            return {(src, _root(call)): call.data_bytes for src in group}
        sizes: dict[tuple[int, int], float] = {}
        for node_id in step.members:
            rank = node_id[0]
            member_call = self.trace.node(node_id).action
            assert isinstance(member_call, Call)
            # one of the two says all: what the others receive, or send, agrees with it
            if member_call.sends:
                for dst, size in zip(group, member_call.sends, strict=True):
                    sizes[rank, dst] = size
            else:
                for src, size in zip(group, member_call.receives, strict=True):
                    sizes[src, rank] = size
        return sizes

    def _bottleneck_bytes(self, sizes: Mapping[tuple[int, int], int], x: int, y: int) -> float:
        """Return the bytes of the uniform all-to-all whose rail ports carry what the busiest of these does.

        Within one domain the same for HB ports.
        """
        # with these bytes Eq. 2 gives the time that the busiest port needs, and no exchange can be faster than that
        rails = self.program.rails
        # by GPU, and whether it sends
        ports: Counter[tuple[int, bool]] = Counter()
        for (src, dst), size in sizes.items():
            if y == 1 or src // rails != dst // rails:
                ports[src, True] += size
                ports[dst, False] += size
        share = x * (y - 1) if y > 1 else x - 1
        return max(ports.values(), default=0) / share


def _root(call: Call) -> int:
    return call.group[0] if call.root is None else call.root


def _name(call: Call, *shape: int) -> str:
    dimensions = "x".join(map(str, shape))
    name = f"{call.op} {dimensions}"
    if call.kind == "collective":
        return name
    return f"{call.kind.lower()}-{name}"
