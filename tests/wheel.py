"""A wheel of the checkout, and a fresh virtual environment outside it that has the wheel and none of our folders."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import typer

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = tuple(link.name for link in (ROOT / "railyard").iterdir() if link.is_symlink())
LIBRARIES: Final = Path(typer.__file__).parents[1]
"""Where the packages are that Railyard depends on."""


def build_wheel(folder: Path) -> Path:
    """Build a wheel from a copy of the checkout, without network access; return its path."""
    for name in ("railyard", *PACKAGES):
        caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, symlinks=True, ignore=caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder)]
    _pip("wheel", str(folder / "source"), *options)
    return next(folder.glob("*.whl"))


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Install a wheel in a new virtual environment; return the folder of its programs.

    The packages that it depends on are not downloaded again: a .pth file adds their folder to the import path. The .pth
    files in that folder have no effect there, so the checkout is not importable.
    """
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(f"{LIBRARIES}\n")
    _pip("--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index", "--quiet", str(wheel))
    return folder / "bin"


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
