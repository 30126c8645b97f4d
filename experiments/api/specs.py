"""Specifications as a script writes them: a fabric with its keys as arguments, and a constructor for each workload."""

import re
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from railyard.core import plugins
from railyard.core.config import find_problems
from railyard.core.errors import BadInput
from railyard.topologies import spec
from railyard.workloads.collectives.algorithm import collectives
from railyard.workloads.spec import WORKLOADS, Workload, parse_workload

COLLECTIVE = "collective"


class FabricSpec(spec.FabricSpec):
    """A fabric of `domains` HB domains with `rails` GPUs each; docs/topologies.md describes all keys.

    Rates are per GPU and direction: bit/s, text such as "100Mbit", or "auto". BadInput names the first wrong key.
    """

    def __init__(
        self,
        *,
        kind: str = "rail-only",
        domains: int = 4,
        rails: int = 4,
        platform: str = "a100",
        rail_rate: int | str = "auto",
        hb_rate: int | str = "auto",
        mtu: int = 9000,
        spines: int | None = None,
        oversubscription: float | None = None,
        policy: str | None = None,
        optical: dict[str, Any] | None = None,
        gpus_per_nic: int | None = None,
        nics: tuple[int, ...] | None = None,
    ) -> None:
        arguments = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            raise BadInput(*find_problems(error)[0]) from error


def load_plugin(file: str | PathLike[str]) -> None:
    """Load a Python file with definitions, here and in all processes that are started later.

    BadInput names the file, and the line at fault. A file that is loaded already is not loaded again.
    """
    try:
        path = Path(file)
    except TypeError:
        raise BadInput("file", file, "must be the path of a Python file") from None
    plugins.load(path, "file")


def class_name(name: str) -> str:
    """Return the Python name of a registered name: `all-to-all` is AllToAll."""
    return "".join(word.capitalize() for word in re.split(r"[^0-9A-Za-z]+", name))


def workload_names() -> dict[str, dict[str, str]]:
    """Return the keys that select each workload, by its Python name: every kind, and every collective."""
    workloads = {class_name(name): {"kind": COLLECTIVE, COLLECTIVE: name} for name in collectives()}
    return workloads | {class_name(name): {"kind": name} for name in WORKLOADS}


def workload(name: str) -> Callable[..., Workload]:
    """Return the constructor of a workload by its Python name, whose arguments are the workload's keys in YAML.

    AttributeError for another name. The constructor raises BadInput, which names the first wrong key.
    """
    chosen = workload_names().get(name)
    if chosen is None:
        raise AttributeError(f"module 'railyard' has no attribute {name!r}")

    def make(**keys: Any) -> Workload:
        try:
            return parse_workload({**chosen, **keys}, name)
        except BadInput as error:
            raise BadInput(error.field.removeprefix(f"{name}."), error.value, error.allowed) from error

    kind = WORKLOADS[chosen["kind"]]
    make.__name__ = make.__qualname__ = name
    make.__doc__ = kind.__doc__
    make.__signature__ = Signature(list(_parameters(kind, chosen)))  # type: ignore[attr-defined]
    return make


def _parameters(kind: type[Workload], chosen: dict[str, str]) -> Iterator[Parameter]:
    for key, field in kind.model_fields.items():
        if key not in chosen:
            default = Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
            yield Parameter(key, Parameter.KEYWORD_ONLY, default=default)
