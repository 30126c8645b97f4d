"""Measures refuse fabrics that leave pairs without a path, and a controller of the user's, if they can't have these."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.spec.parsing import parse

ISOLATED = {"kind": "rail-only", "domains": 2, "rails": 4, "policy": "isolated"}
JOINED = {"kind": "rail-only", "domains": 2, "rails": 4, "policy": "dr"}
JOB = {"name": "a", "workload": {"kind": "collective", "collective": "all-to-all"}, "rails": 2}
NEEDS_ALL_PATHS: dict[str, dict[str, Any]] = {
    "fail_slow": {"fail_slow": [{}]},
    "jobs": {"jobs": [JOB]},
    "replacements": {"replacements": [{"case": "server", "failed": "hb1"}]},
    "routing": {"routing": {}, "workloads": [{"kind": "transfers"}]},
    "trainings": {"trainings": [{"program": "command", "arguments": {"command": "true"}, "steps": 5}]},
}


@pytest.mark.parametrize("key", NEEDS_ALL_PATHS)
def test_measures_that_need_all_paths_refuse_isolated_rails(key: str) -> None:
    with pytest.raises(BadInput, match=f"with {key}$") as raised:
        parse({"name": "mine", "fabrics": [JOINED, ISOLATED], **NEEDS_ALL_PATHS[key]})
    assert str(raised.value).startswith("fabrics.1.policy: 'isolated'")


@pytest.mark.parametrize("key", ["jobs", "replacements"])
def test_controller_of_the_user_is_refused_beside(key: str) -> None:
    with pytest.raises(BadInput, match="together with controller") as raised:
        parse({"name": "mine", "fabrics": [JOINED], "controller": "mine.py", **NEEDS_ALL_PATHS[key]})
    assert raised.value.field == key


def test_items_that_are_no_keys_and_values_are_refused() -> None:
    for key in ("fail_slow", "jobs", "replacements"):
        with pytest.raises(BadInput, match="keys and values") as raised:
            parse({"name": "mine", "fabrics": [JOINED], key: [3]})
        assert raised.value.field == f"{key}.0"


def test_trainings_on_another_fabric_are_not_refused() -> None:
    training = {**NEEDS_ALL_PATHS["trainings"]["trainings"][0], "on": [0]}
    spec = parse({"name": "mine", "fabrics": [JOINED, ISOLATED], "trainings": [training]})
    assert [fabric.forwards_in_domains for fabric in spec.gpu_fabrics] == [True, False]
