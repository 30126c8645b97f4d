"""The vectorised search against plain loops, its constraints, and how long Fig. 8 takes."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.results.theory.iteration.iteration_time import (
    A100,
    Job,
    Recipe,
    Strategy,
    make_cluster,
    place_strategy,
    taken_from_a100,
)
from railyard.results.theory.iteration.search import Rules, best_strategy, candidates, divisors
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.layout import Parallelism
from tests.unit.iteration_jobs import MODEL, job, seconds, size


def plain(of: Job, rules: Rules) -> Iterator[Strategy[float]]:
    """Return every strategy, one by one, by trying all numbers."""
    k, domains = of.cluster.domain_gpus, of.cluster.gpus // of.cluster.domain_gpus
    batch, model = of.recipe.global_batch, of.model
    inside, outside = range(1, k + 1), range(1, domains + 1)
    for th, ph, tl, pl in product(inside, inside, outside, outside):
        if k % (th * ph) or domains % (tl * pl) or model.heads % (th * tl) or model.layers % (ph * pl):
            continue
        dh, dl, p = k // (th * ph), domains // (tl * pl), ph * pl
        for b, v in product(range(1, batch + 1), range(1, model.layers + 1)):
            if batch % (dh * dl * b) or model.layers % (p * v) or (v > 1 and p == 1):
                continue
            if rules.whole_rounds and v > 1 and batch // (dh * dl * b) % p:
                continue
            if v <= (rules.max_virtual_stages or v) and th * tl <= (rules.max_tensor or th * tl):
                yield Strategy(th, tl, ph, pl, dh, dl, b, v)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.sampled_from([(8, 1), (8, 2), (12, 6), (16, 4), (16, 16), (24, 8)]),
    batch=st.sampled_from([8, 12, 24]),
    layers=st.sampled_from([4, 6, 8]),
    rules=st.builds(
        Rules,
        whole_rounds=st.booleans(),
        max_tensor=st.sampled_from([None, 2]),
        max_virtual_stages=st.sampled_from([None, 1, 2]),
    ),
    memory=st.sampled_from([5e7, 2e8, 5e8, 80e9]),
)
def test_search_agrees_with_plain_loops(
    shape: tuple[int, int], batch: int, layers: int, rules: Rules, memory: float
) -> None:
    base = job(*shape, global_batch=batch)
    model = MODEL.model_copy(update={"layers": layers, "heads": 12, "hidden": 768})
    of = replace(base, model=model, cluster=replace(base.cluster, memory_bytes=memory))
    every = list(plain(of, rules))
    found = candidates(of, rules)
    assert sorted(str(Strategy(*map(int, s))) for s in zip(*found.columns, strict=True)) == sorted(map(str, every))
    fitting = [s for s in every if size(of, s) <= memory]
    if not fitting:
        with pytest.raises(BadInput, match=r"gpus: .* no strategy (divides|fits)"):
            best_strategy(of, rules)
        return
    best = best_strategy(of, rules)
    assert best.seconds == pytest.approx(min(seconds(of, s) for s in fitting), rel=1e-12)
    assert seconds(of, best.strategy) == pytest.approx(best.seconds, rel=1e-12)
    assert best.gpu_bytes == pytest.approx(size(of, best.strategy))
    assert best.gpu_bytes <= memory
    assert best.weighed == len(fitting)


def test_memory_can_be_left_out() -> None:
    """GPT-1T on 8 GPUs fits no memory."""
    of = Job(GptModel.load("gpt-1008b"), Recipe(64), make_cluster("h100", 8, 8))
    with pytest.raises(BadInput, match="80 GB; the leanest takes 2,"):
        best_strategy(of)
    assert best_strategy(of, Rules(fits_memory=False)).gpu_bytes > 1e12


def test_divisors_are_all_and_rising() -> None:
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(1) == (1,)


@pytest.mark.parametrize(
    ("platform", "gpus", "k", "message"),
    [
        ("h1000", 64, 8, "platform: 'h1000' is not known: did you mean 'h100'?"),
        ("h100", 64, 7, "domain_gpus: 7 must divide the 64 GPUs"),
        ("h100", 0, 1, "domain_gpus: 1 must divide the 0 GPUs"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(platform: str, gpus: int, k: int, message: str) -> None:
    with pytest.raises(BadInput, match="^" + message.replace("?", r"\?")):
        make_cluster(platform, gpus, k)


MINE = "hb_bps: 4_000\nrail_bps: 200\nflops: 1_000\nmemory_bytes: 141\ndomain_gpus: 16\n"


def test_a_platform_file_overrides_the_a100_constants(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    cluster = make_cluster(str(mine), 64, 16)
    assert (cluster.flops, cluster.hb_bytes_per_s, cluster.rail_bytes_per_s, cluster.memory_bytes) == (
        1000,
        500,
        25,
        141,
    )
    assert cluster.constants == A100
    assert taken_from_a100(PLATFORMS[str(mine)]) == tuple(asdict(A100))
    given = {name: value / 2 for name, value in asdict(A100).items()}
    mine.write_text(MINE + "".join(f"{name}: {value:.9e}\n" for name, value in given.items()))
    assert asdict(make_cluster(str(mine), 64, 16).constants) == pytest.approx(given)
    assert taken_from_a100(PLATFORMS[str(mine)]) == ()


def test_every_platform_of_railyard_s_gives_its_hbm_bandwidth() -> None:
    """The A100's is that of the fit; the others', by their data sheets, are above it."""
    found = {name: make_cluster(name, 64, 8).constants for name in PLATFORMS}
    assert found["a100"] == A100
    assert {name: round(c.memory_bytes_per_s / 1e9) for name, c in found.items()} == {
        "a100": 2039, "b200": 7700, "b300": 7700, "gb200-nvl72": 8000, "gb300-nvl72": 8000, "gh200": 3350,
        "h100": 3350, "h200": 4800, "h800": 3350, "mi300x": 5300,
    }  # fmt: skip


def test_a_published_job_lies_as_megatron_places_its_ranks() -> None:
    """Tensor ranks fill an HB domain, then data, then stages."""

    def parallelism(t: int, p: int, d: int) -> Parallelism:
        return Parallelism(tensor=t, pipeline=p, data=d, micro_batch=1, global_batch=d)

    assert str(place_strategy(parallelism(8, 64, 6), 8)) == "t=8x1 p=1x64 d=1x6 b=1 v=1"
    assert str(place_strategy(parallelism(2, 1, 32), 8)) == "t=2x1 p=1x1 d=4x8 b=1 v=1"
    assert str(place_strategy(parallelism(2, 4, 2), 8)) == "t=2x1 p=2x2 d=2x1 b=1 v=1"
    with pytest.raises(ValueError, match="data of 3 doesn't lie evenly"):
        place_strategy(parallelism(2, 4, 3), 8)
