"""Pipelined AllGather, ReduceScatter and AllReduce: rails and HB domains carry different pieces at the same time.

Hierarchical collectives (Eq. 1) leave the HB domains idle while the rails carry, and the rails while the domains do.
Here a domain gathers each piece as soon as its rails have brought it, so that little more than the slower of the two is
left: the rails, unless HB domains are large. Source: Spine-free, "LLM Traffic in the NIC Domain"; Rail-only Eq. 12 and
13 are the bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from railyard.topologies.prediction import StatedTime
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import (
    ALGORITHMS,
    SENDS_WAITING,
    SLICE_BYTES,
    Algorithm,
    Sizes,
    Stages,
    columns,
    whole_bytes,
)
from railyard.workloads.schedule import Grid, Phase, Program

CHUNKS = 32
"""Parts that what a rail carries is divided into; fewer if they would be smaller than SLICE_BYTES."""


def pieces_of_share(share_bytes: float, domains: int) -> int:
    """Return in how many pieces a GPU's share of the data is sent: CHUNKS over all domains, one at least."""
    return max(1, min(CHUNKS // domains, int(share_bytes // SLICE_BYTES)))


def pipelined_s(
    data_bytes: float, x: int, y: int, hb_bytes_per_s: float, rail_bytes_per_s: float, pieces: int
) -> float:
    """Return the seconds of a pipelined AllGather of `data_bytes` (the whole gathered data), or ReduceScatter.

    Rails take the first term of Eq. 1. The domains then gather the last piece, an x y `pieces`-th of the data, from x -
    1 GPUs. Where domains take longer than that, they are busy all the time, with y shares from x - 1 GPUs.
    """
    share_bytes = data_bytes / (x * y)
    # the last piece comes from the rails at their end, and the domain gathers it only then
    on_rails = (y - 1) * share_bytes / rail_bytes_per_s
    in_domains = (x - 1) * share_bytes / hb_bytes_per_s
    return max(y * in_domains, on_rails + in_domains / pieces)


@dataclass
class _Port:
    """The sends of a GPU's port so far, in the order in which they leave."""

    sends: list[int] = field(default_factory=list)

    @property
    def before_next(self) -> list[int]:
        """The send that must have left before the next one; none while few are waiting."""
        return self.sends[-SENDS_WAITING:][:1] if len(self.sends) >= SENDS_WAITING else []


@dataclass(frozen=True)
class PipelinedRings:
    """Rings on the rails and in the HB domains of a grid, piece by piece.

    `share`: bytes of a GPU's part of the data, sent in `pieces`.
    `reduces`: domains reduce each share before the rails sum it.
    `gathers`: domains gather each share that the rails have brought.
    Turn n is piece n % `pieces` of the share of the domain n // `pieces` places before a GPU's own on its rail.
    """

    grid: Grid
    share: float
    pieces: int
    reduces: bool
    gathers: bool

    def sizes(self) -> Sizes:
        """Return the bytes between neighbours on rails and in domains."""
        y = len(self.grid)
        x = len(self.grid[0])
        # an AllReduce sends as much to reduce as to gather
        directions = int(self.reduces) + int(self.gathers)
        by_pair: dict[tuple[int, int], float] = {}
        for rings, steps in ((columns(self.grid), y - 1), (self.grid, y * (x - 1))):
            for ring in rings:
                for place, src in enumerate(ring):
                    dst = ring[(place + 1) % len(ring)]
                    # a ring of one GPU sends nothing
                    if src != dst:
                        by_pair[src, dst] = directions * steps * self.share
        return Sizes.of(by_pair)

    def sequential_steps(self) -> int:
        """Return the messages of the last piece: one on its rail, and those of its ring in the domain."""
        directions = int(self.reduces) + int(self.gathers)
        # the pieces of a share follow one another closely, so a rail waits for the latency of one message
        on_rails = 1 if self.pieces > 1 else len(self.grid) - 1
        return directions * (on_rails + len(self.grid[0]) - 1)

    def emit(self, program: Program, phase: int, in_flight: int | None = None) -> None:
        _Emission(self, program, phase).run()


class _Emission:
    """The tasks of one run of pipelined rings."""

    def __init__(self, rings: PipelinedRings, program: Program, phase: int) -> None:
        self._rings = rings
        self._program = program
        self._phase = phase
        self._piece = whole_bytes(rings.share / rings.pieces)
        self._y = len(rings.grid)
        self._gpus = [gpu for domain in rings.grid for gpu in domain]
        self._first = {gpu: list(program.last(gpu)) for gpu in self._gpus}
        self._rail_ports = {gpu: _Port() for gpu in self._gpus}
        self._hb_ports = {gpu: _Port() for gpu in self._gpus}
        # what each GPU received last, and so waits for in the end
        self._received: dict[int, list[int]] = {gpu: [] for gpu in self._gpus}

    def run(self) -> None:
        """Append all tasks, each after those that it waits for."""
        rings = self._rings
        turns = self._y * rings.pieces
        # by turn, what makes a GPU's share ready for the rails
        reduced = [self._first] * turns
        if rings.reduces:
            reduced = [self._in_domains(self._first) for _ in range(turns)]
        arrived: list[dict[int, list[int]]] = []
        if rings.reduces:
            arrived = self._along_rails([], reduced)
            # the sum of a GPU's own share, to which it adds its domain's part
            own_parts = reduced[turns - rings.pieces :]
            summed = arrived[-rings.pieces :] or own_parts
            reduced = [self._joined(*both) for both in zip(summed, own_parts, strict=True)]
        if rings.gathers:
            start = reduced[: rings.pieces]
            gathered = [*start, *self._along_rails(start, [])]
            for ready in gathered:
                self._in_domains(ready)
        # a GPU begins its next step when its ports are free and all that is for it has arrived
        for gpu in self._gpus:
            self._program.wait_for(gpu, self._ends(gpu))

    def _ends(self, gpu: int) -> list[int]:
        """Return what the GPU's next step waits for: its last sends, and all that it received last."""
        sends = [*self._rail_ports[gpu].sends[-SENDS_WAITING:], *self._hb_ports[gpu].sends[-SENDS_WAITING:]]
        return [*sends, *self._received[gpu]] or self._first[gpu]

    @staticmethod
    def _joined(some: dict[int, list[int]], other: dict[int, list[int]]) -> dict[int, list[int]]:
        return {gpu: [*tasks, *other[gpu]] for gpu, tasks in some.items()}

    def _along_rails(
        self, start: Sequence[dict[int, list[int]]], parts: Sequence[dict[int, list[int]]]
    ) -> list[dict[int, list[int]]]:
        """Send y - 1 shares to the next domain; return by turn what each GPU received.

        `start`: what the first share is ready after, when it is gathered. `parts`: by turn, what a GPU adds to a share
        after, when it is summed.
        """
        pieces = self._rings.pieces
        arrived: list[dict[int, list[int]]] = []
        for turn in range((self._y - 1) * pieces):
            ready = parts[turn] if parts else {gpu: [] for gpu in self._gpus}
            if turn >= pieces:
                # what arrived is sent on, after the GPU's own part was added
                ready = self._joined(ready, arrived[turn - pieces])
            elif start:
                ready = start[turn]
            arrived.append(self._step(columns(self._rings.grid), self._rail_ports, ready))
        self._keep(arrived[-pieces:])
        return arrived

    def _in_domains(self, ready: dict[int, list[int]]) -> dict[int, list[int]]:
        """Send one piece round every domain; return what each GPU received last, or `ready` in domains of one."""
        received = ready
        for _ in range(len(self._rings.grid[0]) - 1):
            received = self._step(self._rings.grid, self._hb_ports, received)
        if received is not ready:
            self._keep([received])
        return received

    def _step(self, rings: Grid, ports: dict[int, _Port], ready: dict[int, list[int]]) -> dict[int, list[int]]:
        """Let each GPU send a piece to the next one of its ring; return what each received."""
        received: dict[int, list[int]] = {}
        for ring in rings:
            for place, src in enumerate(ring):
                dst = ring[(place + 1) % len(ring)]
                # pieces leave in the order of turns, else a late share would take the port of an early one
                after = [*ready[src], *ports[src].before_next]
                task = self._program.send(src, dst, self._piece, self._phase, after)
                ports[src].sends.append(task)
                received[dst] = [task]
        return received

    def _keep(self, turns: Sequence[dict[int, list[int]]]) -> None:
        """Remember what GPUs received, for the end of the phase."""
        for turn in turns:
            for gpu, tasks in turn.items():
                self._received[gpu] += tasks


class _Pipelined(Algorithm):
    """Base of the pipelined collectives."""

    algorithm = "pipelined"
    is_divided = True
    reduces = False
    gathers = False

    def stages(self, phase: Phase, grid: Grid) -> Stages:
        """Run the rings of rails and domains as one stage."""
        share = phase.data_bytes / (phase.x * phase.y)
        yield [PipelinedRings(grid, share, pieces_of_share(share, phase.y), self.reduces, self.gathers)]

    def stated(
        self, phase: Phase, hb_bytes_per_s: float, rail_bytes_per_s: float, fabric: FabricSpec
    ) -> StatedTime | None:
        """Return the seconds of one run, which is exact: Eq. 1 with both terms at the same time.

        None where flows are hashed over the planes of a rail or the cables of a graph: then they have a bound alone.
        """
        definition = fabric.definition
        if definition.is_graph or len(definition.carrying(definition.all_planes)) > 1:
            return None
        pieces = pieces_of_share(phase.data_bytes / (phase.x * phase.y), phase.y)
        seconds = pipelined_s(phase.data_bytes, phase.x, phase.y, hb_bytes_per_s, rail_bytes_per_s, pieces)
        directions = int(self.reduces) + int(self.gathers)
        return StatedTime(directions * seconds, "Eq. 1, pipelined")


@ALGORITHMS.register("all-gather-pipelined")
class PipelinedAllGather(_Pipelined):
    """Every GPU contributes D / (x y) bytes, and ends with D: domains gather what the rails have brought so far."""

    collective = "all-gather"
    gathers = True


@ALGORITHMS.register("reduce-scatter-pipelined")
class PipelinedReduceScatter(_Pipelined):
    """Every GPU has D bytes, and ends with the sum of D / (x y) of them: rails sum what domains have reduced so far."""

    collective = "reduce-scatter"
    reduces = True


@ALGORITHMS.register("all-reduce-pipelined")
class PipelinedAllReduce(_Pipelined):
    """Every GPU has D bytes, and ends with the sum of all D: a pipelined ReduceScatter, then an AllGather."""

    collective = "all-reduce"
    reduces = True
    gathers = True
