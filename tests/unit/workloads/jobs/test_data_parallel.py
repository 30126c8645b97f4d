"""Data parallelism alone: DDP's buckets, their AllReduces, and the time that twice Eq. 1 a bucket gives them."""

import pytest

from railyard.core.errors import BadInput
from railyard.results.theory.predict import predict_schedule, project_to_full_size
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.all_reduce import all_reduce_s
from railyard.workloads.jobs.data_parallel import FIRST_BUCKET_BYTES, buckets
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, line_rate_duration_s
from railyard.workloads.models.catalogue import LayersModel
from railyard.workloads.spec import build, parse_workload

RAIL, HB = 100_000_000, 1_200_000_000
ONLY = FabricSpec(kind="rail-only")


def test_buckets_fill_from_the_last_layer_and_split_nothing() -> None:
    layers = [{"name": name, "weights": weights, "biases": 1} for name, weights in (("a", 4), ("b", 300_000), ("c", 7))]
    model = LayersModel.model_validate({"kind": "layers", "parameters": 300_014, "layers": layers})
    # c's 32 bytes and b's bias don't fill the first MiB, b's weights do; a's remain
    assert buckets(model, 10**8) == (4 * (8 + 300_001), 4 * 5)
    assert buckets(model, 20) == (4 * 8, 4 * 300_001, 4 * 5)
    assert FIRST_BUCKET_BYTES < 4 * 300_000


def test_vgg_11_s_large_layers_have_buckets_of_their_own() -> None:
    """25 MiB: the classifier's 16 MB, its two large matrices, and the convolutions in parts."""
    sizes = buckets(LayersModel.load("vgg-11"), 25 * 2**20)
    assert sizes[0] == 4 * (1000 + 4096 * 1000)
    assert max(sizes) >= 4 * 25_088 * 4096
    assert all(size >= 25 * 2**20 for size in sizes[1:-1])


@pytest.mark.parametrize("model", ["alexnet", "vgg-11"])
def test_a_step_is_as_long_as_wished_and_as_its_equation(model: str) -> None:
    data = {"kind": "data-parallel", "model": model, "duration": "2s"}
    schedule, scale, *_ = build(parse_workload(data), ONLY, RAIL, HB)
    rates = scale.emulated_rates
    times = predict_schedule(schedule, rates, ONLY)
    assert times[WHOLE] == pytest.approx(
        sum(all_reduce_s(p.data_bytes, 4, 4, rates.hb, rates.rail) for p in schedule.phases)
    )
    assert times[WHOLE] == pytest.approx(2, rel=0.01)
    assert line_rate_duration_s(schedule, rates) == pytest.approx(times[WHOLE], rel=0.01)
    sent = sum(2 * 15 * phase.data_bytes for phase in schedule.phases)
    assert bytes_by_kind(schedule) == {"DP": sent}
    real = project_to_full_size(scale, schedule, times, ONLY)
    whole = LayersModel.load(model).gradient_bytes
    assert real[WHOLE] == pytest.approx(all_reduce_s(whole, 4, 4, scale.real_rates.hb, scale.real_rates.rail), rel=1e-3)


def test_other_models_are_refused() -> None:
    spec = parse_workload({"kind": "data-parallel", "model": "gpt-175b"})
    with pytest.raises(BadInput) as caught:
        build(spec, ONLY, RAIL, HB)
    assert caught.value.field == "workload.model"
