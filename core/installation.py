"""Railyard's own place, a checkout or a package in site-packages: its data files, and how it is started.

    checkout          run_experiment.py, script/bootstrap, railyard/ with symbolic links to the top-level packages
    site-packages     railyard/ with everything in it; the program `railyard`

Light to import: every child process needs it.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

DISTRIBUTION: Final = "railyard-testbed"
"""The name of the package's distribution. The distribution `railyard` on PyPI is another project."""

PACKAGE: Final = Path(__file__).absolute().parents[1]
"""The folder of the package `railyard`."""
PROJECT: Final = PACKAGE.parent.resolve()
"""The folder that `import railyard` finds the package in: the checkout, or site-packages."""
IS_CHECKOUT: Final = (PROJECT / "run_experiment.py").is_file()
_INSTALLED: Final = Path(sys.executable).with_name("railyard")
_FULL: Final = shlex.quote(str(_INSTALLED)) if _INSTALLED.exists() else f"{shlex.quote(sys.executable)} -m railyard"
PROGRAM: Final = "run_experiment.py" if IS_CHECKOUT and Path(sys.argv[0]).name != "railyard" else "railyard"
"""The name of the command line in messages."""
RUN: Final = "sudo script/run" if IS_CHECKOUT else "railyard"
"""What to type before a command, as documented."""
INSTALL: Final = "sudo script/bootstrap" if IS_CHECKOUT else f"sudo {_FULL} install"
"""What to type to install the programs that this machine lacks. sudo finds no program of a virtual environment."""


def data_file(path: str) -> Path:
    """Return the path of a data file or folder of the package, such as `workloads/models`."""
    return PACKAGE / path


def file_in_project(path: Path | str) -> str:
    """Return the path of a file relative to `PROJECT`, with symbolic links resolved. Others stay as they are."""
    resolved = Path(path).resolve()
    if resolved.is_relative_to(PROJECT):
        return str(resolved.relative_to(PROJECT))
    return str(path)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules in a child process, which must be started in `PROJECT`."""
    # A checkout need not be installed, so its modules are found in the working folder. An installed package is found
    # without it: `-P` keeps Python from looking there, where a file may have the name of a module.
    options = [] if IS_CHECKOUT else ["-P"]
    return [sys.executable, *options, "-m", module, *arguments]


def program_command(*arguments: str) -> list[str]:
    """Return the command that starts the command line again, from any folder."""
    if IS_CHECKOUT:
        return [sys.executable, str(PROJECT / "run_experiment.py"), *arguments]
    return module_command("railyard", *arguments)


def python_extra(name: str) -> str:
    """Return what to type to install the Python packages of an extra (gloo, mpi, torchft), with its programs."""
    if IS_CHECKOUT:
        return f"{INSTALL} {name}"
    return pip_install(name)


def pip_install(extra: str = "") -> str:
    """Return the pip command that installs Railyard's wheel with its dependencies, and those of an extra.

    It names the wheel and never the distribution alone: Railyard is on no package index.
    """
    requirement = f"{_wheel()}[{extra}]" if extra else _wheel()
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(requirement)}"


def _wheel() -> str:
    """Return the path of the installed wheel, as pip recorded it (PEP 610), or else the name of a built one."""
    # read without importlib.metadata, which takes 20 ms to import
    name = DISTRIBUTION.replace("-", "_")
    for record in PROJECT.glob(f"{name}-*.dist-info/direct_url.json"):
        try:
            url = urlsplit(str(json.loads(record.read_bytes())["url"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        path = Path(unquote(url.path))
        if url.scheme == "file" and path.suffix == ".whl" and path.exists():
            return str(path)
    return f"{name}-VERSION-py3-none-any.whl"
