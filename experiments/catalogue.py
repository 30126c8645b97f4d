"""The named experiments: a YAML file each in this folder. Yours is a file path away."""

from pathlib import Path
from typing import Any, Final

import yaml

from topologies.errors import BadInput, near_miss

FOLDER: Final = Path(__file__).parent


def names() -> list[str]:
    """Every named experiment, quickstart first."""
    found = (path.stem for path in FOLDER.glob("*.yaml"))
    return sorted(found, key=lambda name: (name != "quickstart", name))


def path_of(name_or_file: str) -> Path:
    """Where an experiment's YAML is. A word with a slash or a suffix is a file; any other is a name."""
    if "/" in name_or_file or name_or_file.endswith((".yaml", ".yml")):
        return Path(name_or_file)
    if name_or_file not in names():
        problem = near_miss(name_or_file, names()).replace("known", "a known experiment", 1)
        raise BadInput("NAME", name_or_file, f"{problem}; or a file, such as ./mine.yaml")
    return FOLDER / f"{name_or_file}.yaml"


def read(name_or_file: str) -> dict[str, Any]:
    """The keys and values of an experiment's file, not yet checked. BadInput if it can't be read."""
    path = path_of(name_or_file)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput("FILE", name_or_file, f"can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput("FILE", name_or_file, "is not text in UTF-8") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput("FILE", name_or_file, f"is not YAML: {yaml_trouble(error)}") from error
    if not isinstance(data, dict):
        raise BadInput("FILE", name_or_file, "must hold keys and values: name, fabrics, workloads or faults, ...")
    return data


def yaml_trouble(error: Exception) -> str:
    """What is wrong, and in which line, on one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)
