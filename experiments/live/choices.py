"""Named workloads, background loads and policies that the live page offers to start, each as text in YAML.

They come from the experiment and from the registries, so a plugin's are among them. A text is a start to be edited: it
is checked against the fabric when it is started.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.config import dump_yaml
from railyard.core.errors import RailyardError
from railyard.workloads.background.spec import BACKGROUNDS
from railyard.workloads.collectives.algorithm import algorithms_of, collectives
from railyard.workloads.spec import WORKLOADS, parse_workload

DURATION: Final = "10s"
LOAD: Final = 0.5
_LOADED: Final = ([0], True)  # values that a kind of background may take: numbers of its elements, or whether
_OWN: Final = "of the experiment: "

Choices = dict[str, dict[str, str]]


def policies() -> tuple[str, ...]:
    """Return the health-routing policies that the page offers: those that need not know the load in advance."""
    return tuple(name for name, policy in HEALTH_POLICIES.items() if not policy.knows_load)


def choices(experiment: Mapping[str, Any]) -> Choices:
    """Return what can be started, by `workload`, `background` and `policy`: texts by their names."""
    return {
        "workload": dict(_workloads(experiment.get("workloads") or [])),
        "background": dict(_backgrounds(experiment.get("background") or [])),
        "policy": {name: name for name in policies()},
    }


def _workloads(names: list[Any]) -> Iterator[tuple[str, str]]:
    for data in names:
        label = _label(data)
        if label:
            yield _OWN + label, _text(data)
    for collective in collectives():
        for algorithm in algorithms_of(collective):
            data = {"kind": "collective", "collective": collective, "algorithm": algorithm, "duration": DURATION}
            yield f"{collective}, {algorithm}", _text(data)
    for kind in WORKLOADS.names():
        data = {"kind": kind, "duration": DURATION}
        if _label(data):
            yield kind, _text(data)


def _label(data: Any) -> str:
    """Return the name of a workload in results; empty if it is none that a fabric of GPUs can replay."""
    try:
        return parse_workload(data).result_name
    except RailyardError:
        return ""


def _backgrounds(names: list[Any]) -> Iterator[tuple[str, str]]:
    for number, data in enumerate(names):
        yield f"{_OWN}load {number + 1}", _text(data)
    for name, kind in BACKGROUNDS.items():
        for value in _LOADED:
            try:
                TypeAdapter(kind.value).validate_python(value)
            except ValidationError:
                continue
            shown = kind.text(tuple(value) if isinstance(value, list) else value)
            yield f"{shown} at {LOAD:.0%}", _text({name: value, "load": LOAD})


def _text(data: Any) -> str:
    """Return plain data as YAML; of a mapping, each key in a line of its own."""
    if not isinstance(data, dict):
        return _line(data)
    return "\n".join(f"{_line(key)}: {_line(value)}" for key, value in data.items())


def _line(data: Any) -> str:
    return dump_yaml(data, default_flow_style=True, width=10**6).partition("\n")[0]
