"""Every field that a user can set moves a prediction, and the right way: a table with a row for each of them.

A field without a row fails the test, so a new one needs its row here. Fields that are only labels say why they are.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import yaml
from pydantic import BaseModel

from railyard.core.errors import BadInput
from railyard.experiments.commands.lint import PlacementSpec, layouts
from railyard.results.theory.iteration.iteration_time import Job, Recipe, make_cluster
from railyard.results.theory.iteration.search import best_strategy
from railyard.results.theory.predict import predict_iteration, predict_schedule
from railyard.results.theory.step.communication import expert_s
from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.step_time import step_time
from railyard.results.theory.step.strategy import Recipe as StepRecipe
from railyard.results.theory.step.strategy import one_strategy
from railyard.topologies.plan import make_plan
from railyard.topologies.platforms import PLATFORMS, Platform
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.jobs.collective import CollectiveSpec
from railyard.workloads.jobs.data_parallel import DataParallelSpec
from railyard.workloads.jobs.gpt import GptSpec
from railyard.workloads.jobs.moe import MoeSpec
from railyard.workloads.jobs.trace import TraceSpec
from railyard.workloads.jobs.transfers import TransfersSpec
from railyard.workloads.matrix.pair_traffic import gpt_traffic, moe_traffic
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.models.catalogue import CATALOGUE, GptModel, MoeModel
from railyard.workloads.models.mixture import load_mixture
from railyard.workloads.models.transformer import Transformer
from railyard.workloads.placement.layout import Parallelism, hierarchical
from railyard.workloads.scale import Scale
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import WORKLOADS, build, parse_workload
from railyard.workloads.tasks import Transfer
from railyard.workloads.traces.formats import chakra as pb
from tests.unit.iteration_jobs import MODEL, job, seconds, size
from tests.unit.traces import TRACES
from tests.unit.workloads.volumes import gpt_volumes, moe_volumes

Plain = dict[str, Any]
KINDS: list[type] = [kind for _, kind in WORKLOADS.items() if kind.fabric_spec is FabricSpec]
Direction = Literal["more", "less", "differs", "refused"]
RAIL_BPS: Final = 100_000_000
RAIL_ONLY: Final[Plain] = {"kind": "rail-only"}


@dataclass(frozen=True)
class Row:
    """`field` of what `of` gives, once as in `base` and once with `change`: `read` must go in the direction given."""

    of: type
    field: str
    change: object
    direction: Direction
    read: Callable[[Plain], object]
    base: Mapping[str, object]


def on_fabric(workload: Plain, fabric: Plain) -> tuple[Schedule, Scale, FabricSpec]:
    spec = parse_fabric(fabric)
    plan = make_plan(spec, RAIL_BPS)
    return *build(parse_workload(workload), spec, plan.rail_bps, plan.hb_bps)[:2], spec


def predicted_s(workload: Plain, fabric: Plain = RAIL_ONLY) -> float:
    """Eq. 6 of an iteration, the equation of a collective; a trace, which has none, at the pace of its tasks."""
    schedule, scale, spec = on_fabric(workload, fabric)
    if workload["kind"] == "trace":
        return line_rate_duration_s(schedule, scale.emulated_rates, spec)
    times = predict_schedule(schedule, scale.emulated_rates, spec)
    return times[WHOLE] if schedule.iteration else sum(times.values())


def tasks(workload: Plain, fabric: Plain = RAIL_ONLY) -> int:
    """A fingerprint of the schedule."""
    return hash(tuple(on_fabric(workload, fabric)[0].tasks))


def sent(workload: Plain) -> int:
    return sum(t.bytes for t in on_fabric(workload, RAIL_ONLY)[0].tasks if isinstance(t, Transfer))


def phases(workload: Plain) -> int:
    return len(on_fabric(workload, RAIL_ONLY)[0].phases)


def plan_of(fabric: Plain) -> Any:
    return make_plan(parse_fabric(fabric), RAIL_BPS)


def exchange_s(fabric: Plain) -> float:
    return predicted_s({"kind": "collective", "collective": "all-to-all", "bytes": "100KB"}, fabric)


def published_s(workload: Plain, fabric: Plain = RAIL_ONLY) -> float:
    """Eq. 6 of the published job at its full size, on the real platform."""
    _, scale, spec = on_fabric(workload, fabric)
    assert scale.real is not None
    return predict_iteration(scale.real, scale.real_rates, spec)


def file_of(data: object) -> str:
    """A file in the folder that each test runs in."""
    Path("mine.yaml").write_text(yaml.safe_dump(data))
    return "mine.yaml"


def model_s(model: Plain) -> float:
    return published_s({"kind": model["kind"], "model": file_of(model)})


def mixture_s(spec: Plain) -> float:
    """`model` is the content of its file."""
    return predicted_s({**spec, "model": file_of(spec["model"])})


def grouped(spec: Plain) -> int:
    """Tasks of an AllReduce in two groups that a trace leaves to a file: `groups` is the file's content."""
    for rank in range(4):
        node = pb.NodeMessage(id=0, type="COMM_COLL_NODE")
        node.attr.append(pb.Attribute(name="comm_type", int64_val=0))
        node.attr.append(pb.Attribute(name="comm_size", int64_val=4096))
        node.attr.append(pb.Attribute(name="pg_name", string_val=str(rank % 2)))
        Path(f"g.{rank}.et").write_bytes(pb.encode(pb.GlobalMetadata(), [node]))
    Path("groups.json").write_text(json.dumps(spec["groups"]))
    return tasks({**spec, "path": "g", "groups": "groups.json"})


