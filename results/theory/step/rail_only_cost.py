"""Time of a mixture's all-to-alls on rail-only and on rail-optimized, beside all of its computing.

Expert-parallel groups are grids of x GPUs in each of y HB domains. Only their all-to-alls differ between the fabrics:
Rail-only Eq. 2 (rail-optimized, straight) and Eq. 3 (rail-only, HB domains first). A group may leave GPUs of a domain
idle, so that groups need fewer domains; times are then of as many GPUs as the domains have. Rates are those that large
collectives get.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from railyard.results.theory.step.communication import domain_share
from railyard.results.theory.step.compute import compute_time
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import Recipe, one_strategy
from railyard.workloads.collectives.all_to_all_direct import all_to_all_direct_s
from railyard.workloads.collectives.all_to_all_two_phase import all_to_all_two_phase_s
from railyard.workloads.models.mixture import mixture_of
from railyard.workloads.models.transformer import Transformer

# one sequence a GPU: all-to-alls and computing are both proportional to its tokens
MICRO_BATCH: Final = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """A group's grid, `gpus` in each of `domains` HB domains, and the GPUs of a domain that are in some group."""

    gpus: int
    domains: int
    used: int

    def __str__(self) -> str:
        return f"{self.gpus} x {self.domains}"


@dataclass(frozen=True, slots=True)
class FabricStep:
    """The fastest placement on a fabric; seconds of a micro-batch through all layers, computing not included.

    `idle_factor`: GPUs of a domain over those that work: how much longer a step takes on as many GPUs.
    """

    placement: Placement
    all_to_all_s: float
    idle_factor: float


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """Seconds of a micro-batch through all layers on both fabrics.

    `..._overlapped`: with the placement that is fastest where all-to-alls run beside computing.
    `..._deduplicated`: a token may also cross the rails once for each HB domain that has one of its experts.
    """

    compute_s: float
    rail_only: FabricStep
    rail_optimized: FabricStep
    rail_only_overlapped: FabricStep
    rail_optimized_overlapped: FabricStep
    rail_only_deduplicated: FabricStep
    rail_optimized_deduplicated: FabricStep

    @property
    def cost(self) -> float:
        """Share by which a step takes longer on rail-only, where computing waits for all-to-alls."""
        return self._in_turn_s(self.rail_only) / self._in_turn_s(self.rail_optimized) - 1

    @property
    def overlapped_cost(self) -> float:
        """The same where all-to-alls run beside the computing of another micro-batch, at their best."""
        return self._beside_s(self.rail_only_overlapped) / self._beside_s(self.rail_optimized_overlapped) - 1

    @property
    def deduplicated_cost(self) -> float:
        """The same where each fabric may take all-to-alls that send a token once to each HB domain, in turn."""
        return self._in_turn_s(self.rail_only_deduplicated) / self._in_turn_s(self.rail_optimized_deduplicated) - 1

    def _in_turn_s(self, step: FabricStep) -> float:
        return (self.compute_s + step.all_to_all_s) * step.idle_factor

    def _beside_s(self, step: FabricStep) -> float:
        return max(self.compute_s, step.all_to_all_s) * step.idle_factor


def placements(expert: int, domain_gpus: int) -> Iterator[Placement]:
    """Yield every grid of a group of `expert` GPUs in HB domains of `domain_gpus`."""
    for gpus in range(1, min(expert, domain_gpus) + 1):
        if expert % gpus == 0:
            yield Placement(gpus, expert // gpus, domain_gpus // gpus * gpus)


def expert_cost(model: Transformer, hardware: Hardware, expert: int, recipe: Recipe | None = None) -> ExpertCost:
    """Return the cost of a mixture of experts with groups of `expert` GPUs; each fabric has its best placement."""
    mixture = mixture_of(model)
    strategy = one_strategy(data=expert, expert=expert, micro_batch=MICRO_BATCH)
    computing = compute_time(model, recipe or Recipe(global_batch=expert, cuda_graphs=True), hardware, strategy)
    compute_s = float((computing.layers_s + computing.output_s)[0])
    hb = hardware.hb_rate
    rail = hardware.rail_rate
    pair_bytes = mixture.exchanged_bytes(MICRO_BATCH * model.sequence) / expert

    def straight_s(place: Placement) -> float:
        return all_to_all_direct_s(pair_bytes, place.gpus, place.domains, hb, rail)

    def two_phase_s(place: Placement) -> float:
        return all_to_all_two_phase_s(pair_bytes, place.gpus, place.domains, hb, rail)

    def deduplicated_s(place: Placement) -> float:
        copies = mixture.experts_per_token
        share = domain_share(place.domains, copies, model.expert_groups, model.groups_per_token)
        return _deduplicated_s(pair_bytes * expert, copies, (place.domains - 1) * share, place, hardware)

    def in_turn_s(step: FabricStep) -> float:
        return (compute_s + step.all_to_all_s) * step.idle_factor

    def beside_s(step: FabricStep) -> float:
        return max(compute_s, step.all_to_all_s) * step.idle_factor

    def fastest(time_s: Callable[[FabricStep], float], *forms: Callable[[Placement], float]) -> FabricStep:
        steps: list[FabricStep] = []
        for place in placements(expert, hardware.domain_gpus):
            seconds = mixture.all_to_alls * min(form(place) for form in forms)
            steps.append(FabricStep(place, seconds, hardware.domain_gpus / place.used))
        return min(steps, key=time_s)

    return ExpertCost(
        compute_s=compute_s,
        rail_only=fastest(in_turn_s, two_phase_s),
        rail_optimized=fastest(in_turn_s, straight_s),
        rail_only_overlapped=fastest(beside_s, two_phase_s),
        rail_optimized_overlapped=fastest(beside_s, straight_s),
        rail_only_deduplicated=fastest(in_turn_s, two_phase_s, deduplicated_s),
        rail_optimized_deduplicated=fastest(in_turn_s, straight_s, deduplicated_s),
    )


def _deduplicated_s(
    sent_bytes: float, copies: int, other_domains: float, place: Placement, hardware: Hardware
) -> float:
    """Return the time of an all-to-all that sends a token once to each HB domain, and there on to its experts.

    It leaves a GPU on its own rail and is forwarded where it arrives, as DeepEP does, so it needs no spines.

    sent_bytes: of a GPU's tokens, with a copy for each of the `copies` experts of a token
    other_domains: HB domains that a token is sent to, on average
    """
    hb = hardware.hb_rate
    rail = hardware.rail_rate
    token_bytes = sent_bytes / copies
    return token_bytes * (other_domains / rail + copies * (place.gpus - 1) / place.gpus / hb)
