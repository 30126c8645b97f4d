"""The bottleneck-link bound equals the papers' equations wherever these apply, and our own closed forms elsewhere."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.bottleneck import bottleneck_s
from railyard.results.theory.predict import BOTTLENECK, equation, predict_phase, predict_schedule
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Path, Share, Shares, path_of
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, Sizes
from railyard.workloads.collectives.all_to_all_direct import all_to_all_direct_s
from railyard.workloads.schedule import Iteration, Phase, Program, Rates
from tests.unit.path_choices import gpu_hops

ONLY = FabricSpec(kind="rail-only")
OPTIMIZED = FabricSpec(kind="rail-optimized")
FABRICS = [ONLY, FabricSpec(kind="rail-only", policy="rd"), OPTIMIZED, FabricSpec(kind="single-switch")]
SIDE = st.integers(1, 7)
RATE = st.floats(1e3, 1e12)
SIZE = st.floats(1, 1e12)
WITH_EQUATION = [name for name, algorithm in ALGORITHMS.items() if algorithm.equation and algorithm.collective]


def phase_of(name: str, x: int, y: int, data_bytes: float) -> Phase:
    return Phase("a", "collective", name, 1 if ALGORITHMS[name].per_rail else x, y, data_bytes)


@pytest.mark.parametrize("name", WITH_EQUATION)
@given(x=SIDE, y=SIDE, d=SIZE, hb=RATE, rail=RATE)
def test_bound_equals_closed_form_of_every_algorithm(
    name: str, x: int, y: int, d: float, hb: float, rail: float
) -> None:
    """Eq. 1, 2, 3 and 11; spines at full bisection, which no algorithm but the direct all-to-all needs."""
    phase, rates = phase_of(name, x, y, d), Rates(hb=hb, rail=rail)
    closed = ALGORITHMS[name].closed_form_s(phase, hb, rail)
    for fabric in [OPTIMIZED] if name == "all-to-all" else FABRICS:
        assert predict_phase(phase, rates, fabric) == pytest.approx(closed, rel=1e-9)
        assert equation(phase, rates, fabric) == ALGORITHMS[name].equation


@given(x=SIDE, y=SIDE, d=SIZE, hb=RATE, rail=RATE)
def test_forwarded_all_to_all_is_bound_by_hb_or_rail_port(x: int, y: int, d: float, hb: float, rail: float) -> None:
    """A GPU's HB port carries (x-1) D to its own domain and (x-1)(y-1) D to be forwarded, its rail port x (y-1) D."""
    forwarded = max(y * (x - 1) * d / hb, x * (y - 1) * d / rail)
    for fabric in FABRICS[:2]:
        bound = predict_phase(phase_of("all-to-all", x, y, d), Rates(hb=hb, rail=rail), fabric)
        assert bound == pytest.approx(forwarded, rel=1e-9)


@given(x=SIDE, y=SIDE, d=SIZE, hb=RATE, rail=RATE, thin=st.floats(1, 16))
def test_thin_spines_bound_traffic_across_rails(x: int, y: int, d: float, hb: float, rail: float, thin: float) -> None:
    """Each of a rail's y GPUs sends (x-1)(y-1) D through its uplinks; Eq. 2 where those are fast enough."""
    uplinks = y * (x - 1) * (y - 1) * d / (y * rail / thin)
    fabric = FabricSpec(kind="rail-optimized", oversubscription=thin)
    bound = predict_phase(phase_of("all-to-all", x, y, d), Rates(hb=hb, rail=rail), fabric)
    assert bound == pytest.approx(max(all_to_all_direct_s(d, x, y, hb, rail), uplinks), rel=1e-9)


def test_label_names_the_bottleneck_where_eq_2_is_exceeded() -> None:
    phase = Phase("a", "EP", "all-to-all", 4, 4, 1.0)
    assert equation(phase, Rates(hb=12.0, rail=1.0), ONLY) == "Eq. 2", "forwarding costs nothing: rails decide"
    assert equation(phase, Rates(hb=0.5, rail=1.0), ONLY) == f"{BOTTLENECK}, not Eq. 2"


def walked_s(stages: list[Mapping[tuple[int, int], float]], x: int, y: int, rates: Rates, fabric: FabricSpec) -> float:
    """The same bound pair by pair and hop by hop."""
    rate = {"hb": rates.hb, "rail": rates.rail, "uplinks": y * rates.rail / (fabric.oversubscription or 1)}
    ports: defaultdict[tuple[int, str, str], float] = defaultdict(float)
    gpu_s: defaultdict[int, float] = defaultdict(float)
    for sizes in stages:
        own: defaultdict[tuple[int, str, str], float] = defaultdict(float)
        for (src, dst), size in sizes.items():
            for share, path in gpu_hops(src, dst, x, fabric):
                for a, b, side in path:
                    ports[a, side, "out"] += share * size
                    ports[b, side, "in"] += share * size
                    if side == "rail" and a % x != b % x:
                        ports[a % x, "uplinks", "out"] += share * size
                        ports[b % x, "uplinks", "in"] += share * size
                own[src, path[0][2], "out"] += share * size
                own[dst, path[-1][2], "in"] += share * size
        for gpu in range(x * y):
            gpu_s[gpu] += max((n / rate[link] for (g, link, _), n in own.items() if g == gpu), default=0.0)
    return max([0.0, *gpu_s.values(), *(n / rate[link] for (_, link, _), n in ports.items())])


