"""The package: what a wheel of it holds, and that it can be imported from any folder."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(link.name for link in (ROOT / "railyard").iterdir() if link.is_symlink())
DATA = (".yaml", ".csv", ".j2", "py.typed", "/enter")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the checkout, without network access."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("railyard", *PACKAGES):
        caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, symlinks=True, ignore=caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder)]
    build = [sys.executable, "-m", "pip", "wheel", str(folder / "source"), *options]
    result = subprocess.run(build, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_holds_only_the_railyard_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"railyard"}


def test_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if "__pycache__" not in path.parts]
    wanted = {
        f"railyard/{path.relative_to(ROOT)}" for path in files if path.suffix == ".py" or f"/{path}".endswith(DATA)
    }
    assert len(wanted) > 300
    assert wanted - set(wheel.namelist()) == set()


def test_wheel_holds_plain_files_not_links(wheel: zipfile.ZipFile) -> None:
    links = [item.filename for item in wheel.infolist() if (item.external_attr >> 28) == 0o12]
    assert links == []


def test_railyard_is_importable_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import railyard.core.errors as e; print(e.__file__)"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed == f"{ROOT}/railyard/core/errors.py\n"


def test_run_experiment_works_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run_experiment.py"), "predict", "--help"]
    assert (
        "Usage: run_experiment.py predict"
        in subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    )
