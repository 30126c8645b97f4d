"""Transfers to another rank of the next domain: who sends to whom, in which stripes, and what comes after what."""

import random
from collections import Counter
from functools import partial
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.predict import predict_schedule
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.jobs.transfers import RECEIPT, TransfersSpec, derangement, pairs, transfers_schedule
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s, port_bytes
from railyard.workloads.schedule import Schedule, payload_rates
from railyard.workloads.spec import build, parse_workload
from railyard.workloads.tasks import Transfer
from tests.unit.workloads.messages import CheckMessages

RAIL, HB = 100_000_000, 1_200_000_000
FABRIC = FabricSpec(kind="rail-only", domains=3, rails=4)
RATES = payload_rates(HB, RAIL, FABRIC.mtu)


def spec_of(**keys: Any) -> TransfersSpec:
    spec = parse_workload({"kind": "transfers", **keys})
    assert isinstance(spec, TransfersSpec)
    return spec


def built(seed: int = 0, **keys: Any) -> Schedule:
    return build(spec_of(**keys), FABRIC, RAIL, HB, seed=seed)[0]


def data_of(schedule: Schedule) -> list[tuple[int, Transfer]]:
    """Without receipts."""
    return [(n, t) for n, t in schedule.transfers if schedule.phases[t.phase].name != RECEIPT]


def test_next_rank_follows_in_the_list_and_next_domain_wraps() -> None:
    """Of 3 domains with 4 ranks: d2g0 is 8, its next domain d0."""
    assert pairs(spec_of(domains=[0], ranks=[3, 0, 2]), FABRIC, 1, "w") == ((3, 4), (0, 6), (2, 7))
    assert pairs(spec_of(domains=[2], ranks=[0, 1]), FABRIC, 1, "w") == ((8, 1), (9, 0))


@given(
    to=st.sampled_from(["next-rank", "shuffled"]),
    seed=st.integers(0, 2**32 - 1),
    domains=st.none() | st.lists(st.integers(0, 2), min_size=1, unique=True),
    ranks=st.none() | st.lists(st.integers(0, 3), min_size=2, unique=True),
)
def test_each_gpu_sends_to_one_other_rank_of_the_next_domain(
    to: str, seed: int, domains: list[int] | None, ranks: list[int] | None
) -> None:
    found = pairs(spec_of(to=to, domains=domains, ranks=ranks), FABRIC, seed, "w")
    senders = {divmod(src, 4) for src, _ in found}
    assert senders == {(d, r) for d in domains or range(3) for r in ranks or range(4)}
    assert len(found) == len(senders) == len({dst for _, dst in found})
    for src, dst in found:
        assert dst // 4 == (src // 4 + 1) % 3
        assert dst % 4 != src % 4
        assert dst % 4 in (ranks or range(4))


def test_pairs_may_be_named() -> None:
    assert pairs(spec_of(pairs=[["d0g1", "d2g0"], ["d1g3", "d0g3"]]), FABRIC, 1, "w") == ((1, 8), (7, 3))


def test_messages_of_pairs_that_do_not_fit(check_messages: CheckMessages) -> None:
    names = (
        [["d0g0", "d3g1"]],
        [["d00g0", "d1g1"]],
        [["me", "d1g1"]],
        [["d0g0", "d1g1"], ["d2g0", "d2g1"]],
    )
    check_messages({str(each): partial(pairs, spec_of(pairs=each), FABRIC, 1, "w") for each in names})


def test_every_derangement_is_drawn_about_equally_often() -> None:
    rng, items = random.Random(1), (5, 6, 7, 8)
    drawn = Counter(derangement(items, rng) for _ in range(1800))
    allowed = [p for p in permutations(items) if all(a != b for a, b in zip(items, p, strict=True))]
    assert sorted(drawn) == sorted(allowed)
    assert all(150 <= count <= 250 for count in drawn.values())  # 200 each, give or take four deviations


