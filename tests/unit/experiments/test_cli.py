"""The command line: one line for whatever is wrong, the right exit status, and nothing built or lost before that."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import unknown_name_hint
from railyard.core.host import Machine, detect
from railyard.core.installation import PROJECT
from railyard.core.sandbox import launcher
from railyard.experiments import cli, signatures
from railyard.experiments.commands import describe, ps
from railyard.experiments.commands.list import definitions, facts
from railyard.experiments.measures.allreduce.measure import AllreduceMeasure
from railyard.experiments.measures.allreduce.spec import rail_fabrics, workloads_on
from railyard.experiments.measures.definition import Measure
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.replacement.measure import ReplacementMeasure
from railyard.experiments.measures.steering.spec import routing_of
from railyard.experiments.measures.training.measure import Training
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.run import sandboxed
from railyard.experiments.spec import loading
from railyard.experiments.spec.parsing import parse, parse_keys
from railyard.results.published.catalogue import FIGURES
from tests.unit.experiments.command_errors import command_errors
from tests.unit.loaded_experiments import load

ALL = f"{unknown_name_hint('', [*loading.names(), *FIGURES]).partition('are ')[2]}; or a file, such as ./mine.yaml"
EXPERIMENTS = unknown_name_hint("", loading.names()).partition("are ")[2]
ROOT = Path(__file__).parents[3]
HERE = detect()
ABLE = replace(
    HERE,
    root=True,
    sandbox_error="",
    tun_error="",
    programs={name: f"/usr/bin/{name}" for name in ("unshare", "nsenter", "ip", "tc", "mnexec", "ethtool", "iperf3")}
    | {name: name for name in ("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl")},
    ovs_version="3.1.0",
    kernel="6.1.0",
    kernel_datapath=False,
    qdiscs=frozenset({"htb"}),
    cores=2,
    memory_bytes=8_000_000_000,
)


class Entered:
    """Stands for the sandbox: notes what it was given."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.task: Mapping[str, Any] | None = None

    def __call__(self, argv: Sequence[str], task: Mapping[str, Any], run: str = "", **_: object) -> int:
        self.task = task
        return self.status


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Entered:
    """A machine that can do everything, somewhere to write, and no sandbox."""
    stand_in = Entered()
    monkeypatch.setattr(launcher, "enter", stand_in)
    monkeypatch.setattr(sandboxed, "detect", lambda: ABLE)
    monkeypatch.chdir(tmp_path)
    return stand_in


WRONG_LINES = (
    "rnu",
    "quickstart",
    "run",
    "--out /tmp/x",
    "--plugin x.py run quickstart",
    "--quiet",
    "run quickstart --dry-run",
    "describe quickstart --json",
    "run quickstart --live contrl",
    "lab chek 3",
    "run quickstart -o rail_rate=20Mbps",
    "run quickstart more",
    "run recovery-of",
    "run ./none.yaml",
    "run quickstart -o domains=1",
    "doctor --hosts 2 --underlay ../x",
    "run quickstart -o rails=1",
    "run quickstart -o mtu=576",
    "run quickstart -o domains=0",
    "run quickstart -o domains=four",
    "run quickstart -o rail_rate=-1Mbit",
    "run quickstart -o rail_rate=100",
    "run quickstart -o rail_rate=100Gbit",
    "run quickstart -o rail_rate=50Mbit -o hb_rate=1Tbit",
    "run recovery -o domains=1000 -o rails=100",
    "run quickstart -o faults.0.target=d9g9",
    "run quickstart --seed -1",
    "run quickstart --out full",
    "run quickstart --out /run/x",
    "run bad.yaml",
    "run latin.yaml",
    "dry-run pipeline",
    "run twice.yaml",
    "run full/",
    "run list.yaml",
    "shell quickstart --name 12",
    "describe nothing-like-it",
    "predict fig11",
    "predict FIG2",
    "predict tabel2",
    "predict korthikant",
    "predict quikstart",
    "run table2",
    "predict recovery",
    "report full",
    "exec nobody d0g0 true",
    "shell quickstart -o policy=rd -o kind=x",
    "describe fig2",
    "run fig2",
    "dry-run fig2",
    "shell fig2",
    "lint fig2",
)


def test_bad_input_is_one_line_and_builds_nothing(
    entered: Entered, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    data_regression: DataRegressionFixture,
) -> None:  # fmt: skip
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    (tmp_path / "bad.yaml").write_text("a: %b")
    (tmp_path / "pipeline.0.et").touch()
    (tmp_path / "twice.yaml").write_text("name: a\nrepeats: 1\nname: b\n")
    (tmp_path / "list.yaml").write_text("- a")
    (tmp_path / "latin.yaml").write_bytes("name: Zürich".encode("latin-1"))
    monkeypatch.setattr(ps, "find", list)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    names = {ALL: "EXPERIMENTS AND FIGURES", EXPERIMENTS: "EXPERIMENTS"}
    errors = command_errors(capsys, {line: line.split() for line in WRONG_LINES}, names=names)
    assert entered.task is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    data_regression.check(errors)


