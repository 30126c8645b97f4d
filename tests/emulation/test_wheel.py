"""The wheel in a virtual environment outside the checkout runs experiments, for root and for an ordinary user."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from railyard.core.host import SEARCH_PATH
from railyard.experiments.api.pytest_plugin import INCONCLUSIVE_STATUS
from tests.emulation.deadlines import scaled
from tests.emulation.programs import Program, as_root, as_user
from tests.emulation.runs import Stored
from tests.emulation.test_cli import Wrap
from tests.wheel import build_wheel, install_wheel

RUN_S = 300
TEST_S = 120
TRIES = 3  # of what this machine may be too busy for
PROJECT = """\
[project]
name = "training-library"
version = "1"
dependencies = ["railyard"]
"""
USERS_TEST = """\
import pytest

import railyard as ry


@pytest.mark.fabric(kind="rail-only", domains=2, rails=2, rail_rate="20Mbit")
def test_all_to_all_takes_its_predicted_time(fabric: ry.Fabric) -> None:
    found = fabric.run(ry.AllToAll(bytes="1MB")).check()
    assert found.ratio is not None
    with ry.timing(found):
        assert found.ratio < 1.2
"""
ONE_FABRIC = "fabrics=[{kind: rail-only, domains: 4, rails: 4}]"
SHORT = ["-o", "duration=300ms", "-o", "attempts=1", "-o", "reroute=on", "-o", ONE_FABRIC, "-o"]
FAULT = "faults=[{kind: link-down, target: d0g1, at: 500ms, repair: 500ms}]"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user may write, with the virtual environment in `venv`."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        (Path(name) / "build").mkdir()
        install_wheel(build_wheel(Path(name) / "build"), Path(name) / "venv")
        yield Path(name)


@pytest.fixture(params=[as_root, as_user])
def who(request: pytest.FixtureRequest) -> Wrap:
    wrap: Wrap = request.param
    return wrap


def test_quickstart_runs_from_the_wheel(folder: Path, who: Wrap) -> None:
    """Without the checkout, from another folder, and with no PYTHONPATH."""
    out = folder / who.__name__
    argv = who([str(folder / "venv/bin/railyard"), "run", "quickstart", *SHORT, FAULT, "--out", str(out)])
    environment = {"PATH": SEARCH_PATH, "HOME": str(folder)}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=scaled(RUN_S)
    )
    assert (out / "report.html").exists(), done.stderr
    stored = Stored(out, done.stdout)
    stored.assert_no_byte_is_missing()
    stored.assert_only_the_machine_failed()
    assert done.returncode == len(stored.failed_checks()), done.stderr
    assert json.loads(stored.text("provenance.json"))["git_commit"] == ""


def test_live_run_of_the_wheel_is_entered(folder: Path) -> None:
    """`trace` starts a module of ours in the run, and `exec` a program."""
    railyard = str(folder / "venv/bin/railyard")
    with Program([railyard, "shell", "quickstart", "-o", "domains=2", "-o", "rail_rate=5Mbit"], cwd=folder) as shell:
        shell.await_text("mininet>", 60)
        for command, text in (
            (["exec", "quickstart", "d1g1", "hostname"], ""),
            (["trace", "quickstart", "d0g1", "d1g2"], "as the policy"),
        ):
            done = subprocess.run(
                [railyard, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=scaled(60)
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert text in done.stdout


@contextmanager
def burners(seconds: float) -> Iterator[None]:
    """Keep every core busy with two other programs, which end by themselves, with what nothing else wants to have."""
    burn = f"import os, time\nos.nice(19)\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("is_busy", [pytest.param(False, marks=pytest.mark.alone), True])
def test_users_test_passes_and_beside_burners_is_inconclusive(folder: Path, is_busy: bool) -> None:
    """In a repository of its own, which depends on the package."""
    repository = folder / f"repository-{is_busy}"
    repository.mkdir()
    (repository / "pyproject.toml").write_text(PROJECT)
    (repository / "test_library.py").write_text(USERS_TEST)
    argv = [str(folder / "venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider", "--railyard-strict"]
    environment = {"PATH": SEARCH_PATH, "HOME": str(folder), "TMPDIR": str(folder)}
    expected, status = ("1 inconclusive", INCONCLUSIVE_STATUS) if is_busy else ("1 passed", 0)
    for _ in range(1 if is_busy else TRIES):
        with burners(scaled(TEST_S)) if is_busy else nullcontext():
            done = subprocess.run(
                argv,
                cwd=repository,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=scaled(TEST_S),
            )
        if "1 inconclusive" not in done.stdout:
            break
    assert expected in done.stdout, done.stdout + done.stderr
    assert done.returncode == status
    assert not is_busy or "of all cores" in done.stdout  # busy, or used by other programs


def test_virtual_environment_closed_to_a_user_is_one_line(folder: Path) -> None:
    railyard = folder / "venv/bin/railyard"
    (folder / "venv").chmod(0o700)
    try:
        argv = as_user(["sh", "-c", f"exec {railyard} list"])
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    finally:
        (folder / "venv").chmod(0o755)
    assert done.returncode == 126
    assert done.stderr.count("\n") == 1
    assert "Permission denied" in done.stderr


def test_unreadable_package_is_one_line(folder: Path) -> None:
    """As after an installation by root with umask 077."""
    railyard, package = folder / "venv/bin/railyard", next(folder.glob("venv/lib/python*/site-packages/railyard"))
    (package / "experiments").chmod(0o700)
    try:
        done = subprocess.run(as_user([str(railyard), "list"]), cwd=folder, capture_output=True, text=True, check=False)
    finally:
        (package / "experiments").chmod(0o755)
    assert done.returncode == 3
    assert f"{package / 'experiments'} can't be read" in done.stderr
    assert "sudo chmod" in done.stderr
    assert done.stderr.count("\n") == 1
