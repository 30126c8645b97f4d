"""Path of a packet from its observations, the path's kind, and the verdict on it."""

import random
from collections.abc import Iterator
from itertools import pairwise, permutations

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments.commands import trace
from railyard.experiments.commands.trace import TracedPath, assemble_path, follows_policy, verdict
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, PathKind
from railyard.topologies.measure.capture import Observation
from tests.unit.messages import messages
from tests.unit.path_choices import own_path

A, NEAR, FAR, B = Gpu(0, 1), Gpu(0, 2), Gpu(1, 1), Gpu(1, 2)
BESIDE, ACROSS = Gpu(0, 0), Gpu(1, 0)


def over_hb(src: Gpu, dst: Gpu) -> list[tuple[str, str, bool]]:
    """(node, interface, outgoing) where a frame is seen between two GPUs of a domain."""
    bridge = f"hb{src.domain}"
    return [(src.name, "hb0", True), (bridge, src.name, False), (bridge, dst.name, True), (dst.name, "hb0", False)]


def over_rail(src: Gpu, dst: Gpu) -> list[tuple[str, str, bool]]:
    rail = f"rail{src.rank}"
    if src.rank == dst.rank:
        middle = [(rail, src.name, False), (rail, dst.name, True)]
    else:
        far = f"rail{dst.rank}"
        middle = [
            (rail, src.name, False), (rail, "spine1", True), ("spine1", rail, False), ("spine1", far, True),
            (far, "spine1", False), (far, dst.name, True),
        ]  # fmt: skip
    return [(src.name, "rail0", True), *middle, (dst.name, "rail0", False)]


def legs(*gpus: Gpu) -> Iterator[tuple[str, str, bool]]:
    for here, there in pairwise(gpus):
        yield from over_hb(here, there) if here.domain == there.domain else over_rail(here, there)


def seen(*gpus: Gpu, lost_after: int | None = None) -> list[Observation]:
    """Return what is seen of a packet by way of these GPUs, in any order; `lost_after` that many times it is lost."""
    places = list(legs(*gpus))[:lost_after]
    found = [Observation(*place, 1000 + n) for n, place in enumerate(places)]
    random.Random(len(places)).shuffle(found)
    return found


def went(*gpus: Gpu, lost_after: int | None = None) -> TracedPath:
    return assemble_path(gpus[0], gpus[-1], seen(*gpus, lost_after=lost_after))


@pytest.mark.parametrize(
    ("gpus", "kind", "rail", "line"),
    [
        ([A, NEAR], "d", 1, "d0g1 -hb0-> d0g2"),
        ([A, FAR], "r", 1, "d0g1 -rail0-> rail1 -> d1g1"),
        ([A, NEAR, B], "dr", 2, "d0g1 -hb0-> d0g2 -rail0-> rail2 -> d1g2"),
        ([A, FAR, B], "rd", 1, "d0g1 -rail0-> rail1 -> d1g1 -hb0-> d1g2"),
        ([A, BESIDE, ACROSS, B], "drd", 0, "d0g1 -hb0-> d0g0 -rail0-> rail0 -> d1g0 -hb0-> d1g2"),
        ([A, NEAR, B, FAR], "drd", 2, "d0g1 -hb0-> d0g2 -rail0-> rail2 -> d1g2 -hb0-> d1g1"),
        ([A, B], "spine", 1, "d0g1 -rail0-> rail1 -> spine1 -> rail2 -> d1g2"),
    ],
)
def test_kind_of_a_path_follows_from_its_gpus(gpus: list[Gpu], kind: PathKind, rail: int, line: str) -> None:
    way = went(*gpus)
    assert way.delivered
    assert way.path == Path(kind, rail)
    assert str(way) == line


def test_packets_off_the_policys_path_are_described(data_regression: DataRegressionFixture) -> None:
    """A path of no kind, one that a backup route gave back to its source, and a loss after each node on the way."""
    ways = {
        "back to source": went(A, NEAR, A, FAR),
        "spine after domain": went(A, NEAR, FAR),
        "two rails": went(A, Gpu(2, 1), FAR),
    }
    for count in range(8):
        ways[f"lost after {count} sightings"] = went(A, NEAR, B, lost_after=count)
    assert all(way.path is None for way in ways.values())
    delivered = [name for name, way in ways.items() if way.delivered]
    assert delivered == list(ways)[:3]
    good = went(A, NEAR, B)
    expected = [Path("dr", 2)]
    texts = {name: {"name": way.name, "verdict": verdict([way], expected)} for name, way in ways.items()}
    lost = ways["lost after 6 sightings"]
    several = [good, lost, went(A, FAR, B), lost]
    texts["several"] = {"name": good.name, "verdict": verdict(several, expected)}
    texts["either of two paths"] = {"name": lost.name, "verdict": verdict([lost], [*expected, Path("rd", 1)])}
    data_regression.check(texts)


def test_packet_that_passes_its_destination_has_not_arrived() -> None:
    observations = [*seen(A, NEAR, B), Observation(B.name, "hb0", True, 9999)]
    assert assemble_path(A, B, observations).name == "lost after d1g2"


def test_hops_keep_their_times() -> None:
    first, bridge, second, *_ = went(A, NEAR, B).hops
    assert (first.in_ns, first.out_ns) == (None, 1000)
    assert (bridge.node, bridge.in_ns, bridge.out_ns) == ("hb0", 1001, 1002)
    assert (second.in_interface, second.in_ns, second.out_interface, second.out_ns) == ("hb0", 1003, "rail0", 1004)


def test_packets_on_the_policys_paths_pass() -> None:
    good = went(A, NEAR, B)
    expected = [Path("dr", 2)]
    assert follows_policy([good, good], expected)
    assert not follows_policy([good, went(A, NEAR, B, lost_after=6)], expected)
    assert verdict([good, good], expected) == verdict([good, went(A, FAR, B)], [*expected, Path("rd", 1)])
    with pytest.raises(ValueError, match="verdict"):
        verdict([], expected)


def test_without_a_path_lost_packets_follow_the_policy() -> None:
    lost = went(A, NEAR, B, lost_after=1)
    assert verdict([lost, lost], []) == "as the policy says"
    assert not follows_policy([lost, went(A, NEAR, B)], [])
    assert verdict([lost, went(A, NEAR, B)], []) == "a detour (1 of 2): the policy says no path"


def test_path_of_a_probe_gets_the_policys_name() -> None:
    """For all pairs of 3 x 3, the way along the policy's GPUs is that path and no other pair's."""
    gpus = [Gpu(d, g) for d in range(3) for g in range(3)]
    for src, dst in permutations(gpus, 2):
        assert went(src, dst).path == own_path("spine", src, dst)
        if src.domain != dst.domain and src.rank != dst.rank:
            assert went(src, Gpu(src.domain, dst.rank), dst).path == own_path("dr", src, dst)
            assert went(src, Gpu(dst.domain, src.rank), dst).path == own_path("rd", src, dst)


def test_names_of_no_two_gpus_are_refused(data_regression: DataRegressionFixture) -> None:
    cases = {
        "unknown source": ("d0g3", "d1g1", ["d0g1", "d1g1", "hb0", "rail1"]),
        "switch as destination": ("d0g1", "rail1", ["d0g1", "d1g1", "hb0", "rail1"]),
        "the same GPU twice": ("d0g1", "d0g1", ["d0g1", "d1g1", "hb0", "rail1"]),
        "multi-rail fabric": ("n0", "n1", ["n0", "n1", "rail0"]),
    }
    data_regression.check(messages(lambda case: trace.check_names(*case, "one"), cases))
