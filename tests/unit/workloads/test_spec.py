"""Workloads in YAML, and what follows from them on a fabric."""

from functools import partial
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, line_rate_duration_s
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.schedule import Phase
from railyard.workloads.spec import build, parse_workload
from tests.unit.workloads.messages import CheckMessages

RAIL, HB = 100_000_000, 1_200_000_000
ONLY = FabricSpec(kind="rail-only")
OPTIMIZED = FabricSpec(kind="rail-optimized")
A2A = {"kind": "collective", "collective": "all-to-all"}
PARALLEL = {"tensor": 4, "pipeline": 2, "data": 2, "micro_batch": 1, "global_batch": 8}
GATHER = {"kind": "collective", "collective": "all-gather"}


def data_of(phases: tuple[Phase, ...]) -> dict[str, float]:
    return {p.name: p.data_bytes for p in phases}


def test_messages_of_wrong_values(check_messages: CheckMessages) -> None:
    specs: tuple[Any, ...] = (
        "gpt",
        {},
        {"kind": "gtp"},
        {"kind": ["gpt"]},
        {"kind": "gpt", "efficiency": 0},
        {"kind": "gpt", "compute": 1.5},
        {"kind": "gpt", "duration": 3},
        {"kind": "gpt", "duration": "2000min"},
        {"kind": "gpt", "parallelism": PARALLEL, "global_batch": 8},
        {"kind": "moe", "all_to_alls": 0},
        {"kind": "moe", "duration": "1s", "bytes": "1MB"},
        {**A2A, "algorithm": "ring"},
        {**GATHER, "bytes": "0B"},
        {**GATHER, "in_flight": True},
        {"kind": "collective"},
        {"kind": "gpt", "parallelism": {"tensor": 4}},
    )
    check_messages({str(spec): partial(parse_workload, spec) for spec in specs})


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "gpt", "model": "gpt-2"}, "model"),
        ({"kind": "gpt", "model": "moe-1.3b-128"}, "model"),
        ({"kind": "moe", "all_to_alls": 49}, "all_to_alls"),
        (
            {"kind": "gpt", "layers_per_stage": 3, "parallelism": {**PARALLEL, "virtual_stages": 2}},
            "parallelism.virtual_stages",
        ),
    ],
)
def test_workload_that_does_not_fit_is_named(data: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(parse_workload(data), ONLY, RAIL, HB)
    assert caught.value.field == f"workload.{field}"


def test_tensor_parallelism_with_unequal_heads_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        build(parse_workload({"kind": "gpt"}), FabricSpec(kind="rail-only", domains=2, rails=5), RAIL, HB)
    assert (caught.value.field, caught.value.value) == ("workload.parallelism.tensor", 5)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "gpt", "duration": "4s"},
        {"kind": "gpt", "duration": "4s", "compute": 0.1, "model": "gpt-529.6b"},
        {"kind": "moe", "duration": "4s"},
        {**A2A, "duration": "4s"},
        {**GATHER, "duration": "4s", "algorithm": "ring"},
        {"kind": "collective", "collective": "all-reduce", "duration": "4s"},
    ],
)
def test_a_wished_for_duration_is_met_at_the_links_rates(data: dict[str, Any]) -> None:
    schedule, scale, *_ = build(parse_workload(data), ONLY, RAIL, HB)
    assert line_rate_duration_s(schedule, scale.emulated_rates) == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize("data", [{"kind": "moe"}, {"kind": "gpt"}, A2A, {"kind": "moe", "bytes": "80KB"}])
def test_both_fabrics_get_the_same_bytes(data: dict[str, Any]) -> None:
    one, other = (build(parse_workload(data), fabric, RAIL, HB).schedule for fabric in (ONLY, OPTIMIZED))
    assert list(data_of(one.phases).values()) == list(data_of(other.phases).values())


def test_moe_is_direct_over_spines_and_two_phase_without() -> None:
    spec = parse_workload({"kind": "moe"})
    for fabric, collective in ((ONLY, "all-to-all-two-phase"), (OPTIMIZED, "all-to-all")):
        schedule, scale, *_ = build(spec, fabric, RAIL, HB)
        assert schedule.phases[0].collective == collective
        assert scale.real is not None
        assert scale.real.each_micro_batch[0].collective == collective
    forced, *_ = build(parse_workload({"kind": "moe", "algorithm": "two-phase"}), OPTIMIZED, RAIL, HB)
    assert forced.phases[0].collective == "all-to-all-two-phase"


