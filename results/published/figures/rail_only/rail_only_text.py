"""Statements of Rail-only's and health routing's texts beside their figures: traffic, pipelines, and small clusters."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import matplotlib.figure
import numpy as np

from railyard.results.plots import style
from railyard.results.published import iteration_figures as shared
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.published.figures.rail_only import fig8
from railyard.results.theory.clos import Comparison, rail_only, rail_optimized
from railyard.results.theory.iteration.iteration_time import (
    Cluster,
    FloatArray,
    Job,
    Recipe,
    Strategy,
    iteration_time,
    make_cluster,
    place_strategy,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pair_traffic import Scope, Traffic, gpt_traffic, moe_traffic
from railyard.workloads.models.catalogue import GptModel, MoeModel
from railyard.workloads.models.mixture import PASSES, mixture_of
from railyard.workloads.placement.layout import Layout, Parallelism, data_parallel, hierarchical

MOE: Final = "moe-1.3b-128"
MOE_TITLE: Final = "MoE-1.3B"
GPT: Final = shared.GPT_1T
LITTLE_PCT: Final = 10.0
"""Our bar for what the texts call not significant, or minimal, and give no number of."""
UNEVEN: Final = 1.1
"""Our bar for rails that are used unevenly: the busiest one over the mean."""
NEAR_IDEAL: Final = 1.05
"""Our bar for an optimal size of HB domains, over the ideal's time."""
ON_NICS: Final[tuple[Scope, ...]] = ("rail", "across rails")
# 64 DGX, with every split of the job into powers of two
LAYOUT_GPUS: Final = 512
LAYOUT_RAILS: Final = 8
POWERS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STAGES_OF_A_DOMAIN: Final = (1, 2, 4, 8)
DOMAINS_OF_A_PIPELINE: Final = (1, 2, 3, 4, 8, 16)
LARGE_DOMAIN: Final = 256
DOMAIN_SIZES: Final = (8, LARGE_DOMAIN)
SMALL_CLUSTERS: Final = (512, 1024, 2048, 4096, 8192, 16_384)
RADIX: Final = 64
# bit/s; a path does not depend on it
ANY_RATE: Final = 1_000_000_000
# a sum reads two values and writes one
MOVED_BY_A_SUM: Final = 3


def figure() -> Figure:
    """Compute each statement; rows are the claims."""
    claims = (
        *_mixture_claims(),
        *_all_to_all_claims(),
        *_rail_use_claims(),
        *_layout_claims(),
        *_transfer_claims(),
        *_communication_claims(),
        _optimal_size_claim(),
        *_interleaving_claims(),
        *_sum_claims(),
        *_small_cluster_claims(),
        *_switch_claims(),
    )
    rows: list[tuple[Cell, ...]] = [(claim.what, claim.unit, claim.published, claim.ours) for claim in claims]
    return Figure(
        title="Statements of the texts beside the figures",
        source="Rail-only II to VI and appendix; health routing, part 2",
        columns=("quantity", "unit", "published", "computed"),
        rows=rows,
        draw=lambda drawn: _draw(drawn, claims),
        claims=claims,
        notes=(
            f"Layouts: {LAYOUT_GPUS} GPUs in HB domains of {LAYOUT_RAILS}; tensor, pipeline and data parallelism in "
            "powers of two, without interleaving and with two chunks for each stage.",
            f"Communication: the fastest strategies of fig8 on {fig8.STATED:,} GPUs, as printed.",
            f"Small clusters: switches of radix {RADIX}, prices of table2.",
        ),
        inches=(10.0, 7.0),
    )


def _mixture_claims() -> Iterator[Claim]:
    """Yield what experts add to parameters and to FLOPs (III-C)."""
    model = MoeModel.load(MOE)
    dense = model.model_copy(update={"experts_per_token": 1})
    dense_token_flops = dense.gpu_flops / dense.tokens_per_gpu
    # the gating network is a matrix of hidden size by experts
    gating_flops = PASSES * 2 * model.hidden * model.experts * model.moe_layers
    flops = (mixture_of(model).token_flops + gating_flops) / dense_token_flops
    parameters = model.all_parameters / (model.static_parameters + model.expert_parameters)
    yield Claim(
        f"{MOE_TITLE}: parameters over those of its dense base", 1, parameters, "times", bound="at least",
        stated="larger means",
    )  # fmt: skip
    yield Claim(
        f"{MOE_TITLE}: FLOPs of a token over those of its dense base", 1 + LITTLE_PCT / 100, flops, "times",
        bound="at most", stated="not significant means",
    )  # fmt: skip


