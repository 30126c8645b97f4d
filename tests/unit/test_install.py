"""`railyard install` and script/bootstrap: one list of system packages, and what is printed before anything changes."""

import os
import subprocess
from pathlib import Path

import pytest

from railyard.core.installation import INSTALL
from railyard.experiments import cli
from railyard.experiments.commands import install

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which only the programs in this folder are found."""
    for name in ("bash", "sort", "printf"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    script = (ROOT / "core/packages.sh").read_text()
    (tmp_path / "packages.sh").write_text(
        script.replace("PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin", f"PATH={tmp_path}")
    )
    monkeypatch.setattr(install, "SCRIPT", str(tmp_path / "packages.sh"))
    return tmp_path


def test_dry_run_lists_every_missing_package(bare_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["install", "--dry-run", "mpi"]) == 0
    printed = capsys.readouterr().out
    assert "would run: apt-get update; apt-get install -y --no-install-recommends etcd-server ethtool" in printed
    assert "openvswitch-switch" in printed
    assert "openmpi-bin" in printed
    assert f"the Python packages for mpi: {INSTALL} mpi" in printed


def test_program_that_is_found_is_not_installed_again(bare_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bare_path / "etcd").touch(0o755)
    assert cli.main(["install", "--dry-run"]) == 0
    assert "etcd-server" not in capsys.readouterr().out


def test_installing_asks_first(
    bare_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cli.main(["install"]) == 2
    assert capsys.readouterr().err.startswith("error: --yes: False ")


def test_installing_needs_root(
    bare_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["install", "--yes"]) == 3
    assert capsys.readouterr().err == f"error: installing needs root; {INSTALL}\n"


def test_unknown_extra_is_bad_input(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["install", "mpich"]) == 2
    message = capfd.readouterr().err
    assert message.startswith("error: EXTRA: 'mpich' ")
    assert message.endswith("browser, cluster, gloo, labs, mininet, mpi, record, sshd, torchft\n")


def test_bootstrap_and_install_share_one_list() -> None:
    bootstrap = (ROOT / "script/bootstrap").read_text()
    assert ". core/packages.sh" in bootstrap
    for package in ("openvswitch-switch", "etcd-server", "iperf3"):
        assert package not in bootstrap


def test_packages_script_has_no_syntax_error() -> None:
    for script in ("core/packages.sh", "script/bootstrap"):
        assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0


def test_long_step_shows_its_progress(tmp_path: Path) -> None:
    script = f"""
    . {ROOT}/core/packages.sh
    prepare
    shown=0
    sleep() {{ shown=$((shown + 15)); SECONDS=$((start + shown)); command sleep 0.02; }}
    step() {{ echo 'Downloading torch (190.1 MB)'; command sleep 0.5; }}
    quietly step
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "railyard: 15 s  Downloading torch (190.1 MB)\n" in done.stdout


def test_step_that_fails_shows_its_whole_output(tmp_path: Path) -> None:
    script = f". {ROOT}/core/packages.sh; prepare; step() {{ echo first; echo second; return 1; }}; quietly step"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "first\nsecond\nrailyard: failed: step\n"
