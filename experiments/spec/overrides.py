"""`-o key=value`: changes to an experiment's data before it is checked.

    seed=7                      a key of the experiment
    fabrics.0.domains=8         of one fabric, counted from 0; `fabrics.*.domains=8` of all
    domains=8                   the same, since only fabrics have such a key
    workloads.0.parallelism.tensor=2

Values are YAML: 8, 100Mbit, on, [on, off], {kind: moe}.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from railyard.core.config import MISSING, YAML_ERRORS, parse_yaml, yaml_error_message
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.spec.old_names import rename_path

Sections = Mapping[str, frozenset[str]]
"""Every key of an experiment, and the keys of its items where it is a list of things."""


def apply(data: Mapping[str, Any], overrides: Iterable[str], sections: Sections) -> dict[str, Any]:
    """A copy of the data, changed; later overrides win. BadInput, with a near miss, for what has no place."""
    changed = deepcopy(dict(data))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise BadInput("-o", override, "must be key=value, such as fabrics.0.domains=8")
        try:
            value = parse_yaml(text)
        except YAML_ERRORS as error:
            raise BadInput(f"-o {key}", text, f"is not YAML: {yaml_error_message(error)}") from error
        path = _full_path(key.strip(), sections)
        _put(changed, path, value, f"-o {'.'.join(path)}")
    return changed


def _full_path(key: str, sections: Sections) -> list[str]:
    """The path that is meant: a first word that only one section's items have stands for all of them."""
    path = rename_path(key.split("."))
    if path[0] in sections:
        return path
    owners = [section for section, keys in sections.items() if path[0] in keys]
    if not owners:
        known = frozenset(sections).union(*sections.values())
        raise BadInput("-o", key, unknown_name_hint(path[0], known).replace("known", "a known key", 1))
    if len(owners) > 1:
        choices = " or ".join(f"{section}.*.{key}" for section in owners)
        raise BadInput("-o", key, f"may mean several things: write {choices}")
    return [owners[0], "*", *path]


def _put(container: Any, path: list[str], value: object, field: str) -> None:
    """Set what `path` leads to; missing keys and values on the way are made, missing list items are not."""
    step, rest = path[0], path[1:]
    if isinstance(container, list):
        for index in _indices(step, container, field):
            if rest:
                _put(container[index], rest, value, field)
            else:
                container[index] = deepcopy(value)
    elif isinstance(container, dict):
        if rest:
            if container.get(step) is None:
                container[step] = [] if rest[0] == "*" or rest[0].isdigit() else {}
            _put(container[step], rest, value, field)
        else:
            container[step] = deepcopy(value)
    else:
        raise BadInput(field, container, f"is a plain value: it has no {step!r} in it")


def _indices(step: str, items: list[Any], field: str) -> Iterable[int]:
    if not items:
        raise BadInput(field, MISSING, "to change: the list is empty")
    if step == "*":
        return range(len(items))
    if step.isascii() and step.isdigit() and int(step) < len(items):
        return [int(step)]
    raise BadInput(field, step, f"must be 0 to {len(items) - 1}, or * for all")
