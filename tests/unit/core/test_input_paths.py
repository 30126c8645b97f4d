"""Relative paths in a user's file start at its folder, and those of a command line at the working folder."""

import json
from pathlib import Path

import pytest
import yaml

from railyard.core.errors import BadInput
from railyard.experiments.commands import dry_run, lint
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec import loading
from railyard.experiments.sweep import spec as sweep_spec
from railyard.topologies.platforms import SYSTEMS
from railyard.workloads.jobs.trace import TraceSpec
from railyard.workloads.models.catalogue import CATALOGUE

TRACE = [{"comms": "all_reduce", "in_msg_size": 1024, "out_msg_size": 1024, "dtype": "Float", "world_size": 8}]
WORKLOADS = [{"kind": "trace", "path": "one.json"}, {"kind": "gpt", "model": "mine.yaml", "global_batch": 32}]


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write an experiment with a trace, a model and a platform beside it; return its path from the working folder."""
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(TRACE))
    (folder / "mine.yaml").write_bytes((CATALOGUE / "gpt-1.7b.yaml").read_bytes())
    (folder / "own.yaml").write_bytes((SYSTEMS / "a100.yaml").read_bytes())
    fabric = {"kind": "rail-only", "domains": 4, "rails": 2, "platform": "own.yaml"}
    data = {"name": "tiny", "fabrics": [fabric], "workloads": WORKLOADS}
    (folder / "e.yaml").write_text(yaml.safe_dump(data))
    monkeypatch.chdir(tmp_path)
    return "sub/e.yaml"


def test_files_are_looked_for_beside_the_experiment(experiment: str, tmp_path: Path) -> None:
    spec = loading.load_any(experiment)
    trace, gpt = workloads_of(spec)
    assert isinstance(trace, TraceSpec)
    assert trace.path == str(tmp_path / "sub/one.json")
    assert gpt.label() == "mine"
    assert spec.gpu_fabrics[0].platform == str(tmp_path / "sub/own.yaml")


def test_a_stored_specification_means_the_same_files(experiment: str, tmp_path: Path) -> None:
    spec = loading.load_any(experiment)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/spec.yaml").write_text(yaml.safe_dump(spec.resolved()))
    assert loading.load_any("run/spec.yaml") == spec


def test_an_override_starts_at_the_working_folder(experiment: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(TRACE))
    trace = workloads_of(loading.load_any(experiment, ["workloads.0.path=other.json"]))[0]
    assert isinstance(trace, TraceSpec)
    assert trace.path == str(other)
    swept = sweep_spec.load(experiment, ["workloads.0.path=other.json"], ["seed=1,2"])
    assert {cell.spec["workloads"][0]["path"] for cell in swept.cells} == {str(other)}


def test_a_message_says_the_folder_where_it_looked(experiment: str, tmp_path: Path) -> None:
    (tmp_path / "sub/one.json").rename(tmp_path / "one.json")
    with pytest.raises(BadInput, match=rf"workloads\.0\.path: '{tmp_path}/sub/one\.json' is no trace"):
        loading.load_any(experiment)
    assert workloads_of(dry_run.experiment("./one.json", ["rails=2"]))[0].label() == "one"


def test_placement_file_names_files_in_its_folder(experiment: str, tmp_path: Path) -> None:
    placement = {"model": "mine.yaml", "platform": "own.yaml", "domains": 8, "rails": 4}
    (tmp_path / "sub/placement.yaml").write_text(yaml.safe_dump(placement))
    assert lint.command("sub/placement.yaml") in (0, 1)
