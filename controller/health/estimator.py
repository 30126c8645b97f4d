"""Score estimators: from what a rail, an HB domain or the spine layer carried in a period to its health, 0 to 100.

The papers leave the rule open ("independent of any specific health score calculation mechanism", health routing,
part 1), so it is a function of a `Load`, one file of estimators/ each; docs/examples/cubed_estimator.py is a plugin's.

`Health` has what holds for all of them: links that are down take their share away, and 0 means blocked (no link up).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from railyard.controller.health.policy import BEST, BLOCKED
from railyard.core.config import ConfigModel
from railyard.core.registry import Registry
from railyard.core.units import Time

Links = Literal["mean", "worst"]


@dataclass(frozen=True, slots=True)
class Load:
    """The load of some links together over a period, each in the busier of its directions.

    `up_ports` of `ports` links are up. Of these: `capacity_bps` bit/s, `sent_bytes` and `frames` over `period_s`,
    `dropped` frames, `backlog_bytes` that wait now, `backlog_limit_bytes` at which queues count as full.
    """

    capacity_bps: float
    period_s: float
    sent_bytes: float
    frames: float = 0
    dropped: float = 0
    backlog_bytes: float = 0
    backlog_limit_bytes: float = 0
    ports: int = 1
    up_ports: int = 1

    @property
    def used(self) -> float:
        """Share of the capacity that was used, 0 to 1."""
        capacity_bytes = self.capacity_bps * self.period_s / 8
        if not capacity_bytes:
            return 0.0
        # a shaper's idle credit and the jitter of a reading can take it above 1
        return min(1.0, self.sent_bytes / capacity_bytes)

    @property
    def filled(self) -> float:
        """Share of the queues that is full, 0 to 1."""
        if not self.backlog_limit_bytes:
            return 0.0
        return min(1.0, self.backlog_bytes / self.backlog_limit_bytes)

    @property
    def lost(self) -> float:
        """Share of the frames that was dropped, 0 to 1."""
        offered = self.frames + self.dropped
        return self.dropped / offered if offered else 0.0


Estimator = Callable[[Load], float]
"""From what links carried to their health, 0 to 100. The first line of its docstring is its description."""


def _missing_parts(_name: str, estimator: object) -> Iterator[str]:
    """What an estimator lacks, found by asking it for the score of an idle link."""
    if not callable(estimator):
        yield "must be a function of a Load"
        return
    if not estimator.__doc__:
        yield "has no docstring, whose first line describes it"
    try:
        score = estimator(Load(capacity_bps=1e9, period_s=0.1, sent_bytes=0, backlog_limit_bytes=1e6))
    except Exception as error:
        yield f"fails on an idle link: {type(error).__name__}: {error}"
        return
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        yield f"must return a number, 0 (blocked) to 100 (idle), not {score!r}"


ESTIMATORS: Final = Registry[Estimator](
    "score estimator", "railyard.controller.health.estimators", check=_missing_parts
)


def pooled(links: Iterable[Load]) -> Load:
    """Return several links as one: sums, with counts over shorter periods scaled to the longest."""
    loads = list(links)
    up = [load for load in loads if load.up_ports]
    # a switch that has just reconnected has counted for a shorter time than the others
    period_s = max((load.period_s for load in up), default=0.0)
    scaled: list[tuple[Load, float]] = []
    for load in up:
        scale = period_s / load.period_s if load.period_s else 1.0
        scaled.append((load, scale))
    return Load(
        capacity_bps=sum(load.capacity_bps for load in up),
        period_s=period_s,
        sent_bytes=sum(load.sent_bytes * scale for load, scale in scaled),
        frames=sum(load.frames * scale for load, scale in scaled),
        dropped=sum(load.dropped * scale for load, scale in scaled),
        backlog_bytes=sum(load.backlog_bytes for load in up),
        backlog_limit_bytes=sum(load.backlog_limit_bytes for load in up),
        ports=sum(load.ports for load in loads),
        up_ports=sum(load.up_ports for load in up),
    )


def health(links: Sequence[Load], estimate: Estimator, over: Links) -> float:
    """Return the health of the links that are up, 0 to 100; 0 without any.

    `mean`: of the pooled load; the papers assume the links of a rail correlated (part 2).
    `worst`: of the link with the lowest health.
    """
    up = [load for load in links if load.up_ports]
    if not up:
        return BLOCKED
    if over == "mean":
        estimated = estimate(pooled(up))
    else:
        # The mean divides an incast on one GPU by the number of domains, and so hardly shows it. The worst link shows
        # it, but makes a whole rail full for a single transfer.
        estimated = min(map(estimate, up))
    return min(float(BEST), max(float(BLOCKED), estimated))


@dataclass(frozen=True, slots=True)
class Health:
    """The smoothed health of the links that are up (None: none was, or nothing is known), and the share that is up."""

    smoothed: float | None = None
    share_up: float = 1.0

    def after(self, measured: float, share_up: float, elapsed_s: float, smoothing_s: float) -> "Health":
        """An exponentially weighted mean of time constant `smoothing_s` (0: none); `share_up` counts at once."""
        if not share_up:
            return Health(None, 0.0)
        if self.smoothed is None:
            return Health(measured, share_up)
        weight = 1 - exp(-elapsed_s / smoothing_s) if smoothing_s else 1.0
        return Health(self.smoothed + weight * (measured - self.smoothed), share_up)

    @property
    def score(self) -> int:
        """The h-score: 0 only if nothing is up, else 1 to 100; 100 before anything is known."""
        if not self.share_up:
            return BLOCKED
        smoothed = BEST if self.smoothed is None else self.smoothed
        # a rail that is merely full must not be blocked: a policy has no path at all over a score of 0
        return max(BLOCKED + 1, round(smoothed * self.share_up))


RegistryKind = Literal["embedded", "etcd"]
AtMostAMinute = Annotated[Time, Field(le=60)]


class HealthSpec(ConfigModel):
    """Settings of the scores and their registry: `period` between two readings, time constant `smoothing` of the mean
    over them; a queue that takes `full_queue` to drain at its link's rate counts as full; a cache without a message for
    `stale` is stale. `links`: see health().
    """

    estimator: Annotated[str, AfterValidator(ESTIMATORS.checked)] = "utilisation"
    links: Links = "mean"
    period: AtMostAMinute = 0.05
    smoothing: AtMostAMinute | Literal["none"] = 0.1
    full_queue: AtMostAMinute = 0.05
    registry: RegistryKind = "embedded"
    stale: AtMostAMinute = 1.0

    @property
    def smoothing_s(self) -> float:
        """Time constant in s; 0 for none."""
        return 0.0 if self.smoothing == "none" else self.smoothing
