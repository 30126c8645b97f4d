"""Was the emulation faithful enough to be believed? A verdict with its reasons, from what was recorded beside it.

ok: believe the numbers. degraded: believe the direction, not the last percent. invalid: the machine was measured, and
not the fabric. Each stretch (fabric, workload, repeat) has a verdict, and the run has the worst of them. Pure.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from railyard.results.analysis.intervals import base_labels, is_steered
from railyard.results.multirail.compare import interval_name
from railyard.results.multirail.records import LostRails
from railyard.results.runs.records import ByteCheck, LinkCheck, Load, Run, Verdict
from railyard.results.views.format import digits, percent, rate, size

ORDER: Final[tuple[Verdict, ...]] = ("ok", "degraded", "invalid")


@dataclass(frozen=True, slots=True)
class Limit:
    """Above `degraded` or `invalid` (in `unit`; "share" is 0 to 1) the verdict falls. `why` these figures."""

    quantity: str
    degraded: float
    invalid: float
    unit: str
    why: str

    def judge(self, value: float) -> Verdict:
        return "invalid" if value > self.invalid else "degraded" if value > self.degraded else "ok"

    def show(self, value: float) -> str:
        if math.isinf(value):
            return "never"
        if self.unit == "share":
            return percent(value, 1 if self.degraded >= 0.01 else 2)
        return f"{digits(value, 3)} {self.unit}".strip()


LINK_RATE: Final = Limit(
    "link rate",
    0.03,
    0.10,
    "share",
    "times are to be within 3 to 5% of the formulas; a link that is off by more hides what is being measured",
)
CPU_BUSY: Final = Limit(
    "CPU busy",
    0.85,
    0.97,
    "share",
    "above 85% packets start to wait for a core instead of their link; at 97% the cores are the bottleneck",
)
CPU_FOREIGN: Final = Limit(
    "CPU used by others",
    0.15,
    0.40,
    "share",
    "another program's load comes and goes, so it spoils repeats before it fills the cores",
)
LAG: Final = Limit(
    "scheduling lag p99",
    5.0,
    50.0,
    "ms",
    "5 ms is a quarter of the 20 ms in which a link-down is to be healed; 50 ms is longer than most phases",
)
RETRANSMITS: Final = Limit(
    "retransmitted segments",
    0.001,
    0.02,
    "share",
    "a GPU fabric is lossless; one segment in a thousand already costs TCP visible time, one in fifty governs it",
)
DROPS: Final = Limit(
    "packets dropped",
    0.001,
    0.02,
    "share",
    "as for retransmits: a queue of the emulation overflowed that a real, lossless fabric would have paused",
)
PORT_BYTES: Final = Limit(
    "rail port counters off",
    0.02,
    0.10,
    "share",
    "headers are in the expected figure; what is beyond 2% was sent twice, or took another way than it should have",
)
BYTES: Final = Limit("bytes not as asked for", 0.0, 0.0, "B", "every byte is to arrive, once, where it was sent")
RAILS_MISSING: Final = Limit(
    "points with a rail lost",
    0.0,
    0.0,
    "",
    "without a rail that nothing cut, it is another fabric than the point is named for",
)
RAILS_REMEASURED: Final = Limit(
    "times measured anew",
    0.0,
    math.inf,
    "",
    "a rail that nothing cut was taken for dead: the machine stood still, which it may have done unseen, too",
)
LIMITS: Final = (
    LINK_RATE, CPU_BUSY, CPU_FOREIGN, LAG, RETRANSMITS, DROPS, PORT_BYTES, BYTES, RAILS_MISSING, RAILS_REMEASURED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity in one stretch, set against its limit.

    `workload` is "" where it holds for the whole fabric, as it was built with this `dilation`.
    """

    fabric: str
    workload: str
    repeat: int
    limit: Limit
    value: float
    text: str
    dilation: float = 1.0

    @property
    def verdict(self) -> Verdict:
        return self.limit.judge(self.value)

    @property
    def where(self) -> str:
        return f"{self.fabric}, {self.workload}, repeat {self.repeat}" if self.workload else self.fabric