def _moe_traffic() -> Traffic:
    """Return the traffic of a step of the mixture of experts of Fig. 5."""
    model = MoeModel.load(MOE)
    layout = data_parallel(model.gpus, model.global_batch, model.domain_gpus, model.experts)
    return moe_traffic(mixture_of(model), layout)


def _all_to_all_claims() -> Iterator[Claim]:
    """Yield which pairs have all-to-all traffic, how much is forwarded (III-C, IV-B), and what spines carry of it."""
    traffic = _moe_traffic()
    all_pairs = traffic.gpus * (traffic.gpus - 1)
    pairs_pct = 100 * traffic.pairs["EP"].count / all_pairs
    on_rails = traffic.at("EP", "rail").total
    across = traffic.at("EP", "across rails").total
    forwarded_pct = 100 * across / traffic.volumes["EP"]
    # at full bisection a rail switch has as many links to spines as to GPUs
    spine_load = across / (on_rails + across)
    note = "at full bisection, where spines carry what changes rails alone; with half of the spines it is twice as much"
    yield Claim(f"{MOE_TITLE}: pairs of GPUs with all-to-all traffic", 100, pairs_pct, "%")
    yield Claim(
        f"{MOE_TITLE}: all-to-all bytes to another domain and another rail", 50, forwarded_pct, "%", bound="at least",
        stated="most means",
    )  # fmt: skip
    yield Claim(
        f"{MOE_TITLE}: load of a link to a spine over that of a GPU's rail link", 1, spine_load, "times",
        bound="at least", note=note, stated="more means",
    )  # fmt: skip


