"""Replacement of GPUs in each case of Rail-only IV-C: who replaces whom, on which fabric, and the prediction."""

import io
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core.errors import BadInput, CheckFailed
from railyard.experiments.measures.replacement.job import ReplacementJob, replacement_job
from railyard.experiments.measures.replacement.measure import ReplacementMeasure
from railyard.experiments.measures.replacement.planning import planned_replacements
from railyard.experiments.measures.replacement.run import ReplacementTimeline, fault_delay_s
from railyard.experiments.measures.replacement.spec import WAYS, Case, ReplacementSpec, replacement_map, with_spares
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.parsing import parse
from railyard.topologies.addresses import Gpu
from railyard.topologies.capacity import Capacity
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec, parse_fabric
from tests.unit.error_messages import message_of

RAIL_BPS = 100_000_000
FAILED = {"server": "hb1", "idle-gpu": "d1g2", "small-domain": "d1g2", "large-domain": "d1g2"}
SHORT = {"kind": "gpt", "duration": "500ms"}


def fabric(kind: str = "rail-only", **more: Any) -> FabricSpec:
    return parse_fabric({"kind": kind, "domains": 4, "rails": 4, **more})


def spec_of(*takeovers: dict[str, Any], **more: Any) -> ExperimentSpec:
    return parse({"name": "mine", "fabrics": [{"kind": "rail-only"}], "replacements": list(takeovers), **more})


def takeover(case: str, **more: Any) -> ReplacementSpec:
    fabrics = [{"kind": "rail-optimized" if more.get("way") in ("direct", "any-gpu") else "rail-only"}]
    spec = spec_of({"case": case, "failed": FAILED[case], "workload": SHORT, **more}, fabrics=fabrics)
    return ReplacementMeasure().items(spec)[0]


def job(chosen: ReplacementSpec, on: FabricSpec) -> ReplacementJob:
    return replacement_job(chosen, on, make_plan(with_spares(chosen, on), RAIL_BPS), 1, "replacements.0")


@pytest.mark.parametrize(
    ("case", "size", "optical", "replaced"),
    [
        ("server", (5, 4), None, {Gpu(1, g): Gpu(4, g) for g in range(4)}),
        ("idle-gpu", (4, 5), ("rail",), {Gpu(1, 2): Gpu(1, 4)}),
        ("small-domain", (5, 4), None, {Gpu(1, g): Gpu(4, g) for g in range(4)}),
        ("large-domain", (5, 4), ("rail", "hb"), {Gpu(1, 2): Gpu(4, 2)}),
    ],
)
def test_each_case_has_spares_and_the_ranks_they_replace(
    case: str, size: tuple[int, int], optical: tuple[str, ...] | None, replaced: dict[Gpu, Gpu]
) -> None:
    chosen = takeover(case, **({"switching_time": "25ms"} if optical else {}))
    spared = with_spares(chosen, fabric())
    assert (spared.domains, spared.rails) == size
    assert (spared.optical and spared.optical.layers) == optical
    assert spared.optical is None or spared.optical.switching_time == 0.025
    usual = with_spares(takeover(case), fabric()).optical
    assert usual is None or usual.switching_time == 0.01
    assert replacement_map(chosen, fabric()).to == replaced


def test_a_small_set_is_the_failed_one_and_the_ranks_after_it() -> None:
    chosen = takeover("large-domain", gpus=3)
    assert set(replacement_map(chosen, fabric()).to) == {Gpu(1, 2), Gpu(1, 3), Gpu(1, 0)}
    assert replacement_map(chosen, fabric()).dead == {Gpu(1, 2)}


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
@pytest.mark.parametrize("case", sorted(WAYS))
def test_a_job_keeps_its_bytes_on_every_way(case: Case, kind: str) -> None:
    for way in WAYS[case][kind == "rail-optimized"]:
        chosen = takeover(case).model_copy(update={"way": way})
        found = job(chosen, fabric(kind))
        before, after = found.before.matrix, found.after.matrix
        assert sorted(before.values()) == sorted(after.values())
        number = {gpu: n for n, gpu in enumerate(found.plan.gpus)}
        to = {} if way == "optical" else {number[old]: number[new] for old, new in found.replacement_map.to.items()}
        assert after == {(to.get(a, a), to.get(b, b)): size for (a, b), size in before.items()}
        gone = {number[gpu] for gpu in found.replacement_map.to} if way != "optical" else set()
        assert not gone & {gpu for pair in after for gpu in pair}
        assert not {number[gpu] for gpu in found.replacement_map.dead} & {src for src, _ in found.state.matrix}
        assert len(found.state.matrix) == len(found.replacement_map.to)
        assert found.probed