@dataclass(frozen=True, slots=True)
class Judgement:
    """The run's verdict, the reasons if it isn't ok, each finding, and the verdict of each stretch."""

    verdict: Verdict
    reasons: tuple[str, ...]
    evidence: tuple[Finding, ...]
    intervals: dict[tuple[str, str, int], Verdict]


def judge(run: Run) -> Judgement:
    """The worst of all findings; a run with no evidence at all is invalid, one with gaps in it at best degraded."""
    faulted = {(x.fabric, x.workload, x.repeat) for x in run.loads if x.transfers_faulted}
    steered = is_steered(run)
    findings = (
        *_links(run.links),
        *(f for load in run.loads for f in _load(load)),
        *map(_lost, run.multirail.lost),
        *(
            f
            for check in run.bytes
            if (check.fabric, check.workload, check.repeat) not in faulted
            for f in _bytes(check, check_ports=not steered or check.rail_expected_bytes > 0)
        ),
    )
    missing_records = tuple(_missing_records(run))
    if not findings:
        return Judgement("invalid", ("nothing was recorded that could vouch for this run", *missing_records), (), {})
    worst_allowed: tuple[Verdict, ...] = ("degraded",) if missing_records else ()
    verdict = _worst((*(f.verdict for f in findings), *worst_allowed))
    return Judgement(verdict, (*_reasons(findings), *missing_records), findings, _interval_verdicts(run, findings))


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=ORDER.index, default="ok")


def _links(links: Iterable[LinkCheck]) -> Iterator[Finding]:
    """The link of each class that is furthest off: a collective takes as long as its slowest link."""
    classes: defaultdict[tuple[str, str, float], list[LinkCheck]] = defaultdict(list)
    for link in links:
        classes[link.fabric, link.link_class, link.dilation].append(link)
    for (fabric, name, dilation), sample in classes.items():
        worst = max(sample, key=_link_error)
        text = f"{name} link {worst.link} carries {rate(worst.measured_bps)}, expected {rate(worst.expected_bps)}"
        yield Finding(fabric, "", 0, LINK_RATE, _link_error(worst), text, dilation)


def _link_error(link: LinkCheck) -> float:
    return abs(link.measured_bps / link.expected_bps - 1) if link.expected_bps else 1.0


def _load(load: Load) -> Iterator[Finding]:
    where = (load.fabric, load.workload, load.repeat)
    yield Finding(*where, CPU_BUSY, load.cpu_busy, f"{percent(load.cpu_busy)} of all cores busy")
    yield Finding(
        *where, CPU_FOREIGN, load.cpu_foreign, f"{percent(load.cpu_foreign)} of all cores used by other programs"
    )
    yield Finding(*where, LAG, load.lag_p99_ms, f"a 1 ms sleeper woke {load.lag_p99_ms:.1f} ms late (99th percentile)")
    if load.transfers_faulted:
        return  # links were cut on purpose: what that loses is the result, and not a fault of the emulation
    segments_sent = max(1, load.segments)
    retransmitted_share, dropped_share = load.retransmits / segments_sent, load.drops / segments_sent
    text = f"{load.retransmits:,} of {load.segments:,} segments retransmitted ({percent(retransmitted_share, 2)})"
    if not load.rerouted:
        yield Finding(*where, RETRANSMITS, retransmitted_share, text)
    text = f"{load.drops:,} packets dropped for {load.segments:,} segments sent ({percent(dropped_share, 2)})"
    yield Finding(*where, DROPS, dropped_share, text)


