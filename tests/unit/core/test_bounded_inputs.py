"""Inputs that would take endless time or memory are refused before anything is computed, in one short line."""

import operator
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import config, plugins, safe_files
from railyard.core.config import parse_yaml, read_yaml
from railyard.core.errors import MAX_LINE, BadInput, print_error, printable
from railyard.experiments.commands import dry_run, lint, search
from railyard.experiments.measures.workloads import input_check
from railyard.experiments.spec import experiment, faults, loading
from railyard.experiments.spec.parsing import parse
from railyard.failure.scenario import random_faults
from railyard.results.runs import record_files
from railyard.topologies import addresses
from railyard.topologies.multirail import spec as multirail
from railyard.workloads import schedule
from railyard.workloads import spec as workload_spec
from railyard.workloads.jobs import collective, gpt, trace, training
from railyard.workloads.traces import common
from railyard.workloads.traces.common import read_files
from railyard.workloads.traces.formats import chakra
from tests.unit.messages import messages

BOMB = "a0: &a0 [x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 30))

LIMITS: Final = {
    "bytes of a YAML file (experiment, model, placement)": config.MAX_YAML_BYTES,
    "characters of a YAML file, its aliases spelled out": config.MAX_YAML_CHARACTERS,
    "depth of nesting in a YAML file": config.MAX_YAML_DEPTH,
    "whole numbers in a YAML file": "below 2^64",
    "characters of the name of an experiment or script": config.MAX_NAME,
    "bytes of a plugin file": plugins.MAX_BYTES,
    "bytes of a trace, its files together": common.MAX_BYTES,
    "bytes of a trace's name, without rank and suffix": trace.MAX_TRACE_NAME,
    "operations of a trace whose file stands for all ranks": common.MAX_OPERATIONS,
    "bytes of a file in a run's folder": safe_files.MOST_BYTES,
    "rows of a table in a run's folder": record_files.MOST_ROWS,
    "fabrics, workloads, faults, scripts and backgrounds, each": experiment.MAX_ITEMS,
    "random faults, or faults of a script": random_faults.MAX_FAULTS,
    "repeats of a workload, fault, script or replacement, each": faults.MAX_REPEATS,
    "HB domains of a fabric": addresses.MAX_DOMAINS,
    "rails of a fabric": addresses.MAX_RAILS,
    "GPUs of a fabric with workloads or random faults": schedule.MAX_GPUS,
    "nodes of a multi-rail fabric": multirail.MAX_NODES,
    "rails of a multi-rail fabric": multirail.MAX_RAILS,
    "transfers and computations of a workload": (schedule.MAX_TASKS, 64),
    "phases of a workload (runs of collectives, rounds)": schedule.MAX_RUNS,
    "allreduces of a step of a training that is replayed": training.MAX_ALLREDUCES,
    "transfers of the schedule that sizes a plain collective": (schedule.MAX_TASKS, 64, collective.PROBE_GPU_TASKS),
    "transfers and computations of all workloads": (schedule.MAX_EXPERIMENT_TASKS, 256),
    "duration of a workload": f"{workload_spec.MAX_DURATION_S:,} s",
    "days that all workloads take at the links' rates": input_check.MAX_DAYS,
    "GPUs that `lint` examines": lint.MAX_GPUS,
    "GPUs, or sequences of a batch, that `search` examines": search.MAX_COUNT,
    "characters of an error line": MAX_LINE,
}


def test_documented_limits_equal_the_limits_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs/experiments.md").read_text()
    section = text.partition("## Limits of the inputs")[2].partition("## ")[0]
    rows = [row for row in re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE) if row != ("input", "limit")]

    def shown(limit: object) -> str:
        if isinstance(limit, tuple):
            most, gpus_with, each = (*limit, schedule.MAX_GPU_TASKS)[:3]
            assert each * gpus_with >= most
            return f"{most:,}; with more than {gpus_with} GPUs {each:,} for each"
        return f"{limit:,}" if isinstance(limit, int) else str(limit)

    assert rows == [(name, shown(limit)) for name, limit in LIMITS.items()]


