"""Traffic of trainings: gradients in buckets, and the compute time that Nezha's Fig. 16 leaves."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.jobs.data_parallel import buckets
from railyard.workloads.jobs.training import (
    GPT_MAX_MESSAGE,
    SPEEDS,
    SPEEDS_NODES,
    Step,
    TrainingSpec,
    first_part,
    gpt_step,
    in_proportion,
    last_part,
    published_exposed,
    published_parts,
    split,
)
from railyard.workloads.models.catalogue import GptModel, LayersModel

MIB = 2**20


@pytest.mark.parametrize("model", ["alexnet", "vgg-11"])
@given(bucket=st.integers(2**16, 2**28))
def test_buckets_hold_every_gradient_once_within_the_limit(model: str, bucket: int) -> None:
    layers = LayersModel.load(model)
    step = Step(model, 32, split(buckets(layers, bucket), bucket), 0.2)
    assert sum(step.sizes) == layers.gradient_bytes
    assert max(step.sizes) <= bucket
    assert sum(size * count for size, count in step.groups) == layers.gradient_bytes
    assert all(a != b for (a, _), (b, _) in pairwise(step.groups))


def test_alexnets_operations_match_figure_15() -> None:
    """None above 4 MB, though its first dense layer alone has 151 MB; the last layers are sent first."""
    step = TrainingSpec.model_validate({"kind": "training", "model": "alexnet", "compute": "200ms"}).step(4, 1.0, 1e9)
    assert len(step.sizes) == 61
    assert step.sizes[0] == 4 * MIB
    assert step.gap_s * 61 == pytest.approx(0.2)


@pytest.mark.parametrize(("model", "batch"), SPEEDS)
def test_computing_and_communication_make_published_step_times(model: str, batch: int) -> None:
    parts = published_parts(model, batch)
    assert parts is not None
    steps = [SPEEDS_NODES * batch / speed for speed in SPEEDS[model, batch]]
    close = 0.12 if (model, batch) == ("vgg-11", 64) else 0.05
    for nics, step in enumerate(steps, start=1):
        assert parts.compute_s + parts.communication_s / nics == pytest.approx(step, rel=close)
    assert published_parts(model, 48) is None


def test_exposed_communication_is_added_by_a_nic() -> None:
    """By Table 1 61 allreduces of 4 MiB take 1.16 s on one rail, of which Fig. 16 shows 0.38 s."""
    spec = TrainingSpec.model_validate({"kind": "training", "model": "alexnet", "exposed": "auto"})
    whole = TrainingSpec.model_validate({"kind": "training", "model": "alexnet"}).step(4, 1.0, 1e9)
    exposed = published_exposed("alexnet", 32, whole.sizes)
    assert exposed == pytest.approx(0.381 / 1.160, rel=0.01)
    part = spec.step(4, 1.0, 1e9)
    assert sum(part.sizes) / sum(whole.sizes) == pytest.approx(exposed, abs=0.01)
    assert part.sizes == whole.sizes[-len(part.sizes) :]
    assert (part.compute_s, part.samples) == (whole.compute_s, whole.samples)
    assert published_exposed("alexnet", 48, whole.sizes) is None


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.floats(0.01, 1))
def test_last_part_is_as_close_as_whole_allreduces_can_be(sizes: list[int], volume: float) -> None:
    part = last_part(Step("mine", 32.0, tuple(sizes), 0.3), volume)
    assert list(part.sizes) == sizes[-len(part.sizes) :]
    missed = abs(sum(part.sizes) - volume * sum(sizes))
    assert len(part.sizes) == 1 or missed <= max(sizes) / 2 + 1e-6


def test_gpt_gradients_above_a_gigabyte_are_split() -> None:
    """Two GPUs of a node have a slice each: 2 bytes x 2.7 or 30 billion over 2 slices and 8 stages."""
    small = gpt_step("gpt3-2.7b", GptModel.load("gpt3-2.7b"), 4)
    large = gpt_step("gpt3-30b", GptModel.load("gpt3-30b"), 4)
    assert small.sizes == (337_500_000,) * 2
    assert large.sizes[:13] == (GPT_MAX_MESSAGE,) * 13
    slices = len(large.sizes) // 2
    assert large.sizes[:slices] == large.sizes[slices:]
    assert sum(large.sizes) == 2 * 30_000_000_000 // 8
    assert gpt_step("gpt3-30b", GptModel.load("gpt3-30b"), 8).compute_s < large.compute_s


def test_part_of_a_step_keeps_its_proportions() -> None:
    step = Step("mine", 32.0, (1000, 1000, 400), 0.3)
    part = in_proportion(step, 0.5)
    assert (part.sizes, part.samples, part.compute_s) == ((500, 500, 200), 16.0, 0.15)
    assert in_proportion(step, 0.5, speedup=3.0).compute_s == pytest.approx(0.05)
    first = first_part(step, 0.6)
    assert first.sizes == (1000, 1000)
    assert first.samples == pytest.approx(32 * 2000 / 2400)
    assert first.compute_s == pytest.approx(0.25)


@given(st.floats(1e-6, 1))
def test_scaled_steps_have_whole_elements(factor: float) -> None:
    step = Step("mine", 32.0, (1000, 1001, 3), 0.3).scaled(factor)
    assert all(size % 4 == 0 and size >= 4 for size in step.sizes)
    assert step.compute_s == 0.3
