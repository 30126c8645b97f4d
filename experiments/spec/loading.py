"""Load an experiment: find its YAML by name or path, apply `-o key=value` overrides, load plugins, and parse it.

    seed=7                      a key of the experiment
    fabrics.0.domains=8         of one fabric, counted from 0; `fabrics.*.domains=8` of all
    domains=8                   the same of all fabrics, or of all items of another section that has such a key

Values are YAML: 8, 100Mbit, on, [on, off], {kind: moe}. The named experiments are a YAML file each in catalog/.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from railyard.core import crash, plugins
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.installation import RUN, data_file
from railyard.results.published.catalogue import FIGURES

# core.config and the specification are imported where they are used: they are slow to load, and `list` needs neither
if TYPE_CHECKING:
    from pydantic import BaseModel

    from railyard.experiments.spec.experiment import ExperimentSpec
    from railyard.experiments.spec.parsing import Sections

FOLDER: Final = data_file("experiments/catalog")


def names() -> list[str]:
    """Return every named experiment, quickstart first."""
    stems = [path.stem for path in FOLDER.glob("*.yaml")]
    return sorted(stems, key=lambda name: (name != "quickstart", name))


def path_of(name_or_file: str) -> Path:
    """Return the path of an experiment's YAML. A word with a slash or a suffix is a file; any other is a name."""
    if "/" in name_or_file or name_or_file.endswith((".yaml", ".yml")):
        return Path(name_or_file)
    check_no_figure(name_or_file)
    if name_or_file not in names():
        raise _unknown(name_or_file, "experiment", names())
    return FOLDER / f"{name_or_file}.yaml"


def check_no_figure(name: str) -> None:
    """Raise BadInput for a figure, which only `predict` computes."""
    if name in FIGURES:
        sort = "table" if name.startswith("table") else "figure"
        raise BadInput("NAME", name, f"is a {sort}: type predict {name}")


def is_figure(name_or_file: str) -> bool:
    """Return True for a figure, False for an experiment or file. BadInput, with a near miss, for neither."""
    is_file = "/" in name_or_file or name_or_file.endswith((".yaml", ".yml"))
    if name_or_file not in (*FIGURES, *names()) and not is_file:
        raise _unknown(name_or_file, "experiment or figure", [*names(), *FIGURES])
    return name_or_file in FIGURES


def _unknown(name: str, sort: str, names: list[str]) -> BadInput:
    """Return the error of a name that is none of `names`. `sort`: what they name."""
    problem = unknown_name_hint(name, names).replace("known", f"a known {sort}", 1)
    return BadInput("NAME", name, f"{problem}; or a file, such as ./mine.yaml")


def read(name_or_file: str) -> dict[str, Any]:
    """Return the keys and values of an experiment's file, not yet checked. BadInput if it can't be read."""
    from railyard.core.config import read_yaml

    data = read_yaml(path_of(name_or_file), "FILE", name_or_file)
    if not isinstance(data, dict):
        raise BadInput("FILE", name_or_file, "must hold keys and values: name, fabrics, workloads or faults, ...")
    return data


def load_plugins(data: Mapping[str, Any], name_or_file: str) -> None:
    """Load the files that an experiment names under `plugins`; relative paths start at its own folder."""
    files = data.get("plugins", [])
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise BadInput("plugins", files, "must be a list of Python files, such as [./mine.py]")
    for number, file in enumerate(files):
        plugins.load(file, f"plugins.{number}", path_of(name_or_file).parent)


