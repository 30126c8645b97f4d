"""A mixture-of-experts step: the same bytes for both fabrics, in proportion to the real step."""

from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.results.theory.predict import predict_phase, predict_schedule
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import chosen_algorithm
from railyard.workloads.jobs.moe import MoeSpec, moe_iteration, moe_job, moe_schedule
from railyard.workloads.matrix.pair_traffic import moe_traffic
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, cross_rail_bytes, traffic_matrix
from railyard.workloads.models import catalogue
from railyard.workloads.models.catalogue import MoeModel
from railyard.workloads.placement.cross_rail import lint
from railyard.workloads.placement.layout import data_parallel
from railyard.workloads.schedule import payload_rates
from railyard.workloads.spec import build, parse_workload
from railyard.workloads.tasks import Compute

MODEL = MoeModel.load("moe-1.3b-128")


@pytest.mark.parametrize("algorithm", ["all-to-all-two-phase", "all-to-all"])
def test_a_step_has_its_all_to_alls_and_one_all_reduce(algorithm: str) -> None:
    job = moe_job(MODEL, "j", 4, 4, algorithm, 3, 156e12).scaled(1e-4, 1.0)
    schedule = moe_schedule(job)
    assert [p.name for p in schedule.phases] == ["moe-a2a"] * 3 + ["dp-all-reduce"]
    exchange, reduction = schedule.phases[0], schedule.phases[-1]
    volume = bytes_by_kind(schedule)
    assert volume["DP"] == 2 * 15 * reduction.data_bytes
    per_pair = 3 * exchange.data_bytes
    if algorithm == "all-to-all-two-phase":
        assert volume["EP"] == 16 * (3 * 4 + 3 * 4) * per_pair
        assert cross_rail_bytes(schedule) == 0
    else:
        assert volume["EP"] == 16 * 15 * per_pair
        assert cross_rail_bytes(schedule) == 16 * 9 * per_pair
    assert (traffic_matrix(schedule, "EP") + traffic_matrix(schedule, "DP") == traffic_matrix(schedule)).all()


def test_the_full_step_has_the_published_sizes() -> None:
    """262,144 bytes a pair, 48 all-to-alls, 16-bit gradients of the static part."""
    iteration = moe_iteration(moe_job(MODEL, "j", 16, 8, "all-to-all-two-phase", 48, 156e12))
    (exchange,), (reduction,) = iteration.each_micro_batch, iteration.sync
    assert (exchange.data_bytes, exchange.repeats, exchange.x, exchange.y) == (262_144, 48, 8, 16)
    assert reduction.data_bytes == pytest.approx(2 * MODEL.static_parameters, rel=1e-6)


def test_a_shorter_step_keeps_its_proportions() -> None:
    whole, short = (moe_job(MODEL, "j", 4, 4, "all-to-all-two-phase", count, 156e12) for count in (48, 4))
    assert short.pair_bytes == whole.pair_bytes
    assert short.static_bytes * 12 == pytest.approx(whole.static_bytes)
    assert short.compute_s * 12 == pytest.approx(whole.compute_s)
    gaps = [t.seconds for t in moe_schedule(short).tasks if isinstance(t, Compute)]
    assert sum(gaps) == pytest.approx(16 * short.compute_s)


def test_auto_uses_hb_domains_only_without_spines() -> None:
    kinds = ("rail-only", "rail-optimized", "single-switch")
    chosen = [chosen_algorithm("all-to-all", "auto", FabricSpec(kind=kind)) for kind in kinds]
    assert chosen == ["all-to-all-two-phase", "all-to-all", "all-to-all"]


