"""Inputs that would take endless time or memory are refused before anything is computed, in one short line."""

import os
import re
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

BOMB = "a0: &a0 [x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 30))

NO_TENSOR: Final = {"tensor": 1, "pipeline": 4, "data": 2, "micro_batch": 1, "global_batch": 8}
TASKS: Final = "transfers and computations: 262,144 or fewer are allowed on its 8 GPUs"
RUNS: Final = "phases (runs of collectives, rounds): 65,536 or fewer are allowed"
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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "line 7, column 5: has more than 4,194,304 characters, aliases spelled out"),
        ("a: &a [*a]", "line 1, column 8: an alias is part of what it stands for"),
        ("[" * 900, "line 1, column 51: is nested deeper than 50"),
        ("a: " + "9" * 5000, "line 1, column 4: is no int"),
        ("a: 0x" + "f" * 5000, "line 1, column 4: a number is 2^64 or more"),
        ("a: !!bool foo", "line 1, column 4: is no bool"),
        ("a: !!timestamp foo", "line 1, column 4: is no timestamp"),
        ("a: !!int ''", "line 1, column 4: is no int"),
        ("a: 2020-13-01", "line 1, column 4: is no timestamp"),
        ('a: "\\e[31m"', "line 1, column 4: has a control character"),
        ('a: "\ud800"', "it can't be encoded in UTF-8"),
    ],
    ids=range(11),
)
def test_yaml_that_stands_for_too_much_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, "FILE", "x.yaml")
    assert str(caught.value) == f"FILE: 'x.yaml' is not YAML: {problem}"


def test_yaml_nested_beyond_what_libyaml_takes_is_refused() -> None:
    """Since 0.2.6 libyaml has a limit of its own, 1,000, which it finds when it looks ahead."""
    with pytest.raises(BadInput, match="nest"):
        parse_yaml("[" * 100_000, "FILE", "x.yaml")


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
    problem = "must be a regular file|has 1,099,511,627,776 bytes: .* or fewer can be read|is no trace"
    with pytest.raises(BadInput, match=problem):
        read_yaml(path, "FILE")
    with pytest.raises(BadInput, match=problem):
        plugins.load(path)
    with pytest.raises(BadInput, match=problem):
        read_files(str(path), "path")


