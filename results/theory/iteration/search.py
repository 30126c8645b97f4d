"""Every parallelization strategy of a cluster, and the fastest: Rail-only's appendix, section C, and Fig. 8.

The appendix's own list of constraints isn't printed ("Appendix ??"). Ours, after its Table III and Megatron-LM: t_h p_h
d_h = K and t_l p_l d_l = N/K, so that every GPU works; t divides the attention heads; p v divides the layers; d b
divides the batch; v > 1 needs p > 1; and what else `Rules` asks for.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput
from railyard.results.theory.iteration import iteration_time as theory
from railyard.results.theory.iteration.iteration_time import FloatArray, IterationTime, Job, Strategy

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for strategies, beside dividing evenly.

    `whole_rounds`: interleaving (v > 1) takes m as a multiple of p, as its schedule needs (Narayanan et al. 2021, 2.2).
    Without it Eq. 7 also prices v > 1 with m < p, below what any schedule can do: a single micro-batch takes p t(b).
    `fits_memory`: a GPU's memory holds it. `max_tensor` and `max_virtual_stages` bound t and v.
    """

    whole_rounds: bool = True
    fits_memory: bool = True
    max_tensor: int | None = None
    max_virtual_stages: int | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest strategy, its seconds, those of them spent on the network, and how many strategies were weighed."""

    strategy: Strategy[float]
    seconds: float
    network_s: float
    gpu_bytes: float
    weighed: int


@dataclass(frozen=True, slots=True)
class Weighed:
    """Strategies, the terms of their times, and the bytes that they take of a GPU; side by side."""

    strategies: Strategy[FloatArray]
    times: IterationTime
    gpu_bytes: FloatArray

    def order(self) -> IntArray:
        """Return the indices from the fastest on; equals in their own order."""
        return np.argsort(self.times.total_s, kind="stable")

    def strategy(self, index: int) -> Strategy[float]:
        """Return one of them."""
        return Strategy(*(int(column[index]) for column in self.strategies.columns))


@cache
def divisors(n: int) -> tuple[int, ...]:
    """Return all divisors, rising."""
    in_pairs: set[int] = set()
    for divisor in range(1, int(n**0.5) + 1):
        if n % divisor == 0:
            in_pairs |= {divisor, n // divisor}
    return tuple(sorted(in_pairs))


def best_strategy(job: Job, rules: Rules | None = None) -> Best:
    """Return the fastest of `weigh`; of equals the first."""
    weighed = weigh(job, rules)
    first = weighed.order()[0]
    seconds = float(weighed.times.total_s[first])
    network_s = float(weighed.times.network_s[first])
    return Best(weighed.strategy(first), seconds, network_s, float(weighed.gpu_bytes[first]), len(weighed.gpu_bytes))


def weigh(job: Job, rules: Rules | None = None) -> Weighed:
    """Return all of `candidates` that fit memory, if `rules` ask for it. BadInput if there is none."""
    rules = rules or Rules()
    strategies = candidates(job, rules)
    sizes = theory.gpu_bytes(job, strategies)
    fitting = sizes <= (job.cluster.memory_bytes if rules.fits_memory else np.inf)
    if not fitting.any():
        reason = (
            f"fits the memory of a GPU, {job.cluster.memory_bytes / 1e9:,.0f} GB; the leanest takes "
            f"{sizes.min() / 1e9:,.1f} GB"
            if len(sizes)
            else "divides its heads, layers and batch"
        )
        allowed = f"can't train this model with a batch of {job.recipe.global_batch:,}: no strategy {reason}"
        raise BadInput("gpus", job.cluster.gpus, allowed)
    strategies = Strategy(*(column[fitting] for column in strategies.columns))
    return Weighed(strategies, theory.iteration_time(job, strategies), sizes[fitting])


def candidates(job: Job, rules: Rules) -> Strategy[FloatArray]:
    """Return all strategies that divide, whether they fit memory or not; always in the same order."""
    batch = job.recipe.global_batch
    layers = job.model.layers
    # rows of t_h, t_l, p_h, p_l, d_h, d_l: how dimensions lie over HB domains, where each divides what it must
    inside = _splits(job.cluster.domain_gpus)
    across = _splits(job.cluster.gpus // job.cluster.domain_gpus)
    h = np.repeat(inside, len(across), axis=0)
    n = np.tile(across, (len(inside), 1))
    t, p, d = (h * n).T
    divides = (job.model.heads % t == 0) & (layers % p == 0) & (batch % d == 0) & (t <= (rules.max_tensor or np.inf))
    layouts = np.stack((h, n), axis=2).reshape(-1, 6)[divides]
    max_virtual = rules.max_virtual_stages or layers
    virtual_stages = [v for v in divisors(layers) if v <= max_virtual]
    sizes = np.array(list(product(divisors(batch), virtual_stages)), dtype=np.int64)
    # every layout with every (b, v), side by side
    th, tl, ph, pl, dh, dl = np.repeat(layouts, len(sizes), axis=0).T
    b, v = np.tile(sizes, (len(layouts), 1)).T
    p = ph * pl
    samples_per_step = dh * dl * b
    divides = (batch % samples_per_step == 0) & (layers % (p * v) == 0) & ((v == 1) | (p > 1))
    if rules.whole_rounds:
        divides &= (v == 1) | (batch // samples_per_step % p == 0)
    return Strategy(*(column[divides].astype(np.float64) for column in (th, tl, ph, pl, dh, dl, b, v)))


@cache
def _splits(n: int) -> IntArray:
    """Return rows of three factors whose product is n."""
    splits: list[tuple[int, int, int]] = []
    for t in divisors(n):
        for p in divisors(n // t):
            splits.append((t, p, n // (t * p)))
    return np.array(splits, dtype=np.int64)