class ByParity(ForwardingPolicy):
    """Two paths between GPUs of domains of one parity, a third one between others."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path | Shares:
        if (src.domain + dst.domain) % 2:
            return path_of("rd", src.rank)
        return (Share(path_of("dr", dst.rank), 2), Share(path_of("rd", src.rank), 1))


@given(data=st.data(), x=st.integers(1, 4), y=st.integers(1, 4), rates=st.builds(Rates, hb=RATE, rail=RATE))
def test_bound_equals_a_walk_over_every_pair(data: st.DataObject, x: int, y: int, rates: Rates) -> None:
    pairs = list(permutations(range(x * y), 2))
    sizes = st.dictionaries(st.sampled_from(pairs), SIZE) if pairs else st.just({})
    stages = data.draw(st.lists(sizes, max_size=3))
    fabric = data.draw(st.sampled_from(FABRICS))
    expected = walked_s(list(stages), x, y, rates, fabric)
    assert bottleneck_s(map(Sizes.of, stages), x, y, rates, fabric) == pytest.approx(expected, rel=1e-12)


@given(size=SIZE, rates=st.builds(Rates, hb=RATE, rail=RATE))
def test_a_single_flow_takes_one_of_its_paths_whole(size: float, rates: Rates) -> None:
    """A walk with even shares would have two thirds of the flow on one path, though a hash never splits a flow."""
    FORWARDING_POLICIES.add("by-parity", ByParity())
    try:
        fabric = FabricSpec(kind="rail-only", policy="by-parity")
        bound = bottleneck_s([Sizes.of({(8, 0): size})], 3, 3, rates, fabric)
    finally:
        FORWARDING_POLICIES.remove("by-parity")
    assert bound == pytest.approx(size / min(rates.hb, rates.rail), rel=1e-12)


def test_two_planes_take_the_mean_over_hashes_of_the_flows() -> None:
    """Two flows of 1 byte share a plane in half of all cases: then it carries both, else each plane one."""
    sizes, planes = Sizes.of({(0, 1): 1.0, (0, 2): 1.0}), FabricSpec(kind="dual-plane")
    assert bottleneck_s([sizes], 1, 3, Rates(hb=9.0, rail=2.0), planes) == pytest.approx((2 + 1) / 2, rel=0.1)
    assert bottleneck_s([sizes], 1, 3, Rates(hb=9.0, rail=2.0), ONLY) == 1
    few, many = (predict_phase(Phase("a", "EP", "all-to-all", 1, y, 1.0), Rates(9.0, 1.0), planes) for y in (3, 65))
    assert few / 2 > 1.8, "one of few GPUs has both of its flows on one plane"
    assert 1.2 < many / 64 < 1.6, "many flows spread evenly"


def test_bound_of_stages_is_at_least_that_of_their_sum() -> None:
    sizes = {(0, 1): 6.0}, {(0, 2): 3.0}
    rates = Rates(hb=2.0, rail=1.0)
    assert bottleneck_s(map(Sizes.of, sizes), 2, 2, rates, ONLY) == 3 + 3
    assert bottleneck_s([Sizes.of(sizes[0] | sizes[1])], 2, 2, rates, ONLY) == 3


def test_phase_without_algorithm_is_bound_by_its_transfers() -> None:
    """d0g0 sends 8 bytes to each of d1g0 and d1g1; both leave by rails that carry 8 bytes, twice in the iteration."""
    program = Program(2, 2)
    step = Phase("own", "new kind", "", 2, 2, 8.0)
    for _ in range(2):
        number = program.phase(step)
        for dst in (2, 3):
            program.send(0, dst, 8, number, ())
    schedule = program.schedule("s", Iteration(1, 1, 1, 1.0, (), None, (Phase("own", "new kind", "", 2, 2, 8.0, 2),)))
    assert predict_schedule(schedule, Rates(hb=4.0, rail=1.0), ONLY) == {"own": 8, "": 2 * 8 + 1}
    assert predict_schedule(schedule, Rates(hb=4.0, rail=1.0), OPTIMIZED) == {"own": 16, "": 2 * 16 + 1}