def _bytes(check: ByteCheck, check_ports: bool) -> Iterator[Finding]:
    """`check_ports`: whether it is known what the rail ports should have counted."""
    where = (check.fabric, check.workload, check.repeat)
    wrong = abs(check.delivered_bytes - check.asked_bytes)
    text = f"{size(check.delivered_bytes)} delivered of {size(check.asked_bytes)}, {check.pairs_wrong} GPU pairs differ"
    yield Finding(*where, BYTES, float(max(wrong, check.pairs_wrong)), text)
    if not check_ports:
        return
    # a workload that stays in its HB domains expects nothing on the rails: set what is there against what was sent
    reference_bytes = check.rail_expected_bytes or check.asked_bytes or 1
    off = abs(check.rail_port_bytes - check.rail_expected_bytes) / reference_bytes
    text = (
        f"rail ports counted {size(check.rail_port_bytes)}, expected {size(check.rail_expected_bytes)} with headers "
        f"({percent(off)} off)"
    )
    yield Finding(*where, PORT_BYTES, off, text)


def _lost(lost: LostRails) -> Finding:
    rail_names = f"{', '.join(lost.rails)} lost while nothing was cut"
    limit, consequence = (
        (RAILS_MISSING, "in operations that count") if lost.kept else (RAILS_REMEASURED, "measured anew")
    )
    return Finding(
        lost.fabric, interval_name(lost.policy, lost.size), lost.repeat, limit, 1.0, f"{rail_names}, {consequence}"
    )


def _missing_records(run: Run) -> Iterator[str]:
    """What should have been recorded and wasn't: a verdict can't be better than its evidence."""
    if run.interrupted:
        yield "interrupted: only what was measured until then is here"
    calibrated, bases = {link.fabric for link in run.links}, base_labels(run)
    missing = [f.label for f in run.fabrics if calibrated.isdisjoint((f.label, bases[f.label]))]
    for label in dict.fromkeys(bases[label] for label in missing):
        yield f"{label}: its links were not calibrated"
    watched = {(x.fabric, x.workload, x.repeat) for x in run.loads}
    for check in run.bytes:
        if (check.fabric, check.workload, check.repeat) not in watched:
            yield f"{check.fabric}, {check.workload}, repeat {check.repeat}: the machine's load was not recorded"


def _interval_verdicts(run: Run, findings: tuple[Finding, ...]) -> dict[tuple[str, str, int], Verdict]:
    """Every stretch with load or byte records: its own findings, and those of its fabric's links.

    A fabric that policies steer one after the other is calibrated once, under its own name; one that is measured in
    slow motion as often as it is built.
    """
    bases = base_labels(run)
    dilations = {(x.fabric, x.workload, x.repeat): x.dilation for x in run.loads}
    keys = dict.fromkeys([(x.fabric, x.workload, x.repeat) for x in run.loads])
    keys |= dict.fromkeys([(c.fabric, c.workload, c.repeat) for c in run.bytes])
    own_verdicts: defaultdict[tuple[str, str, int], list[Verdict]] = defaultdict(list)
    links: defaultdict[tuple[str, float], list[Verdict]] = defaultdict(list)
    for f in findings:
        (own_verdicts[f.fabric, f.workload, f.repeat] if f.workload else links[f.fabric, f.dilation]).append(f.verdict)

    def verdict(key: tuple[str, str, int]) -> Verdict:
        dilation, labels = dilations.get(key, 1.0), {key[0], bases.get(key[0], key[0])}
        return _worst([*own_verdicts[key], *(found for label in labels for found in links[label, dilation])])

    return {key: verdict(key) for key in keys}


def _reasons(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """A line for each quantity of a fabric that is off, worst first: its worst stretch, and how many more there are."""
    groups: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.verdict != "ok":
            groups[finding.fabric, finding.limit.quantity].append(finding)
    worst = [(max(group, key=lambda f: f.value), len(group) - 1) for group in groups.values()]
    worst.sort(key=lambda item: ORDER.index(item[0].verdict), reverse=True)
    return tuple(_reason(finding, more) for finding, more in worst)


def _reason(finding: Finding, more: int) -> str:
    limit = finding.limit
    allowed = f", {limit.show(getattr(limit, finding.verdict))} is the limit" if limit.degraded else ""
    others = f" (and {more} more like it)" if more else ""
    return f"{finding.verdict}: {finding.where}: {finding.text}{allowed}{others}"