TEXTS: Final = {
    "aliases of aliases": BOMB,
    "alias of itself": "a: &a [*a]",
    "deep nesting": "[" * 900,
    # since 0.2.6 libyaml has a limit of its own, 1,000, which it finds when it looks ahead
    "deeper nesting": "[" * 100_000,
    "long number": "a: " + "9" * 5000,
    "long hexadecimal number": "a: 0x" + "f" * 5000,
    "wrong bool": "a: !!bool foo",
    "wrong timestamp": "a: !!timestamp foo",
    "empty int": "a: !!int ''",
    "13th month": "a: 2020-13-01",
    "control character": 'a: "\\e[31m"',
    "surrogate": 'a: "\ud800"',
}
GPT: Final = {"kind": "gpt", "pairs_per_pass": 10**9}
NO_TENSOR: Final = {"tensor": 1, "pipeline": 4, "data": 2, "micro_batch": 1, "global_batch": 8}
RAIL_ONLY: Final = {"kind": "rail-only", "domains": 4, "rails": 2}
MULTI_RAIL: Final = {"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "50Mbit"}]}
WORKLOADS: Final[dict[str, tuple[object, object]]] = {
    "rounds": (RAIL_ONLY, {"kind": "transfers", "rounds": 10**9}),
    "pairs of a pass": (RAIL_ONLY, GPT),
    "pairs without transfers": (RAIL_ONLY, {**GPT, "compute": 0, "parallelism": NO_TENSOR}),
    "batch": (RAIL_ONLY, {"kind": "gpt", "global_batch": 10**6}),
    "slices": (RAIL_ONLY, {"kind": "gpt", "global_batch": 60_000, "bytes": "4MB"}),
    "allreduces of a step": (MULTI_RAIL, {"kind": "training", "model": "alexnet", "bucket": "1B"}),
    "a month of bytes": (RAIL_ONLY, {"kind": "collective", "collective": "all-to-all", "bytes": "8000TB"}),
}


def data_of(fabric: object, **sections: Any) -> dict[str, Any]:
    return {"name": "x", "fabrics": [fabric], **sections}


def test_too_much_is_refused_before_anything_is_made(
    data_regression: DataRegressionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt, "_emit_replica", None)  # tasks would be made by this
    script = {"name": "x", "random_faults": {"count": 1}}
    fabric_of_thousands = {**RAIL_ONLY, "domains": 1000, "rails": 4}
    calls: dict[str, Callable[[], object]] = {
        "random faults on thousands of GPUs": partial(parse, data_of(fabric_of_thousands, scripts=[script])),
        "experiment name": partial(loading.load_any, "gpu-failures", [f"name={'x' * 300}"]),
        "script name": partial(loading.load_any, "gpu-failures", [f"scripts=[{{name: {'x' * 300}}}]"]),
        "path": partial(read_files, "x" * 5000, "path"),
        "messages of an ET file": partial(chakra.decode, bytes(common.MAX_BYTES), "x.0.et"),
    }
    other = messages(operator.call, calls)
    data_regression.check(
        {
            "YAML": messages(lambda text: parse_yaml(text, "FILE", "x.yaml"), TEXTS),
            "workloads": messages(lambda data: parse(data_of(data[0], workloads=[data[1]])), WORKLOADS),
            "other": {case: re.sub("x{100,}", "xxx...", message) for case, message in other.items()},
        }
    )


@pytest.mark.parametrize("kind", ["device", "pipe", "large"])
def test_only_regular_files_of_bounded_size_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    problem = "must be a regular file|has 1,099,511,627,776 bytes|is no trace"
    for read in (partial(read_yaml, path, "FILE"), partial(plugins.load, path), partial(read_files, str(path), "path")):
        with pytest.raises(BadInput, match=problem):
            read()


def test_a_name_too_long_for_a_path_names_what_is_allowed() -> None:
    with pytest.raises(BadInput, match="allowed are"):
        dry_run.experiment("x" * 5000, [])


@pytest.mark.parametrize("section", ["workloads", "replacements"])
def test_schedules_of_an_experiment_are_bounded_together(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_EXPERIMENT_TASKS", 1500)
    monkeypatch.setattr(schedule, "MAX_GPU_TASKS", 1)
    job = {"kind": "gpt", "bytes": "1MB", "global_batch": 8}
    workloads = [job, {**job, "bytes": "2MB"}, {**job, "bytes": "3MB"}]
    server = {"case": "server", "failed": "hb1", "workload": job, "iterations": 1}
    replacements = [server, {**server, "case": "idle-gpu", "failed": "d1g1"}]
    items = {"workloads": workloads, "replacements": replacements}[section]
    with pytest.raises(BadInput, match=rf"{section}.[01](.workload)?: 'gpt' makes .*: 1,500 are allowed"):
        parse(data_of({**RAIL_ONLY, "rails": 4}, **{section: items}))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x" * 200 + ".txt", "MICRO\n1\nm -1 1 NONE 0 1 NONE 0 1 ALLTOALL 1600 1\n", "name of 200 bytes, .*: 128 or"),
        (
            "x.json",
            '[{"comms": "all_reduce", "in_msg_size": 4, "dtype": "float32", "world_size": 1000000000}]',
            "1,000,000,000 operations of .*: 524,288 or",
        ),
    ],
)
def test_traces_of_long_names_or_many_ranks_are_refused(name: str, text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=problem):
        dry_run.experiment(str(tmp_path / name), ["domains=4", "rails=2"])


@given(st.text() | st.integers(0, 10**4).map(lambda n: "x" * n))
def test_an_error_is_one_printable_line_of_bounded_length(message: str) -> None:
    assert printable(message).isprintable()
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda line, file: lines.append(line))
        assert print_error(message, 2) == 2
    assert len(lines) == 1
    assert len(lines[0]) <= MAX_LINE
    assert lines[0].isprintable()
