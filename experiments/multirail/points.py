"""All policies on one fabric, in turn: every size, checked against numpy's sum, then timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from experiments.multirail.crews import Crews
from experiments.multirail.engines import Engine
from experiments.multirail.measured import Place, check_whole, in_one, point, undilated
from experiments.multirail.parts import is_ours, peer_rail
from experiments.multirail.predictions import counted, learning, seconds, sent_bytes, turns
from experiments.multirail.site import Site, Watch
from experiments.multirail.spec import MultirailExperiment
from experiments.progress import Steps
from results.multirail.compare import size_name
from results.multirail.records import Point
from results.multirail.tables import stretch_of
from workloads.multirail.jobs import Operations, RankReport

CHECKED: Final = 3
"""Operations whose every element is compared: results are the same code, whatever is timed."""


@dataclass
class _Course:
    """A policy's operations of one size: its turns, and what ranks told so far. `predicted_s` of an operation."""

    place: Place
    seed: int
    predicted_s: float
    turns: Sequence[tuple[int, int]]
    checked: Sequence[RankReport] = ()
    timed: list[Sequence[RankReport]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return stretch_of(self.place.policy, self.place.size)

    def turn(self, ranks: Engine) -> None:
        """The next one; before the first, the check."""
        if not self.timed:
            self.checked = self._run(ranks, "int32", CHECKED, check=True)
        self.timed.append(self._run(ranks, "float32", sum(self.turns[len(self.timed)])))

    def point(self) -> Point:
        """When all turns were taken."""
        return point(self.place, in_one(self.timed), self.checked, self.turns, self.predicted_s)

    def expected_s(self, turn: int) -> float:
        """What a turn should take."""
        return sum(self.turns[turn]) * self.predicted_s

    def _run(self, ranks: Engine, dtype: str, count: int, check: bool = False) -> Sequence[RankReport]:
        place = self.place
        policy = place.policy if is_ours(place.policy) else ""
        reports = ranks.run(Operations("allreduce", dtype, place.sent, count, self.seed, check, policy=policy))
        check_whole(reports)
        return reports


def run_sizes(
    spec: MultirailExperiment, site: Site, number: int, sizes: Sequence[int], repeat: int, steps: Steps
) -> None:
    """These sizes of fabric `number`, over the same connections; of each size a turn of every policy, then the next one
    of every policy. Whoever can't, or breaks down, is left out of the rest."""
    with Crews(site) as crews:
        left = [policy for policy in spec.policies_on(number) if _managed(site, crews, policy, lambda _: None)]
        watch = site.watch()
        for size in sizes:
            courses = [_course(spec, site, policy, size, repeat) for policy in left]
            rounds = _rounds(courses)
            name = f"{site.label}: {size_name(size)}, {len(courses)} policies in turn"
            with steps.step(name, sum(course.expected_s(turn) for course, turn in rounds)):
                done_s = 0.0
                for course, turn in rounds:
                    if course.place.policy in left and not _take(site, crews, watch, course):
                        left.remove(course.place.policy)
                    done_s += course.expected_s(turn)
                    steps.reached(done_s)
            site.run.multirail.points += [
                undilated(course.point(), site.plan.dilation) for course in courses if course.place.policy in left
            ]


def _course(spec: MultirailExperiment, site: Site, policy: str, size: int, repeat: int) -> _Course:
    sent = sent_bytes(size, site.plan.scale)
    predicted_s = seconds(policy, site.rails, site.nodes, sent, peer_rail(site.plan.spec))
    parts = turns(learning(policy, spec.learning), counted(spec, predicted_s))
    return _Course(Place(site.label, policy, size, sent, repeat), spec.seed, predicted_s, parts)


def _rounds(courses: Sequence[_Course]) -> list[tuple[_Course, int]]:
    """Every course's first turn, then every one's second, there and back: none is always next after the same."""
    most = max((len(course.turns) for course in courses), default=0)
    return [
        (course, turn)
        for turn in range(most)
        for course in (courses if turn % 2 == 0 else reversed(courses))
        if turn < len(course.turns)
    ]


def _take(site: Site, crews: Crews, watch: Watch, course: _Course) -> bool:
    """A course's next turn, watched: small sizes keep cores busiest. Whether it went well."""

    def turn(ranks: Engine) -> None:
        with watch.over(course.name, course.place.repeat):
            course.turn(ranks)

    return _managed(site, crews, course.place.policy, turn)


def _managed(site: Site, crews: Crews, policy: str, do: Callable[[Engine], None]) -> bool:
    """Whether it could; why not is noted."""
    done = False
    with site.noted(policy):
        try:
            do(crews.of(policy))
            done = True
        finally:
            if not done:
                crews.drop(policy)
    return done
