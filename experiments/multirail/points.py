"""One policy on one fabric: every size, checked against numpy's sum, then timed."""

from collections.abc import Sequence

from experiments.multirail.engines import Engine
from experiments.multirail.measured import Place, check_whole, point, undilated
from experiments.multirail.parts import peer_rail
from experiments.multirail.predictions import counted, learning, seconds, sent_bytes
from experiments.multirail.site import Site
from experiments.multirail.spec import MultirailExperiment
from experiments.progress import Steps
from results.multirail.tables import stretch_of
from workloads.multirail.jobs import Operations

CHECKED = 3
"""Operations whose every element is compared: results are the same code, whatever is timed."""


def run_policy(
    spec: MultirailExperiment, site: Site, policy: str, sizes: Sequence[int], repeat: int, steps: Steps
) -> None:
    """These sizes in turn, over the same connections. Each point is watched: small ones keep cores busiest."""
    with site.noted(policy), site.engine(policy) as ranks:
        watch = site.watch()
        for size in sizes:
            sent = sent_bytes(size, site.plan.scale)
            place = Place(site.label, policy, size, sent, repeat)
            name = stretch_of(policy, size)
            with steps.step(f"{site.label}: {name}"), watch.over(name, repeat):
                _run_point(spec, site, ranks, place)


def _run_point(spec: MultirailExperiment, site: Site, ranks: Engine, place: Place) -> None:
    predicted = seconds(place.policy, site.rails, site.nodes, place.sent, peer_rail(site.plan.spec))
    first, count = learning(place.policy, spec.learning), counted(spec, predicted)
    checked = ranks.run(Operations("allreduce", "int32", place.sent, CHECKED, spec.seed, check=True))
    check_whole(checked)
    timed = ranks.run(Operations("allreduce", "float32", place.sent, first + count, spec.seed))
    check_whole(timed)
    found = point(place, timed, checked, first, predicted)
    site.run.multirail.points.append(undilated(found, site.plan.dilation))
