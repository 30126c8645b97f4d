"""Compare probes and counters after a fault with the oracle. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from railyard.failure.faults import Cable
from railyard.failure.oracle.reachability import Survivors
from railyard.failure.scenario.pairs import Pair


@dataclass(frozen=True, slots=True)
class Verdict:
    """What went wrong; all empty if nothing did.

    not_recovered: the fabric's own paths join them, and their probes weren't answered. impossible: answered, though
    nothing at all joins them, so the fault isn't there or the oracle errs. carried: dead nodes and cables that passed
    something on, with how much; and those in `slowed`, living cables, with how many bytes more than what is left of
    their rate.
    """

    not_recovered: tuple[Pair, ...] = ()
    impossible: tuple[Pair, ...] = ()
    carried: tuple[tuple[str | Cable, int], ...] = ()
    slowed: frozenset[Cable] = frozenset()

    @property
    def holds(self) -> bool:
        """True if all is as it must be."""
        return not (self.not_recovered or self.impossible or self.carried)

    def lines(self) -> list[str]:
        """A line for each thing that is wrong, by name."""
        return [
            *(f"{a.name} -> {b.name}: a path is left, but it did not recover" for a, b in self.not_recovered),
            *(f"{a.name} -> {b.name}: answered, though nothing joins them" for a, b in self.impossible),
            *(self._carried_line(part, amount) for part, amount in self.carried),
        ]

    def _carried_line(self, part: str | Cable, amount: int) -> str:
        if part in self.slowed:
            return f"{name_of(part)}: slowed, but it carried more than what is left of its rate, by {amount} bytes"
        return f"{name_of(part)}: dead, but it carried {amount}"


def name_of(part: str | Cable) -> str:
    """A node as it is called; a cable by its ends."""
    return part if isinstance(part, str) else "-".join(sorted(part))


def judge(survivors: Survivors, answered: Mapping[Pair, bool], counter_deltas: Mapping[str | Cable, int]) -> Verdict:
    """Hold outcomes of the time after recovery should have been done against what the broken fabric can do.

    answered: for each ordered pair that was probed, whether a probe arrived. grown: by how much the counter of what a
    node or cable passed on (bytes, packets: what the caller counts) grew from when it was dead; of living ones any
    growth is right. ValueError for a pair of GPUs that the fabric doesn't have.
    """
    known = set(survivors.plan.gpus)
    for src, dst in answered:
        if not {src, dst} <= known:
            raise ValueError(f"{src.name} -> {dst.name}: not both in a fabric of {len(known)} GPUs")
    pairs = sorted(answered, key=lambda pair: [(gpu.domain, gpu.rank) for gpu in pair])
    return Verdict(
        tuple(pair for pair in pairs if not answered[pair] and pair in survivors.reachable),
        tuple(pair for pair in pairs if answered[pair] and pair not in survivors.connected),
        tuple(
            (part, counter_deltas[part])
            for part in sorted(counter_deltas, key=name_of)
            if counter_deltas[part] and survivors.is_dead(part)
        ),
    )
