"""Files for CI and containers: they name scripts, inputs and stages that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def action() -> Any:
    return yaml.safe_load((ROOT / "action.yml").read_text())


def test_every_input_reaches_a_step(action: Any) -> None:
    steps = yaml.safe_dump(action["runs"]["steps"])
    assert set(re.findall(r"inputs\.(\w+)", steps)) == set(action["inputs"])


def test_inputs_reach_scripts_by_variables_only(action: Any) -> None:
    """An expression in a script would let an input's text be run as code."""
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_action_script_reads_every_variable(action: Any) -> None:
    script = (ROOT / ".ci/action").read_text()
    for step in action["runs"]["steps"]:
        for name in step.get("env", {}):
            assert re.search(rf"\${name}|\${{{name}:-}}", script), name


def test_documented_inputs_equal_the_actions_inputs(action: Any) -> None:
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/ci.md").read_text(), re.MULTILINE)
    assert table == list(action["inputs"])


def test_devcontainer_builds_a_stage_that_exists() -> None:
    stage = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["build"]["target"]
    assert f" AS {stage}\n" in (ROOT / "Dockerfile").read_text()


def test_dockerfile_copies_files_that_exist() -> None:
    for sources in re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        assert all((ROOT / source).exists() for source in sources.split())
