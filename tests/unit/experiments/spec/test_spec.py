"""Experiment files: refused values and their messages, labels, and the round trip through YAML."""

from typing import Any

import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.workloads.spec import workload_labels, workloads_of
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import distinct_labels
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.parsing import parse, parse_keys, restored
from railyard.workloads.spec import build
from tests.unit.loaded_experiments import load, refusal, refusals

MOE = {"kind": "moe", "duration": "2s"}
LINK_DOWN = {"kind": "link-down", "target": "d0g1"}
REFUSED = """
name: Mine!
fabrics: []
fabrics: {kind: rail-only}
fabrics: [rail-only]
fabrics: [{kind: rail-only}, {kind: rail-only, rails: 1}]
fabrics: [{kind: rail-only, domains: 1}]
fabrics: [{kind: rail-only, domain: 1}]
fabrics: [{kind: rail-only, rail_rate: 400kbit}]
fabrics: [{kind: rail-only, hb_rate: 1Gbit}]
fabrics: [{kind: rail-only, domains: 512, rails: 8}]
fabrics: [{kind: rail-only}, {kind: multi-rail, rails: [{kind: tcp, rate: auto}]}]
workloads: []
workloads: {kind: moe, duration: 2s}
workloads: [{kind: moe}, {kind: mo}]
workloads: [{kind: moe, all_to_alls: 0}]
workloads: [{kind: moe, name: even}, {kind: moe, name: even, skew: 1}]
workloads: [{kind: moe, name: Two words}]
workloads: [{kind: allreduce, sizes: [1MiB]}]
workloads: [{kind: gpt, parallelism: {tensor: 3, pipeline: 2, data: 2, micro_batch: 1, global_batch: 8}}]
faults: [{kind: link-down, target: d0g1}, {kind: link-up, target: d0g1}]
faults: [{kind: gpu-crash, target: d4g0}]
faults: [{kind: link-down, target: d00g1}]
faults: [{kind: link-down, target: 'd0g1:rail1'}]
faults: [{kind: link-down, target: rail1}]
faults: [{kind: rail-switch-crash, target: d0g1}]
faults: [{kind: rail-switch-crash, target: rail1}], fabrics: [{kind: rail-only}, {kind: single-switch}]
faults: [{kind: link-down, target: d0g1, at: 0s}]
faults: [{kind: link-down, target: d0g1, at: 499ms}]
faults: [{kind: link-down, target: d0g1, repair: 2}]
faults: [{kind: link-down, target: d0g1}], fabrics: [{kind: rail-only, gpus_per_nic: 2}]
faults: [{kind: gpu-hang, target: d0g1}], fabrics: [{kind: rail-only, gpus_per_nic: 2}]
hosts: 2, underlay: {interface: eth0}, fabrics: [{kind: rail-only, gpus_per_nic: 2}]
reroute: maybe
reroute: [on, on]
reroute: []
repeats: 0
repeats: true
repeat: 2
fault_repeats: -1
seed: one
seed: -1
hosts: 0
hosts: 65
hosts: 2
hosts: [a, a]
hosts: true
underlay: {port: 8000}
"""


def experiment(**changes: Any) -> dict[str, Any]:
    return {"name": "mine", "fabrics": [{"kind": "rail-only"}], "workloads": [MOE], **changes}


def test_refused_values(data_regression: DataRegressionFixture) -> None:
    messages = refusals(experiment(), REFUSED)
    for missing in ("name", "fabrics"):
        data = experiment()
        del data[missing]
        messages[f"without {missing}"] = refusal(data)
    messages["a number for all"] = refusal(3)
    data_regression.check(messages)


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


LABELLED = """
fabrics: [{kind: rail-only}, {kind: rail-optimized}]
fabrics: [{kind: rail-optimized}, {kind: rail-optimized, policy: pxn}, {kind: rail-only}]
fabrics: [{kind: rail-only}, {kind: rail-only, platform: h100, domains: 2}]
fabrics: [{kind: rail-only}, {kind: rail-only}]
fabrics: [{kind: rail-only, rail_rate: 20Mbit}, {kind: rail-only, rail_rate: 40Mbit}]
fabrics: [{kind: rail-optimized, oversubscription: 2}, {kind: rail-optimized, spines: 4}]
workloads: [{kind: moe}, {kind: collective, collective: all-to-all}, {kind: moe}]
workloads: [{kind: collective, collective: all-to-all}, {kind: collective, collective: all-to-all, algorithm: in-rail}]
workloads: [{kind: moe, name: even}, {kind: moe, name: uneven, skew: 1}, {kind: moe}]
workloads: [{kind: transfers, ranks: [0, 1]}]
workloads: [{kind: transfers}, {kind: transfers, stripes: 4}, {kind: transfers, stripes: 4, to: shuffled}]
"""


def test_labels_add_differing_keys_to_the_kind(data_regression: DataRegressionFixture) -> None:
    labels: dict[str, list[str]] = {}
    for keys in filter(None, LABELLED.splitlines()):
        # without the checks, which build every schedule
        spec = parse_keys(experiment(**yaml.safe_load(f"{{{keys}}}")))
        labels[keys] = list(spec.labels if keys.startswith("fabrics") else workload_labels(spec))
    labels["sweep-batch"] = list(workload_labels(parse_keys(loading.read("sweep-batch"))))
    data_regression.check(labels)


def test_labels_are_never_the_same() -> None:
    names = ["a", "a", "a 2", "a"]
    assert len(set(distinct_labels(names, [{}] * 4))) == 4


def test_sweep_changes_only_its_axes() -> None:
    """Over domain sizes: bytes of each AllGather, sequences a step, and their computing time on all GPUs together."""
    spec = load("sweep-domain-size")
    jobs = [build(workloads_of(spec)[0], fabric, 20_000_000, 240_000_000)[0].iteration for fabric in spec.gpu_fabrics]
    amounts = set()
    for job, fabric in zip(jobs, spec.gpu_fabrics, strict=True):
        assert job
        gather = next(phase for phase in job.each_micro_batch if phase.name == "tp-all-gather")
        replicas = fabric.gpus // (job.stages * fabric.rails)
        amounts.add((round(gather.data_bytes), replicas * job.micro_batches, round(job.compute_s * fabric.rails, 6)))
    assert len(amounts) == 1