def _rail_use_claims() -> Iterator[Claim]:
    """Yield how evenly rails are used, and in how many clusters there are more rails than domains (part 2)."""
    model = GptModel.load(GPT)
    parallelism = model.training
    layout = hierarchical(parallelism, parallelism.gpus // model.domain_gpus, model.domain_gpus)
    note = "over a whole iteration every rank of a domain sends as much; the article may mean shorter times"
    for title, traffic in ((fig8.NAMES[GPT], gpt_traffic(model, layout)), (MOE_TITLE, _moe_traffic())):
        name = f"{title}: bytes of the busiest rail over the mean"
        yield Claim(name, UNEVEN, _rail_imbalance(traffic), "times", bound="at least", note=note, stated="uneven means")
    clusters = len(fig8.CLUSTERS)
    count = sum(gpus // LARGE_DOMAIN < LARGE_DOMAIN for gpus in fig8.CLUSTERS)
    name = f"clusters of Fig. 8 with more rails than domains, K = {LARGE_DOMAIN}"
    yield Claim(name, clusters // 2 + 1, count, f"of {clusters} clusters", bound="at least", stated="often means")


def _rail_imbalance(traffic: Traffic) -> float:
    """Return the bytes of the busiest rail over the mean; forwarded bytes take the receiver's rail."""
    bytes_of_rails = np.zeros(traffic.rails)
    for kind, scope in product(traffic.pairs, ON_NICS):
        pairs = traffic.at(kind, scope)
        bytes_of_rails += np.bincount(pairs.dst % traffic.rails, weights=pairs.bytes, minlength=traffic.rails)
    return float(bytes_of_rails.max() / bytes_of_rails.mean())


def _layout_claims() -> Iterator[Claim]:
    """Yield in how many layouts a dense model sends between rails, and its pipeline does (III-B)."""
    model = GptModel.load(GPT)
    layouts = list(_layouts(model))
    crossing = 0
    crossing_pipelines = 0
    for layout in layouts:
        traffic = gpt_traffic(model, layout)
        crossing += any(traffic.at(kind, "across rails").count for kind in traffic.pairs)
        crossing_pipelines += traffic.at("PP", "across rails").count > 0
    of_layouts = f"of {len(layouts)} layouts"
    yield Claim(f"layouts of {fig8.NAMES[GPT]} with traffic across rails", 0, crossing, of_layouts)
    yield Claim(f"layouts of {fig8.NAMES[GPT]} with pipeline traffic across rails", 0, crossing_pipelines, of_layouts)


def _layouts(model: GptModel) -> Iterator[Layout]:
    """Yield every layout in powers of two that divides heads and layers, with one and two chunks for each stage."""
    for tensor, pipeline, chunks in product(POWERS, POWERS, (1, 2)):
        is_divided = LAYOUT_GPUS % (tensor * pipeline) == 0 and model.heads % tensor == 0
        is_interleaved = chunks > 1
        if not is_divided or model.layers % (pipeline * chunks) or (is_interleaved and pipeline == 1):
            continue
        data = LAYOUT_GPUS // (tensor * pipeline)
        # as many micro-batches as stages, which an interleaved schedule needs
        parallelism = Parallelism(
            tensor=tensor, pipeline=pipeline, data=data, micro_batch=1, global_batch=data * pipeline,
            virtual_stages=chunks,
        )  # fmt: skip
        yield hierarchical(parallelism, LAYOUT_GPUS // LAYOUT_RAILS, LAYOUT_RAILS)


def _transfer_claims() -> Iterator[Claim]:
    """Yield for how many pipelines Eq. 8 counts other transfers than there are, in HB domains or between them."""
    splits = list(product(STAGES_OF_A_DOMAIN, DOMAINS_OF_A_PIPELINE))
    wrong = 0
    for inner, outer in splits:
        stages = inner * outer
        parallelism = Parallelism(tensor=1, pipeline=stages, data=1, micro_batch=1, global_batch=1)
        layout = hierarchical(parallelism, outer, inner)
        domains = layout.pipelines[0] // inner
        between = int(np.count_nonzero(np.diff(domains)))
        within = stages - 1 - between
        wrong += between != outer - 1 or within != outer * (inner - 1)
    yield Claim("pipelines of which Eq. 8 counts other transfers", 0, wrong, f"of {len(splits)} splits")


def _communication_claims() -> Iterator[Claim]:
    """Yield the part of latency in the communication (III-B), and the communication of both models (V-B)."""
    for k in DOMAIN_SIZES:
        shares: dict[str, float] = {}
        for model, batch in fig8.BATCHES.items():
            best = shared.best(shared.AS_PRINTED, model, batch, fig8.STATED, k)
            shares[model] = best.network_s / best.seconds
            job = shared.job_of(shared.AS_PRINTED, model, batch, fig8.STATED, k)
            free_s = float(iteration_time(_without_latency(job), _arrays(best.strategy)).network_s[0])
            latency_pct = 100 * (1 - free_s / best.network_s)
            name = f"{fig8.NAMES[model]}, K={k}: latency's part of the communication"
            yield Claim(name, 50, latency_pct, "%", bound="at most", stated="bandwidth-dominated means")
        ratio = shares[shared.GPT_146B] / shares[shared.GPT_1T]
        name = f"K={k}: communication's part of an iteration, GPT-146B over GPT-1T"
        yield Claim(name, 1, ratio, "times", bound="at least", stated="more means")


def _optimal_size_claim() -> Claim:
    """Return the size of HB domains near the ideal, for the smaller model over that for the larger one (V-B)."""
    sizes: dict[str, int] = {}
    for model, batch in fig8.BATCHES.items():
        ideal_s = shared.best(shared.AS_PRINTED, model, batch, fig8.STATED, fig8.STATED).seconds
        k = 1
        while shared.best(shared.AS_PRINTED, model, batch, fig8.STATED, k).seconds > NEAR_IDEAL * ideal_s:
            k *= 2
        sizes[model] = k
    ratio = sizes[shared.GPT_146B] / sizes[shared.GPT_1T]
    name = "least K within 5% of the ideal, GPT-146B over GPT-1T"
    # sizes are powers of two
    return Claim(name, 2, ratio, "times", bound="at least", stated="depends means")


def _without_latency(job: Job) -> Job:
    constants = replace(job.cluster.constants, hb_latency_s=0.0, rail_latency_s=0.0)
    return replace(job, cluster=replace(job.cluster, constants=constants))


def _arrays(strategy: Strategy[float]) -> Strategy[FloatArray]:
    """Return a strategy as the equations take it."""
    return Strategy(*(np.array([float(size)]) for size in strategy.columns))


def _interleaving_claims() -> Iterator[Claim]:
    """Yield what two chunks for each stage change in Eq. 7, 8 and 10, for the published job of GPT-1T."""
    model = GptModel.load(GPT)
    cluster = make_cluster("a100", model.training.gpus, model.domain_gpus)
    strategy = place_strategy(model.training, model.domain_gpus)
    job = Job(model, Recipe(model.training.global_batch), cluster)
    plain = iteration_time(job, _arrays(strategy))
    interleaved = iteration_time(job, _arrays(replace(strategy, virtual_stages=2.0)))
    computing = float(interleaved.bubble_compute_s[0] / plain.bubble_compute_s[0])
    bubble = float(interleaved.bubble_network_s[0] / plain.bubble_network_s[0])
    last_stage = float(interleaved.last_stage_network_s[0] / plain.last_stage_network_s[0])
    name = f"{fig8.NAMES[GPT]}, v=2 over v=1"
    yield Claim(f"{name}: computing of the bubble", 1, computing, "times", bound="at most", stated="reduces means")
    yield Claim(f"{name}: communication of the bubble", 1, bubble, "times", 1e-6)
    yield Claim(
        f"{name}: communication of the last stage", 1, last_stage, "times", bound="at least", stated="additional means"
    )


def _sum_claims() -> Iterator[Claim]:
    """Yield how long the sums of an AllReduce over rails take of its time on the network (appendix)."""
    for platform in ("a100", shared.PLATFORM):
        name = f"{platform}: sums of an AllReduce over rails, of its time on the network"
        sums_pct = _sums_pct(make_cluster(platform, 1, 1))
        yield Claim(name, LITTLE_PCT, sums_pct, "%", bound="at most", stated="minimal means")


def _sums_pct(cluster: Cluster) -> float:
    """Return the time of the sums in percent of that of the network: both are proportional to (N-1)/N of the data."""
    sum_s_per_byte = MOVED_BY_A_SUM / cluster.constants.memory_bytes_per_s
    # Eq. 11: once for the ReduceScatter, and once for the AllGather
    network_s_per_byte = 2 / cluster.rail_bytes_per_s
    return 100 * sum_s_per_byte / network_s_per_byte


def _small_cluster_claims() -> Iterator[Claim]:
    """Yield how many clusters smaller than those of Table II cost less without spines (VI)."""
    for domain_gpus in DOMAIN_SIZES:
        cheaper = 0
        alike: list[str] = []
        for gpus in SMALL_CLUSTERS:
            both = Comparison(rail_optimized(gpus, RADIX), rail_only(gpus, domain_gpus, RADIX))
            if both.saved_usd > 0:
                cheaper += 1
            else:
                alike.append(f"{gpus:,}")
        note = ""
        if alike:
            note = f"of {' and '.join(alike)} GPUs a rail takes as many tiers as the whole"
        count = len(SMALL_CLUSTERS)
        name = f"K = {domain_gpus}, clusters of {SMALL_CLUSTERS[0]} to {SMALL_CLUSTERS[-1]:,} GPUs that cost less"
        yield Claim(name, count, cheaper, f"of {count} clusters", note=note)


def _switch_claims() -> Iterator[Claim]:
    """Yield how many switches are between GPUs of one rail, and of two, on rail-optimized (II-B)."""
    plan = make_plan(FabricSpec(kind="rail-optimized", domains=2, rails=2), ANY_RATE)
    same_rail = _switches_between(plan, Gpu(0, 0), Gpu(1, 0))
    two_rails = _switches_between(plan, Gpu(0, 0), Gpu(1, 1))
    yield Claim(
        "rail-optimized: switches between GPUs of one rail", 1, same_rail, "switches", stated="lowest possible means"
    )
    yield Claim("rail-optimized: switches between GPUs of two rails", 3, two_rails, "switches")


def _switches_between(plan: Plan, source: Gpu, destination: Gpu) -> int:
    """Return the number of switches on the shortest path between two GPUs' NICs."""
    # this import takes a while, and only this claim needs it
    import networkx as nx

    cables = [(link.a.node, link.b.node) for link in plan.links if link.kind != "hb"]
    path = nx.shortest_path(nx.Graph(cables), source.name, destination.name)
    # without the two GPUs
    return len(path) - 2


def _draw(drawn: matplotlib.figure.Figure, claims: tuple[Claim, ...]) -> None:
    axes = drawn.subplots()
    names: list[str] = []
    ratios: list[float] = []
    for claim in claims:
        if claim.published:
            names.append(claim.what)
            ratios.append(claim.ours / claim.published)
    axes.barh(names, ratios, color=style.SERIES[0])
    axes.axvline(1, color=style.SERIES[1], linewidth=1)
    axes.tick_params(labelsize=7)
    style.quiet(axes, "x", xlabel="computed over the bar or the published number", xscale="symlog")