def from_folder_of(name_or_file: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a file with its paths absolute; relative ones start at its own folder.

    The plugins that it names must be loaded, whose definitions may have paths too.
    """
    from railyard.core import input_paths
    from railyard.experiments.spec.experiment import ExperimentSpec
    from railyard.topologies.spec import FabricSpec
    from railyard.workloads.spec import WORKLOADS

    def models(item: Mapping[Any, Any]) -> "list[type[BaseModel]]":
        if item is data:
            return [ExperimentSpec]
        kind = item.get("kind")
        if isinstance(kind, str) and kind in WORKLOADS:
            return [WORKLOADS[kind]]
        return [FabricSpec]

    changed: dict[str, Any] = input_paths.from_folder(data, path_of(name_or_file).parent, models)
    return changed


def apply(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a changed copy of the data; later overrides win. BadInput, with a near miss, for an unknown key."""
    from railyard.core.config import parse_yaml
    from railyard.experiments.spec.parsing import sections

    changed = deepcopy(dict(data))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise BadInput("-o", override, "must be key=value, such as fabrics.0.domains=8")
        value = parse_yaml(text, f"-o {key}")
        path = _full_path(key.strip(), sections(changed))
        _put(changed, path, value, f"-o {'.'.join(path)}")
    return changed


def _full_path(key: str, sections: "Sections") -> list[str]:
    """Return the full path of a key: a first word that only one section's items have stands for all of them."""
    path = key.split(".")
    if path[0] in sections:
        return path
    owners = [section for section, keys in sections.items() if path[0] in keys]
    if not owners:
        keys = frozenset(sections).union(*sections.values())
        raise BadInput("-o", key, unknown_name_hint(path[0], keys).replace("known", "a known key", 1))
    if len(owners) > 1:
        choices = [f"{section}.*.{key}" for section in owners]
        raise BadInput("-o", key, f"may mean several things: write {' or '.join(choices)}")
    return [owners[0], "*", *path]


def _put(container: Any, path: list[str], value: object, field: str) -> None:
    """Set what `path` leads to; missing keys and values on the way are made, missing list items are not."""
    step = path[0]
    next_steps = path[1:]
    if not isinstance(container, list | dict):
        raise BadInput(field, container, f"is a plain value: it has no {step!r} in it")
    keys: Iterable[Any]
    if isinstance(container, dict):
        keys = [step]
        if next_steps and container.get(step) is None:
            is_list = next_steps[0] == "*" or next_steps[0].isdigit()
            container[step] = [] if is_list else {}
    else:
        keys = _indices(step, next_steps, container, field)
    for key in keys:
        if next_steps:
            _put(container[key], next_steps, value, field)
        else:
            # later overrides may change one of the items alone
            container[key] = deepcopy(value)


def _indices(step: str, next_steps: list[str], items: list[Any], field: str) -> Iterable[int]:
    """Return the numbers of the items that a step means; `*` is all, of workloads those whose kind has the key."""
    from railyard.core.config import MISSING

    if not items:
        raise BadInput(field, MISSING, "to change: the list is empty")
    if step == "*":
        numbers: list[int] = []
        for number, item in enumerate(items):
            if next_steps and _is_key_of_workload(next_steps[0], item):
                numbers.append(number)
        return numbers or range(len(items))
    if step.isascii() and step.isdigit() and len(step) < 9 and int(step) < len(items):
        return [int(step)]
    raise BadInput(field, step, f"must be 0 to {len(items) - 1}, or * for all")


def _is_key_of_workload(key: str, item: object) -> bool:
    """Return whether an item is a workload whose kind has a key."""
    from railyard.workloads.spec import WORKLOADS

    # str(): the kind may be a list, which isn't hashable
    kind = str(item.get("kind")) if isinstance(item, Mapping) else ""
    return kind in WORKLOADS and key in WORKLOADS[kind].model_fields


def rename_hosts(data: dict[str, Any]) -> None:
    """Give faults whose target is a host of a Mininet topology that host's GPU as their target."""
    from railyard.topologies.fabric_kinds import FABRIC_KINDS
    from railyard.topologies.topology_kind import hosts_of

    names: dict[str, str] = {}
    for fabric in _dicts_in(data.get("fabrics")):
        kind = fabric.get("kind")
        if isinstance(kind, str) and kind in FABRIC_KINDS:
            names |= hosts_of(FABRIC_KINDS[kind])
    faults = _dicts_in(data.get("faults"))
    for script in _dicts_in(data.get("scripts")):
        faults += _dicts_in(script.get("faults"))
    for fault in faults:
        target = fault.get("target")
        if isinstance(target, str):
            fault["target"] = names.get(target, target)


def _dicts_in(items: object) -> list[dict[str, Any]]:
    if not isinstance(items, list):
        return []
    return [item for item in items if isinstance(item, dict)]


def command_line(
    name_or_file: str,
    overrides: Iterable[str] = (),
    seed: int | None = None,
    plugin_files: Iterable[Path] = (),
    topo: str = "",
    controller: Path | None = None,
) -> dict[str, Any]:
    """Return a line for each key that a command changes, `key: from -> to`, and the command that repeats the run.

    Empty where it changes nothing.
    """
    changed: list[str] = []
    options: list[str] = []
    if topo:
        changed.append(f"fabrics: replaced by {topo}")
        options += ["--topo", topo]
    changed_data = apply(read(name_or_file), overrides)
    if seed is not None:
        changed_data["seed"] = seed
    changed += _changes(read(name_or_file), changed_data)
    if controller:
        changed.append(f"controller: default → {controller}")
        options += ["--controller", str(controller)]
    if not changed:
        return {}
    for override in overrides:
        options += ["-o", override]
    for file in plugin_files:
        options += ["--plugin", str(file)]
    if seed is not None:
        options += ["--seed", str(seed)]
    return {"changed": changed, "repeat": f"{RUN} {shlex.join(['run', name_or_file, *options])}"}


def _changes(data: Mapping[str, Any], changed_data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each plain value that differs."""
    before = dict(leaves(data))
    after = dict(leaves(changed_data))
    for key in before | after:
        value = _as_before(after.get(key), before.get(key))
        if value != before.get(key):
            shown = value if key in after else "removed"
            yield f"{key}: {before.get(key, 'default')} → {shown}"


def _as_before(value: object, before: object) -> object:
    """Return YAML 1.1's reading of a bare `on` or `off` as text, where the text stood before."""
    if not isinstance(value, bool) or before not in ("on", "off"):
        return value
    return "on" if value else "off"


def leaves(data: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every plain value of nested data by its path, as `-o` takes it; nothing of an empty list."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(data, list):
        items = enumerate(data)
    elif isinstance(data, Mapping) and data:
        items = data.items()
    elif prefix:
        yield prefix[:-1], data
    for key, value in items:
        yield from leaves(value, f"{prefix}{key}.")


def load_any(
    name_or_file: str,
    overrides: Iterable[str] = (),
    seed: int | None = None,
    topo: str = "",
    controller: Path | None = None,
) -> "ExperimentSpec":
    """Return a named experiment or a YAML file, with `key=value` overrides on top. BadInput if it can't be used.

    `topo`: the Mininet topology that takes the place of its fabrics, as `--topo` has it. `controller`: the file of an
    OpenFlow app.
    """
    data = read(name_or_file)
    if "axes" in data:
        raise BadInput("axes", data["axes"], f"is for a sweep: type sweep {name_or_file}")
    load_plugins(data, name_or_file)
    data = from_folder_of(name_or_file, data)
    if topo:
        from railyard.topologies import from_mininet

        data["fabrics"] = [from_mininet.load(topo)]
    if controller:
        data["controller"] = str(controller)
    return make(data, name_or_file, overrides, seed)


def make(
    data: dict[str, Any], name_or_file: str, overrides: Iterable[str] = (), seed: int | None = None
) -> "ExperimentSpec":
    """Return the experiment of these keys and values of a file, with overrides on top. BadInput if it can't be used."""
    from railyard.experiments.spec.parsing import parse

    # before overrides, which may have keys of the plugins' definitions
    load_plugins(data, name_or_file)
    data = apply(data, overrides)
    load_plugins(data, name_or_file)
    rename_hosts(data)
    if seed is not None:
        data["seed"] = seed
    crash.context["specification"] = data
    return parse(data)
