"""`-o key=value`: where a value goes, and the message if it has no place."""

from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
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
    data: Any = changed(override)
    for step in path:
        data = data[step]
    assert data == value


def test_short_key_changes_only_workloads_that_have_it() -> None:
    workloads = [{"kind": "gpt"}, {"kind": "transfers"}]
    changed_data = apply({**DATA, "workloads": workloads}, ["stripes=4"])
    assert changed_data["workloads"] == [{"kind": "gpt"}, {"kind": "transfers", "stripes": 4}]


def test_the_data_given_is_left_alone_and_the_last_override_wins() -> None:
    assert changed("seed=2", "seed=3")["seed"] == 3
    assert DATA["seed"] == 1
    both = changed("parallelism={tensor: 4}", "fabrics.*.domains=3")["fabrics"]
    assert both[0] is not both[1]


REFUSED = """
seed
=3
seed=[1
fabrics.2.domains=8
fabrics.x.domains=8
faults.0.at=2s
at=2s
seed.x=1
kind=moe
"""


def refusal(override: str) -> str:
    with pytest.raises(BadInput) as caught:
        changed(override)
    return str(caught.value)


def test_refused_keys(data_regression: DataRegressionFixture) -> None:
    data_regression.check({override: refusal(override) for override in REFUSED.split()})


def test_slip_in_a_key_gets_the_nearest_of_all_keys() -> None:
    assert "did you mean 'domains'?" in refusal("domians=8")


def test_number_with_thousands_of_digits_is_refused() -> None:
    number = "0" * 5000
    assert refusal(f"workloads.{number}.duration=1s").endswith(f"'{number}' must be 0 to 0, or * for all")


@pytest.mark.parametrize("section", ["fabrics", "workloads"])
def test_kind_that_is_a_list_is_refused_beside_other_keys(section: str) -> None:
    with pytest.raises(BadInput, match=f"^{section}.0.kind: "):
        load("quickstart", [f"{section}.0.kind=[[{{a: 1}}]]", f"{section}.*.platform=a100"])


def test_overrides_reach_the_experiment() -> None:
    spec = load("quickstart", ["domains=2", "faults=[]", "rail_rate=20Mbit", "reroute=on", "duration=1s"], seed=9)
    for fabric in spec.gpu_fabrics:
        assert (fabric.domains, fabric.rail_rate) == (2, 20_000_000)
    for workload in workloads_of(spec):
        assert workload.model_dump()["duration"] == "1s"
    assert (FaultsMeasure().faults(spec), spec.reroute, spec.seed) == ((), ("on",), 9)
