"""`-o key=value`: where a value goes, and the message if it has no place."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.core.units import parse_rate
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec.loading import apply
from tests.unit.loaded_experiments import load

DATA: dict[str, Any] = {
    "name": "mine",
    "fabrics": [{"kind": "rail-only"}, {"kind": "rail-optimized", "domains": 2}],
    "workloads": [{"kind": "gpt"}],
    "seed": 1,
}


def changed(*overrides: str) -> dict[str, Any]:
    return apply(DATA, overrides)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=7", ("seed",), 7),
        ("fabrics.0.domains=8", ("fabrics", 0, "domains"), 8),
        ("fabrics.*.domains=8", ("fabrics", 1, "domains"), 8),
        ("domains=8", ("fabrics", 0, "domains"), 8),
        ("domains=8", ("fabrics", 1, "domains"), 8),
        ("rail_rate=20Mbit", ("fabrics", 1, "rail_rate"), "20Mbit"),
        ("duration=2s", ("workloads", 0, "duration"), "2s"),
        ("parallelism.tensor=2", ("workloads", 0, "parallelism", "tensor"), 2),
        ("workloads.0={kind: moe}", ("workloads", 0, "kind"), "moe"),
        ("title=a=b", ("title",), "a=b"),
        ("reroute=[on]", ("reroute",), [True]),
        ("spines=", ("fabrics", 0, "spines"), None),
    ],
)
def test_short_key_changes_the_right_value(override: str, path: tuple[str | int, ...], value: object) -> None:
    found: Any = changed(override)
    for step in path:
        found = found[step]
    assert found == value


def test_the_data_given_is_left_alone_and_the_last_override_wins() -> None:
    assert changed("seed=2", "seed=3")["seed"] == 3
    assert DATA["seed"] == 1
    both = changed("parallelism={tensor: 4}", "fabrics.*.domains=3")["fabrics"]
    assert both[0] is not both[1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "-o: 'seed' must be key=value, such as fabrics.0.domains=8"),
        ("=3", "-o: '=3' must be key=value, such as fabrics.0.domains=8"),
        (
            f"workloads.{'0' * 5000}.duration=1s",
            f"-o workloads.{'0' * 5000}.duration: {'0' * 5000!r} must be 0 to 0, or * for all",
        ),
        ("seed=[1", "-o seed: '[1' is not YAML: line 2, column 1: did not find expected ',' or ']'"),
        ("fabrics.2.domains=8", "-o fabrics.2.domains: '2' must be 0 to 1, or * for all"),
        ("fabrics.x.domains=8", "-o fabrics.x.domains: 'x' must be 0 to 1, or * for all"),
        ("faults.0.at=2s", "-o faults.0.at: nothing to change: the list is empty"),
        ("at=2s", "-o faults.*.at: nothing to change: the list is empty"),
        ("seed.x=1", "-o seed.x: 1 is a plain value: it has no 'x' in it"),
        ("kind=moe", "-o: 'kind' may mean several things: write fabrics.*.kind or workloads.*.kind or faults.*.kind"),
    ],
)
def test_key_without_a_place_is_reported(override: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        changed(override)
    assert str(caught.value) == message


@pytest.mark.parametrize("section", ["fabrics", "workloads"])
def test_kind_that_is_a_list_is_refused_beside_other_keys(section: str) -> None:
    with pytest.raises(BadInput, match=f"^{section}.0.kind: "):
        load("quickstart", [f"{section}.0.kind=[[{{a: 1}}]]", f"{section}.*.platform=a100"])


def test_a_slip_in_a_key_gets_the_nearest_of_all_keys() -> None:
    with pytest.raises(BadInput, match="-o: 'domians' is not a known key: did you mean 'domains'\\?"):
        changed("domians=8")


def test_overrides_reach_the_experiment() -> None:
    spec = load("quickstart", ["domains=2", "faults=[]", "rail_rate=20Mbit", "reroute=on", "duration=1s"], seed=9)
    assert {fabric.domains for fabric in spec.gpu_fabrics} == {2}
    assert {fabric.rail_rate for fabric in spec.gpu_fabrics} == {parse_rate("20Mbit")}
    assert {workload.model_dump()["duration"] for workload in workloads_of(spec)} == {"1s"}
    assert (FaultsMeasure().faults(spec), spec.reroute, spec.seed) == ((), ("on",), 9)
