"""`predict moe-cost` with options: the cost of rail-only for other models, platforms, domains, groups and formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from railyard.core.errors import BadInput, nearest_divisors, unknown_name_hint
from railyard.experiments.options import count_or_zero
from railyard.results.published.catalogue import Figure
from railyard.results.published.predictions import moe_cost
from railyard.results.published.predictions.moe_cost import EXPERT_GPUS, MODELS, PLATFORM_NAMES, System, cost_figure
from railyard.topologies.platforms import PLATFORMS, PRECISIONS, Precision
from railyard.workloads.models.catalogue import load_transformer

NAME: Final = "moe-cost"
MOST_GPUS: Final = 2**16
"""GPUs of a group and of an HB domain: beyond any, and still computed in seconds."""


@dataclass(frozen=True, slots=True)
class MoeCostOptions:
    """Options as they are on the command line; an empty one takes what the figure has.

    model, ep: one or several with commas. domain_gpus: the platform's if 0.
    """

    model: str = ""
    platform: str = ""
    domain_gpus: int = 0
    ep: str = ""
    precision: str = ""


def moe_cost_figure(options: MoeCostOptions) -> Figure:
    """Return the figure with these options. BadInput for one that can't be used."""
    if options == MoeCostOptions():
        return moe_cost.figure()
    models: tuple[str, ...] = MODELS
    if options.model:
        models = tuple(options.model.split(","))
    experts = [_experts(name) for name in models]
    expert_gpus: Sequence[int] = EXPERT_GPUS
    if options.ep:
        expert_gpus = _group_sizes(options.ep, experts)
    elif options.model and not any(number % size == 0 for number in experts for size in EXPERT_GPUS):
        # none of the usual sizes divides the user's experts: one expert on each GPU
        expert_gpus = sorted(set(experts))
    return cost_figure(models, _systems(options), expert_gpus, _precision(options.precision))


def _experts(name: str) -> int:
    """Return the routed experts of a model. BadInput for a dense one."""
    model = load_transformer(name, "--model")
    if not model.experts:
        raise BadInput("--model", name, "has no experts; it must be a mixture of experts, such as mixtral-8x7b")
    return model.experts


def _group_sizes(text: str, experts: Sequence[int]) -> list[int]:
    """Return the sizes of expert-parallel groups. BadInput for one that divides the experts of no model."""
    sizes: list[int] = []
    for word in text.split(","):
        size = count_or_zero(word)
        if not 1 <= size <= MOST_GPUS:
            raise BadInput("--ep", text, "must be whole numbers of GPUs, with commas between several, such as 8,64")
        if all(number % size for number in experts):
            most = max(experts)
            raise BadInput("--ep", size, f"must divide the {most} experts of the model: {nearest_divisors(size, most)}")
        sizes.append(size)
    return sizes


def _systems(options: MoeCostOptions) -> list[System]:
    """Return the platforms with their HB domains. BadInput for an unknown platform."""
    names: tuple[str, ...] = PLATFORM_NAMES
    if options.platform:
        names = (options.platform,)
    for name in names:
        if name not in PLATFORMS:
            allowed = f"{unknown_name_hint(name, PLATFORMS)}, or the path of a .yaml file"
            raise BadInput("--platform", name, allowed)
    if options.domain_gpus and not options.platform:
        # one size for both default platforms would show two times the same domains
        names = names[:1]
    return [System(name, options.domain_gpus or PLATFORMS[name].domain_gpus) for name in names]


def _precision(text: str) -> Precision:
    """Return a number format. BadInput for an unknown one; platforms say which they have."""
    if not text:
        return "bf16"
    for precision in PRECISIONS:
        if precision == text:
            return precision
    raise BadInput("--precision", text, unknown_name_hint(text, PRECISIONS))
