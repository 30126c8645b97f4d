"""All policies on one fabric, in turn: every size, checked against numpy's sum, then timed.

A turn in which a rail was lost, though nothing cut it, is void, and so is what Nezha learnt of the size until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from railyard.experiments.multirail.engine_pool import Crews
from railyard.experiments.multirail.engines import Engine
from railyard.experiments.multirail.measured import Place, check_whole, in_one, point, undilated
from railyard.experiments.multirail.parts import is_ours, peer_rail
from railyard.experiments.multirail.predictions import ITEM, counted, learning, seconds, sent_bytes, turns
from railyard.experiments.multirail.rail_check import Attended
from railyard.experiments.multirail.session import Site, Watch
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run.progress import Steps
from railyard.results.multirail.compare import size_name, stretch_of
from railyard.results.multirail.records import Lost, Point
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport

CHECKED: Final = 3
"""Operations whose every element is compared: results are the same code, whatever is timed."""
MOST_ANEW: Final = 5
"""Void turns of a size: on a machine that loses rails again and again it has to end."""
FORGETS: Final = "nezha"
"""To its balancer a rail that is back is a cold restart: a size that it had learnt it learns once more."""
HOME_S: Final = 10.0
"""How long a rail that was lost is waited for before a turn, in the fabric's own time."""


@dataclass
class _Course:
    """A policy's operations of one size: its turns, and what ranks told so far. `predicted_s` of an operation.

    `lost`: rails that were, in the last turn or before it; `kept`: those that were in turns of its point. `anew`: how
    often turns were void for that. `wrong`: elements, in checks that are void.
    """

    place: Place
    seed: int
    predicted_s: float
    turns: Sequence[tuple[int, int]]
    checked: Sequence[RankReport] = ()
    timed: list[Sequence[RankReport]] = field(default_factory=list)
    state: Literal["under way", "done", "broken"] = "under way"
    lost: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    anew: int = 0
    wrong: int = 0

    @property
    def name(self) -> str:
        return stretch_of(self.place.policy, self.place.size)

    def turn(self, ranks: Engine) -> None:
        """The next one; before the first, the check."""
        if not self.timed:
            self.checked = self._run(ranks, "int32", CHECKED, check=True)
        self.timed.append(self._run(ranks, "float32", sum(self.turns[len(self.timed)])))
        if len(self.timed) == len(self.turns):
            self.state = "done"

    def begin_anew(self) -> None:
        """As if none had been taken, but for what was wrong."""
        self.wrong += sum(report.wrong for report in self.checked)
        self.checked, self.kept, self.state = (), frozenset(), "under way"
        self.timed.clear()

    def take_back(self) -> None:
        """The last turn; with the first goes the check."""
        if len(self.timed) == 1:
            self.begin_anew()
        else:
            self.timed.pop()
            self.state = "under way"

    def point(self) -> Point:
        """When all turns were taken."""
        found = point(self.place, in_one(self.timed), self.checked, self.turns, self.predicted_s)
        return replace(found, wrong=found.wrong + self.wrong)

    @property
    def whole_s(self) -> float:
        """What all turns should take."""
        return sum(map(sum, self.turns)) * self.predicted_s

    @property
    def taken_s(self) -> float:
        """The same of those that were taken."""
        return sum(map(sum, self.turns[: len(self.timed)])) * self.predicted_s

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
            name = f"{site.label}: {size_name(size)}, {len(courses)} policies in turn"
            try:
                with steps.step(name, sum(course.whole_s for course in courses)):
                    _take_turns(site, crews, watch, courses, steps)
            finally:
                done = [course.point() for course in courses if course.state == "done"]
                site.run.multirail.points += [undilated(point, site.plan.dilation) for point in done]
                kept = [course for course in courses if course.state == "done" and course.kept]
                site.run.multirail.lost += [_told(site, course, course.kept, kept=True) for course in kept]
            left = [course.place.policy for course in courses if course.state == "done"]


def _take_turns(site: Site, crews: Crews, watch: Watch, courses: Sequence[_Course], steps: Steps) -> None:
    """There and back, until none is under way: so none is always next after the same. When one breaks its crew, the
    others that this plays begin anew, with new processes; when a crew lost a rail, the turn is taken anew."""
    back = False
    while under_way := [course for course in courses if course.state == "under way"]:
        for course in reversed(under_way) if back else under_way:
            if not _take(site, crews, watch, course):
                course.state = "broken"
                for other in _crewmates(crews, course, under_way):
                    other.begin_anew()
            elif course.lost:
                _after_loss(site, course, _crewmates(crews, course, under_way))
            steps.reached(sum(course.taken_s for course in courses))
        back = not back


def _crewmates(crews: Crews, course: _Course, among: Sequence[_Course]) -> list[_Course]:
    """The others that are under way, and played by the same crew."""
    policy = course.place.policy
    return [x for x in among if x is not course and x.state == "under way" and crews.are_one(policy, x.place.policy)]


def _after_loss(site: Site, course: _Course, mates: Sequence[_Course]) -> None:
    """Its turn is void, and who forgets begins the size anew, since it learns once more when the rail comes back. After
    `MOST_ANEW` times the turn is kept, and who forgets learns in operations that count."""
    forgetful = [each for each in (course, *mates) if each.place.policy == FORGETS]
    if course.anew == MOST_ANEW:
        for each in (course, *(each for each in forgetful if each.timed)):
            each.kept |= course.lost
        return
    site.run.multirail.lost.append(_told(site, course, course.lost, kept=False))
    if course not in forgetful:
        course.take_back()
    for each in forgetful:
        each.begin_anew()
    for each in (course, *mates):
        each.anew += 1


def _told(site: Site, course: _Course, lost: frozenset[int], kept: bool) -> Lost:
    """`virtual` has channels in place of rails."""
    place = course.place
    names = tuple(site.rails[n].name if is_ours(place.policy) else f"channel {n}" for n in sorted(lost))
    return Lost(place.fabric, place.policy, place.size, place.repeat, names, kept)


def _course(spec: MultirailExperiment, site: Site, policy: str, size: int, repeat: int) -> _Course:
    sent = sent_bytes(size, site.plan.scale)
    predicted_s = seconds(policy, site.rails, site.nodes, sent, peer_rail(site.plan.spec))
    parts = turns(learning(policy, spec.learning), counted(spec, predicted_s))
    return _Course(Place(site.label, policy, size, sent, repeat), spec.seed, predicted_s, parts)


def _take(site: Site, crews: Crews, watch: Watch, course: _Course) -> bool:
    """A course's next turn, with all rails, watched: small sizes keep cores busiest. Whether it went well."""

    def turn(ranks: Attended) -> None:
        ranks.come_home(_next_to_nothing(course), HOME_S * site.plan.dilation)
        with watch.over(course.name, course.place.repeat):
            course.turn(ranks)
        course.lost = ranks.lost

    return _managed(site, crews, course.place.policy, turn)


def _next_to_nothing(course: _Course) -> Operations:
    """An operation of one element, planned by fixed weights: nobody learns from it."""
    policy = "equal" if is_ours(course.place.policy) else ""
    return Operations("allreduce", "float32", ITEM, 1, course.seed, policy=policy)


def _managed(site: Site, crews: Crews, policy: str, do: Callable[[Attended], None]) -> bool:
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
