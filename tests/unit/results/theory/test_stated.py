"""Predictions that definitions state themselves, and times that are not compared with any."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railyard.core import plugins
from railyard.results.theory.bottleneck import bottleneck_s
from railyard.results.theory.predict import BOTTLENECK, equation, explained_ratios, hash_choices, predict_schedule
from railyard.results.theory.stated import COMPUTES, HASHED, SEVERAL_STEPS, SIMULATED, UNEVEN, stated
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Share, Shares, path_of
from railyard.topologies.forwarding import Path as FabricPath
from railyard.topologies.prediction import WHOLE, NotCompared, Stated, StatedTime
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.collectives.algorithm import Sizes
from railyard.workloads.jobs.transfers import transfers_schedule
from railyard.workloads.schedule import Iteration, Phase, Program, Rates, Schedule
from railyard.workloads.spec import WORKLOADS, build, parse_workload
from railyard.workloads.stragglers import Stragglers, uneven

RATES = Rates(hb=100.0, rail=1.0)
EXAMPLE = Path(__file__).parents[4] / "docs/examples/ring_attention.py"


class EitherRail(ForwardingPolicy):
    """A hash sends each flow by dr or by rd."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> FabricPath | Shares:
        return Share(path_of("dr", dst.rank)), Share(path_of("rd", src.rank))


RANDOM = "is random"


