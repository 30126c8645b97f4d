"""Experiment files: refused values and their messages, labels, and the round trip through YAML."""

from typing import Any

import pytest
import yaml

from railyard.core.errors import BadInput
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.workloads.spec import workload_labels, workloads_of
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import distinct_labels
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.parsing import parse, restored
from railyard.workloads.spec import build
from tests.unit.loaded_experiments import load

FABRIC = {"kind": "rail-only"}
MOE = {"kind": "moe", "duration": "2s"}
LINK_DOWN = {"kind": "link-down", "target": "d0g1"}


def experiment(**changes: Any) -> dict[str, Any]:
    return {"name": "mine", "fabrics": [FABRIC], "workloads": [MOE], **changes}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "experiment: 3 must be keys and values: name, fabrics, workloads or faults, ..."),
        ({"fabrics": [FABRIC], "workloads": [MOE]}, "name: nothing given, but this key is needed"),
        ({"name": "mine", "workloads": [MOE]}, "fabrics: nothing given, but this key is needed"),
        (experiment(name="Mine!"), "name: 'Mine!' must be lower-case letters, digits and single hyphens between them"),
        (experiment(fabrics=[]), "fabrics: [] must have 1 or more"),
        (experiment(fabrics=FABRIC), "fabrics: {'kind': 'rail-only'} must be a list"),
        (experiment(fabrics=["rail-only"]), "fabrics.0: 'rail-only' must be keys and values"),
        (experiment(fabrics=[FABRIC, {"kind": "rail-only", "rails": 1}]), "fabrics.1.rails: 1 must be 2 or more"),
        (experiment(fabrics=[{"kind": "rail-only", "domains": 1}]), "fabrics.0.domains: 1 must be 2 or more"),
        (
            experiment(fabrics=[{"kind": "rail-only", "domain": 1}]),
            "fabrics.0.domain: 1 is not a known key: did you mean 'domains'? allowed are domains, hb_rate, kind, mtu, "
            "optical, oversubscription, platform, policy, rail_rate, rails, spines",
        ),
        (
            experiment(fabrics=[{"kind": "rail-only", "rail_rate": "400kbit"}]),
            "fabrics.0.rail_rate: '400kbit' must be 500kbit or more: packets are whole, and too few to show anything",
        ),
        (
            experiment(fabrics=[{"kind": "rail-only", "hb_rate": "1Gbit"}]),
            "fabrics.0.hb_rate: '1Gbit' can't be given without rail_rate: an auto rail may come out above it",
        ),
        (
            experiment(fabrics=[{"kind": "rail-only", "domains": 512, "rails": 8}]),
            "fabrics.0.domains: 512 makes 4,096 GPUs with 8 rails: workloads and random faults are for 1,024 or fewer",
        ),
        (experiment(workloads=[]), "workloads: [] must have 1 or more, unless there are faults"),
        (experiment(workloads=MOE), "workloads: {'kind': 'moe', 'duration': '2s'} must be a list"),
        (
            experiment(workloads=[MOE, {"kind": "mo"}]),
            "workloads.1.kind: 'mo' is not known: did you mean 'moe'? "
            "allowed are allreduce, collective, data-parallel, ddp, gpt, moe, trace, training, "
            "transfers",
        ),
        (experiment(workloads=[{**MOE, "all_to_alls": 0}]), "workloads.0.all_to_alls: 0 must be 1 or more"),
        (
            experiment(
                workloads=[
                    {
                        "kind": "gpt",
                        "parallelism": {
                            "tensor": 3,
                            "pipeline": 2,
                            "data": 2,
                            "micro_batch": 1,
                            "global_batch": 8,
                        },
                    },
                ]
            ),
            "workloads.0.parallelism.data: 2 must be such that tensor * pipeline * data is the fabric's 4 x 4 = 16 "
            "GPUs, not 3 * 2 * 2 = 12",
        ),
        (
            experiment(faults=[LINK_DOWN, {"kind": "link-up", "target": "d0g1"}]),
            "faults.1.kind: 'link-up' is not known: did you mean 'link-slow'? allowed are controller-crash, gpu-crash, "
            "gpu-hang, hb-port-down, link-down, link-flapping, link-gray, link-silent, link-slow, rail-switch-crash "
            "and 6 more",
        ),
        (
            experiment(faults=[{"kind": "gpu-crash", "target": "d4g0"}]),
            "faults.0.target: 'd4g0' is no GPU of the rail-only fabric of 4 domains x 4 rails: "
            "allowed are d0g0 to d3g3",
        ),
        (
            experiment(faults=[{"kind": "link-down", "target": "d00g1"}]),
            "faults.0.target: 'd00g1' is no GPU of the rail-only fabric of 4 domains x 4 rails: "
            "allowed are d0g0 to d3g3",
        ),
        (
            experiment(faults=[{"kind": "link-down", "target": "d0g1:rail1"}]),
            "faults.0.target: 'd0g1:rail1' is no GPU of the rail-only fabric of 4 domains x 4 rails: "
            "allowed are d0g0 to d3g3",
        ),
        (
            experiment(faults=[{"kind": "link-down", "target": "rail1"}]),
            "faults.0.target: 'rail1' is no GPU of the rail-only fabric of 4 domains x 4 rails: "
            "allowed are d0g0 to d3g3",
        ),
        (
            experiment(faults=[{"kind": "rail-switch-crash", "target": "d0g1"}]),
            "faults.0.target: 'd0g1' is no rail switch of the rail-only fabric of 4 domains x 4 rails: "
            "allowed are rail0 to rail3",
        ),
        (
            experiment(
                fabrics=[FABRIC, {"kind": "single-switch"}], faults=[{"kind": "rail-switch-crash", "target": "rail1"}]
            ),
            "faults.0.target: 'rail1' is no switch of the single-switch fabric of 4 domains x 4 rails: "
            "allowed are switch0",
        ),
        (experiment(faults=[{**LINK_DOWN, "at": "0s"}]), "faults.0.at: '0s' is not a time above zero, such as 20ms"),
        (
            experiment(faults=[{**LINK_DOWN, "repair": 2}]),
            "faults.0.repair: 2 is not a time: write a number and one of ns, us, ms, s, min, such as 20ms",
        ),
        (experiment(reroute="maybe"), "reroute.0: 'maybe' is not known: allowed are off, on"),
        (experiment(reroute=["on", "on"]), "reroute: ['on', 'on'] must name on and off once each"),
        (experiment(reroute=[]), "reroute: [] must have 1 or more"),
        (experiment(repeats=0), "repeats: 0 must be 1 or more"),
        (experiment(repeats=True), "repeats: True must be a whole number"),
        (experiment(fault_repeats=-1), "fault_repeats: -1 must be 1 or more"),
        (experiment(seed="one"), "seed: 'one' must be a whole number"),
        (experiment(seed=-1), "seed: -1 must be 0 or more"),
        (
            experiment(repeat=2),
            "repeat: 2 is not a known key: did you mean 'repeats'? allowed are attempts, background, controller, "
            "description, fabrics, fault_repeats, faults, grid, heartbeats, hosts, name, plugins, repeats and 14 more",
        ),
        (
            experiment(grid={"rails": [0], "loads": [0, 0.5]}),
            "grid: 1 is for experiments with routing: add {policies: [dr]}",
        ),
        (
            experiment(grid={"rails": [0], "loads": [0]}, background=[{"rails": [1], "load": 0.5}], routing={}),
            "background: 1 can't be given together with grid, which makes its own",
        ),
        (
            experiment(grid={"domains": [0, 4], "loads": [0]}, routing={}),
            "grid.domains.1: 4 must be below 4: the fabric has no more",
        ),
        (
            experiment(grid={"spine": True, "loads": [0]}, routing={}),
            "grid.spine: True is not for kind rail-only, which has no spines",
        ),
    ],
)
def test_errors_name_field_value_and_allowed_values(data: object, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(data)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", loading.names())
def test_a_resolved_experiment_is_the_same_when_read_back(name: str) -> None:
    spec = load_any(name)
    text = yaml.safe_dump(spec.resolved(), sort_keys=False)
    assert restored(yaml.safe_load(text)) == spec
    assert spec.name == name


@pytest.mark.parametrize(("kind", "target"), [("link-down", "d0g1:rail0"), ("hb-port-down", "d0g1:hb0")])
def test_a_fault_target_may_name_the_only_link_of_a_gpu(kind: str, target: str) -> None:
    (fault,) = FaultsMeasure().faults(parse(experiment(faults=[{"kind": kind, "target": target}])))
    assert fault.target == fault.fault.target == "d0g1"


def test_a_resolved_experiment_says_everything() -> None:
    data = parse(experiment(faults=[LINK_DOWN])).resolved()
    assert data["seed"] == 1
    assert data["fabrics"][0]["rail_rate"] == "auto"
    assert data["faults"] == [{"kind": "link-down", "target": "d0g1", "at": "1s", "repair": "2s"}]
    assert data["reroute"] == ["on", "off"]


def test_bare_on_and_off_are_strings() -> None:
    text = "{name: mine, fabrics: [{kind: rail-only}], faults: [{kind: gpu-crash, target: d1g1}], reroute: [on, off]}"
    assert parse(yaml.safe_load(text)).reroute == ("on", "off")
    assert parse(yaml.safe_load(text.replace("[on, off]", "off"))).reroute == ("off",)


@pytest.mark.parametrize(
    ("fabrics", "labels"),
    [
        ([{"kind": "rail-only"}, {"kind": "rail-optimized"}], ("rail-only", "rail-optimized")),
        (
            [{"kind": "rail-optimized"}, {"kind": "rail-optimized", "policy": "pxn"}, {"kind": "rail-only"}],
            ("rail-optimized spine", "rail-optimized pxn", "rail-only"),
        ),
        (
            [{"kind": "rail-only"}, {"kind": "rail-only", "platform": "h100", "domains": 2}],
            ("rail-only a100 4x4", "rail-only h100 2x4"),
        ),
        ([{"kind": "rail-only"}, {"kind": "rail-only"}], ("rail-only", "rail-only 2")),
        (
            [{"kind": "rail-only", "rail_rate": "20Mbit"}, {"kind": "rail-only", "rail_rate": "40Mbit"}],
            ("rail-only rail 20Mbit", "rail-only rail 40Mbit"),
        ),
        (
            [{"kind": "rail-optimized", "oversubscription": 2}, {"kind": "rail-optimized", "spines": 4}],
            ("rail-optimized 2 spines 2:1", "rail-optimized 4 spines 1:1"),
        ),
    ],
)
def test_label_adds_differing_keys_to_the_kind(fabrics: list[Any], labels: tuple[str, ...]) -> None:
    assert parse(experiment(fabrics=fabrics)).labels == labels


def test_labels_are_never_the_same() -> None:
    names = ["a", "a", "a 2", "a"]
    assert len(set(distinct_labels(names, [{}] * 4))) == 4


def test_workloads_have_names_that_are_the_same_on_every_fabric() -> None:
    collective = {"kind": "collective", "collective": "all-to-all", "duration": "1s"}
    workloads = [MOE, collective, {**collective, "algorithm": "in-rail"}, MOE]
    spec = parse(experiment(workloads=workloads))
    assert workload_labels(spec) == ("moe-1.3b-128", "all-to-all", "all-to-all-in-rail", "moe-1.3b-128 2")


def test_workload_keeps_its_given_name() -> None:
    moe = {"kind": "moe", "duration": "1s"}
    spec = parse(experiment(workloads=[{**moe, "name": "even"}, {**moe, "name": "uneven", "skew": 1}, moe]))
    assert workload_labels(spec) == ("even", "uneven", "moe-1.3b-128")
    assert workload_labels(parse(spec.resolved())) == workload_labels(spec)
    with pytest.raises(BadInput, match=r"workloads\.1\.name: .even. is the name of another workload"):
        parse(experiment(workloads=[{**moe, "name": "even"}, {**moe, "name": "even", "skew": 1}]))
    with pytest.raises(BadInput, match=r"workloads\.0\.name: .* must be lower-case letters"):
        parse(experiment(workloads=[{**moe, "name": "Two words"}]))


def test_batches_set_workloads_apart() -> None:
    names = ("gpt-145.6b batch 8", "gpt-145.6b batch 16", "gpt-145.6b batch 32", "gpt-145.6b batch 64")
    assert workload_labels(load("sweep-batch")) == names


def test_sweep_changes_only_its_axes() -> None:
    """Over domain sizes: bytes of each AllGather, sequences a step, and their computing time on all GPUs together."""
    spec = load("sweep-domain-size")
    jobs = [build(workloads_of(spec)[0], fabric, 20_000_000, 240_000_000)[0].iteration for fabric in spec.gpu_fabrics]
    seen = set()
    for job, fabric in zip(jobs, spec.gpu_fabrics, strict=True):
        assert job
        gather = next(phase for phase in job.each_micro_batch if phase.name == "tp-all-gather")
        replicas = fabric.gpus // (job.stages * fabric.rails)
        seen.add((round(gather.data_bytes), replicas * job.micro_batches, round(job.compute_s * fabric.rails, 6)))
    assert len(seen) == 1


def test_transfers_are_named_by_their_differing_keys() -> None:
    transfers = {"kind": "transfers", "ranks": [0, 1]}
    several = [transfers, {**transfers, "stripes": 4}, {**transfers, "stripes": 4, "to": "shuffled"}]
    assert workload_labels(parse(experiment(workloads=[transfers]))) == ("transfers",)
    assert workload_labels(parse(experiment(workloads=several))) == (
        "transfers next-rank stripes 1",
        "transfers next-rank stripes 4",
        "transfers shuffled stripes 4",
    )
