"""Measures that need a path for every pair refuse fabrics whose policy leaves some without."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.spec.parsing import parse

ISOLATED = {"kind": "rail-only", "domains": 2, "rails": 4, "policy": "isolated"}
JOINED = {"kind": "rail-only", "domains": 2, "rails": 4, "policy": "dr"}
NEEDS_ALL_PATHS: dict[str, dict[str, Any]] = {
    "routing": {"routing": {}, "workloads": [{"kind": "transfers"}]},
    "trainings": {"trainings": [{"program": "command", "arguments": {"command": "true"}, "steps": 5}]},
}


@pytest.mark.parametrize("key", NEEDS_ALL_PATHS)
def test_measures_that_need_all_paths_refuse_isolated_rails(key: str) -> None:
    with pytest.raises(BadInput, match=f"with {key}$") as raised:
        parse({"name": "mine", "fabrics": [JOINED, ISOLATED], **NEEDS_ALL_PATHS[key]})
    assert str(raised.value).startswith("fabrics.1.policy: 'isolated'")


def test_trainings_on_another_fabric_are_not_refused() -> None:
    training = {**NEEDS_ALL_PATHS["trainings"]["trainings"][0], "on": [0]}
    spec = parse({"name": "mine", "fabrics": [JOINED, ISOLATED], "trainings": [training]})
    assert [fabric.forwards_in_domains for fabric in spec.gpu_fabrics] == [True, False]
