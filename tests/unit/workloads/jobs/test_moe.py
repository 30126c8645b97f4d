"""A mixture-of-experts step: the same bytes for both fabrics, in proportion to the real step."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.results.theory.predict import full_step_s, predict_phase, predict_schedule
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import chosen_algorithm
from railyard.workloads.jobs.moe import MoeJob, MoeSpec, moe_iteration, moe_job, moe_schedule
from railyard.workloads.matrix.pair_traffic import moe_traffic
from railyard.workloads.matrix.traffic_matrix import (
    bytes_by_kind,
    cross_rail_bytes,
    line_rate_duration_s,
    traffic_matrix,
)
from railyard.workloads.models import catalogue
from railyard.workloads.models.catalogue import MoeModel
from railyard.workloads.models.mixture import load_mixture, mixture_of
from railyard.workloads.placement.cross_rail import lint
from railyard.workloads.placement.layout import data_parallel
from railyard.workloads.scale import Factor
from railyard.workloads.schedule import payload_rates
from railyard.workloads.spec import build, parse_workload
from railyard.workloads.tasks import Compute
from tests.unit.workloads.messages import CheckMessages

MODEL = MoeModel.load("moe-1.3b-128")
ONLY = FabricSpec(kind="rail-only", domains=4, rails=4)


def job_of(domains: int, rails: int, all_to_alls: int, algorithm: str = "all-to-all-two-phase") -> MoeJob:
    """A step of the paper's model, an expert a GPU."""
    gpus = domains * rails
    layout = data_parallel(gpus, gpus, rails, gpus)
    return moe_job(mixture_of(MODEL), "j", layout, all_to_alls, MODEL.tokens_per_gpu, 1, 156e12, algorithm)


@pytest.mark.parametrize("algorithm", ["all-to-all-two-phase", "all-to-all"])
def test_a_step_has_its_all_to_alls_and_one_all_reduce(algorithm: str) -> None:
    job = job_of(4, 4, 3, algorithm).scaled(1e-4, 1.0)
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
    iteration = moe_iteration(job_of(16, 8, 48))
    (exchange,), (reduction,) = iteration.each_micro_batch, iteration.sync
    assert (exchange.data_bytes, exchange.repeats, exchange.x, exchange.y) == (262_144, 48, 8, 16)
    assert reduction.data_bytes == pytest.approx(2 * MODEL.static_parameters, rel=1e-6)


def test_a_shorter_step_keeps_its_proportions() -> None:
    whole, short = (job_of(4, 4, count) for count in (48, 4))
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
    crossing_volume = moe_traffic(load_mixture(spec.model), layout).at("EP", "across rails").total
    assert bool(crossing_volume) == needs_spines


def test_experts_that_make_no_whole_groups_are_refused(tmp_path: Path) -> None:
    spec = moe_of(6, tmp_path)
    with pytest.raises(BadInput, match=r"workload\.model: .* 6 experts"):
        build(spec, FabricSpec(kind="rail-only", domains=4, rails=4), 20_000_000, 240_000_000)


PIPELINED = {"tensor": 1, "pipeline": 2, "data": 8, "micro_batch": 1, "global_batch": 24, "expert": 4}


