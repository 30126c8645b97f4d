"""The package: what a wheel of it holds, and that its commands work where only the wheel is installed."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import railyard
from railyard.core.installation import data_file
from tests.wheel import PACKAGES, ROOT, build_wheel, install_wheel

ELSEWHERE = Path("/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a virtual environment that has the wheel."""
    return install_wheel(wheel, tmp_path_factory.mktemp("venv"))


def run(*command: str | Path, folder: Path = ELSEWHERE) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_wheel_holds_only_the_railyard_package(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"railyard", f"railyard_testbed-{railyard.__version__}.dist-info"}


def test_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if "__pycache__" not in path.parts]
    names = {f"railyard/{path.relative_to(ROOT)}" for path in files if path.is_file()}
    assert len(names) > 300
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == names | {f"railyard/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}


def test_wheel_holds_plain_files_not_links(wheel: Path) -> None:
    links = [item.filename for item in zipfile.ZipFile(wheel).infolist() if (item.external_attr >> 28) == 0o12]
    assert links == []


def test_top_level_packages_are_not_importable(programs: Path) -> None:
    for package in PACKAGES:
        done = run(programs / "python", "-c", f"import {package}")
        assert f"No module named '{package}'" in done.stderr
    assert run(programs / "python", "-c", "import railyard.results").stderr == ""


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("--version", f"railyard {railyard.__version__}\n"),
        ("--help", "railyard predict moe-slowdown"),
        ("list --kinds", "railyard/failure/faults"),
        ("dry-run quickstart", "d0g0"),
    ],
)
def test_command_of_the_wheel_works_anywhere(programs: Path, line: str, printed: str) -> None:
    done = run(programs / "railyard", *line.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout


def test_predict_of_the_wheel_writes_its_figure(programs: Path, tmp_path: Path) -> None:
    done = run(programs / "railyard", "predict", "moe-slowdown", "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moe-slowdown.csv", "moe-slowdown.png"]


def test_files_of_the_working_folder_are_not_imported(programs: Path, tmp_path: Path) -> None:
    for name in ("typing.py", "railyard.py", "yaml.py"):
        (tmp_path / name).write_text("raise SystemExit(1)")
    done = run(programs / "railyard", "describe", "quickstart", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run it: railyard run quickstart" in done.stdout


def test_missing_library_is_one_line_that_names_the_wheel(programs: Path, wheel: Path) -> None:
    done = run(programs / "python", "-S", "-P", "-c", _WITHOUT_LIBRARIES, programs.parent)
    assert done.returncode == 3
    python = programs / "python"
    assert done.stderr == f"error: {python} lacks typer; type: {python} -m pip install {wheel}\n"


def test_remedy_for_an_extra_names_the_wheel(programs: Path, wheel: Path) -> None:
    done = run(programs / "railyard", "install", "--dry-run", "mpi")
    assert f"the Python packages for mpi: {programs / 'python'} -m pip install '{wheel}[mpi]'\n" in done.stdout


def test_no_page_names_the_distribution_of_another_project() -> None:
    pages = [path for path in ROOT.rglob("*.md") if ".venv" not in path.parts]
    named = [str(path) for path in pages if re.search(r"pip install '?railyard\b", path.read_text())]
    assert named == []


_WITHOUT_LIBRARIES = """
import glob, sys
sys.path += glob.glob(sys.argv[1] + "/lib/python*/site-packages")
from railyard.__main__ import main
sys.exit(main())
"""


def test_railyard_is_importable_from_any_folder() -> None:
    done = run(sys.executable, "-c", "import railyard.core.errors as e; print(e.__file__)")
    assert done.stdout == f"{ROOT}/railyard/core/errors.py\n"


def test_run_experiment_works_from_any_folder() -> None:
    done = run(sys.executable, ROOT / "run_experiment.py", "predict", "--help")
    assert "Usage: run_experiment.py predict" in done.stdout


def test_data_files_are_in_the_package() -> None:
    for path in (
        "experiments/catalog/quickstart.yaml",
        "workloads/models/gpt-1t.yaml",
        "labs/01-fabrics.md",
        "labs/recorded/01-fabrics.md",
    ):
        assert data_file(path).is_file()