def small_grid(spec: Plain) -> int:
    """Tasks where four ranks are in two domains."""
    return tasks(spec, {**RAIL_ONLY, "domains": 2, "rails": 2})


def trained_s(parallelism: Plain) -> float:
    return model_s({**GPT, "training": parallelism})


def gpt(model: Plain) -> GptModel:
    """Not checked as a whole again: one field was changed, and published parameters would have to follow."""
    training = Parallelism.model_validate(model["training"])
    return GptModel.model_validate(GPT).model_copy(update={**model, "training": training})


def moe(model: Plain) -> MoeModel:
    return MoeModel.model_validate(MOE).model_copy(update=model)


def counted(model: Plain) -> int:
    return Transformer.model_validate(model).all_parameters


def token_flops(model: Plain) -> float:
    shape = Transformer.model_validate(model)
    return shape.forward_flops(shape.sequence) / shape.sequence


def expert_exchange_s(model: Plain) -> float:
    """Time of all-to-alls over eight servers."""
    strategy = one_strategy(data=64, expert=64)
    return float(expert_s(Transformer.model_validate(model), make_hardware("h100", 64), strategy)[0])


def step_s(model: Plain) -> float:
    """Return the time of a step on 64 H100, whose sequences are long enough for attention to count."""
    shape = Transformer.model_validate(model)
    strategy = one_strategy(tensor=8, data=8)
    return float(step_time(shape, StepRecipe(64), make_hardware("h100", 64), strategy).total_s[0])


def small_job(model: Plain) -> Job:
    return Job(gpt(model), job().recipe, job().cluster)


def gpt_bytes(kind: Literal["TP", "PP", "DP"]) -> Callable[[Plain], float]:
    return lambda model: gpt_volumes(gpt(model))[kind]


def moe_bytes(kind: Literal["EP", "DP"]) -> Callable[[Plain], float]:
    return lambda model: moe_volumes(moe(model))[kind]


def exchanged_bytes(parallelism: Plain) -> float:
    """Bytes of all-to-alls on 2 x 8 GPUs."""
    layout = hierarchical(Parallelism.model_validate(parallelism), 2, 8)
    return moe_traffic(load_mixture("moe-1.3b-128"), layout).volumes["EP"]