def test_stages_exchange_tokens_in_their_own_groups() -> None:
    """Two stages of 2 x 4 GPUs, each with two groups of four: three micro-batches, forward and backward."""
    data = {"kind": "moe", "model": "deepseek-v3", "parallelism": PIPELINED, "bytes": "1MB", "compute": 0.0}
    schedule = build(parse_workload({**data, "all_to_alls": 4}), ONLY, 20_000_000, 240_000_000).schedule
    exchanged: Counter[tuple[int, int]] = Counter()
    for _, transfer in schedule.transfers:
        if schedule.phases[transfer.phase].kind == "EP":
            exchanged[transfer.src, transfer.dst] += transfer.bytes
    groups = [range(start, start + 4) for start in (0, 4, 8, 12)]
    assert set(exchanged) == {pair for group in groups for pair in permutations(group, 2)}
    # 2 all-to-alls of a micro-batch at each stage, 3 micro-batches
    assert set(exchanged.values()) == {6 * 1_000_000}
    names = Counter((phase.name, phase.kind) for phase in schedule.phases)
    assert names == {("moe-a2a", "EP"): 12, ("pp", "PP"): 6, ("dp-all-reduce", "DP"): 2, ("dp-experts", "DP"): 2}
    boundary = {(t.src, t.dst) for _, t in schedule.transfers if schedule.phases[t.phase].name == "pp"}
    assert boundary == {(a, b) for low in range(8) for a, b in ((low, low + 8), (low + 8, low))}


def test_tensor_ranks_gather_and_exchange_their_parts() -> None:
    """Two stages of 2 x 4 GPUs: tensor groups of two, and groups of experts of two such groups."""
    parallelism = {**PIPELINED, "tensor": 2, "data": 4}
    data = {"kind": "moe", "model": "deepseek-v3", "parallelism": parallelism, "bytes": "1MB", "compute": 0.0}
    built = build(parse_workload({**data, "all_to_alls": 8}), ONLY, 20_000_000, 240_000_000)
    schedule = built.schedule
    exchanged = set[tuple[int, int]]()
    for _, transfer in schedule.transfers:
        if schedule.phases[transfer.phase].kind == "EP":
            exchanged.add((transfer.src, transfer.dst))
    groups = [range(start, start + 4) for start in (0, 4, 8, 12)]
    assert exchanged == {pair for group in groups for pair in permutations(group, 2)}
    names = Counter(phase.name for phase in schedule.phases)
    # 6 micro-batches at 2 stages, forward and backward: one layer's attention in each
    assert names["tp-all-gather"] == names["tp-reduce-scatter"] == names["moe-a2a"] / 2 == 24
    phases = {phase.name: phase for phase in schedule.phases}
    gather = phases["tp-all-gather"]
    exchange = phases["moe-a2a"]
    # 8 experts of a token, over 4 GPUs, and half of the tokens at each GPU; both in proportion to the model's
    assert gather.data_bytes / exchange.data_bytes == pytest.approx(2 / (8 / 4), rel=1e-6)
    assert (phases["dp-all-reduce"].x, phases["dp-all-reduce"].y) == (2, 2)
    assert (phases["dp-experts"].x, phases["dp-experts"].y) == (1, 2)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "micro_batches", "chunks"),
    [(1, 1, 1, 1), (1, 1, 3, 1), (1, 2, 4, 1), (1, 4, 6, 1), (1, 2, 4, 2), (1, 4, 8, 3), (2, 2, 4, 2), (4, 1, 3, 1)],
)
def test_tasks_of_a_pipeline_take_the_predicted_time(
    tensor: int, pipeline: int, micro_batches: int, chunks: int
) -> None:
    """The bubble has all-to-alls too. Groups over two or more domains, so that transfers between stages are short."""
    data = 16 // (pipeline * tensor)
    batch = micro_batches * data
    parallelism = {**PIPELINED, "pipeline": pipeline, "data": data, "global_batch": batch, "expert": tensor * data}
    parallelism |= {"virtual_stages": chunks, "tensor": tensor}
    fabric = FabricSpec(kind="rail-only", domains=8, rails=2)
    spec = {"kind": "moe", "model": "deepseek-v3", "parallelism": parallelism, "all_to_alls": 2 * pipeline * chunks}
    built = build(parse_workload({**spec, "bytes": "1MB", "compute": 0.05}), fabric, 100_000_000, 900_000_000)
    predicted = predict_schedule(built.schedule, built.scale.emulated_rates, fabric)[WHOLE]
    at_line_rate = line_rate_duration_s(built.schedule, built.scale.emulated_rates, ONLY)
    assert at_line_rate == pytest.approx(predicted, rel=0.02)