def test_the_seed_draws_and_nothing_else_does() -> None:
    one, same, other = (built(seed, to="shuffled", bytes="1KB") for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert built(1, bytes="1KB") == built(2, bytes="1KB")


@given(size=st.integers(1, 10_000), stripes=st.integers(1, 64), rounds=st.integers(1, 4))
def test_stripes_are_even_and_add_up(size: int, stripes: int, rounds: int) -> None:
    schedule = transfers_schedule(2, 2, [(0, 3), (1, 2)], size, stripes, rounds)
    runs: dict[int, list[Transfer]] = {}
    for _, transfer in data_of(schedule):
        runs.setdefault(transfer.phase, []).append(transfer)
    assert len(runs) == 2 * rounds
    for parts in runs.values():
        sizes = [part.bytes for part in parts]
        assert sum(sizes) == size
        assert max(sizes) - min(sizes) <= 1
        assert [part.stripe for part in parts] == list(range(min(stripes, size)))
        assert len({(part.src, part.dst) for part in parts}) == 1


def test_source_starts_its_next_flow_after_all_stripes_arrived() -> None:
    schedule = transfers_schedule(2, 2, [(0, 3), (1, 2)], 100, stripes=3, rounds=3)
    receipts = {n: t for n, t in schedule.transfers if schedule.phases[t.phase].name == RECEIPT}
    assert Counter((t.src, t.dst) for t in receipts.values()) == {(3, 0): 2, (2, 1): 2}
    for receipt in receipts.values():
        parts = [schedule.tasks[n] for n in receipt.after]
        assert [(p.src, p.dst, p.stripe) for p in parts if isinstance(p, Transfer)] == [
            (receipt.dst, receipt.src, n) for n in range(3)
        ]
    begun = Counter(t.after for _, t in data_of(schedule))
    assert begun == Counter({(): 6}) + Counter({(n,): 3 for n in receipts})


def test_a_single_round_needs_no_receipts() -> None:
    schedule = built(stripes=2, bytes="1MB")
    assert {phase.name for phase in schedule.phases} == {"transfer"}
    assert len(schedule.phases) == 12


def test_dr_states_share_no_link_and_take_their_time_alone() -> None:
    for to in ("next-rank", "shuffled"):
        schedule = built(3, to=to, duration="2s", stripes=2)
        ports = port_bytes(schedule, FABRIC)
        size = schedule.phases[0].data_bytes
        assert {size} == {int(n) for side in (ports.rail_in, ports.rail_out, ports.hb_in, ports.hb_out) for n in side}
        assert predict_schedule(schedule, RATES, FABRIC) == {"transfer": pytest.approx(2, rel=1e-6)}
        assert line_rate_duration_s(schedule, RATES) == pytest.approx(2, rel=1e-6)


def test_rounds_take_their_sum() -> None:
    schedule = built(duration="500ms", rounds=4)
    times = predict_schedule(schedule, RATES, FABRIC)
    assert [times["transfer"], times[WHOLE]] == pytest.approx([0.5, 2])
    assert line_rate_duration_s(schedule, RATES) == pytest.approx(2, rel=1e-3)


def test_messages_of_wrong_values(check_messages: CheckMessages) -> None:
    pair = ["d0g0", "d1g1"]
    specs: tuple[dict[str, Any], ...] = (
        {"pairs": [pair], "domains": [0]},
        {"pairs": [pair], "ranks": [0, 1]},
        {"pairs": [pair, ["d0g0", "d1g2"]]},
        {"pairs": []},
        {"ranks": [1]},
        {"ranks": [0, 1, 0]},
        {"domains": []},
        {"domains": [0, -1]},
        {"domains": [0, 3]},
        {"ranks": [4, 0]},
        {"stripes": 65},
        {"bytes": "1MB", "duration": "1s"},
    )
    check_messages({str(keys): partial(built, **keys) for keys in specs})
