"""Nezha's figures on rails side by side and on trainings, by other ways than those of their modules."""

import pytest

from railyard.results.published.catalogue import FIGURES, Claim
from railyard.results.published.figures.nezha import nezha_rails, nezha_training
from railyard.results.published.figures.nezha.nezha_training import Setting
from railyard.results.theory.nezha import FIG_16
from railyard.workloads.allreduce.balancing.costs import paper_rail


def claims_of(figure: str) -> dict[str, Claim]:
    return {claim.what: claim for claim in FIGURES[figure]().claims}


def claim_of(figure: str, beginning: str) -> Claim:
    """Return the only claim of a figure whose quantity begins so."""
    (claim,) = (claim for name, claim in claims_of(figure).items() if name.startswith(beginning))
    return claim


@pytest.mark.parametrize("ratio", [1, 2, 5])
def test_the_ideal_gain_is_reached_by_rails_ending_together(ratio: int) -> None:
    """A buffer in shares rho : 1 takes rho/(rho + 1) of the time that the faster rail takes alone."""
    assert 1 + nezha_rails.ideal_gain_pct(ratio) / 100 == pytest.approx(1 / (ratio / (ratio + 1)))


def test_channels_on_a_nic_help_only_a_slow_processor() -> None:
    claims = claims_of("nezha-rails")
    assert claims["1 Gbit/s: two channels over one"].ours == pytest.approx(1)
    assert claims["100 Gbit/s: two channels over one"].ours == pytest.approx(0.5, abs=0.01)


def test_six_nodes_are_predicted_within_a_tenth() -> None:
    """Nothing was fitted to them. VGG-11 with batches of 64 fits 4 nodes badly already."""
    for (model, batch, nodes), speeds in FIG_16.items():
        if nodes == 6 and (model, batch) != ("vgg-11", 64):
            for mix, published in zip(("tcp", "tcp+tcp", "tcp+tcp+tcp"), speeds, strict=False):
                assert nezha_training.speed(Setting(model, batch, nodes, mix)) == pytest.approx(published, rel=0.1)


def test_differing_trainings_are_explained_in_the_docs() -> None:
    differing = [name for name, claim in claims_of("nezha-training").items() if not claim.agrees]
    groups = ("2 GPUs", "three NICs", "another order", "gain falls", "128 nodes", "8 nodes, tcp+tcp")
    assert [name for name in differing if not any(group in name for group in groups)] == []
    assert len(differing) == 21


def test_two_equal_rails_at_most_double_a_step() -> None:
    for name, claim in claims_of("nezha-training").items():
        if "128 nodes: of" in name:
            assert 1 < claim.ours < 2


@pytest.mark.parametrize("nodes", [4, 8])
def test_split_gains_a_tenth_at_the_threshold(nodes: int) -> None:
    """One rail takes s + c S, each of two rails s + c S / 2. By N nodes s grows as N - 1 and c as (N - 1) / N."""
    tcp = paper_rail("tcp")
    setup_s = 2 * (nodes - 1) * tcp.setup_s
    threshold = 1024 * claim_of("nezha", f"tcp+tcp, {nodes} nodes: threshold").ours
    bytes_s = 2 * (nodes - 1) / nodes * tcp.cpu_s_per_byte * threshold
    assert setup_s + bytes_s == pytest.approx(1.1 * (setup_s + bytes_s / 2))


def test_gains_at_a_stated_size_are_of_that_size() -> None:
    """2 MB: GLEX takes 5,047 us, and MPTCP, with the set-up of TCP and the processors of both, 4,248 us."""
    assert claim_of("nezha", "tcp+glex, 4 nodes: mptcp").ours == pytest.approx(5047 / 4248, rel=1e-3)


def test_lines_of_glex_and_sharp_cross_at_128_kb() -> None:
    assert claim_of("nezha-rails", "size from which").ours == pytest.approx(128, abs=0.5)
    assert claim_of("nezha-rails", "32 KB, sharp over").agrees
    assert not claim_of("nezha-rails", "32 KB, sharp alone").agrees


def test_second_nic_gains_less_with_two_gpus_in_fig_16() -> None:
    """The paper's text says more, of which its own table has no training."""
    assert claim_of("nezha-training", "6 nodes, by Fig. 16").ours == 4
