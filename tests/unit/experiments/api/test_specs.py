"""The exported names: specifications, workloads by their Python names, errors, and results of a saved run."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

import railyard as ry
from railyard.core import plugins
from railyard.experiments.api import specs
from railyard.results import run_folder
from railyard.topologies import spec
from railyard.workloads.collectives.algorithm import collectives
from railyard.workloads.spec import WORKLOADS
from tests.unit import api_examples
from tests.unit.error_messages import message_of
from tests.unit.sample_runs import sample_run

ROOT = api_examples.ROOT
pytestmark = pytest.mark.usefixtures("figures_as_text")


def test_import_loads_nothing_but_the_package() -> None:
    code = "import sys, railyard; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "pydantic" not in loaded
    assert [name for name in loaded if name.startswith("railyard.")] == []


def test_every_workload_and_collective_is_exported() -> None:
    names = specs.workload_names()
    assert len(names) == len(WORKLOADS.names()) + len(collectives())
    assert {"AllToAll", "AllReduce", "Gpt", "Moe", "DataParallel"} <= names.keys() <= set(dir(ry))
    assert all(hasattr(ry, name) for name in ry.__all__)


def test_plugin_is_loaded_here_and_in_later_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.ENVIRONMENT, "")
    path = ROOT / "docs" / "examples" / "ring_attention.py"
    ry.load_plugin(path)
    try:
        assert dict(getattr(ry, "RingAttention")(bytes="1MB", compute="200ms"))["bytes"] == 1_000_000  # noqa: B009
        assert os.environ[plugins.ENVIRONMENT] == str(path)
    finally:
        WORKLOADS.remove("ring-attention")
        del plugins._loaded[path]
        vars(ry).pop("RingAttention", None)


@pytest.mark.parametrize("file", ["missing.py", 3, "docs/examples/models/mine.yaml"])
def test_plugin_that_is_no_python_file_is_refused(file: str) -> None:
    with pytest.raises(ry.BadInput) as error:
        ry.load_plugin(file)
    assert error.value.field == "file"


def test_page_has_every_name_and_method_of_a_process() -> None:
    text = api_examples.PAGE.read_text(encoding="utf-8")
    methods = [name for name in vars(ry.Process) if not name.startswith("_")]
    assert [name for name in (*methods, "pid", "node", "args", "returncode") if f"`{name}" not in text] == []
    assert [name for name in ry.__all__ if not re.search(rf"(ry\.|`){name}\b", text)] == []


def test_constructor_takes_the_keys_of_the_yaml() -> None:
    workload = ry.AllToAll(bytes="8MB", algorithm="direct")
    expected = {"kind": "collective", "collective": "all-to-all", "bytes": 8_000_000, "algorithm": "direct"}
    assert expected.items() <= dict(workload).items()
    keys = ["name", "stragglers", "bytes", "duration", "algorithm", "gpus", "in_flight"]
    assert list(signature(ry.AllToAll).parameters) == keys


def test_type_checkers_know_every_workload() -> None:
    tree = ast.parse(Path(ry.__file__).read_text())
    declared = {
        ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and not node.value
    }
    assert declared == specs.workload_names().keys()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'AllToNone'"):
        ry.AllToNone()  # type: ignore[attr-defined]


FABRIC: Final[Any] = ry.FabricSpec()
WRONG: Final[dict[str, tuple[Callable[..., object], dict[str, Any]]]] = {
    "one domain": (ry.FabricSpec, {"domains": 1}),
    "kind with a slip": (ry.FabricSpec, {"kind": "rail-onyl"}),
    "word as rate": (ry.FabricSpec, {"rail_rate": "fast"}),
    "key with a slip": (ry.AllToAll, {"byts": 8}),
    "word as size": (ry.AllToAll, {"bytes": "8 apples"}),
    "folder that is missing": (ry.load, {"folder": "/nonexistent"}),
    "folder as a number": (ry.load, {"folder": 5}),
    "folder with a zero byte": (ry.load, {"folder": "a\0"}),
    "name as a number": (ry.run, {"name": 5}),
    "out as a number": (ry.run, {"name": "idle", "out": 5}),
    "seed as a word": (ry.run, {"name": "idle", "seed": "x"}),
    "overrides as a list": (ry.run, {"name": "idle", "overrides": ["seed=1"]}),
    "fabric as a word": (ry.fabric, {"spec": "rail-only"}),
    "live as a word": (ry.fabric, {"spec": FABRIC, "live": "x"}),
    "live as a number": (ry.fabric, {"spec": FABRIC, "live": 5}),
    "reroute as a word": (ry.fabric, {"spec": FABRIC, "reroute": "x"}),
    "visible as a path": (ry.fabric, {"spec": FABRIC, "visible": "/tmp/a"}),
    "visible as a number": (ry.fabric, {"spec": FABRIC, "visible": [5]}),
    "times of no results": (lambda results: ry.timing(results).__enter__(), {"results": 1.5}),
}


def test_bad_input_is_refused_in_one_line(data_regression: DataRegressionFixture) -> None:
    messages: dict[str, str] = {}
    for case, (call, arguments) in WRONG.items():
        messages[case] = message_of(ry.BadInput, partial(call, **arguments))
    data_regression.check(messages)


def test_fabric_takes_all_keys_of_its_model() -> None:
    assert list(signature(ry.FabricSpec).parameters) == list(spec.FabricSpec.model_fields)
    defaults = spec.FabricSpec.model_validate({"kind": "rail-only"})
    assert ry.FabricSpec().model_dump() == defaults.model_dump()


def test_loaded_run_has_the_tables_of_its_files(tmp_path: Path) -> None:
    run_folder.save(sample_run(2, 2, 1), tmp_path / "run")
    found = ry.load(tmp_path / "run")
    lines = (tmp_path / "run" / "recovery.csv").read_text().splitlines()
    assert lines[0].split(",") == list(found.recoveries.columns)
    assert len(lines) == 1 + len(found.recoveries)
    assert found.folder == tmp_path / "run"
    assert found.verdict in ("ok", "degraded", "invalid")


def test_results_show_verdict_and_ratio(tmp_path: Path) -> None:
    found = ry.Results(sample_run())
    assert found.ratio == pytest.approx(found.seconds / (found.predicted or 0))
    assert found.verdict in found._repr_html_()
    assert list(found.results.columns) == list(run_folder.RESULT_COLUMNS)
    if not found.passed:
        with pytest.raises(ry.CheckFailed):
            found.check()


def test_page_has_the_examples_of_today() -> None:
    """If it fails after an example has changed: `.venv/bin/python -m tests.unit.api_examples`."""
    text = api_examples.PAGE.read_text(encoding="utf-8")
    assert api_examples.with_examples(text) == text
    for path in api_examples.FOLDER.glob("*.py"):
        assert f"examples/api/{path.name}" in text


def test_failed_assertion_on_times_gets_its_verdicts_reason() -> None:
    results = ry.Results(sample_run(repeats=1))
    with pytest.raises(AssertionError) as caught, ry.timing(results) as measured:
        raise AssertionError
    assert measured == [results]
    assert getattr(caught.value, "__notes__", []) == [f"fidelity: {reason}" for reason in results.reasons[:1]]
