"""What all-to-alls cost on rail-only: by hand, where groups stay in a domain, and the best placement."""

from collections import defaultdict
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.published.catalogue import FIGURES, Cell
from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.rail_only_cost import Placement, expert_cost, placements
from railyard.workloads.models.catalogue import load_transformer

DEEPSEEK = load_transformer("deepseek-v3")
MIXTRAL = load_transformer("mixtral-8x7b")


def test_deepseek_on_8_domains_of_h100_by_hand() -> None:
    """58 layers x 4 all-to-alls; 4,096 tokens to 8 experts of 64 GPUs, 7,168 values of 2 bytes each."""
    hardware = make_hardware("h100", 512, 8)
    cost = expert_cost(DEEPSEEK, hardware, 64)
    pair_bytes = 4096 * 8 * 7168 * 2 / 64
    straight_s = 58 * 4 * 8 * 7 * pair_bytes / hardware.rail_rate
    forwarded_s = straight_s + 58 * 4 * 8 * 7 * pair_bytes / hardware.hb_rate
    # a group along a rail, a GPU in each of 64 domains, has nothing to forward
    on_a_rail_s = 58 * 4 * 63 * pair_bytes / hardware.rail_rate
    assert str(cost.rail_optimized.placement) == "8 x 8"
    assert cost.rail_optimized.all_to_all_s == pytest.approx(straight_s)
    assert cost.rail_only.all_to_all_s == pytest.approx(min(forwarded_s, on_a_rail_s))
    assert cost.cost == pytest.approx((cost.rail_only.all_to_all_s - straight_s) / (cost.compute_s + straight_s))
    # each domain has a group of experts; 4 of 8 groups have a token's 8 experts, so 3.1 of the 7 other domains
    other_domains = 7 * 4 / 8 * (1 - (3 / 4) ** 8)
    deduplicated_s = 58 * 4 * 4096 * 7168 * 2 * (other_domains / hardware.rail_rate + 7 / hardware.hb_rate)
    assert cost.rail_only_deduplicated.all_to_all_s == pytest.approx(deduplicated_s)


@given(
    expert=st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]),
    domain_gpus=st.sampled_from([2, 4, 8, 16, 72, 256]),
    platform=st.sampled_from(["a100", "h100", "gb200-nvl72"]),
)
def test_costs_are_never_negative_and_none_in_a_domain(expert: int, domain_gpus: int, platform: str) -> None:
    cost = expert_cost(DEEPSEEK, make_hardware(platform, domain_gpus * 8, domain_gpus), expert)
    costs = (cost.cost, cost.overlapped_cost, cost.deduplicated_cost)
    assert min(costs) >= -1e-12
    if domain_gpus % expert == 0:
        assert costs == pytest.approx((0, 0, 0))
    # no more than what forwarding adds to an all-to-all, at most C_S/C_F of as many domains as GPUs or fewer
    assert cost.cost <= cost.rail_only.all_to_all_s / cost.rail_optimized.all_to_all_s - 1 if expert > 1 else True


def test_groups_of_64_leave_8_gpus_of_72_idle() -> None:
    """An NVL72 with 64 GPUs at work is faster than groups of 8 GPUs in each of 8 domains that use all 72."""
    cost = expert_cost(DEEPSEEK, make_hardware("gb200-nvl72", 72 * 64, 72), 64)
    assert cost.rail_only.placement == Placement(64, 1, 64)
    assert cost.rail_only.idle_factor == pytest.approx(72 / 64)
    assert Placement(8, 8, 72) in placements(64, 72)


def test_mixtral_needs_no_spines_and_its_figure_says_so() -> None:
    assert expert_cost(MIXTRAL, make_hardware("h100", 64, 8), 8).cost == 0
    figure = FIGURES["moe-cost"]()
    rows = [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]
    costs: defaultdict[Cell, dict[tuple[Cell, Cell], Cell]] = defaultdict(dict)
    for row in rows:
        costs[row["model"]][row["K"], row["EP"]] = row["cost_pct"]
    assert costs["deepseek-v3"].keys() == set(product((8, 72), (8, 32, 64)))
    assert costs["mixtral-8x7b"] == {(8, 8): 0, (72, 8): 0}
