"""About how long a run takes: from its specification alone."""

from typing import Any

import pytest

from railyard.experiments.measures.faults.measure import AFTER_S
from railyard.experiments.spec import loading
from railyard.experiments.spec.duration import about, duration_s
from railyard.experiments.spec.parsing import parse_keys
from railyard.failure.analysis import evaluate

SMALL: dict[str, Any] = {
    "name": "small",
    "fabrics": [{"kind": "rail-only"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "duration": "2s"}],
    "faults": [{"kind": "link-down", "target": "d0g1", "at": "1s", "repair": "500ms"}],
}


@pytest.mark.parametrize("name", loading.names())
def test_every_shipped_experiment_has_a_duration(name: str) -> None:
    """By its times, or in its file, and never both: nothing would say which is right."""
    spec = loading.load_any(name)
    assert (duration_s(spec) is None) == (spec.takes is not None)


@pytest.mark.parametrize(
    ("keys", "least_s"),
    [
        ({"repeats": 4}, 3 * 2),
        ({"fault_repeats": 3}, 2 * 2 * 1.5),  # with rerouting and without
        ({"fabrics": SMALL["fabrics"] * 2}, 2 + 2 * 1.5),
        ({"routing": {"policies": ["dr", "rd", "oracle"]}, "faults": []}, 2 * 2 - 2 * 1.5 - 10),
        ({"faults": [*SMALL["faults"], {**SMALL["faults"][0], "repair": "4s"}]}, 2 * 5),
    ],
)
def test_each_part_of_an_experiment_adds_time(keys: dict[str, Any], least_s: float) -> None:
    before, after = duration_s(parse_keys(SMALL)), duration_s(parse_keys(SMALL | keys))
    assert before is not None
    assert after is not None
    assert after - before >= least_s


def test_slow_gpus_and_links_add_time() -> None:
    fabrics = SMALL["fabrics"]
    slow = {"stragglers": {"slow": {"d0g0": 3.0}}}
    gpt = {"kind": "gpt", "duration": "2s"}
    ring = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "2s"}
    case = {"part": "hb", "workload": gpt, "iterations": 12, "iteration": 8}

    def seconds(**section: Any) -> float:
        return duration_s(parse_keys({"name": "slow", "fabrics": fabrics, **section})) or 0

    def job_s(workload: dict[str, Any]) -> float:
        return seconds(jobs=[{"name": "job", "workload": workload, "compute": "1s", "iterations": 1}])

    # half of an iteration is taken to compute
    assert seconds(workloads=[gpt | slow]) - seconds(workloads=[gpt]) == pytest.approx(2)
    # alone and together
    assert job_s(ring | slow) - job_s(ring) == pytest.approx(2 * 2)
    slowed_s = seconds(fail_slow=[case | {"ratio": 4}]) - seconds(fail_slow=[case | {"ratio": 2}])
    assert slowed_s == pytest.approx(4 * 2 * 0.5 * (4 - 2))


def test_traffic_continues_after_a_repair() -> None:
    assert AFTER_S == evaluate.AFTER_S


def test_a_fault_of_one_fabric_is_not_injected_on_others() -> None:
    everywhere = SMALL | {"fabrics": SMALL["fabrics"] * 2}
    once = everywhere | {"faults": [{**SMALL["faults"][0], "on": [1]}]}
    assert (duration_s(parse_keys(once)) or 0) < (duration_s(parse_keys(everywhere)) or 0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "10s"), (74.0, "70s"), (119.0, "120s"), (200.0, "3min"), (None, "-")]
)
def test_durations_are_shown_roughly(seconds: float | None, text: str) -> None:
    assert about(seconds) == text
