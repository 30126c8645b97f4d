"""Failures of a network: Monte Carlo against the closed form and against every state of a small one, and what each
parameter does.
"""

import time
from itertools import product
from math import exp, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure as Drawing
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.results.published.figures.rail_only import reliability
from railyard.results.theory.clos import Network, rail_only
from railyard.results.theory.reliability.availability import (
    DEFAULT_COMPONENTS,
    HOURS_A_YEAR,
    Components,
    Estimate,
    Reliability,
    Wiring,
    both,
    first_order_lost,
    lost_share,
    read_components,
    simulate,
)
from tests.unit.messages import messages

Keys = dict[str, Any]


def changed(*path: str, to: float) -> Components:
    """The shipped components with one value changed; a rate replaces what was seen."""
    data: Keys = yaml.safe_load(DEFAULT_COMPONENTS.read_text())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    if path[-1] == "per_year":
        inner.pop("seen", None)
    return Components.model_validate(data)


def of(per_year: float, repair_h: float, share: float = 0.1) -> Components:
    """The same rate and repair time for all that the network consists of."""
    part = {"per_year": per_year, "repair_h": repair_h, "source": "the test"}
    return Components.model_validate(
        {**dict.fromkeys(("gpu", "hbm", "nic", "switch", "transceiver"), part), "rail_time_share": share}
    )


def estimates(found: Reliability) -> dict[str, Estimate]:
    return found._asdict()


clusters = st.tuples(st.integers(2, 40), st.sampled_from((2, 4, 8)), st.sampled_from((4, 8, 64)))


@given(cluster=clusters)
def test_every_gpu_has_a_switch_and_none_has_more_than_its_ports(cluster: tuple[int, int, int]) -> None:
    domains, k, radix = cluster
    for wiring in both(domains * k, k, radix):
        net = wiring.network
        down = radix // 2 if net.tiers > 1 else radix
        counts = np.bincount(wiring.switch_of)
        assert len(wiring.switch_of) == net.gpus
        assert counts.max() <= down
        assert len(counts) <= net.layers[0]
        if net.design == "rail-only" and net.tiers == 1:
            ranks = np.arange(net.gpus) % k
            assert all(len(set(wiring.switch_of[ranks == rank])) == 1 for rank in range(k))  # no rail is torn


@given(cluster=clusters)
def test_rails_are_wired_rank_by_rank(cluster: tuple[int, int, int]) -> None:
    """So each switch has neighbours on a rail, not in a domain: from the rank that the one before ended with, on."""
    domains, k, radix = cluster
    for wiring in both(domains * k, k, radix):
        of_ranks = wiring.switch_of.reshape(domains, k).T
        assert (np.diff(of_ranks.ravel()) >= 0).all()


@pytest.mark.parametrize("cluster", [(1024, 8, 64), (4096, 64, 64), (4096, 256, 128), (240, 8, 16), (60, 2, 64)])
@pytest.mark.parametrize("seed", [1, 2])
def test_monte_carlo_is_within_its_interval_of_the_closed_form(cluster: tuple[int, int, int], seed: int) -> None:
    """Of twice 1.96 standard errors, so that not one in 15,000 misses by chance."""
    components = of(per_year=0.05, repair_h=2)
    for wiring in both(*cluster):
        for name, e in estimates(simulate(wiring, components, 300, seed)).items():
            assert e.low < e.mean < e.high
            assert abs(e.mean - e.first_order) < 2 * (e.high - e.mean), (name, e)


def states(wiring: Wiring, components: Components, rerouted: bool) -> float:
    """The share of GPU-time lost, by every state of every part: each is out for 1 - exp(-rate x repair) of the time."""
    gpus, k = wiring.network.gpus, wiring.domain_gpus
    links = 2 * components.transceiver.unavailable + components.nic.unavailable
    out = [1 - exp(-links)] * gpus + [1 - exp(-components.switch.unavailable)] * wiring.network.layers[0]
    total = 0.0
    for state in product((False, True), repeat=len(out)):
        chance = prod(q if dead else 1 - q for dead, q in zip(state, out, strict=True))
        cut = np.array([state[gpu] or state[gpus + wiring.switch_of[gpu]] for gpu in range(gpus)]).reshape(-1, k)
        total += chance * float(lost_share(cut.sum(axis=1), k, components.rail_time_share, rerouted).mean())
    return total