def test_given_bytes_are_the_data_of_the_main_collective() -> None:
    for data, name in (({"kind": "gpt"}, "tp-all-gather"), ({"kind": "moe"}, "moe-a2a"), (A2A, "all-to-all-two-phase")):
        schedule, *_ = build(parse_workload({**data, "bytes": "1MB"}), ONLY, RAIL, HB)
        assert data_of(schedule.phases)[name] == 1_000_000


def test_a_typical_iteration_stays_small() -> None:
    """16 GPUs: t = 4, p = 2, d = 2, four micro-batches; each rank keeps the published job's ten layers."""
    schedule, scale, *_ = build(parse_workload({"kind": "gpt"}), ONLY, RAIL, HB)
    assert len(schedule.tasks) < 10_000
    assert {name: [f.real, f.emulated] for name, f in scale.shape.items()} == {
        "gpus": [1536, 16],
        "domain_gpus": [8, 4],
        "tensor": [8, 4],
        "pipeline": [8, 2],
        "data": [24, 2],
        "virtual_stages": [2, 1],
        "layers": [80, 20],
        "layers_per_stage": [10, 10],
        "micro_batches": [48, 4],
        "collectives_per_stage_and_micro_batch": [80, 4],
    }


def test_scale_goes_there_and_back() -> None:
    """Bytes over rate gives the time factor; projecting undoes it; all of it is in the record."""
    schedule, scale, *_ = build(parse_workload({"kind": "gpt"}), ONLY, RAIL, HB)
    assert scale.real_rates.rail == 25e9
    assert scale.real_rates.hb == pytest.approx(300e9)
    gathered = data_of(schedule.phases)["tp-all-gather"]
    assert gathered == pytest.approx(scale.bytes_factor * 20 * 2 * 2 * 12288 * 2048, rel=1e-5)
    emulated_s = gathered / scale.emulated_rates.hb
    real_s = 20 * 2 * 2 * 12288 * 2048 / 300e9
    assert emulated_s / scale.time_factor == pytest.approx(real_s, rel=1e-5)
    assert schedule.iteration is not None
    real_compute_s = schedule.iteration.compute_s / scale.time_factor
    assert real_compute_s == pytest.approx(0.7534, rel=1e-3)
    factors = scale.as_dict()["factors"]
    assert factors["seconds"]["factor"] == pytest.approx(
        factors["bytes_per_transfer"]["factor"] / factors["rail_bytes_per_s"]["factor"]
    )


def test_less_compute_leaves_more_time_to_communication() -> None:
    volumes = [
        sum(bytes_by_kind(build(parse_workload({"kind": "gpt", "compute": kept}), ONLY, RAIL, HB)[0]).values())
        for kept in (1.0, 0.1, 0.0)
    ]
    assert volumes == sorted(volumes)
    assert volumes[1] > 3 * volumes[0]


def test_a_collective_is_projected_with_its_own_bytes() -> None:
    schedule, scale, *_ = build(parse_workload({**GATHER, "bytes": "16MB"}), ONLY, RAIL, HB)
    assert scale.time_factor == pytest.approx(25e9 / (RAIL / 8 * payload_fraction(9000)))
    assert scale.real is None
    assert schedule.phases[0].data_bytes == 16_000_000


def test_the_record_of_the_full_size_keeps_as_much_computing() -> None:
    """A scale's `real` is what full-size projections start from."""
    spec = parse_workload({"kind": "gpt", "compute": 0.25})
    _, scale, *_ = build(spec, ONLY, RAIL, HB)
    assert scale.real is not None
    assert (scale.real.stages, scale.real.micro_batches, scale.real.virtual_stages) == (8, 48, 2)
    per_stage = 10 * GptModel.load("gpt-145.6b").layer_flops(2) / 8 / (312e12 * 0.5)
    assert scale.real.compute_s == pytest.approx(0.25 * per_stage)
