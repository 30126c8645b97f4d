"""The named experiments: a YAML file each in this folder. Yours is a file path away."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from railyard.core import plugins
from railyard.core.config import is_path, read_yaml
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.spec import old_names
from railyard.results.published.catalogue import FIGURES

FOLDER: Final = Path(__file__).parents[1] / "catalog"


def names() -> list[str]:
    """Every named experiment, quickstart first."""
    found = (path.stem for path in FOLDER.glob("*.yaml"))
    return sorted(found, key=lambda name: (name != "quickstart", name))


def path_of(name_or_file: str) -> Path:
    """Where an experiment's YAML is. A word with a slash or a suffix is a file; any other is a name."""
    if _is_file(name_or_file):
        return Path(name_or_file)
    check_no_figure(name_or_file)
    name_or_file = old_names.experiment_name(name_or_file)
    if name_or_file not in names():
        raise _unknown(name_or_file, "experiment", names())
    return FOLDER / f"{name_or_file}.yaml"


def check_no_figure(name: str) -> None:
    """BadInput for what only `predict` computes."""
    if name in FIGURES:
        kind = "table" if name.startswith("table") else "figure"
        raise BadInput("NAME", name, f"is a {kind}: type predict {name}")


def is_figure(name_or_file: str) -> bool:
    """Whether `predict` takes it as a figure, not an experiment. BadInput, with a near miss among both, if neither."""
    if name_or_file not in (*FIGURES, *names(), *old_names.EXPERIMENTS) and not _is_file(name_or_file):
        raise _unknown(name_or_file, "experiment or figure", [*names(), *FIGURES])
    return name_or_file in FIGURES


def _is_file(name_or_file: str) -> bool:
    return "/" in name_or_file or is_path(name_or_file)


def _unknown(name: str, what: str, known: list[str]) -> BadInput:
    problem = unknown_name_hint(name, known).replace("known", f"a known {what}", 1)
    return BadInput("NAME", name, f"{problem}; or a file, such as ./mine.yaml")


def read(name_or_file: str) -> dict[str, Any]:
    """The keys and values of an experiment's file, not yet checked. BadInput if it can't be read."""
    data = read_yaml(path_of(name_or_file), "FILE", name_or_file)
    if not isinstance(data, dict):
        raise BadInput("FILE", name_or_file, "must hold keys and values: name, fabrics, workloads or faults, ...")
    return old_names.rename_keys(data)


def load_plugins(data: Mapping[str, Any], name_or_file: str) -> None:
    """Load the files that an experiment names under `plugins`; relative paths start at its own folder."""
    files = data.get("plugins", [])
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise BadInput("plugins", files, "must be a list of Python files, such as [./mine.py]")
    plugins.load_all(files, "plugins", path_of(name_or_file).parent)