@pytest.mark.parametrize(
    "wiring",
    [
        Wiring(rail_only(6, 2, 4), 2),  # a switch for each rail
        Wiring(rail_only(6, 3, 4), 3),  # two rails on one switch
        Wiring(Network("rail-optimized", 6, 4, (3, 2)), 3),  # one GPU's rank torn
    ],
)
def test_many_outages_at_once_give_the_mean_over_all_states(wiring: Wiring) -> None:
    components = of(per_year=30, repair_h=60, share=0.1)
    found = simulate(wiring, components, 1500, 3)
    for e, rerouted in ((found.lost, False), (found.lost_rerouted, True)):
        expected = states(wiring, components, rerouted)
        assert abs(e.mean - expected) < 2 * (e.high - e.mean)
        assert abs(e.mean - e.first_order) > 4 * (e.high - e.mean)  # so that one is not the other


@given(k=st.integers(1, 300), share=st.floats(0, 1), data=st.data())
def test_lost_share_grows_with_cut_gpus_up_to_all(k: int, share: float, data: st.DataObject) -> None:
    out = np.arange(k + 1)
    off, on = (lost_share(out, k, share, rerouted) for rerouted in (False, True))
    for lost in (off, on):
        assert lost[0] == 0
        assert lost[k] == 1
        assert (np.diff(lost) >= 0).all()
    m = data.draw(st.integers(0, k))
    assert off[m] == m / k
    assert on[m] <= off[m] + 1e-12  # rerouting is never the worse: 1 - 1/(1 + cm/(K-m)) <= m/K, as c <= 1


def numbers(components: Components, cluster: tuple[int, int, int] = (4096, 64, 64)) -> dict[str, float]:
    wiring = both(*cluster)[1]
    return {name: e.first_order for name, e in estimates(simulate(wiring, components, 2, 1)).items()}


COUNTS = {"switch": "switch_failures", "transceiver": "transceiver_failures"}


@pytest.mark.parametrize("part", ["switch", "transceiver", "nic"])
def test_a_higher_rate_fails_more_and_takes_more(part: str) -> None:
    low, high = (numbers(changed(part, "per_year", to=rate)) for rate in (0.01, 0.02))
    moved = {"network_failures", "access_failures", "lost", "lost_rerouted"} | (
        {COUNTS[part]} if part in COUNTS else set()
    )
    assert {name for name in low if high[name] > low[name]} == moved
    assert {name for name in low if high[name] == low[name]} == low.keys() - moved
    if part in COUNTS:
        assert high[COUNTS[part]] == pytest.approx(2 * low[COUNTS[part]])


@pytest.mark.parametrize("part", ["switch", "transceiver", "nic"])
def test_a_longer_repair_takes_more_and_fails_no_more(part: str) -> None:
    short, long = (numbers(changed(part, "repair_h", to=hours)) for hours in (4, 40))
    assert {name for name in short if long[name] > short[name]} == {"lost", "lost_rerouted"}
    assert {name for name in short if long[name] < short[name]} == set()


def test_wait_for_rails_counts_only_with_rerouting() -> None:
    none, some, all_of_it = (numbers(changed("rail_time_share", to=share)) for share in (0, 0.1, 1))
    assert none["lost"] == some["lost"] == all_of_it["lost"]
    assert 0 == none["lost_rerouted"] < some["lost_rerouted"] < all_of_it["lost_rerouted"]
    assert all_of_it["lost_rerouted"] == pytest.approx(all_of_it["lost"])  # all communication: what is out is missed


def test_gpus_and_their_memory_are_not_of_the_network() -> None:
    before = numbers(read_components())
    assert numbers(changed("gpu", "per_year", to=5)) == numbers(changed("hbm", "repair_h", to=500)) == before


def test_more_gpus_fail_more_and_large_domains_lose_less() -> None:
    components = read_components()
    small, large = numbers(components, (4096, 64, 64)), numbers(components, (8192, 64, 64))
    assert all(small[name] < large[name] for name in ("switch_failures", "network_failures", "access_failures"))
    assert large["lost"] == pytest.approx(small["lost"])
    narrow, wide = numbers(components, (4096, 8, 64)), numbers(components, (4096, 64, 64))
    assert wide["lost_rerouted"] < narrow["lost_rerouted"]
    alone = first_order_lost(both(4096, 1, 64)[1], components, rerouted=True)
    assert alone == pytest.approx(narrow["lost"])  # no rail to reroute over


