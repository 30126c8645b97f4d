"""What Rail-only's evaluation leaves open, and how much hangs on it: readings of Fig. 8, 9 and 10.

The paper gives equations, models, batches and GPUs; its constraints on strategies and its model of computing are in an
appendix that isn't printed. `AS_PRINTED` adds nothing to Eq. 6-11 that the paper doesn't say. Each of `OTHERS` changes
one assumption, so that its effect can be seen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from railyard.results.theory.iteration.constants import A100
from railyard.results.theory.iteration.job import Cluster, Job, Recipe, make_cluster
from railyard.results.theory.iteration.search import Best, Rules, best_strategy
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import load_gpt

GPT_1T: Final = "gpt-1008b"
GPT_146B: Final = "gpt-145.6b"
PLATFORM: Final = "gh200"
UNROUNDED: Final = Rules(whole_rounds=False)


@dataclass(frozen=True)
class Reading:
    """One set of assumptions. `recipe` and `constants`: the fields of Recipe and Constants that differ."""

    name: str
    rules: Rules = UNROUNDED
    recipe: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)


AS_PRINTED: Final = Reading("as printed")
OTHERS: Final = (
    Reading("m a multiple of p if interleaved", Rules(whole_rounds=True)),
    Reading("no interleaving", Rules(whole_rounds=False, max_virtual_stages=1)),
    Reading("t at most 8", Rules(whole_rounds=False, max_tensor=8)),
    Reading("no memory limit", Rules(whole_rounds=False, fits_memory=False)),
    Reading("full recomputation", recipe={"recompute": "full"}),
    Reading("32-bit gradients", recipe={"gradient_bytes": 4}),
    Reading("no latency", constants={"hb_latency_s": 0.0, "rail_latency_s": 0.0}),
    Reading("matmuls at the peak, all else free", constants={
        "matmul_efficiency": 1.0, "memory_efficiency": float("inf"), "overhead_flops": 0.0,
    }),
    Reading("overhead of a pass as long as on the A100", constants={
        "overhead_flops": A100.overhead_flops * PLATFORMS[PLATFORM].flops / PLATFORMS["a100"].flops,
    }),
)  # fmt: skip

NOTES: Final = (
    "Eq. 6-11 on DGX GH200. Sequence parallelism and 16 bits throughout, as the paper has it; what it doesn't state: "
    "selective recomputation, 1 us and 2 us of latency, efficiency as fitted on A100s with the H100's own peaks",
    "t divides the heads, p v the layers, d b the batch. As printed, Eq. 7 lets any v divide the bubble. Megatron-LM "
    "needs m as a multiple of p for that, and with m < p no schedule is as fast: a single micro-batch takes p t(b). "
    "That matters for three numbers alone: Fig. 8's K=8 to 256 for GPT-146B, and Fig. 10's K=8 and K=256 at batch 256. "
    "For the first two it is this reading that comes near the paper's; the third is within 3 points under both",
    "A strategy must fit memory, at 16 bytes a parameter and activations; not stated either. The paper's own GPT-1T on "
    "4,096 GPUs (III-B, d = 64) would take 252 GB a GPU without activations",
)


def best(
    reading: Reading, model: str, batch: int, gpus: int, domain_gpus: int, hb_bps: float = 0.0, rail_bps: float = 0.0
) -> Best:
    """The fastest strategy under a reading. Rates in bit/s; 0 is the platform's."""
    cluster = make_cluster(PLATFORM, gpus, domain_gpus)
    cluster = _with_rates(cluster, hb_bps, rail_bps)
    cluster = replace(cluster, constants=replace(cluster.constants, **reading.constants))
    return best_strategy(Job(load_gpt(model), Recipe(batch, **reading.recipe), cluster), reading.rules)


def _with_rates(cluster: Cluster, hb_bps: float, rail_bps: float) -> Cluster:
    hb, rail = hb_bps / 8 or cluster.hb_bytes_per_s, rail_bps / 8 or cluster.rail_bytes_per_s
    return replace(cluster, hb_bytes_per_s=hb, rail_bytes_per_s=rail)


def less_pct(slow_s: float, fast_s: float) -> float:
    """How much less time the second takes, percent."""
    return 100 * (1 - fast_s / slow_s)


def listed(name: str, values: Iterable[float]) -> str:
    """A note: `reading: 2.8%, 5.5%`, in the order of the claims."""
    return f"{name}: " + ", ".join(f"{value:.1f}%" for value in values)