def test_missing_program_is_status_3_with_the_remedy(
    entered: Entered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def poor() -> Machine:
        return replace(ABLE, programs={k: v for k, v in ABLE.programs.items() if not k.startswith("ovs")})

    monkeypatch.setattr(sandboxed, "detect", poor)
    assert cli.main(["run", "quickstart"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: this machine lacks Open vSwitch (no ovs-vswitchd")
    assert error.endswith("; sudo script/bootstrap\n")
    assert entered.task is None
    assert not list(tmp_path.iterdir())


def test_an_etcd_that_is_asked_for_must_be_there(
    entered: Entered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = ["run", "hot-rail", "-o", "routing.health.registry=etcd"]
    assert cli.main(line) == 3
    assert "lacks etcd" in capsys.readouterr().err
    assert (entered.task, list(tmp_path.iterdir())) == (None, [])
    monkeypatch.setattr(sandboxed, "detect", lambda: replace(ABLE, programs={**ABLE.programs, "etcd": "/usr/bin/etcd"}))
    assert cli.main(line) == 0


def test_no_argument_runs_the_quickstart(entered: Entered, tmp_path: Path) -> None:
    assert cli.main([]) == 0
    assert entered.task is not None
    assert parse(entered.task["spec"]) == load("quickstart")
    assert entered.task["folder"].startswith(f"{tmp_path}/runs/")
    assert not list(tmp_path.iterdir()), "an empty folder was left"


def test_options_decide_what_runs(entered: Entered, tmp_path: Path) -> None:
    entered.status = 1
    line = ["run", "collectives", "-o", "domains=2", "-o", "repeats=2", "--seed", "5", "--out", "here", "--quiet"]
    assert cli.main(line) == 1
    assert entered.task is not None
    assert parse(entered.task["spec"]) == load("collectives", ["domains=2", "repeats=2"], seed=5)
    assert (entered.task["folder"], entered.task["quiet"]) == (str(tmp_path / "here"), True)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 130, 143])
def test_the_exit_status_of_the_run_is_that_of_the_command(status: int, entered: Entered) -> None:
    entered.status = status
    assert cli.main(["run", "quickstart"]) == status


def test_every_experiment_has_a_description() -> None:
    """Golden files have what `list` and `describe` print."""
    for name in loading.names():
        spec = parse_keys(loading.read(name))
        assert len(spec.description) > 200, "a description teaches"
        lines = describe.block(describe.shown(spec), loading.read(name))
        assert yaml.safe_load("\n".join(lines)) == describe.shown(spec)


def test_describe_of_a_package_quotes_the_absolute_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "two words"
    package.mkdir()
    (package / "idle.yaml").write_bytes((loading.FOLDER / "idle.yaml").read_bytes())
    monkeypatch.setattr(loading, "FOLDER", package)
    monkeypatch.setattr(describe, "IS_CHECKOUT", False)
    monkeypatch.setenv("COLUMNS", "1000")
    assert cli.main(["describe", "idle"]) == 0
    # a long path breaks the line
    words = " ".join(capsys.readouterr().out.split())
    assert f"change it: cp '{package}/idle.yaml' mine.yaml; " in words


def test_describe_keys_can_be_changed_with_o(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["describe", "quickstart", "--keys"]) == 0
    listed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
    assert listed["fabrics.0.domains"] == "4"
    assert {"seed", "fabrics.1.mtu", "workloads.0.duration", "faults.2.repair"} <= set(listed)
    data = loading.read("quickstart")
    assert loading.apply(data, ["fabrics.0.domains=8", "faults.2.repair=2s"]) != data


def test_list_imports_no_heavy_modules() -> None:
    program = "import sys; from railyard.experiments import cli; cli.main(['list']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(run.stdout.splitlines()[-1].split())
    assert "typer" in imported
    assert not imported & {"dask", "matplotlib", "os_ken", "pandas", "scapy", "scipy", "torch"}


@pytest.mark.parametrize(
    "name", ["quickstart", "training-faults", "optical-replacement", "multirail-quick", "hot-rail"]
)
def test_counts_of_list_equal_counts_of_the_spec(name: str) -> None:
    spec = load(name)
    policies = len(routing.policies) if (routing := routing_of(spec)) else 1
    on_rails = sum(len(workloads_on(spec, number)) for number in range(len(rail_fabrics(spec))))
    replays = (on_rails + len(spec.gpu_fabrics) * len(workloads_of(spec))) * policies * spec.repeats
    sizes = [fabric.gpus for fabric in spec.gpu_fabrics] + [fabric.nodes for fabric in rail_fabrics(spec)]
    gpus = list(dict.fromkeys(sizes))
    measure: Measure[Any] = FaultsMeasure() if spec.gpu_fabrics else AllreduceMeasure()
    faults = measure.counts(spec).faults
    for number in range(len(spec.fabrics)):
        faults += len(ReplacementMeasure().items_on(spec, number)) * ReplacementMeasure().repeats(spec)
        trained = sum(len(training.faults) for training in Training().items_on(spec, number))
        faults += trained * Training().repeats(spec) * len(spec.reroute)
    kinds = list(dict.fromkeys(fabric.kind for fabric in spec.fabrics))
    assert facts(parse_keys(loading.read(name))) == (kinds, gpus, (replays, faults))


def test_each_definition_has_a_docstring_and_a_source() -> None:
    """A golden file has what `list --kinds` prints."""
    assert list(definitions())
    for _, name, description, source in definitions():
        assert description, f"{name} has no docstring"
        origin, place = source.split(" ")
        assert origin == "built-in"
        file = Path(place.rpartition(":")[0])
        assert not file.is_absolute(), f"{name} is said to be at {file}: must be relative to the checkout"
        assert (PROJECT / file).is_file(), name


def described(function: Callable[..., object]) -> str:
    """Return a function's parameters with their types, defaults and options, without the addresses of objects."""
    parameters = inspect.signature(function).parameters.values()
    return "\n".join(re.sub(r" at 0x\w+", "", f"{parameter} {_option(parameter)}") for parameter in parameters)


def _option(parameter: inspect.Parameter) -> dict[str, object]:
    return {key: value for each in parameter.annotation.__metadata__ for key, value in vars(each).items()}


def test_each_command_is_one_file_with_help() -> None:
    names = cli.commands()
    assert {"run", "list", "describe", "predict", "dry-run", "exec", "trace"} <= set(names)
    for name, summary in names.items():
        assert summary.text.endswith("."), name
        assert summary.purpose in cli.PURPOSES, name
        assert cli.load_command(name).name == name
        module = import_module(f"railyard.experiments.commands.{name.replace('-', '_')}")
        reduced, _ = signatures.load(Path(str(module.__file__)), module.__name__)
        assert described(reduced) == described(module.command), name


def test_help_of_no_command_imports_what_computes_or_measures() -> None:
    """Each of these libraries takes 0.05 to 1 s to import; of ours, help needs options and names alone."""
    heavy = {
        "pandas",
        "pyarrow",
        "numpy",
        "matplotlib",
        "scipy",
        "networkx",
        "dask",
        "distributed",
        "psutil",
        "starlette",
        "mininet",
        "scapy",
        "os_ken",
    }
    code = (
        "import sys; from railyard.experiments import cli; "
        "texts = [cli.load_command(name).get_help for name in cli.commands()]; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert heavy.intersection(imported) == set()
    packages = ("topologies", "controller", "workloads", "failure", "experiments.commands", "experiments.run")
    assert [name for name in imported if name.startswith(tuple(f"railyard.{package}" for package in packages))] == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["run", "quickstart", "--out", "loop"], "--out: 'loop' "),
        (["run", "quickstart", "--out", "loop/x"], "--out: 'loop/x' "),
        (["dry-run", "quickstart", "--plugin", "loop"], "--plugin: 'loop' "),
        (["dry-run", "quickstart", "--plugin", "loop/x.py"], "--plugin: 'loop/x.py' "),
        (["exec", "loop", "d0g0", "true"], "RUN: 'loop' "),
        (["report", "loop"], "DIR: 'loop' "),
    ],
)
def test_a_loop_of_links_is_one_line(
    arguments: list[str],
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert cli.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {field}")


def test_help_has_examples_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    reported = capsys.readouterr().out
    assert all(text in reported for text in ("sudo script/run", "-o fault_repeats=3", "143 stopped by", "doctor"))


def test_an_experiment_of_ones_own_runs_from_its_file(entered: Entered, tmp_path: Path) -> None:
    data = {"name": "mine", "fabrics": [{"kind": "rail-only"}], "workloads": [{"kind": "moe"}]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    assert cli.main(["run", "mine.yaml"]) == 0
    assert entered.task is not None
    assert entered.task["spec"]["name"] == "mine"


def test_python_without_packages_prints_the_remedy(tmp_path: Path) -> None:
    """An environment without our packages, from another folder."""
    command = [sys.executable, "-S", str(ROOT / "run_experiment.py"), "run", "quickstart"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {sys.executable} lacks ")
    assert done.stderr.endswith(" run quickstart\n")
    assert done.stderr.count("\n") == 1
    assert str(ROOT) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "live"),
    [
        (["quickstart"], None),
        (["quickstart", "--live"], ""),
        (["--live", "quickstart"], ""),
        (["quickstart", "--live", "control", "--quiet"], "control"),
        (["--live=control", "quickstart"], "control"),
    ],
)
def test_live_takes_its_value_or_none(arguments: list[str], live: str | None) -> None:
    assert cli.load_command("run").make_context("run", arguments).params["live"] == live