def test_optical_spare_answers_at_the_failed_gpus_address() -> None:
    for probed in job(takeover("idle-gpu"), fabric()).probed:
        assert (probed.responder, probed.address) == ("d1g4", Gpu(1, 2).ip)
    for probed in job(takeover("small-domain"), fabric()).probed:
        assert probed.responder[:2] == "d4"
        assert probed.address == Gpu(4, int(probed.responder[3:])).ip


def test_substitute_in_another_domain_is_as_slow_as_nics() -> None:
    """By hand: m micro-batches with 2 AllGather and 2 ReduceScatter of D in a ring of 4 at the rail's rate."""
    on = fabric("rail-optimized")
    found = job(takeover("large-domain", way="any-gpu"), on)
    assert found.iteration_s is not None
    assert found.after_s is not None
    iteration = found.before.iteration
    assert iteration is not None
    rail = RAIL_BPS / 8 * 0.99314
    ring = sum(part.repeats * 3 / 4 * part.data_bytes for part in iteration.each_micro_batch)
    slower = iteration.micro_batches * ring * (1 / rail - 1 / (rail * found.plan.hb_bps / found.plan.rail_bps))
    assert found.after_s - found.iteration_s == pytest.approx(slower, rel=1e-3)


@pytest.mark.parametrize(("way", "thin", "known"), [("direct", 1, True), ("direct", 2, False), ("any-gpu", 2, False)])
def test_nothing_is_predicted_over_thin_spines(way: str, thin: float, known: bool) -> None:
    case = "idle-gpu" if way == "direct" else "large-domain"
    found = job(takeover(case, way=way), fabric("rail-optimized", oversubscription=thin))
    assert (found.after_s == found.iteration_s) == known
    assert (found.after_s is None) != known


def test_a_resolved_experiment_is_the_same_when_read_back() -> None:
    given: dict[Any, Any] = {"case": "large-domain", "failed": "d1g2", "gpus": 2, "switching_time": "20ms", True: [0]}
    spec = spec_of(given)
    assert parse(spec.resolved()) == spec


IDLE = {"case": "idle-gpu", "failed": "d1g2", "workload": SHORT}
ALONE = {"tensor": 4, "pipeline": 4, "data": 1, "micro_batch": 1, "global_batch": 4}
WRONG: dict[str, dict[str, Any]] = {
    "unknown case": {"case": "idle"},
    "domain in place of a GPU": {"failed": "hb1"},
    "GPU in place of a domain": {"case": "server"},
    "way of other fabrics": {"way": "direct"},
    "several GPUs of case idle-gpu": {"gpus": 2},
    "more GPUs than rails": {"case": "large-domain", "gpus": 5},
    "job without a state": {"workload": {"kind": "moe"}},
    "unknown model": {"workload": {"kind": "gpt", "model": "gpt-3"}},
    "job without a copy of its state": {"workload": {**SHORT, "parallelism": ALONE}},
    "long switching": {"switching_time": "20s"},
    "switching without optics": {"case": "server", "failed": "hb1", "switching_time": "50ms"},
    "on an unknown fabric": {"on": [1]},
}
"""Keys of a replacement by an idle GPU that are refused."""
WRONG_EXPERIMENTS: dict[str, Callable[[], object]] = {
    "switching where no fabric has optics": lambda: spec_of(
        {**IDLE, "switching_time": "50ms", "on": [0]}, fabrics=[{"kind": "rail-optimized"}, {"kind": "rail-only"}]
    ),
    "too many GPUs": lambda: spec_of(IDLE, fabrics=[{"kind": "rail-only", "domains": 1000, "rails": 8}]),
    "the same twice": lambda: spec_of(IDLE, {**IDLE, "way": "optical", "switching_time": "20ms"}),
    "fabric without rails": lambda: spec_of({"case": "server", "failed": "hb1"}, fabrics=[{"kind": "single-switch"}]),
}


