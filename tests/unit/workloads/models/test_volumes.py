"""Volumes by formula are the bytes of the tasks, where a model is small enough to run at its full size."""

import pytest

from railyard.topologies.spec import FabricSpec
from railyard.workloads.jobs.gpt import gpt_job, gpt_schedule
from railyard.workloads.jobs.moe import moe_job, moe_schedule
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind
from railyard.workloads.models.catalogue import GptModel, MoeModel
from railyard.workloads.placement.layout import Parallelism, place
from railyard.workloads.spec import build, parse_workload
from tests.unit.workloads.volumes import gpt_volumes, moe_volumes

SMALL = {"layers": 4, "hidden": 24, "heads": 2, "sequence": 12, "vocabulary": 50, "parameters": 1, "domain_gpus": 2}


def test_small_gpt_sends_the_bytes_of_the_formula() -> None:
    """t = 2, p = 2 with two chunks each, d = 3, four micro-batches, nothing merged."""
    training = Parallelism(tensor=2, pipeline=2, data=3, micro_batch=1, global_batch=12, virtual_stages=2)
    model = GptModel.model_validate({"kind": "gpt", "training": training, **SMALL})
    schedule = gpt_schedule(gpt_job(model, "small", place(training, 6, 2), 2, 1e12))
    assert bytes_by_kind(schedule) == pytest.approx(gpt_volumes(model))


def test_small_moe_at_full_size_sends_the_formulas_bytes() -> None:
    moe = {"moe_layers": 2, "experts": 4, "experts_per_token": 1, "gpus": 4, "global_batch": 8}
    model = MoeModel.model_validate({"kind": "moe", **SMALL, **moe})
    schedule = moe_schedule(moe_job(model, "small", 2, 2, "all-to-all", model.all_to_alls, 1e12))
    assert bytes_by_kind(schedule) == pytest.approx(moe_volumes(model))


def test_the_record_of_the_full_size_keeps_as_much_computing() -> None:
    """A scale's `real` is what full-size projections start from."""
    spec = parse_workload({"kind": "gpt", "compute": 0.25})
    _, scale, *_ = build(spec, FabricSpec(kind="rail-only"), 100_000_000, 1_200_000_000)
    assert scale.real is not None
    assert (scale.real.stages, scale.real.micro_batches, scale.real.virtual_stages) == (8, 48, 2)
    per_stage = 10 * GptModel.load("gpt-145.6b").layer_flops(2) / 8 / (312e12 * 0.5)
    assert scale.real.compute_s == pytest.approx(0.25 * per_stage)
