"""Multi-rail experiments: specification, prediction and dry run, without running anything."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
from railyard.core.plugins import BadDefinition
from railyard.experiments import cli
from railyard.experiments.measures.allreduce.spec import dilations_on, rail_fabrics, workloads_on
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plans
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.parsing import experiment_model, parse
from railyard.topologies.multirail.plan import MultirailPlan, nominal_plan
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine_kind import peer_rail, predicted_s, rails_of
from railyard.workloads.allreduce.workload import ITEM, RailWorkload, learning_operations, sent_bytes, singles
from railyard.workloads.jobs.allreduce import (
    LATER_WARMUP_OPERATIONS,
    MIN_OPERATIONS,
    TURN_OPERATIONS,
    AllreduceSpec,
    turns,
)
from railyard.workloads.jobs.training import TrainingSpec, predicted_step_s
from railyard.workloads.spec import WORKLOADS
from tests.unit.error_messages import message_of

pytestmark = pytest.mark.usefixtures("figures_as_text")

MULTIRAIL = [name for name in loading.names() if loading.read(name)["fabrics"][0]["kind"] == "multi-rail"]
TCP = {"kind": "tcp", "rate": "50Mbit"}
SHARP = {"kind": "sharp", "rate": "60Mbit"}
PAIR = {"kind": "multi-rail", "nodes": 4, "rails": [TCP, TCP]}
UNLIKE = {"kind": "multi-rail", "nodes": 4, "rails": [TCP, SHARP]}
CUT = {"kind": "link-down", "target": "tcp0 of n1"}
SIZES = {"kind": "allreduce", "sizes": ["2KiB", "64MiB"]}


def experiment(*workloads: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"name": "mine", "fabrics": [PAIR], "workloads": list(workloads or [SIZES]), **keys}


def spec_of(*workloads: dict[str, Any], **keys: Any) -> ExperimentSpec:
    return parse(experiment(*workloads, **keys))


def sizes_of(spec: ExperimentSpec) -> AllreduceSpec:
    """Return its first workload."""
    found = workloads_of(spec)[0]
    assert isinstance(found, AllreduceSpec)
    return found


def training(model: str, **keys: Any) -> dict[str, Any]:
    return {"kind": "training", "model": model, **keys}


WRONG: dict[str, dict[str, Any]] = {
    "no workload": {"workloads": []},
    "no size": {"sizes": []},
    "size twice": {"sizes": ["2KiB", "2048B"]},
    "size below an element": {"sizes": ["1B"]},
    "size without a unit": {"sizes": ["2"]},
    "policy with a slip": {"policies": ["nezah"]},
    "unknown rail": {"policies": ["single:tcp9"]},
    "weight too many": {"policies": ["weights:1:2:3"]},
    "channels without tcp": {"fabrics": [{**PAIR, "rails": [SHARP, SHARP]}], "policies": ["virtual"]},
    "no start": {"starts": {"1MiB": 0}},
    "starts of a size twice": {"starts": {"1MiB": 3, "1024KiB": 2}},
    "policy twice": {"policies": ["mrib", "mrib"]},
    "no policy": {"policies": []},
    "only for a policy that is not measured": {"only": {"gloo": [0]}},
    "only on an unknown fabric": {"only": {"mrib": [1]}},
    "on an unknown fabric": {"on": [1]},
    "name with capitals": {"name": "My Own"},
    "unknown key": {"polcies": []},
    "steering": {"routing": {"policies": ["dr"]}},
    "rerouting": {"reroute": ["on"]},
    "workload of GPU fabrics": {"workloads": [{"kind": "gpt", "model": "gpt-145.6b"}]},
    "workload twice": {"workloads": [SIZES, SIZES]},
    "policy in two workloads of a size": {
        "workloads": [{**SIZES, "policies": [name]} for name in ("nezha", "mrib", "mrib")]
    },
    "fabric of GPUs beside": {"fabrics": [PAIR, {"kind": "rail-only"}]},
    "one node": {"fabrics": [{**PAIR, "nodes": 1}]},
    "rail without a rate": {"fabrics": [{**PAIR, "rails": [{**TCP, "rate": "0bit"}]}]},
    "fault of an unknown rail": {"faults": [{**CUT, "target": "sharp1 of n1"}]},
    "fault on an unknown fabric": {"faults": [{**CUT, "on": [1]}]},
    "fault under Gloo": {"faults": [{**CUT, "policy": "gloo"}]},
    "fault of a GPU": {"faults": [{**CUT, "kind": "gpu-crash"}]},
    "fault with a slip": {"faults": [CUT, {**CUT, "kind": "link-donw"}]},
    "fault twice": {"faults": [CUT, CUT]},
    "fault of the only rail": {"fabrics": [{**PAIR, "rails": [TCP]}], "faults": [CUT]},
    "batch without a published time": {"workloads": [training("alexnet", batch=48)]},
    "computing of a GPT": {"workloads": [training("gpt3-2.7b", compute="1s")]},
    "mixture of experts": {"workloads": [training("moe-1.3b-128")]},
    "batch that nodes can't share": {"fabrics": [{**PAIR, "nodes": 3}], "workloads": [training("gpt3-30b")]},
    "training twice": {"workloads": [training("vgg-11"), training("vgg-11", batch=64), training("vgg-11", volume=0.5)]},
    "GPT with two batches": {"workloads": [training("gpt3-2.7b"), training("gpt3-2.7b", batch=64)]},
    "no volume": {"workloads": [training("vgg-11", volume=0)]},
}
"""Keys of an experiment, or of its workload, that are refused."""


def test_invalid_specs_are_refused_in_one_line(data_regression: DataRegressionFixture) -> None:
    names = experiment_model().model_fields
    messages: dict[str, str] = {}
    for case, keys in WRONG.items():
        common = {key: value for key, value in keys.items() if key in names}
        workload = {key: value for key, value in keys.items() if key not in names}
        messages[case] = message_of(BadInput, partial(spec_of, {**SIZES, **workload}, **common))
    data_regression.check(messages)


def test_training_may_differ_by_fabric() -> None:
    trainings = [training("vgg-11", on=[0]), training("vgg-11", dilation=3, on=[1])]
    spec = spec_of(*trainings, fabrics=[PAIR, UNLIKE])
    assert [dilations_on(spec, n) for n in range(2)] == [[1.0], [3.0]]


def test_single_stands_for_each_rail_that_is_unlike_the_others() -> None:
    spec = spec_of({**SIZES, "policies": ["nezha", "single"]}, fabrics=[PAIR, UNLIKE])
    on = [sizes_of(spec).policies_on(number, fabric) for number, fabric in enumerate(rail_fabrics(spec))]
    assert on == [("nezha", "single:tcp0"), ("nezha", "single:tcp0", "single:sharp1")]
    some = spec_of({**SIZES, "policies": ["nezha", "single"], "only": {"single": [0]}}, fabrics=[PAIR, UNLIKE])
    on = [sizes_of(some).policies_on(number, fabric) for number, fabric in enumerate(rail_fabrics(some))]
    assert on == [("nezha", "single:tcp0"), ("nezha",)]
    assert singles(rail_fabrics(spec)[0]) == ["single:tcp0"]


def test_fabric_labels_have_rails_nodes_and_differences() -> None:
    spec = spec_of(fabrics=[PAIR, UNLIKE, {**PAIR, "nodes": 8}, {**PAIR, "mtu": 1500}])
    assert spec.labels == (
        "tcp+tcp, 4 nodes MTU 9000",
        "tcp+sharp, 4 nodes",
        "tcp+tcp, 8 nodes",
        "tcp+tcp, 4 nodes MTU 1500",
    )
    assert nominal_plans(spec)[2].addresses["n7"] == "198.18.0.8"
    slower = spec_of(fabrics=[PAIR, {**PAIR, "dilation": {"128KiB": 6, "8MiB": 4}}])
    assert slower.labels == ("tcp+tcp, 4 nodes", "tcp+tcp, 4 nodes dilated 6 times")


def test_dilation_is_in_a_label_only_where_nothing_else_differs() -> None:
    spec = spec_of(fabrics=[{**PAIR, "dilation": {"2MiB": 4}}, {**PAIR, "mtu": 1500}])
    assert spec.labels == ("tcp+tcp, 4 nodes MTU 9000", "tcp+tcp, 4 nodes MTU 1500")


def test_small_sizes_are_dilated_most_and_large_ones_not() -> None:
    fabric = spec_of(fabrics=[{**PAIR, "dilation": {"8MiB": 4, "128KiB": 6}}])
    assert [rail_fabrics(fabric)[0].dilation_of(size << 10) for size in (0, 128, 129, 8192, 8193)] == [6, 6, 4, 4, 1]
    assert dilations_on(fabric, 0) == [1.0, 6.0]
    assert parse(fabric.resolved()) == fabric


def test_small_sizes_have_more_starts() -> None:
    spec = spec_of({**SIZES, "policies": ["nezha", "mrib"], "starts": {"1MiB": 3}}, repeats=2)
    sizes, fabric = sizes_of(spec), rail_fabrics(spec)[0]
    assert [sizes.repeats_of(size, 2) for size in sizes.sizes] == [6, 2]
    assert sizes.step_count(0, fabric, 2) == 6 + 2
    assert parse(spec.resolved()) == spec


def test_gloo_runs_on_the_first_tcp_rail() -> None:
    assert peer_rail(rail_fabrics(spec_of(fabrics=[{**UNLIKE, "rails": [SHARP, TCP]}]))[0]) == 1
    mptcp = {**SIZES, "policies": ["nezha"]}
    assert peer_rail(rail_fabrics(spec_of(mptcp, fabrics=[{**UNLIKE, "rails": [SHARP]}]))[0]) == 0


@pytest.mark.parametrize("name", MULTIRAIL)
def test_resolved_experiment_reads_back(name: str) -> None:
    spec = load_any(name)
    assert parse(yaml.safe_load(yaml.safe_dump(spec.resolved()))) == spec


def dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *workloads: dict[str, Any], **keys: Any) -> str:
    """Return what a dry run prints, with single spaces."""
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(experiment(*workloads, **keys)))
    assert cli.main(["dry-run", str(tmp_path / "mine.yaml")]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_dry_run_has_columns_for_slow_motion_and_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = {**SIZES, "policies": ["nezha", "mrib"], "learning": 40, "operations": 10}
    printed = dry_run(tmp_path, capsys, once, training("vgg-11"))
    assert "slow motion" not in printed
    assert "starts" not in printed
    slow = [{**PAIR, "dilation": {"128KiB": 6}}]
    printed = dry_run(tmp_path, capsys, {**once, "starts": {"1MiB": 3}}, training("vgg-11", dilation=3), fabrics=slow)
    assert " slow motion " in printed
    assert "in slow motion 3x" in printed
    small, large = (printed.partition(size)[2] for size in ("2KiB", "64MiB"))
    assert " 6x 3 x 40 + 10 4 + 10 " in small[:50]
    assert " 1 x 40 + 10 4 + 10 " in large[:50]


@pytest.mark.parametrize("command", ["lint", "search"])
def test_command_for_gpu_fabrics_refuses_rail_fabrics(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--gpus", "8", "--batch", "8"] if command == "search" else []
    assert cli.main([command, "multirail-quick", *more]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_typing_slip_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "multirail-quick", "-o", "nodes=1"]) == 2
    assert capsys.readouterr().err == "error: fabrics.0.nodes: 1 must be 2 or more\n"
    assert cli.main(["predict", "multirail-quick", "-o", "domains=4"]) == 2
    assert "domains" in capsys.readouterr().err


# what the equations say ----------------------------------------------------------------------------------------------

RAILS = (Rail("tcp0", "tcp", 6e6, 1e-4), Rail("sharp1", "sharp", 7e6, 1e-6))


@given(size=st.integers(1, 2**31), scale=st.floats(1, 1000))
def test_bytes_sent_are_whole_elements_of_the_scaled_size(size: int, scale: float) -> None:
    sent = sent_bytes(size, scale)
    assert sent % ITEM == 0
    assert sent >= ITEM
    assert abs(sent - size / scale) <= ITEM


@given(sent=st.integers(1, 10**6).map(lambda n: 4 * n), nodes=st.integers(2, 16))
def test_no_policy_is_predicted_faster_than_nezha(sent: int, nodes: int) -> None:
    least = predicted_s("nezha", RAILS, nodes, sent)
    for policy in ("mrib", "equal", "slicing", "single:tcp0", "single:sharp1", "single"):
        assert predicted_s(policy, RAILS, nodes, sent) >= least * (1 - 1e-6), policy


def test_the_bound_of_one_rail_is_the_rings() -> None:
    """2(N-1)/N S/B, with the set-up of 2(N-1) messages."""
    assert predicted_s("single:tcp0", RAILS, 4, 6_000_000) == pytest.approx(1.5 + 6e-4)
    assert predicted_s("gloo", RAILS, 4, 6_000_000, rail=0) == pytest.approx(1.5)
    assert predicted_s("mptcp", RAILS, 4, 6_000_000) == pytest.approx(1.5 * 6 / 13 + 6e-4)


def test_counted_operations_fit_into_the_time_of_a_point() -> None:
    sizes = sizes_of(spec_of({**SIZES, "point": "2s", "operations": 500}))
    assert [sizes.counted(s) for s in (1e-3, 0.01, 1.0)] == [500, 200, MIN_OPERATIONS]
    assert learning_operations("nezha", 60) == learning_operations("slicing", 60) == 60
    assert learning_operations("mrib", 60) < 10


# trainings -----------------------------------------------------------------------------------------------------------


def test_a_training_of_layers_is_the_models_gradients_to_scale() -> None:
    step = TrainingSpec(kind="training", model="alexnet").step(4, 50.0, 6e6)
    assert sum(step.sizes) == pytest.approx(4 * 61_100_840 / 50, rel=1e-4)
    assert max(step.sizes) <= 4 * 2**20 / 50 + ITEM
    assert step.compute_s == pytest.approx(0.2117, abs=1e-4)
    part = TrainingSpec(kind="training", model="alexnet", volume=0.1).step(4, 50.0, 6e6)
    assert part.samples / part.compute_s == pytest.approx(step.samples / step.compute_s)


def test_gpt_keeps_its_ratio_of_computing_to_bytes() -> None:
    """1 Gbit/s NICs there: on rails that are r times as fast, a step is r times as short as a whole."""
    spec = spec_of(training("gpt3-2.7b"))
    plan = nominal_plan(rail_fabrics(spec)[0])
    rails = rails_of(plan)
    rate = rails[0].rate * plan.scale
    step = TrainingSpec(kind="training", model="gpt3-2.7b").step(4, plan.scale, rails[0].rate)
    assert step.compute_s * rate / (1e9 / 8) == pytest.approx(6.61, abs=0.01)
    assert sum(step.sizes) == pytest.approx(2 * 2.7e9 / 8 / plan.scale, rel=1e-4)
    assert predicted_step_s(step, rails, 4, "single:tcp0", 0) > predicted_step_s(step, rails, 4, "nezha", 0)


@given(first=st.integers(0, 100), count=st.integers(1, 10_000))
def test_turns_have_all_operations_that_count_in_fives(first: int, count: int) -> None:
    parts = turns(first, count)
    sizes = [size for _, size in parts]
    assert sum(sizes) == count
    assert min(sizes) >= min(count, TURN_OPERATIONS)
    assert max(sizes) < 2 * TURN_OPERATIONS
    assert parts[0][0] == first
    assert {warm for warm, _ in parts[1:]} <= {LATER_WARMUP_OPERATIONS}


def test_workload_without_measure_is_refused_when_registered() -> None:
    class Unmeasured(RailWorkload):
        def dry_run(self, number: int, plan: MultirailPlan, repeats: int) -> Iterator[str]:
            yield "nothing"

    with pytest.raises(BadDefinition, match=r"measure\(session\)"):
        WORKLOADS.add("unmeasured", Unmeasured)


def test_two_allreduces_on_a_fabric_may_differ_in_size() -> None:
    assert len(workloads_on(spec_of(SIZES, {**SIZES, "sizes": ["1MiB"]}), 0)) == 2