def test_impossible_replacements_are_refused_in_one_line(data_regression: DataRegressionFixture) -> None:
    messages = {case: message_of(BadInput, partial(spec_of, {**IDLE, **keys})) for case, keys in WRONG.items()}
    for case, make in WRONG_EXPERIMENTS.items():
        messages[case] = message_of(BadInput, make)
    data_regression.check(messages)


def test_switching_time_is_of_optical_replacements_alone() -> None:
    one = {**IDLE, "switching_time": "50ms"}
    fabrics = [{"kind": "rail-optimized"}, {"kind": "rail-only"}]
    (both,) = ReplacementMeasure().items(spec_of(one, fabrics=fabrics))
    assert with_spares(both, fabric("rail-optimized")).optical is None
    optical = with_spares(both, fabric("rail-only")).optical
    assert optical
    assert optical.switching_time == 0.05


def test_names_of_replacements_have_the_failed_gpu_if_needed() -> None:
    fabrics = [{"kind": "rail-only"}, {"kind": "rail-optimized"}]
    spec = spec_of(IDLE, {**IDLE, "failed": "d0g1", "on": [0]}, {**IDLE, "case": "large-domain"}, fabrics=fabrics)
    planned = planned_replacements(spec, ReplacementMeasure().items(spec), Capacity(2, 3e-4, 1e-4, 4e-5))
    has_gpu = [("d1g2" in replacement.name, "d0g1" in replacement.name) for replacement in planned]
    assert has_gpu == [(True, False), (False, True), (False, False), (False, False), (False, False)]


def test_replacements_may_differ_by_gpu_or_by_fabric() -> None:
    other_gpu = spec_of(IDLE, {**IDLE, "failed": "d1g1"})
    assert len(ReplacementMeasure().items(other_gpu)) == 2
    fabrics = [{"kind": "rail-only"}, {"kind": "rail-optimized"}]
    other_fabric = spec_of({**IDLE, "on": [0]}, {**IDLE, "on": [1], "way": "optical"}, fabrics=fabrics)
    assert len(ReplacementMeasure().items(other_fabric)) == 2


def test_refused_cross_connect_ends_the_wait_with_its_reason() -> None:
    session = SimpleNamespace(received=[(5, "not-crossed", {"why": "switch is away"})])
    timeline = ReplacementTimeline(cast(FabricSession, session), job(takeover("idle-gpu"), fabric()), 1)
    with pytest.raises(CheckFailed, match="switch is away"):
        timeline._await_event(0, "optical-links-down")
    session.received.append((7, "optical-links-down", {}))
    assert timeline._await_event(6, "optical-links-down") == 7


def test_event_after_the_first_poll_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(received=[(5, "optical-links-down", {}), (6, "port-down", {"port": "d0g0"})])
    news = iter([(7, "port-up", {"port": "d1g2"}), (8, "port-down", {"port": "d1g2"}), (9, "optical-links-down", {})])
    monkeypatch.setattr(
        "railyard.experiments.measures.replacement.run.time.sleep", lambda s: session.received.append(next(news))
    )
    timeline = ReplacementTimeline(cast(FabricSession, session), job(takeover("idle-gpu"), fabric()), 1)
    assert timeline._await_event(6, "port-down", ["d1g2"]) == 8
    assert timeline._await_event(6, "optical-links-down") == 9


def test_dry_run_shows_replacements_and_sources_of_state() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    cases = [{"case": case, "failed": FAILED[case], "workload": SHORT} for case in FAILED]
    ReplacementMeasure().dry_run(spec_of(*cases, replacement_repeats=2), console)
    lines = [line.split() for line in console.export_text().splitlines()]
    rows = {line[0]: line for line in lines if line and line[0] in FAILED}
    assert {case: row[1:3] for case, row in rows.items()} == {
        "server": ["migration", "hb1"],
        "idle-gpu": ["optical", "d1g2"],
        "small-domain": ["migration", "d1g2"],
        "large-domain": ["optical", "d1g2"],
    }
    assert rows["idle-gpu"][3] == "d1g4"
    assert rows["server"][-5:] == ["d0g0,", "d0g1,", "d0g2,", "d0g3", "2"]


def test_fault_is_in_the_first_half_of_the_next_iteration() -> None:
    """A machine that delayed iterations may not delay the next one."""
    assert fault_delay_s([1.1, 1.0, 1.2], estimated_s=1.05) == 0.5
    assert fault_delay_s([2.5], estimated_s=1.0) == 0.5
