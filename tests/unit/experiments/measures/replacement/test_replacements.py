"""Replacement of GPUs in each case of Rail-only IV-C: who replaces whom, on which fabric, and the prediction."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from railyard.core.errors import BadInput, CheckFailed
from railyard.experiments.measures.replacement.job import ReplacementJob, replacement_job
from railyard.experiments.measures.replacement.measure import ReplacementMeasure
from railyard.experiments.measures.replacement.planning import planned_replacements
from railyard.experiments.measures.replacement.run import ReplacementTimeline
from railyard.experiments.measures.replacement.spec import WAYS, Case, ReplacementSpec, replacement_map, with_spares
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.parsing import parse
from railyard.topologies.addresses import Gpu
from railyard.topologies.capacity import Capacity
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec, parse_fabric

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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"case": "idle"}, "replacements.0.case: 'idle' is not known: did you mean 'idle-gpu'? allowed are idle-gpu, "
         "large-domain, server, small-domain"),
        ({"failed": "hb1"}, "replacements.0.failed: 'hb1' is no GPU of the rail-only fabric of 4 domains x 4 rails: "
         "allowed are d0g0 to d3g3"),
        ({"case": "server"}, "replacements.0.failed: 'd1g2' is no HB domain of the rail-only fabric of 4 domains x 4 "
         "rails: allowed are hb0 to hb3"),
        ({"way": "direct"}, "replacements.0.way: 'direct' is not for idle-gpu on rail-only: optical is"),
        ({"gpus": 2}, "replacements.0.gpus: 2 is for case large-domain alone"),
        ({"case": "large-domain", "gpus": 5}, "replacements.0.gpus: 5 must be 4 or less: a domain has no more"),
        ({"workload": {"kind": "moe"}}, "replacements.0.workload.kind: 'moe' is not known: allowed are data-parallel, "
         "gpt"),
        ({"workload": {"kind": "gpt", "model": "gpt-3"}}, "replacements.0.workload.model: 'gpt-3' is not known"),
        ({"switching_time": "20s"},
         "replacements.0, with its spares: optical.switching_time: '20s' must be 1ms to 10s"),
        ({"case": "server", "failed": "hb1", "switching_time": "50ms"},
         "replacements.0.switching_time: '50ms' is for way optical: server goes by migration here"),
        ({"on": [1]}, "replacements.0.on: 1 is no fabric: the experiment has 1, counted from 0"),
    ],
)  # fmt: skip
def test_impossible_placement_is_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        spec_of({"case": "idle-gpu", "failed": "d1g2", **wrong})
    assert str(caught.value).startswith(message)


def test_switching_time_needs_an_optical_replacement() -> None:
    one = {"case": "idle-gpu", "failed": "d1g2", "workload": SHORT, "switching_time": "50ms"}
    fabrics = [{"kind": "rail-optimized"}, {"kind": "rail-only"}]
    (both,) = ReplacementMeasure().items(spec_of(one, fabrics=fabrics))
    assert with_spares(both, fabric("rail-optimized")).optical is None
    optical = with_spares(both, fabric("rail-only")).optical
    assert optical
    assert optical.switching_time == 0.05
    with pytest.raises(BadInput, match=r"'50ms' is for way optical: idle-gpu goes by direct here"):
        spec_of({**one, "on": [0]}, fabrics=fabrics)


def test_names_of_replacements_have_the_failed_gpu_if_needed() -> None:
    one = {"case": "idle-gpu", "failed": "d1g2", "workload": SHORT}
    fabrics = [{"kind": "rail-only"}, {"kind": "rail-optimized"}]
    spec = spec_of(one, {**one, "failed": "d0g1", "on": [0]}, {**one, "case": "large-domain"}, fabrics=fabrics)
    planned = planned_replacements(spec, ReplacementMeasure().items(spec), Capacity(2, 3e-4, 1e-4, 4e-5))
    assert [replacement.name for replacement in planned] == [
        "idle-gpu by optical, d1g2",
        "idle-gpu by optical, d0g1",
        "large-domain by optical",
        "idle-gpu by direct",
        "large-domain by optical",
    ]


def test_replacements_on_too_many_gpus_are_refused() -> None:
    one = {"case": "idle-gpu", "failed": "d1g2", "workload": SHORT}
    with pytest.raises(BadInput, match=r"fabrics.0.domains: 1000 makes 8,000 GPUs .* for 1,024 or fewer"):
        spec_of(one, fabrics=[{"kind": "rail-only", "domains": 1000, "rails": 8}])


def test_two_indistinguishable_replacements_are_refused() -> None:
    one = {"case": "idle-gpu", "failed": "d1g2", "workload": SHORT}
    with pytest.raises(BadInput) as caught:
        spec_of(one, {**one, "way": "optical", "switching_time": "20ms"})
    assert str(caught.value) == (
        "replacements.1.failed: 'd1g2' is replacements.0's too, with the same case and way on fabric 0: let another "
        "one fail"
    )
    fabrics = [{"kind": "rail-only"}, {"kind": "rail-optimized"}]
    other_gpu = spec_of(one, {**one, "failed": "d1g1"})
    assert len(ReplacementMeasure().items(other_gpu)) == 2
    other_fabric = spec_of({**one, "on": [0]}, {**one, "on": [1], "way": "optical"}, fabrics=fabrics)
    assert len(ReplacementMeasure().items(other_fabric)) == 2


def test_refused_cross_connect_ends_the_wait_with_its_reason() -> None:
    session = SimpleNamespace(received=[(5, "not-crossed", {"why": "an optical switch is not connected"})])
    timeline = ReplacementTimeline(cast(FabricSession, session), job(takeover("idle-gpu"), fabric()), 1)
    with pytest.raises(CheckFailed, match=r"^no cross-connect was moved: an optical switch is not connected$"):
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


def test_a_fabric_without_rails_to_speak_of_has_no_such_cases() -> None:
    with pytest.raises(BadInput, match=r"replacements.0.case: 'server' is for rail-only and rail-optimized fabrics"):
        spec_of({"case": "server", "failed": "hb1"}, fabrics=[{"kind": "single-switch"}])


def test_job_without_a_copy_of_its_state_is_refused() -> None:
    alone = {"tensor": 4, "pipeline": 4, "data": 1, "micro_batch": 1, "global_batch": 4}
    with pytest.raises(BadInput, match="data parallelism must be 2 or more"):
        spec_of({"case": "idle-gpu", "failed": "d1g2", "workload": {**SHORT, "parallelism": alone}})


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
