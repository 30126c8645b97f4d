"""Faults by kind, target and fabric, their repeats together; and what belongs to one run of a failure script. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from railyard.results.analysis.aggregate import labels
from railyard.results.analysis.recovery_stats import Figure, figure
from railyard.results.runs.fidelity import ORDER, Judgement
from railyard.results.runs.records import Census, GoodputTrace, Recovery, Run, Verdict

Side = Literal["source", "far"]
SIDES: Final[tuple[Side, ...]] = ("source", "far")
STEPS: Final = ("detect_ms", "decided_ms", "reroute_ms", "first_packet_ms", "goodput_ms", "back_ms", "home_ms")
FROM_REPAIR: Final = ("back_ms", "home_ms")
"""The others count from the fault."""
NOT_AVOIDED: Final = frozenset({"link-gray", "link-slow"})
"""A link that still carries something stays in use, by design: what it loses or delays lasts until the repair."""
BESIDE: Final = frozenset({"controller-crash", "registry-crash"})
"""Nothing that carries packets breaks, so nobody goes round anything."""
TOGETHER_NS: Final = 50_000_000  # acts so near each other are one
_WITH: Final = " with "  # a workload with a script
STEP_NAMES: Final = {
    "detect_ms": "detected",
    "decided_ms": "decided",
    "reroute_ms": "installed",
    "first_packet_ms": "first packet",
    "source_ms": "first packet, source side",
    "far_ms": "first packet, far side",
    "goodput_ms": "goodput back",
    "back_ms": "goodput after repair",
    "home_ms": "detours withdrawn",
}


@dataclass(frozen=True)
class RecoveryRow:
    """The repeats of one kind of fault at one target, on one fabric (by its label in tables)."""

    fabric: str
    fault: str
    target: str
    reroute: str
    repeats: tuple[Recovery, ...]
    is_one_of_several: bool  # targets of this kind on this fabric

    @property
    def name(self) -> str:
        """Its kind; with its target where that alone would not tell which."""
        return named(self.fault, self.target, self.is_one_of_several)

    @property
    def recovered(self) -> int:
        return sum(r.recovered for r in self.repeats)

    @property
    def unaffected(self) -> bool:
        """Whether nobody was cut off: a GPU that dies where no other's traffic passes through it hurts itself alone."""
        return all(is_unaffected(r) for r in self.repeats)

    @property
    def unprobed(self) -> bool:
        """Whether no probed pair was hit, so that nothing is known of first packets."""
        return not any(map(is_probed, self.repeats))

    @cached_property
    def steps(self) -> dict[str, Figure]:
        """By the name of the column of recovery.csv, in ms."""
        found = {step: figure(getattr(r, step) for r in self.repeats) for step in STEPS}
        return {step: made for step, made in found.items() if made}

    @cached_property
    def sides(self) -> dict[Side, Figure]:
        """First packets (ms) by side of the fault; only sides of which pairs were probed."""
        found = {side: figure(side_values(self.repeats, side)) for side in SIDES}
        return {side: made for side, made in found.items() if made}

    @property
    def connections_lost(self) -> int:
        return sum(r.connections_lost for r in self.repeats)

    def total(self, column: Literal["lost_bytes", "probes_lost", "return_lost", "too_fast"]) -> int:
        return sum(getattr(r, column) for r in self.repeats)


def named(fault: str, target: str, is_one_of_several: bool) -> str:
    """What to call a fault that came alone."""
    return f"{fault} {target}" if is_one_of_several else fault


def several(told: Iterable[Recovery | GoodputTrace]) -> frozenset[tuple[str, str]]:
    """(fabric, as recorded, and kind of fault) wherever it has more than one target."""
    targets = Counter((fabric, fault) for fabric, fault, _ in {(t.fabric, t.fault, t.target) for t in told})
    return frozenset(place for place, count in targets.items() if count > 1)


def side_values(repeats: Sequence[Recovery], side: Side) -> list[float | None]:
    """Of each repeat in which such pairs were probed, until packets flowed on this side (ms, None: never)."""
    return [getattr(r, f"{side}_ms") for r in repeats if probed_on(r, side)]


def probed_on(recovery: Recovery, side: Side) -> int:
    """How many pairs on this side were probed."""
    return recovery.source_probed if side == "source" else recovery.far_probed


def pairs_probed(recovery: Recovery) -> int:
    """How many on either side."""
    return recovery.source_probed + recovery.far_probed


def is_probed(recovery: Recovery) -> bool:
    """Whether any pair that it hit was."""
    return pairs_probed(recovery) > 0


def is_told_by_goodput(recovery: Recovery) -> bool:
    """Whether goodput fell, so that whether it came back says something even where no pair was probed."""
    return bool(recovery.goodput_ms) or not recovery.recovered


def is_unaffected(recovery: Recovery) -> bool:
    """Whether no probe of another GPU's was lost to this fault."""
    return is_probed(recovery) and recovery.probes_lost == 0 and recovery.first_packet_ms == 0