class Unpredictable(ForwardingPolicy):
    """States that nothing can be predicted of phases that cross rails."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> FabricPath | Shares:
        return path_of("dr", dst.rank)

    def stated(
        self, pair_bytes: Mapping[tuple[Gpu, Gpu], float], hb_rate: float, rail_rate: float, fabric: Fabric
    ) -> Stated | None:
        crosses = any(src.domain != dst.domain and src.rank != dst.rank for src, dst in pair_bytes)
        return NotCompared(RANDOM) if crosses else StatedTime(sum(pair_bytes.values()), "bytes")


@pytest.fixture(scope="module", autouse=True)
def definitions() -> Iterator[None]:
    before = os.environ.get(plugins.ENVIRONMENT)
    plugin = plugins.load(EXAMPLE)
    FORWARDING_POLICIES.add("either-rail", EitherRail())
    FORWARDING_POLICIES.add("unpredictable", Unpredictable())
    yield
    FORWARDING_POLICIES.remove("either-rail")
    FORWARDING_POLICIES.remove("unpredictable")
    WORKLOADS.remove("ring-attention")
    del plugins._loaded[plugin.path]
    os.environ.pop(plugins.ENVIRONMENT)
    if before is not None:
        os.environ[plugins.ENVIRONMENT] = before


def of_pairs(pairs: Mapping[tuple[int, int], int], iteration: bool = False) -> Schedule:
    program = Program(2, 2)
    phase = Phase("mine", "own", "", 2, 2, 1)
    number = program.phase(phase)
    for (src, dst), size in pairs.items():
        program.send(src, dst, size, number, ())
    return program.schedule("s", Iteration(1, 1, 1, 1.0, (phase,), None, ()) if iteration else None)


def test_flows_over_several_paths_take_the_mean_over_hashes() -> None:
    """d0g0 to d1g1 and d0g1 to d1g0 leave over one rail in half of all cases, which then carries both."""
    schedule = of_pairs({(0, 3): 10, (1, 2): 10})
    fabric = FabricSpec(kind="rail-only", domains=2, rails=2, policy="either-rail")
    sizes = Sizes.of(schedule.matrix)
    assert bottleneck_s([sizes], 2, 2, RATES, fabric) == pytest.approx(15, rel=0.1), "split evenly, it would be 10"
    choices = hash_choices(schedule.phases[0], schedule, fabric)
    assert choices == "2 paths"
    assert equation(schedule.phases[0], RATES, fabric, choices).startswith(f"{BOTTLENECK}, mean")
    assert explained_ratios(schedule, RATES, fabric)["mine"][0] == 0, "a mean over hashes judges no time"
    single = FabricSpec(kind="rail-only", domains=2, rails=2, policy="dr")
    assert hash_choices(schedule.phases[0], schedule, single) == ""
    assert bottleneck_s([sizes], 2, 2, RATES, single) == 10


@pytest.mark.parametrize(
    ("keys", "is_hashed"),
    [
        ({"kind": "rail-only", "policy": "either-rail"}, True),
        ({"kind": "rail-only", "policy": "dr"}, False),
        ({"kind": "rail-optimized", "spines": 2}, True),
        ({"kind": "rail-optimized", "spines": 1}, False),
    ],
)
def test_transfers_over_paths_of_a_hash_are_not_compared(keys: dict[str, Any], is_hashed: bool) -> None:
    """d0g0 to d1g1 and d0g1 to d1g0: each has the formula of two GPUs alone, which have a rail of their own."""
    fabric = parse_fabric({"domains": 2, "rails": 2, **keys})
    schedule = transfers_schedule(2, 2, [(0, 3), (1, 2)], 10)
    reason = NotCompared(HASHED)
    assert stated(schedule, RATES, fabric) == ({"transfer": reason, WHOLE: reason} if is_hashed else {})
    assert predict_schedule(schedule, RATES, fabric) == ({} if is_hashed else {"transfer": 10.0})


@pytest.mark.parametrize(("pair", "expected"), [((0, 3), NotCompared(RANDOM)), ((0, 2), None)])
def test_a_policy_states_its_prediction(pair: tuple[int, int], expected: Stated | None) -> None:
    fabric = FabricSpec(kind="rail-only", domains=2, rails=2, policy="unpredictable")
    sent = stated(transfers_schedule(2, 2, [pair], 10), RATES, fabric)
    assert sent["transfer"] == (expected or StatedTime(10.0, "bytes"))
    schedule = of_pairs({pair: 10}, iteration=True)
    found = stated(schedule, RATES, fabric)
    times = predict_schedule(schedule, RATES, fabric)
    if expected is None:
        assert found == {"mine": StatedTime(10.0, "bytes")}
        assert times == {"mine": 10.0, WHOLE: 11.0}, "Eq. 6 adds the computing"
    else:
        assert found == {"mine": expected, WHOLE: NotCompared(f"mine {RANDOM}")}
        assert times == {}
        assert explained_ratios(schedule, RATES, fabric)[WHOLE][0] == 0


def ring(compute: str) -> tuple[Schedule, Rates, FabricSpec]:
    fabric = FabricSpec(kind="rail-only", domains=4, rails=2)
    workload = parse_workload({"kind": "ring-attention", "bytes": "1MB", "compute": compute})
    built = build(workload, fabric, 10_000_000, 40_000_000)
    return built.schedule, built.scale.emulated_rates, fabric


@pytest.mark.parametrize(("compute", "seconds"), [("100ms", 3 * 0.8059), ("2s", 2 * 2 + 0.8059)])
def test_a_workload_states_its_prediction(compute: str, seconds: float) -> None:
    schedule, rates, fabric = ring(compute)
    expected = pytest.approx({"ring": seconds, WHOLE: seconds}, rel=1e-3)
    assert predict_schedule(schedule, rates, fabric) == expected, "a megabyte at 10 Mbit/s takes 0.8059 s"
    assert explained_ratios(schedule, rates, fabric) == {"ring": (1.0, 1.0), WHOLE: (1.0, 1.0)}


def test_computing_between_transfers_is_not_compared() -> None:
    schedule, rates, fabric = ring("100ms")
    schedule = replace(schedule, stated={})
    assert stated(schedule, rates, fabric) == {"ring": NotCompared(COMPUTES), WHOLE: NotCompared(COMPUTES)}
    assert predict_schedule(schedule, rates, fabric) == {}


def test_computing_at_the_ends_of_a_phase_is_compared() -> None:
    program = Program(2, 2)
    phase = program.phase(Phase("mine", "own", "", 2, 2, 1))
    program.compute(0, 1.0, phase)
    number = program.send(0, 2, 10, phase, program.last(0))
    program.wait_for(2, (number,))
    program.compute(2, 1.0, phase)
    schedule = program.schedule("s")
    fabric = FabricSpec(kind="rail-only", domains=2, rails=2)
    assert stated(schedule, RATES, fabric) == {}
    assert predict_schedule(schedule, RATES, fabric) == {"mine": 10.0}


def test_a_whole_of_several_steps_has_no_formula() -> None:
    program = Program(2, 2)
    first, second = (program.phase(Phase(name, "own", "", 2, 2, 1)) for name in ("first", "second"))
    program.send(0, 2, 10, first, ())
    program.send(0, 2, 20, second, (0,))
    fabric = FabricSpec(kind="rail-only", domains=2, rails=2)
    schedule = program.schedule("s")
    assert stated(schedule, RATES, fabric) == {WHOLE: NotCompared(SEVERAL_STEPS)}
    assert predict_schedule(schedule, RATES, fabric) == {"first": 10.0, "second": 20.0}


@pytest.mark.parametrize(("kind", "dst", "most"), [("rail-only", 2, 1.0), ("rail-optimized", 3, math.inf)])
def test_uneven_computing_is_predicted_by_simulation(kind: str, dst: int, most: float) -> None:
    """d0g0 computes for 2 s, twice as long as planned, and then sends for 10 s; a hash may choose a busier spine."""
    fabric = FabricSpec(kind=kind, domains=2, rails=2)
    program = Program(2, 2)
    number = program.phase(Phase("mine", "own", "", 2, 2, 1))
    program.compute(0, 1.0, number)
    program.send(0, dst, 10, number, program.last(0))
    slow = uneven(program.schedule("s"), Stragglers(slow={"d0g0": 2.0}), "stragglers", 0)
    predictions = stated(slow, RATES, fabric)
    assert predictions["mine"] == NotCompared(UNEVEN)
    whole = predictions[WHOLE]
    assert isinstance(whole, StatedTime)
    assert (whole.equation, whole.is_exact) == (SIMULATED, most == 1)
    assert predict_schedule(slow, RATES, fabric) == {WHOLE: pytest.approx(12.0)}
    assert explained_ratios(slow, RATES, fabric)[WHOLE] == (1.0, most)
