"""Runs that a user names: a run's folder, a folder of runs (a sweep), or either of a git revision: `main:results/a`."""

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from railyard.core import scratch
from railyard.core.config import parse_yaml
from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.safe_files import Folder
from railyard.results import run_folder
from railyard.results.runs import journal
from railyard.results.runs.record_files import text_of
from railyard.results.runs.records import Run

SWEEP_FILE: Final = "sweep.yaml"
RUNS: Final = "runs"  # the folder of a sweep's runs
_NOTHING: Final = "is no run's folder, no folder of runs, and no git revision of one, such as main:results/a"


@dataclass(frozen=True)
class Source:
    """A run that was read. `axes`: the values of its sweep's axes, apart from the seed, by key."""

    name: str
    run: Run
    axes: dict[str, Any] = field(default_factory=dict)


def load(field: str, name: str) -> list[Source]:
    """Return the runs of a folder or revision, at least one. BadInput, for `field`, if there are none."""
    with _folder(field, name) as path:
        if _is_run(path):
            return [Source(name, run_folder.load(path))]
        axes = _axes(path)
        sources: list[Source] = []
        for child in _run_folders(path):
            sources.append(Source(child.name, run_folder.load(child), axes.get(child.name, {})))
        if not sources:
            raise BadInput(field, name, _NOTHING)
        return sources


def _run_folders(path: Path) -> list[Path]:
    """Return the folders of runs in a folder, or of a sweep's, by name; none if it can't be read."""
    try:
        parent = path / RUNS if (path / SWEEP_FILE).exists() else path
        children = sorted(parent.iterdir())
    except OSError:
        return []
    return [child for child in children if not child.name.startswith(".") and _is_run(child)]


def _is_run(path: Path) -> bool:
    try:
        with Folder(path) as folder:
            return folder.has("run.json") or journal.is_left(folder)
    except (OSError, ValueError):
        return False


def _axes(path: Path) -> dict[str, dict[str, Any]]:
    """Return the axes of each run of a sweep by the name of its folder; nothing for another folder."""
    try:
        with Folder(path) as folder:
            content = folder.read(SWEEP_FILE)
    except (OSError, ValueError):
        return {}
    if not content:
        return {}
    try:
        data: Any = parse_yaml(text_of(content, SWEEP_FILE), SWEEP_FILE)
        axes: dict[str, dict[str, Any]] = {}
        for run in data["runs"]:
            axes[str(run["folder"])] = {key: value for key, value in run["axes"].items() if key != "seed"}
        return axes
    except (LookupError, TypeError, AttributeError) as error:
        raise BadInput(SWEEP_FILE, str(path), "is no record of a sweep that can be read") from error


@contextmanager
def _folder(field: str, name: str) -> Iterator[Path]:
    """Yield the folder; that of a git revision is unpacked, and removed afterwards."""
    revision, colon, _ = name.partition(":")
    if not colon or not revision or os.path.exists(name):  # noqa: PTH110 - Path.exists fails if the name is too long
        yield Path(name)
        return
    try:
        made = subprocess.run(["git", "archive", "--format=tar", "--", name], capture_output=True, check=False)
    except OSError as error:
        raise MissingRequirement("this machine lacks git, to read a revision", "install it") from error
    if made.returncode:
        why = made.stderr.decode(errors="replace").strip().splitlines() or ["git can't read it"]
        raise BadInput(field, name, f"is no git revision of a folder: {why[-1].removeprefix('fatal: ')}")
    with scratch.folder("railyard-compare-") as unpacked:
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar, Folder(unpacked) as folder:
            for member in tar:
                # no links: one could lead out of the folder
                file = tar.extractfile(member) if member.isfile() else None
                if file:
                    folder.write(member.name, file.read())
        yield unpacked