def moe_of(experts: int, folder: Path, **keys: object) -> MoeSpec:
    """The MoE of the paper with another number of experts."""
    text = (Path(catalogue.__file__).parent / "moe-1.3b-128.yaml").read_text()
    path = folder / "changed.yaml"
    parameters = MODEL.static_parameters + experts * MODEL.expert_parameters
    text = text.replace("parameters: 52000000000", f"parameters: {parameters}")
    path.write_text(text.replace("experts: 128", f"experts: {experts}"))
    spec = parse_workload({"kind": "moe", "model": str(path), "bytes": "1MB", **keys})
    assert isinstance(spec, MoeSpec)
    return spec


@pytest.mark.parametrize(("experts", "groups", "copies"), [(16, 1, 0), (8, 2, 8), (4, 4, 4), (2, 8, 2)])
def test_fewer_experts_than_gpus_exchange_tokens_in_groups(
    experts: int, groups: int, copies: int, tmp_path: Path
) -> None:
    """Run and lint have the same groups: the layout's expert groups."""
    spec = moe_of(experts, tmp_path)
    fabric = FabricSpec(kind="rail-only", domains=4, rails=4)
    schedule = build(spec, fabric, 20_000_000, 240_000_000).schedule
    layout = data_parallel(16, 16, 4, experts)
    allowed = {frozenset(group) for group in layout.expert_groups.tolist()}
    assert len(allowed) == groups
    exchanged = {(t.src, t.dst) for _, t in schedule.transfers if schedule.phases[t.phase].kind == "EP"}
    assert exchanged
    assert all(any({src, dst} <= group for group in allowed) for src, dst in exchanged)
    sums = {p.name: (p.x * p.y) for p in schedule.phases if p.kind == "DP"}
    assert sums.get("dp-experts", 0) == (16 // experts if copies else 0)
    crossing = [finding for finding in lint(layout) if finding.kind == "EP"]
    is_crossing = any(s // 4 != d // 4 and s % 4 != d % 4 for group in allowed for s in group for d in group)
    assert bool(crossing) == is_crossing


@pytest.mark.parametrize(("experts", "needs_spines"), [(8, False), (64, True)], ids=["as Mixtral", "one a GPU"])
def test_run_predict_dry_run_and_lint_agree(experts: int, needs_spines: bool, tmp_path: Path) -> None:
    """On 8 domains of 8 GPUs groups of 8 fill a domain each, so that rail-only costs an all-to-all nothing."""
    spec = moe_of(experts, tmp_path, bytes="20KB", all_to_alls=1)
    rates = payload_rates(900_000_000, 100_000_000, 9000)
    only, optimized = (FabricSpec(kind=kind, domains=8, rails=8) for kind in ("rail-only", "rail-optimized"))
    seconds: list[float] = []
    crossing: list[int] = []
    published: list[float] = []
    for fabric in (only, optimized):
        built = build(spec, fabric, 100_000_000, 900_000_000)
        seconds.append(predict_schedule(built.schedule, rates, fabric)["moe-a2a"])
        crossing.append(cross_rail_bytes(built.schedule))
        assert built.scale.real is not None
        exchange = built.scale.real.each_micro_batch[0]
        assert exchange.x * exchange.y == experts
        published.append(predict_phase(exchange, built.scale.real_rates, fabric))
    assert (seconds[0] > 1.05 * seconds[1], published[0] > 1.05 * published[1]) == (needs_spines, needs_spines)
    assert seconds[0] >= seconds[1]
    assert (crossing[0] == 0, crossing[1] > 0) == (True, needs_spines)
    layout = data_parallel(64, 64, 8, experts)
    assert bool(lint(layout)) == needs_spines
    crossing_volume = moe_traffic(MoeModel.load(spec.model), layout).at("EP", "across rails").total
    assert bool(crossing_volume) == needs_spines


def test_experts_that_make_no_whole_groups_are_refused(tmp_path: Path) -> None:
    spec = moe_of(6, tmp_path)
    with pytest.raises(BadInput, match=r"workload\.model: .* 6 experts"):
        build(spec, FabricSpec(kind="rail-only", domains=4, rails=4), 20_000_000, 240_000_000)