@pytest.mark.parametrize(
    ("workload", "field", "value", "most"),
    [
        ({"kind": "transfers", "rounds": 10**9}, "rounds", 10**9, RUNS),
        ({"kind": "gpt", "pairs_per_pass": 10**9}, "pairs_per_pass", 10**9, TASKS),
        (
            {"kind": "gpt", "pairs_per_pass": 10**9, "compute": 0, "parallelism": NO_TENSOR},
            "pairs_per_pass",
            10**9,
            RUNS,
        ),
        ({"kind": "gpt", "global_batch": 10**6}, "global_batch", 10**6, TASKS),
        ({"kind": "gpt", "global_batch": 60_000, "bytes": "4MB"}, "global_batch", 60_000, TASKS),
    ],
    ids=["rounds", "pairs_per_pass", "pairs_without_transfers", "global_batch", "slices"],
)
def test_schedules_of_too_many_tasks_name_their_largest_number(
    workload: object, field: str, value: int, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt, "_emit_replica", None)  # refused before any task is made
    data = {"name": "x", "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 2}], "workloads": [workload]}
    with pytest.raises(BadInput) as caught:
        parse(data)
    remedy = "a smaller number, or fewer domains or rails, helps"
    pattern = rf"workloads\.0\.{field}: {value} makes [\d,]+ (or more )?{re.escape(most)}; {remedy}"
    assert re.fullmatch(pattern, str(caught.value))


def test_an_et_file_of_too_many_messages_is_refused() -> None:
    with pytest.raises(BadInput, match="has more than 524,288 messages"):
        chakra.decode(bytes(common.MAX_BYTES), "x.0.et")


def test_a_step_of_too_many_allreduces_is_refused() -> None:
    fabric = {"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "50Mbit"}]}
    workload = {"kind": "training", "model": "alexnet", "bucket": "1B"}
    with pytest.raises(BadInput, match=r"workloads.0.bucket: '1B' makes [\d,]+ allreduces a step: 16,384 or fewer"):
        parse({"name": "x", "fabrics": [fabric], "workloads": [workload]})


def test_random_faults_on_thousands_of_gpus_are_refused() -> None:
    script = {"name": "x", "random_faults": {"count": 1}}
    data = {"name": "x", "fabrics": [{"kind": "rail-only", "domains": 1000, "rails": 4}], "scripts": [script]}
    with pytest.raises(BadInput, match=r"fabrics.0.domains: 1000 makes 4,000 GPUs .* random faults are for 1,024"):
        parse(data)


@pytest.mark.parametrize("section", ["workloads", "replacements"])
def test_schedules_of_an_experiment_are_bounded_together(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_EXPERIMENT_TASKS", 1500)
    monkeypatch.setattr(schedule, "MAX_GPU_TASKS", 1)
    job = {"kind": "gpt", "bytes": "1MB", "global_batch": 8}
    items = {
        "workloads": [job, {**job, "bytes": "2MB"}, {**job, "bytes": "3MB"}],
        "replacements": [
            {"case": case, "failed": failed, "workload": job, "iterations": 1}
            for case, failed in (("server", "hb1"), ("idle-gpu", "d1g1"))
        ],
    }
    data = {"name": "x", "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 4}], section: items[section]}
    with pytest.raises(
        BadInput, match=rf"{section}.[01](.workload)?: 'gpt' makes [\d,]+ transfers .*: 1,500 are allowed"
    ):
        parse(data)


@pytest.mark.parametrize(("key", "override"), [("name", "{}"), ("scripts.0.name", "[{{name: {}}}]")])
def test_a_name_of_300_letters_is_refused(key: str, override: str) -> None:
    changed = f"{key.partition('.')[0]}={override.format('x' * 300)}"
    with pytest.raises(BadInput, match=rf"{re.escape(key)}: 'x+' has 300 characters: a name has 64 or fewer"):
        loading.load_any("gpu-failures", [changed])


def test_a_trace_with_a_name_too_long_to_write_back_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 200}.txt"
    path.write_text("MICRO\n1\nm -1 1 NONE 0 1 NONE 0 1 ALLTOALL 1600 1\n")
    with pytest.raises(BadInput, match="has a name of 200 bytes, without rank and suffix: 128 or fewer fit"):
        dry_run.experiment(str(path), [])


def test_a_name_too_long_for_a_path_is_refused() -> None:
    with pytest.raises(BadInput, match="File name too long"):
        read_files("x" * 5000, "path")
    with pytest.raises(BadInput, match="allowed are"):
        dry_run.experiment("x" * 5000, [])


def test_bytes_that_take_longer_than_a_month_are_refused() -> None:
    workload = {"kind": "collective", "collective": "all-to-all", "bytes": "8000TB"}
    data = {"name": "x", "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2}], "workloads": [workload]}
    with pytest.raises(BadInput, match=r"workloads.0: '.*TB' in all take .* days or more at the links' rates: 30 or"):
        parse(data)


def test_a_trace_for_a_billion_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"comms": "all_reduce", "in_msg_size": 4, "dtype": "float32", "world_size": 1000000000}]')
    fabric = {"kind": "rail-only", "domains": 4, "rails": 2}
    data = {"name": "x", "fabrics": [fabric], "workloads": [{"kind": "trace", "path": str(path)}]}
    with pytest.raises(BadInput, match="makes 1,000,000,000 operations of all ranks: 524,288 or fewer can be read"):
        parse(data)


@given(st.text() | st.integers(0, 10**6).map(lambda n: "x" * n))
def test_an_error_is_one_printable_line_of_bounded_length(message: str) -> None:
    assert printable(message).isprintable()
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda line, file: lines.append(line))
        assert print_error(message, 2) == 2
    assert len(lines) == 1
    assert len(lines[0]) <= MAX_LINE
    assert lines[0].isprintable()