def platform_s(platform: Plain) -> float:
    """Of GPT-145.6B as published, on a fabric that takes the rest from the platform's file."""
    return published_s({"kind": "gpt"}, {**RAIL_ONLY, "platform": platform_file(platform)})


def platform_file(platform: Plain) -> str:
    return file_of({key: value for key, value in platform.items() if key != "name"})


def bytes_on_rails(platform: Plain) -> float:
    spec = PlacementSpec(model="gpt-145.6b", platform=platform_file(platform))
    model = GptModel.load(spec.model)
    traffic = gpt_traffic(model, layouts(spec, model)[0])
    return float(traffic.at("DP", "rail").bytes.sum())


def precisions(platform: Plain) -> int:
    return len(PLATFORMS[platform_file(platform)].precisions)


def job_on(platform: Plain) -> Job:
    return Job(MODEL, Recipe(128), make_cluster(platform_file(platform), 64, 8))


def iteration_s(platform: Plain) -> float:
    return seconds(job_on(platform))


def strategies_that_fit(platform: Plain) -> int:
    return best_strategy(job_on(platform)).weighed


def yaml_of(name: str) -> Plain:
    found = yaml.safe_load((CATALOGUE / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


GPT: Final = yaml_of("gpt-145.6b")
MOE: Final = yaml_of("moe-1.3b-128")
DEEPER_MOE: Final[Plain] = {**MOE, "layers": 48, "parameters": 53_700_000_000}
DEEPSEEK: Final = yaml_of("deepseek-v3")
LLAMA: Final = yaml_of("llama3-70b")
HYBRID: Final = yaml_of("nemotron3-super")
WINDOWED: Final = yaml_of("gpt-oss-120b")
H100: Final[Plain] = PLATFORMS["h100"].model_dump()

SLOW: Final[Plain] = {"slow": {"d0g0": 4.0}}
GPT_SPEC: Final[Plain] = {"kind": "gpt", "bytes": "1MB"}
EXPERTS: Final[Plain] = {"tensor": 1, "pipeline": 1, "data": 16, "micro_batch": 1, "global_batch": 64, "expert": 4}
DEEPSEEK_SPEC: Final[Plain] = {"kind": "moe", "model": "deepseek-v3", "bytes": "1MB", "real": {**EXPERTS, "expert": 16}}
MOE_SPEC: Final[Plain] = {"kind": "moe", "bytes": "1MB"}
BUCKETS: Final[Plain] = {"kind": "data-parallel", "bytes": "1MB"}
GATHER: Final[Plain] = {"kind": "collective", "collective": "all-gather", "bytes": "1MB"}
EXCHANGE: Final[Plain] = {"kind": "collective", "collective": "all-to-all", "bytes": "100KB"}
TRACE: Final[Plain] = {"kind": "trace", "path": str(TRACES / "dlrm"), "bytes_factor": 1.0}
OPTIMIZED: Final[Plain] = {"kind": "rail-optimized"}
EVEN: Final[Plain] = {**OPTIMIZED, "domains": 2, "rails": 8, "rail_rate": "100Mbit", "hb_rate": "100Mbit"}
SMALL: Final[Plain] = MODEL.model_dump()


def wished(spec: Plain) -> Plain:
    """With a duration in place of a size."""
    return {**{k: v for k, v in spec.items() if k not in ("bytes", "bytes_factor")}, "duration": "2s"}


TRANSFERS: Final[Plain] = {"kind": "transfers", "domains": [0], "ranks": [0, 1, 2, 3], "bytes": "1MB"}
PAIRED: Final[Plain] = {"kind": "transfers", "pairs": [["d0g0", "d1g1"]], "bytes": "1MB"}
GROUPS: Final = {"0": [0, 2], "1": [1, 3]}
OTHER: Final = {"tensor": 4, "pipeline": 2, "data": 2, "micro_batch": 2, "global_batch": 16}
TRAINING: Final[Plain] = GPT["training"]
ROWS: Final = (
    Row(GptSpec, "bytes", "2MB", "more", predicted_s, GPT_SPEC),
    Row(GptSpec, "duration", "4s", "more", predicted_s, wished(GPT_SPEC)),
    Row(GptSpec, "efficiency", 0.9, "less", predicted_s, GPT_SPEC),
    Row(GptSpec, "compute", 0.5, "less", predicted_s, GPT_SPEC),
    Row(GptSpec, "model", "gpt-39.1b", "differs", predicted_s, GPT_SPEC),
    Row(
        GptSpec,
        "parallelism",
        {**OTHER, "pipeline": 4, "data": 1},
        "differs",
        tasks,
        {**GPT_SPEC, "parallelism": OTHER},
    ),
    Row(GptSpec, "global_batch", 32, "more", predicted_s, {**GPT_SPEC, "global_batch": 16}),
    # the same D stands for a larger micro-batch, so a gradient is less beside it
    Row(GptSpec, "micro_batch", 2, "less", predicted_s, {**GPT_SPEC, "micro_batch": 1}),
    # the same D stands for more layers, so what goes from stage to stage is less beside it
    Row(GptSpec, "layers_per_stage", 20, "less", predicted_s, GPT_SPEC),
    Row(GptSpec, "pairs_per_pass", 2, "more", predicted_s, GPT_SPEC),
    Row(GptSpec, "stragglers", SLOW, "more", predicted_s, GPT_SPEC),
    Row(MoeSpec, "bytes", "2MB", "more", predicted_s, MOE_SPEC),
    Row(MoeSpec, "duration", "4s", "more", predicted_s, wished(MOE_SPEC)),
    Row(MoeSpec, "efficiency", 0.9, "less", predicted_s, MOE_SPEC),
    Row(MoeSpec, "compute", 0.5, "less", predicted_s, MOE_SPEC),
    Row(
        MoeSpec,
        "model",
        {**MOE, "layers": 48, "parameters": 53_700_000_000},
        "more",
        mixture_s,
        {**MOE_SPEC, "model": MOE},
    ),
    # forwarding takes place while packets go on, and no second phase waits for a first
    Row(MoeSpec, "algorithm", "direct", "less", predicted_s, MOE_SPEC),
    Row(MoeSpec, "all_to_alls", 8, "more", predicted_s, MOE_SPEC),
    Row(MoeSpec, "skew", 1.0, "more", predicted_s, MOE_SPEC),
    Row(MoeSpec, "parallelism", EXPERTS, "differs", predicted_s, MOE_SPEC),
    Row(MoeSpec, "real", {**EXPERTS, "micro_batch": 4}, "differs", published_s, MOE_SPEC),
    Row(MoeSpec, "sequence", 8192, "more", published_s, DEEPSEEK_SPEC),
    Row(MoeSpec, "stragglers", SLOW, "more", predicted_s, MOE_SPEC),
    Row(TransfersSpec, "bytes", "2MB", "more", predicted_s, TRANSFERS),
    Row(TransfersSpec, "duration", "4s", "more", predicted_s, wished(TRANSFERS)),
    Row(TransfersSpec, "domains", [1], "differs", tasks, TRANSFERS),
    Row(TransfersSpec, "ranks", [0, 3], "differs", tasks, TRANSFERS),
    Row(TransfersSpec, "to", "shuffled", "differs", tasks, TRANSFERS),
    Row(TransfersSpec, "pairs", [["d0g1", "d2g2"]], "differs", tasks, PAIRED),
    Row(TransfersSpec, "stripes", 4, "differs", tasks, TRANSFERS),
    Row(TransfersSpec, "rounds", 3, "more", predicted_s, TRANSFERS),
    Row(TransfersSpec, "stragglers", SLOW, "refused", tasks, TRANSFERS),
    Row(DataParallelSpec, "bytes", "2MB", "more", predicted_s, BUCKETS),
    Row(DataParallelSpec, "duration", "4s", "more", predicted_s, wished(BUCKETS)),
    Row(DataParallelSpec, "model", "alexnet", "differs", predicted_s, BUCKETS),
    Row(DataParallelSpec, "bucket", "1GB", "less", phases, BUCKETS),
    Row(DataParallelSpec, "stragglers", SLOW, "refused", tasks, BUCKETS),
    Row(CollectiveSpec, "bytes", "2MB", "more", predicted_s, GATHER),
    Row(CollectiveSpec, "duration", "4s", "more", predicted_s, wished(GATHER)),
    Row(CollectiveSpec, "collective", "all-reduce", "more", predicted_s, GATHER),
    Row(CollectiveSpec, "algorithm", "direct", "less", predicted_s, EXCHANGE),
    Row(CollectiveSpec, "in_flight", 1, "differs", tasks, EXCHANGE),
    Row(CollectiveSpec, "gpus", ["d0g0", "d1g0"], "differs", tasks, GATHER),
    Row(CollectiveSpec, "stragglers", SLOW, "refused", tasks, GATHER),
    Row(TraceSpec, "path", str(TRACES / "pipeline"), "differs", tasks, TRACE),
    Row(TraceSpec, "format", "chakra", "refused", tasks, TRACE),
    Row(TraceSpec, "groups", {"0": [0, 2]}, "refused", grouped, {**TRACE, "groups": GROUPS}),
    Row(TraceSpec, "algorithm", "direct", "differs", small_grid, {**TRACE, "path": str(TRACES / "experts")}),
    Row(TraceSpec, "bytes_factor", 2.0, "more", sent, TRACE),
    Row(TraceSpec, "duration", "4s", "more", predicted_s, wished(TRACE)),
    Row(TraceSpec, "compute", 0.5, "less", predicted_s, TRACE),
    Row(TraceSpec, "efficiency", 1.0, "less", predicted_s, TRACE),
    Row(TraceSpec, "stragglers", SLOW, "more", predicted_s, TRACE),
    Row(FabricSpec, "kind", "rail-optimized", "less", exchange_s, RAIL_ONLY),
    Row(FabricSpec, "domains", 8, "more", exchange_s, RAIL_ONLY),
    Row(FabricSpec, "rails", 8, "more", exchange_s, RAIL_ONLY),
    Row(FabricSpec, "platform", "h100", "more", exchange_s, RAIL_ONLY),  # HB at 9 times the rail rate, not 12
    Row(FabricSpec, "rail_rate", "200Mbit", "less", exchange_s, {**RAIL_ONLY, "hb_rate": "1Gbit"}),
    Row(FabricSpec, "hb_rate", "2Gbit", "less", exchange_s, {**RAIL_ONLY, "hb_rate": "1Gbit"}),
    Row(FabricSpec, "mtu", 1500, "more", exchange_s, RAIL_ONLY),
    Row(FabricSpec, "spines", 4, "less", lambda fabric: plan_of(fabric).uplink_bps, OPTIMIZED),
    Row(FabricSpec, "spines", 4, "more", lambda fabric: len(plan_of(fabric).uplinks), OPTIMIZED),
    Row(FabricSpec, "optical", {"layers": ["rail"]}, "more", lambda fabric: len(plan_of(fabric).links), RAIL_ONLY),
    Row(FabricSpec, "gpus_per_nic", 2, "more", exchange_s, RAIL_ONLY),
    Row(FabricSpec, "nics", (0, 0, 1, 1), "more", exchange_s, RAIL_ONLY),
    Row(FabricSpec, "oversubscription", 4.0, "more", exchange_s, OPTIMIZED),
    # forwarding takes its part of the HB links, which is felt where they are no faster than rails
    Row(FabricSpec, "policy", "pxn", "more", exchange_s, EVEN),
    Row(GptModel, "layers", 160, "more", gpt_bytes("TP"), GPT),
    Row(GptModel, "hidden", 24_576, "more", gpt_bytes("TP"), GPT),
    Row(GptModel, "heads", 32, "more", lambda model: size(small_job(model)), SMALL),
    Row(GptModel, "heads", 32, "more", lambda model: seconds(small_job(model)), SMALL),
    Row(GptModel, "sequence", 4096, "more", gpt_bytes("PP"), GPT),
    Row(GptModel, "vocabulary", 102_400, "more", lambda model: seconds(small_job(model)), SMALL),
    Row(GptModel, "domain_gpus", 16, "less", model_s, GPT),
    Row(GptModel, "training", {**TRAINING, "data": 48}, "more", gpt_bytes("DP"), GPT),
    Row(MoeModel, "layers", 48, "more", moe_bytes("DP"), MOE),
    Row(MoeModel, "hidden", 4096, "more", moe_bytes("EP"), MOE),
    Row(MoeModel, "sequence", 4096, "more", moe_bytes("EP"), MOE),
    Row(MoeModel, "vocabulary", 102_400, "more", moe_bytes("DP"), MOE),
    Row(MoeModel, "domain_gpus", 16, "less", model_s, MOE),
    Row(MoeModel, "moe_layers", 24, "more", moe_bytes("EP"), MOE),
    Row(MoeModel, "experts", 64, "more", moe_bytes("DP"), MOE),  # replicated, so that their gradients are summed
    Row(MoeModel, "experts_per_token", 2, "more", moe_bytes("EP"), MOE),
    Row(MoeModel, "gpus", 256, "less", model_s, MOE),
    Row(MoeModel, "global_batch", 1024, "more", moe_bytes("EP"), MOE),
    Row(Transformer, "layers", 70, "more", counted, DEEPSEEK),
    Row(Transformer, "hidden", 8192, "more", counted, DEEPSEEK),
    Row(Transformer, "heads", 256, "more", counted, DEEPSEEK),
    Row(Transformer, "kv_heads", 64, "more", counted, LLAMA),
    Row(Transformer, "head_size", 256, "more", counted, LLAMA),
    Row(Transformer, "ffn", 32_768, "more", counted, LLAMA),
    Row(Transformer, "gated", False, "less", counted, LLAMA),
    Row(Transformer, "vocabulary", 256_000, "more", counted, LLAMA),
    Row(Transformer, "tied_embeddings", True, "less", counted, LLAMA),
    Row(Transformer, "positions", 8192, "more", counted, LLAMA),
    Row(Transformer, "biases", True, "more", counted, LLAMA),
    Row(Transformer, "norm_biases", True, "more", counted, LLAMA),
    Row(Transformer, "qkv_biases", True, "more", counted, LLAMA),
    Row(Transformer, "post_norms", True, "more", counted, LLAMA),
    Row(Transformer, "query_key_norms", True, "more", counted, LLAMA),
    Row(Transformer, "sequence", 8192, "more", token_flops, DEEPSEEK),
    Row(Transformer, "experts", 512, "more", counted, DEEPSEEK),
    Row(Transformer, "experts_per_token", 16, "more", token_flops, DEEPSEEK),
    Row(Transformer, "expert_ffn", 4096, "more", token_flops, DEEPSEEK),
    Row(Transformer, "shared_experts", 2, "more", token_flops, DEEPSEEK),
    Row(Transformer, "expert_groups", 16, "less", expert_exchange_s, DEEPSEEK),
    Row(Transformer, "groups_per_token", 8, "more", expert_exchange_s, DEEPSEEK),
    Row(Transformer, "dense_layers", 10, "less", counted, DEEPSEEK),
    Row(Transformer, "moe_every", 2, "less", counted, DEEPSEEK),
    Row(Transformer, "latent_attention", None, "differs", counted, DEEPSEEK),
    Row(Transformer, "expert_hidden", 512, "less", token_flops, HYBRID),
    Row(Transformer, "state_space", None, "differs", counted, {**HYBRID, "attention_layers": 0}),
    Row(Transformer, "attention_layers", 12, "less", counted, HYBRID),
    Row(Transformer, "window", 64, "less", token_flops, WINDOWED),
    Row(Transformer, "full_attention_every", 4, "less", token_flops, WINDOWED),
    Row(Transformer, "fused_attention", False, "more", step_s, LLAMA),
    Row(Parallelism, "tensor", 4, "more", trained_s, TRAINING),
    Row(Parallelism, "pipeline", 4, "more", trained_s, TRAINING),
    Row(Parallelism, "data", 48, "less", trained_s, TRAINING),
    Row(Parallelism, "micro_batch", 4, "more", trained_s, TRAINING),  # longer bubbles
    Row(Parallelism, "global_batch", 4608, "more", trained_s, TRAINING),
    Row(Parallelism, "virtual_stages", 5, "less", trained_s, TRAINING),  # shorter bubbles
    Row(Parallelism, "expert", 8, "more", exchanged_bytes, EXPERTS),  # fewer tokens are for the GPU that has them
    Row(Platform, "hb_bps", 7_200_000_000_000, "less", platform_s, H100),
    Row(Platform, "rail_bps", 800_000_000_000, "less", platform_s, H100),
    Row(Platform, "flops", 2e15, "less", platform_s, H100),
    Row(Platform, "low_precision_flops", {"fp8": 2e15, "nvfp4": 8e15}, "more", precisions, H100),
    Row(Platform, "memory_bytes", 2_000_000_000, "less", strategies_that_fit, H100),
    Row(Platform, "domain_gpus", 16, "less", bytes_on_rails, H100),
    Row(Platform, "memory_bytes_per_s", 8e12, "less", iteration_s, H100),
    Row(Platform, "matmul_efficiency", 0.9, "less", iteration_s, H100),
    Row(Platform, "memory_efficiency", 0.95, "less", iteration_s, H100),
    Row(Platform, "overhead_flops", 2e11, "more", iteration_s, H100),
    Row(Platform, "hb_latency_s", 1e-5, "more", iteration_s, H100),
    Row(Platform, "rail_latency_s", 1e-5, "more", iteration_s, H100),
)
ONLY_LABELS: Final[dict[tuple[type, str], str]] = {
    **{(of, "kind"): "says which class reads the rest" for of in (*KINDS, GptModel, MoeModel, Transformer)},
    **{(of, "name"): "the label of its results" for of in KINDS},
    (GptModel, "parameters"): "as published: at most a check of the layers' sizes, from which every formula counts",
    (MoeModel, "parameters"): "as published: at most a check of the layers' sizes, from which every formula counts",
    (Transformer, "parameters"): "as published: a check of the shape, from which every formula counts",
    (MoeModel, "heads"): "attention's FLOPs don't depend on them, and no tensor parallelism shares them out here",
}


def fields_of(of: Any) -> set[str]:
    return set(of.model_fields) if issubclass(of, BaseModel) else {field.name for field in fields(of)}


@pytest.mark.parametrize(
    "of",
    [*KINDS, FabricSpec, GptModel, MoeModel, Transformer, Parallelism, Platform],
    ids=lambda of: of.__name__,
)
def test_every_field_has_a_row_or_a_reason_to_be_only_a_label(of: type) -> None:
    tested = {row.field for row in ROWS if row.of is of}
    labels = {field for owner, field in ONLY_LABELS if owner is of}
    assert not tested & labels
    assert tested | labels == fields_of(of)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.of.__name__}-{row.field}-{row.direction}")
def test_each_field_changes_its_results(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before: Any = row.read(dict(row.base))
    changed = {**row.base, row.field: row.change}
    assert changed != row.base
    if row.direction == "refused":
        with pytest.raises(BadInput):
            row.read(changed)
        return
    after: Any = row.read(changed)
    moved = {"more": after > before, "less": after < before} if isinstance(after, int | float) else {}
    assert {**moved, "differs": after != before}[row.direction], f"{row.field}: {before} -> {after}"
