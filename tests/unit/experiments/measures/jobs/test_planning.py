"""Jobs planned on a fabric: their GPUs, their start, and jobs that are refused in one line."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.measures.jobs.planning import PlannedJobs, planned_jobs
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.workloads.placement.policy import PLACEMENT_POLICIES
from tests.unit.traces import TRACES

FABRIC = {"kind": "rail-only", "domains": 4, "rails": 4}
RING = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "bytes": "100KB"}
SQUARE = {"domains": 2, "rails": 2}


def job(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "workload": RING, **keys}


def planned(*jobs: dict[str, Any], **keys: Any) -> PlannedJobs:
    spec = parse({"name": "jobs", "fabrics": [FABRIC], "jobs": list(jobs), **keys})
    return planned_jobs(spec, 0, nominal_plan(spec.gpu_fabrics[0]))


def test_given_gpus_are_taken_before_policies_choose() -> None:
    jobs = planned(
        job("a", **SQUARE), job("b", rectangle={"domains": [1, 0], "rails": [1]}), job("c", gpus=["d0g0", "d3g3"])
    )
    assert [placed.gpus for placed in jobs.combined.jobs] == [(8, 9, 12, 13), (5, 1), (0, 15)]


def test_jobs_have_the_bytes_of_their_own_grid() -> None:
    whole, part = planned(job("a", domains=2, rails=4), job("b", **SQUARE)).combined.jobs
    assert sum(whole.schedule.matrix.values()) == 2 * sum(part.schedule.matrix.values())
    assert {gpu for pair in part.schedule.matrix for gpu in pair} == set(part.gpus)


def test_arrivals_add_to_the_start_of_each_job() -> None:
    jobs = [job("a", **SQUARE), job("b", start="500ms", **SQUARE)]
    assert [placed.start_s for placed in planned(*jobs).combined.jobs] == [0.0, 0.5]
    arrivals = {"kind": "trace", "times": [3, 5]}
    assert [placed.start_s for placed in planned(*jobs, arrivals=arrivals).combined.jobs] == [0.0, 2.5]


def test_random_jobs_differ_and_follow_the_seed() -> None:
    jobs = [job("a", placement="random", **SQUARE), job("b", placement="random", **SQUARE)]
    gpus = {seed: [placed.gpus for placed in planned(*jobs, seed=seed).combined.jobs] for seed in (1, 2)}
    assert gpus[1] == [placed.gpus for placed in planned(*jobs, seed=1).combined.jobs]
    assert gpus[1] != gpus[2]
    assert not set(gpus[1][0]) & set(gpus[1][1])


@pytest.mark.parametrize(
    ("jobs", "field", "words"),
    [
        ([job("a", gpus=["d0g0", "d0g1"]), job("b", gpus=["d0g1", "d1g1"])], "jobs.1.gpus", "d0g1"),
        ([job("a", domains=5, rails=4)], "jobs.0", "20 GPUs"),
        ([job(name, domains=3, rails=2) for name in "abc"], "jobs.2.placement", "1 domain x 4 rails"),
        ([job(name, domains=4, rails=4) for name in "ab"], "jobs.1.placement", "no GPUs are left"),
        ([job("a", gpus=["d0g0", "d9g0"])], "jobs.0.gpus.1", "d9g0"),
        ([job("a", rectangle={"domains": [0, 4], "rails": [0]})], "jobs.0.rectangle.domains.1", "3 or less"),
        ([job("a", domains=1, rails=1)], "jobs.0", "2 GPUs"),
        ([job("a", rectangle={"domains": [0, 1], "rails": [0]}, domains=2)], "jobs.0.rectangle", "together"),
        ([job("a", gpus=["d0g0", "d0g1"], domains=2, rails=2)], "jobs.0.gpus", "2 x 2"),
        ([job("a", placement="tight")], "jobs.0.placement", "tight"),
        ([job("a", **SQUARE), job("a", **SQUARE)], "jobs.1.name", "another job"),
        ([job("a", iterations=0, **SQUARE)], "jobs.0.iterations", "1 or more"),
        ([{"name": "a", "workload": {"kind": "nothing"}, **SQUARE}], "jobs.0.workload.kind", "nothing"),
    ],
)
def test_jobs_without_a_place_are_refused(jobs: list[dict[str, Any]], field: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        planned(*jobs)
    assert refused.value.field == field
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arrivals", "field"),
    [({"kind": "poisson", "rate": 1e-9}, "arrivals.rate"), ({"kind": "trace", "times": [0, 700]}, "arrivals.factor")],
)
def test_arrivals_without_end_are_refused(arrivals: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        planned(job("a", **SQUARE), job("b", **SQUARE), arrivals=arrivals)
    assert refused.value.field == field


def test_arrivals_need_jobs() -> None:
    workloads = [{"kind": "collective", "collective": "all-to-all"}]
    with pytest.raises(BadInput) as refused:
        parse({"name": "x", "fabrics": [FABRIC], "workloads": workloads, "arrivals": {"kind": "fixed"}})
    assert refused.value.field == "arrivals"


def test_stragglers_are_gpus_of_the_grid_of_their_job() -> None:
    gpt = {"kind": "gpt", "duration": "1s", "compute": 0.5, "layers_per_stage": 1}
    rectangle = {"domains": [2, 3], "rails": [0, 1, 2, 3]}
    plain, slow = (
        planned({"name": "a", "rectangle": rectangle, "workload": workload}).combined.jobs[0].schedule.columns
        for workload in (gpt, {**gpt, "stragglers": {"slow": {"d0g1": 3.0}}})
    )
    is_slow = plain.src == 9
    assert (slow.seconds[is_slow] == 3 * plain.seconds[is_slow]).all()
    assert (slow.seconds[~is_slow] == plain.seconds[~is_slow]).all()
    assert plain.seconds[is_slow].sum() > 0
    unknown = {**gpt, "stragglers": {"slow": {"d2g1": 3.0}}}
    with pytest.raises(BadInput, match=r"^jobs\.0\.workload\.stragglers\.slow: 'd2g1'"):
        planned({"name": "a", "rectangle": rectangle, "workload": unknown})


def test_stragglers_compute_longer_before_their_workload_too() -> None:
    keys: dict[str, Any] = {"compute": "100ms", "iterations": 2, **SQUARE}
    slow_ring = {**RING, "stragglers": {"slow": {"d0g1": 3.0}}}
    jobs = planned({"name": "a", "workload": slow_ring, **keys}, job("b", start="1s", **keys)).combined
    seconds = jobs.schedule.columns.seconds[jobs.is_gate]
    first = [0.1, 0.3, 0.1, 0.1]
    assert seconds.tolist() == pytest.approx([*first, *first, *[1.1] * 4, *[0.1] * 4])


def test_jobs_have_different_jitter() -> None:
    varying_ring = {**RING, "stragglers": {"jitter": 0.1}}
    keys: dict[str, Any] = {"workload": varying_ring, "compute": "100ms", "iterations": 1, **SQUARE}
    jobs = planned({"name": "a", **keys}, {"name": "b", **keys}).combined
    assert len(set(jobs.schedule.columns.seconds[jobs.is_gate].tolist())) == 8


def test_random_workloads_of_jobs_differ() -> None:
    """Each GPU sends to another rank of the next domain, drawn by the seed of its job."""
    shuffled = {"kind": "transfers", "to": "shuffled", "bytes": "100KB"}
    rails = [0, 1, 2, 3]
    first, second = planned(
        {"name": "a", "workload": shuffled, "rectangle": {"domains": [0, 1], "rails": rails}},
        {"name": "b", "workload": shuffled, "rectangle": {"domains": [2, 3], "rails": rails}},
    ).combined.jobs
    pairs_of_second = {(src - 8, dst - 8) for src, dst in second.schedule.matrix}
    assert set(first.schedule.matrix) != pairs_of_second


def test_stragglers_of_a_job_that_only_sends_are_refused() -> None:
    varying_ring = {**RING, "stragglers": {"jitter": 0.1}}
    with pytest.raises(BadInput, match=r"^jobs\.0\.workload\.stragglers: .* has no effect: give"):
        planned({"name": "a", "workload": varying_ring, **SQUARE})


def test_recorded_trace_is_the_workload_of_a_job() -> None:
    """Each of its four ranks sends to the next, on the GPUs of the job."""
    trace = {"kind": "trace", "path": str(TRACES / "ring"), "duration": "1s"}
    job_with_trace = {"name": "recorded", "workload": trace, **SQUARE}
    recorded, _ = planned(job_with_trace, job("beside", placement="spread", **SQUARE)).combined.jobs
    following = (*recorded.gpus[1:], recorded.gpus[0])
    assert set(recorded.schedule.matrix) == set(zip(recorded.gpus, following, strict=True))
    with pytest.raises(BadInput, match=r"^jobs\.0\.workload\.path: .* has 4 ranks"):
        planned({**job_with_trace, "domains": 1})


@pytest.mark.parametrize("gpus", [(0, 1), (0, 0, 1, 2), (0, 1, 2, 15)])
def test_choice_of_a_plugin_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...]) -> None:
    """Too few GPUs, one of them twice, one of another job."""
    monkeypatch.setattr(PLACEMENT_POLICIES["packed"], "place", lambda grid, free, random: gpus)
    with pytest.raises(BadInput, match=r"^jobs\.1\.placement: .* 4 different free GPUs"):
        planned(job("a", gpus=["d3g2", "d3g3"]), job("b", placement="packed", **SQUARE))
