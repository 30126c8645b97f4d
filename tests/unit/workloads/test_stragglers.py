"""Stragglers: slow GPUs compute longer by their factor, jitter has the spread asked for, and transfers stay."""

import numpy as np
import pytest

from railyard.core.errors import BadInput
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Phase, Program, Schedule
from railyard.workloads.spec import build, kinds_for, parse_workload
from railyard.workloads.stragglers import Stragglers, factors_of, uneven, with_stragglers


def computing(count: int = 1) -> Schedule:
    """Return 2 x 2 GPUs that compute `count` times 1 s each, and one transfer."""
    program = Program(2, 2)
    phase = program.phase(Phase("step", "step", "", 2, 2, 0.0))
    for _ in range(count):
        for gpu in range(4):
            program.compute(gpu, 1.0, phase)
    program.send(0, 1, 100, phase, program.last(0))
    return program.schedule("computing")


def test_slow_gpu_computes_longer() -> None:
    slow = uneven(computing(), Stragglers(slow={"d1g0": 1.5}), "stragglers", seed=0)
    assert slow.columns.seconds.tolist() == [1, 1, 1.5, 1, 0]
    assert slow.matrix == computing().matrix
    assert slow.is_uneven


def test_jitter_has_its_spread_and_no_mean() -> None:
    schedule = with_stragglers(computing(2000), [1.0] * 4, 0.1, seed=3)
    seconds = schedule.columns.seconds[schedule.columns.is_compute]
    assert np.mean(seconds) == pytest.approx(1, abs=0.005)
    assert np.std(seconds) == pytest.approx(0.1, rel=0.05)


def test_seed_decides_jitter() -> None:
    drawn = [with_stragglers(computing(), [1.0] * 4, 0.1, seed).columns for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_gpu_that_the_job_has_not_is_refused() -> None:
    with pytest.raises(BadInput, match="slow: 'd2g0' is not known: did you mean 'd1g0'"):
        factors_of({"d2g0": 2}, 2, 2, "stragglers")


def built(**keys: object) -> Schedule:
    data = {"kind": "gpt", "duration": "1s", "compute": 0.5, "layers_per_stage": 1, **keys}
    return build(parse_workload(data), FabricSpec(kind="rail-only"), 100_000_000, 1_200_000_000, seed=5).schedule


def test_workload_of_any_measure_has_its_stragglers() -> None:
    even = built().columns
    slow = built(stragglers={"slow": {"d2g1": 3.0}}).columns
    is_slow = even.src == 9
    assert (slow.seconds[is_slow] == 3 * even.seconds[is_slow]).all()
    assert (slow.seconds[~is_slow] == even.seconds[~is_slow]).all()
    assert even.seconds[is_slow].sum() > 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"slow": {"d4g0": 2.0}}, r"^workload\.stragglers\.slow: 'd4g0' is not known"),
        ({"slow": {"d0g0": 0.0}}, r"^workload\.stragglers\.slow\.d0g0: 0\.0 must be 0\.1 or more"),
        ({"jitter": 2.0}, r"^workload\.stragglers\.jitter: 2\.0 must be 1"),
    ],
)
def test_wrong_stragglers_of_a_workload_are_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        built(stragglers=data)


def test_stragglers_of_a_workload_that_only_sends_are_refused() -> None:
    data = {"kind": "collective", "collective": "all-gather", "stragglers": {"jitter": 0.1}}
    with pytest.raises(BadInput, match=r"^workload\.stragglers: .* has no effect"):
        build(parse_workload(data), FabricSpec(kind="rail-only"), 100_000_000, 1_200_000_000)


def test_kinds_of_multi_rail_nodes_have_no_stragglers() -> None:
    for kind in kinds_for(MultirailSpec).values():
        assert "stragglers" not in kind.model_fields
    with pytest.raises(BadInput, match=r"^workload\.stragglers: .* is not a known key") as error:
        parse_workload({"kind": "ddp", "stragglers": {"jitter": 0.1}})
    assert "stragglers" not in error.value.allowed