def test_larger_radices_have_fewer_failures() -> None:
    components = read_components()
    wide, narrow = both(65_536, 256, 256)
    few, fewest = (simulate(wiring, components, 2, 1).network_failures.first_order for wiring in (wide, narrow))
    many = simulate(both(65_536, 256, 64)[0], components, 2, 1).network_failures.first_order
    assert fewest < few < many


def test_a_seed_gives_the_same_again_and_another_does_not() -> None:
    wiring, components = both(1024, 8, 64)[1], read_components()
    first, again, other = (simulate(wiring, components, 20, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.lost.mean != other.lost.mean


def test_65536_gpus_take_seconds() -> None:
    start = time.process_time()
    simulate(both(65_536, 256, 64)[0], read_components(), 300, 1)
    assert time.process_time() - start < 5


def test_rates_equal_the_rates_of_the_paper() -> None:
    """Table 5's counts, over the GPU-days of the job."""
    components = read_components()
    years = 16_384 * 54 / 365.25
    assert components.gpu.failures_per_year == pytest.approx(148 / years)
    assert components.hbm.failures_per_year == pytest.approx(72 / years)
    assert components.nic.failures_per_year == pytest.approx(7 / years)
    assert components.switch.unavailable == pytest.approx(0.02 * 8 / HOURS_A_YEAR)
    assert round(100 * 72 / 419, 1) == 17.2
    assert round(100 * 35 / 419, 1) == 8.4
    assert round(0.301 * 419) == 126  # not the 148 beside it


WRONG_VALUES: dict[str, object] = {
    "switch.per_year": -1,
    "switch.repair_h": 0,
    "rail_time_share": 1.5,
    "nic.seen.days": 0,
    "nic.per_year": 1,
    "transceiver.per_year": None,
    "switch.rate": 1,
}


def test_a_wrong_file_names_its_field(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    def read_changed(change: tuple[str, object]) -> None:
        data: Keys = yaml.safe_load(DEFAULT_COMPONENTS.read_text())
        inner = data
        *sections, key = change[0].split(".")
        for section in sections:
            inner = inner[section]
        inner[key] = change[1]
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
        read_components(tmp_path / "mine.yaml")

    data_regression.check(messages(read_changed, {path: (path, value) for path, value in WRONG_VALUES.items()}))


def test_one_year_does_not_vary() -> None:
    with pytest.raises(ValueError, match="1 years must be 2 or more"):
        simulate(both(64, 8, 64)[0], read_components(), 1, 1)


@settings(max_examples=20, deadline=None)
@given(cluster=clusters)
def test_rail_only_never_has_more_points_of_failure(cluster: tuple[int, int, int]) -> None:
    domains, k, radix = cluster
    components = read_components()
    wide, narrow = (simulate(wiring, components, 2, 1) for wiring in both(domains * k, k, radix))
    assert narrow.network_failures.first_order <= wide.network_failures.first_order * (1 + 1e-12)
    assert first_order_lost(both(domains * k, k, radix)[0], components, False) == pytest.approx(wide.lost.first_order)


def test_the_figure_has_rows_axes_and_explained_claims() -> None:
    made = reliability.figure()
    assert {len(row) for row in made.rows} == {len(made.columns)}
    assert len(made.rows) == 6 * 2 * len(reliability.CLUSTERS) <= 40  # all of them on the screen
    differing = [claim for claim in made.claims if not claim.agrees]
    assert [claim.what.partition(":")[0] for claim in differing] == ["K = 8, radix 64"]
    assert all(claim.note for claim in differing)
    lost = {row[3]: row[9] for row in made.rows if row[:3] == (65_536, 256, 64) and row[4] == "GPU-time lost"}
    assert lost["rail-only"] == pytest.approx(lost["rail-optimized"])
    drawing = Drawing()
    made.draw(drawing)
    assert all(axes.get_xlabel() and axes.has_data() for axes in drawing.axes)