def test_real_job_is_its_longest_stage() -> None:
    """DeepSeek-V3 on 2,048 GPUs: 58 MoE layers on 16 stages, so 4 at most; 256 experts on 64 GPUs."""
    real = {"tensor": 1, "pipeline": 16, "data": 128, "micro_batch": 1, "global_batch": 15_360, "expert": 64}
    spec = {"kind": "moe", "model": "deepseek-v3", "parallelism": PIPELINED, "real": real, "bytes": "1MB"}
    fabric = FabricSpec(kind="rail-only", domains=4, rails=4, platform="h100")
    scale = build(parse_workload(spec), fabric, 100_000_000, 900_000_000).scale
    assert scale.real is not None
    (exchange,) = scale.real.each_micro_batch
    assert (exchange.x, exchange.y, exchange.repeats) == (8, 8, 16)
    # 4,096 tokens to 8 experts each, of 7,168 values, spread over 64 GPUs
    assert exchange.data_bytes == 4096 * 8 * 7168 * 2 / 64
    copies = scale.real.sync[1]
    # 4 experts a GPU in 4 layers, each of three matrices
    assert copies.data_bytes == pytest.approx(2 * 4 * 4 * 3 * 7168 * 2048, rel=1e-6)
    assert (copies.x, copies.y) == (1, 2)
    assert scale.shape["experts"] == Factor(256, 16)


@pytest.mark.parametrize(
    ("model", "platform", "group"),
    [("mixtral-8x7b", "h100", (8, 1)), ("deepseek-v3", "h100", (8, 2)), ("deepseek-v3", "gb200-nvl72", (16, 1))],
)
def test_real_job_missing_in_the_models_file(model: str, platform: str, group: tuple[int, int]) -> None:
    """The fabric's 16 GPUs in the platform's HB domains: spines save time only where a group leaves its domain."""
    steps: list[float] = []
    for kind in ("rail-only", "rail-optimized"):
        fabric = FabricSpec(kind=kind, domains=4, rails=4, platform=platform)
        workload = parse_workload({"kind": "moe", "model": model, "bytes": "1MB", "compute": 0.1})
        scale = build(workload, fabric, 100_000_000, 900_000_000).scale
        assert scale.real is not None
        exchange = scale.real.each_micro_batch[0]
        assert (exchange.x, exchange.y) == group
        steps.append(full_step_s(scale, fabric) or 0.0)
    assert (steps[0] > steps[1]) == (group[1] > 1)
    assert steps[0] >= steps[1] > 0


def test_messages_of_impossible_mixtures(check_messages: CheckMessages) -> None:
    changes: dict[str, dict[str, object]] = {
        "dense model": {"model": "llama3-8b"},
        "divided expert": {"parallelism": {**PIPELINED, "data": 3, "expert": 3}},
        "too few replicas": {"parallelism": {**PIPELINED, "expert": 16}},
        "parts of tensor groups": {"parallelism": {**PIPELINED, "tensor": 2, "data": 4, "expert": 1}},
        "interleaving": {"parallelism": {**PIPELINED, "virtual_stages": 30, "global_batch": 32}},
        "uneven chunks": {"parallelism": {**PIPELINED, "virtual_stages": 2, "global_batch": 32}, "all_to_alls": 4},
        "half a domain": {"real": {**PIPELINED, "data": 6, "expert": 2}},
        "no way back": {"parallelism": PIPELINED, "all_to_alls": 2},
        "too many all-to-alls": {"all_to_alls": 233},
    }
    calls: dict[str, Callable[[], object]] = {}
    for case, change in changes.items():
        spec = parse_workload({"kind": "moe", "model": "deepseek-v3", "bytes": "1MB", **change})
        calls[case] = partial(build, spec, ONLY, 20_000_000, 240_000_000)
    check_messages(calls)