def recovery_rows(run: Run) -> tuple[RecoveryRow, ...]:
    """Faults that came alone, by fabric, repeats together: all of a kind next to each other, reroute on before off."""
    names, alone = labels(run), [r for r in run.recoveries if not r.script]
    groups: defaultdict[tuple[str, str, str, str], list[Recovery]] = defaultdict(list)
    for r in alone:
        groups[names[r.fabric, r.policy], r.fault, r.target, r.reroute].append(r)
    many = several(alone)
    rows = [
        RecoveryRow(*key, tuple(repeats), (repeats[0].fabric, repeats[0].fault) in many)
        for key, repeats in groups.items()
    ]
    faults, targets = list(dict.fromkeys(r.fault for r in alone)), list(dict.fromkeys(r.target for r in alone))
    fabrics = list(dict.fromkeys(names.values()))

    def place(row: RecoveryRow) -> tuple[int, int, int, bool]:
        return faults.index(row.fault), fabrics.index(row.fabric), targets.index(row.target), row.reroute != "on"

    return tuple(sorted(rows, key=place))


@dataclass(frozen=True)
class ScriptRow:
    """One repeat of a failure script on a fabric: its faults in the order of time, the censuses between, the goodput.

    A storm has another seed, and so other faults, in every repeat.
    """

    fabric: str
    script: str
    reroute: str
    repeat: int
    faults: tuple[Recovery, ...]
    censuses: tuple[Census, ...]
    goodput: tuple[GoodputTrace, ...]

    @property
    def taken(self) -> int:
        """How many of the censuses that were due the machine had time for."""
        return sum(c.taken for c in self.censuses)

    @property
    def held(self) -> int:
        return sum(c.taken and holds(c) for c in self.censuses)

    @property
    def mended_alone(self) -> tuple[Recovery, ...]:
        """Faults from which traffic returned, and nothing else was broken then: what is lost there, the return lost."""
        return tuple(r for r in self.faults if returns(r) and not any(_outlasts(other, r) for other in self.faults))

    @property
    def lost_bytes(self) -> int:
        """Each fault's record has what the whole script lost."""
        return max((r.lost_bytes for r in self.faults), default=0)

    @property
    def connections_lost(self) -> int:
        return max((r.connections_lost for r in self.faults), default=0)


def holds(census: Census) -> bool:
    """Whether the fabric and the oracle agree, as far as anybody looked: of one not taken nothing is known."""
    return not disagreements(census)


def disagreements(census: Census) -> int:
    """Pairs, and dead parts, of which the fabric and the oracle say different things."""
    return census.not_recovered + census.impossible + census.carried


def returns(recovery: Recovery) -> bool:
    """Whether traffic had gone round it, so that it returns. Else what is lost after the repair is the fault's own:
    a repair isn't done in no time.
    """
    return recovery.first_packet_ms is not None and recovery.fault not in NOT_AVOIDED


def _outlasts(other: Recovery, recovery: Recovery) -> bool:
    """Whether the other is there when this one is mended."""
    soon = recovery.t_repair + TOGETHER_NS
    return other.t_fault <= soon < other.t_repair


def told_of(censuses: Sequence[Census]) -> str:
    """`73 of 86 taken, all hold`; `73 of 86 taken, 71 hold`."""
    taken = [c for c in censuses if c.taken]
    held = sum(map(holds, taken))
    said = "all hold" if held == len(taken) else f"{held} hold"
    return f"{len(taken)} of {len(censuses)} taken" + (f", {said}" if taken else "")


def script_runs(run: Run) -> tuple[ScriptRow, ...]:
    """Every repeat of every script, in the order in which they ran."""
    names = labels(run)
    told: list[Recovery | Census] = [*run.recoveries, *run.censuses]
    keys = dict.fromkeys((row.fabric, row.policy, row.script, row.reroute, row.repeat) for row in told if row.script)
    found = []
    for fabric, policy, script, reroute, repeat in keys:
        where = (fabric, script, reroute, repeat)
        faults = [r for r in run.recoveries if (r.fabric, r.script, r.reroute, r.repeat) == where]
        censuses = [c for c in run.censuses if (c.fabric, c.script, c.reroute, c.repeat) == where]
        goodput = [t for t in run.goodput if (t.fabric, t.script, t.reroute, t.repeat) == where]
        found.append(
            ScriptRow(
                fabric=names.get((fabric, policy), fabric),
                script=script,
                reroute=reroute,
                repeat=repeat,
                faults=tuple(sorted(faults, key=lambda r: r.t_fault)),
                censuses=tuple(sorted(censuses, key=lambda c: c.monotonic_ns)),
                goodput=tuple(goodput),
            )
        )
    return tuple(found)


def verdict(recoveries: Iterable[Recovery], judgement: Judgement) -> Verdict:
    """The worst of the stretches in which these faults came."""
    places = {(r.fabric, r.repeat, r.reroute, r.script or f"{r.fault} {r.target}") for r in recoveries}
    names = {(fabric, repeat, name) for fabric, repeat, *what in places for name in _stretch_names(*what)}
    found = (v for (fabric, name, repeat), v in judgement.stretches.items() if (fabric, repeat, _told(name)) in names)
    return max(found, key=ORDER.index, default="ok")


def _stretch_names(reroute: str, what: str) -> tuple[str, str]:
    """By itself; and beside a workload, of which `_told` takes the name away."""
    return f"{what} (reroute {reroute})", f"{_WITH}{what}" + ("" if reroute == "on" else f" (reroute {reroute})")


def _told(stretch: str) -> str:
    """`moe with two-at-once` -> ` with two-at-once`."""
    at = stretch.find(_WITH)
    return stretch[at:] if at > 0 else stretch
