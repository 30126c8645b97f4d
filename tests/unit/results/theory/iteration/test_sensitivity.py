"""Every parameter of model, recipe, cluster, constants and strategy moves time or memory the way it should.

`parameters` and `training` of a model, which say what was published and measured, are no part of the formulas.
"""

from dataclasses import replace

import pytest

from railyard.results.theory.iteration.iteration_time import Job
from railyard.results.theory.iteration.search import best_strategy
from tests.unit.iteration_jobs import MODEL, STRATEGY, job, seconds, size, with_constants

BASE = job()
UP, DOWN, SAME = 1, -1, 0


def moved(before: float, after: float) -> int:
    return (after > before) - (after < before)


def with_model(**changed: int) -> Job:
    return replace(BASE, model=MODEL.model_copy(update=changed))


def with_recipe(**changed: object) -> Job:
    return replace(BASE, recipe=replace(BASE.recipe, **changed))  # type: ignore[arg-type]


def with_cluster(**changed: float) -> Job:
    return replace(BASE, cluster=replace(BASE.cluster, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "time", "memory"),
    [
        pytest.param(with_model(layers=32), UP, UP, id="layers"),
        pytest.param(with_model(hidden=4096), UP, UP, id="hidden"),
        pytest.param(with_model(heads=32), UP, UP, id="heads"),
        pytest.param(with_model(sequence=2048), UP, UP, id="sequence"),
        pytest.param(with_model(vocabulary=102_400), UP, UP, id="vocabulary"),
        pytest.param(with_recipe(global_batch=256), UP, SAME, id="global_batch"),
        pytest.param(with_recipe(recompute="none"), DOWN, UP, id="recompute none"),
        pytest.param(with_recipe(recompute="full"), UP, DOWN, id="recompute full"),
        pytest.param(with_recipe(sequence_parallel=False), UP, UP, id="sequence_parallel"),
        pytest.param(with_recipe(gradient_bytes=4), UP, UP, id="gradient_bytes"),
        pytest.param(with_cluster(flops=2e15), DOWN, SAME, id="flops"),
        pytest.param(with_cluster(hb_bytes_per_s=900e9), DOWN, SAME, id="hb_bytes_per_s"),
        pytest.param(with_cluster(rail_bytes_per_s=100e9), DOWN, SAME, id="rail_bytes_per_s"),
        pytest.param(with_constants(BASE, matmul_efficiency=0.8), DOWN, SAME, id="matmul_efficiency"),
        pytest.param(with_constants(BASE, memory_efficiency=0.95), DOWN, SAME, id="memory_efficiency"),
        pytest.param(with_constants(BASE, memory_bytes_per_s=8e12), DOWN, SAME, id="memory_bytes_per_s"),
        pytest.param(with_constants(BASE, overhead_flops=2e11), UP, SAME, id="overhead_flops"),
        pytest.param(with_constants(BASE, hb_latency_s=1e-5), UP, SAME, id="hb_latency_s"),
        pytest.param(with_constants(BASE, rail_latency_s=1e-5), UP, SAME, id="rail_latency_s"),
    ],
)
def test_a_job_s_parameter_moves_time_and_memory(changed: Job, time: int, memory: int) -> None:
    assert moved(seconds(BASE), seconds(changed)) == time
    assert moved(size(BASE), size(changed)) == memory


@pytest.mark.parametrize(
    ("changed", "time", "memory"),
    [
        # from inside HB domains to the network: the same work over slower links
        ({"tensor_hb": 1, "tensor_network": 4}, UP, SAME),
        ({"pipeline_hb": 1, "pipeline_network": 4}, UP, SAME),
        ({"data_hb": 1, "data_network": 4}, UP, SAME),
        # more GPUs: twice the replicas halve the batch of each; twice the others split what a GPU holds
        ({"data_network": 4}, DOWN, SAME),
        ({"data_hb": 4}, DOWN, SAME),
        ({"tensor_hb": 4}, DOWN, DOWN),
        ({"pipeline_network": 4}, DOWN, DOWN),
        # interleaving shortens the bubble, and holds fewer layers too many
        ({"virtual_stages": 4}, DOWN, DOWN),
    ],
)
def test_a_strategy_s_dimension_moves_time_and_memory(changed: dict[str, int], time: int, memory: int) -> None:
    other = replace(STRATEGY, **changed)
    assert moved(seconds(BASE), seconds(BASE, other)) == time
    assert moved(size(BASE), size(BASE, other)) == memory


@pytest.mark.parametrize(("overhead_flops", "time"), [(0.0, UP), (1e12, DOWN)])
def test_larger_micro_batches_have_more_bubble_and_efficiency(overhead_flops: float, time: int) -> None:
    """Narayanan et al. 2021, 3.4: which of the two counts more decides whether twice the size pays."""
    of = with_constants(BASE, overhead_flops=overhead_flops)
    larger = replace(STRATEGY, micro_batch=4)
    assert moved(seconds(of), seconds(of, larger)) == time
    assert size(of, larger) > size(of)


def test_the_best_strategy_gains_from_gpus_domains_and_memory() -> None:
    """What only the search sees: N, K, and the memory of a GPU."""
    best = best_strategy(BASE).seconds
    assert best_strategy(job(gpus=128)).seconds < best
    assert best_strategy(job(domain_gpus=64)).seconds < best
    tight = with_cluster(memory_bytes=2e9)
    assert best_strategy(tight).seconds > best
    assert best_strategy(tight).weighed < best_strategy(BASE).weighed
