"""Specification of a sweep: an experiment, axes of it with their values, and one cell for each combination.

    axes: {fabrics.*.rail_rate: [20Mbit, 40Mbit], domains: [2, 4, 8], seed: [1, 2, 3]}
    zip: true                     the first values of all axes together, then the second ones; not every combination
    where: domains * rails <= 16  leave the other combinations out; an axis is called by the last word of its key

A cell is a resolved experiment. Its name is a hash of that, so that it is the same in every sweep of the experiment.
"""

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any, Final, cast

from railyard.core.config import parse_yaml
from railyard.core.errors import BadInput
from railyard.core.plugins import copies
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec

KEYS: Final = ("axes", "zip", "where")  # of a sweep's YAML, beside those of its experiment
MAX_RUNS: Final = 10_000
SEED: Final = "seed"
_OPERATORS: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda x, y: x in y, ast.NotIn: lambda x, y: x not in y,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A run of a sweep: the value of each axis, and the resolved experiment. `plugins`: their sources, by path."""

    axes: dict[str, Any]
    spec: dict[str, Any]
    plugins: dict[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its folder: a hash of the resolved experiment and its plugins."""
        return cell_name(self.spec, self.plugins)

    @property
    def label(self) -> str:
        """The values of its axes as text."""
        return ", ".join(f"{key}={value}" for key, value in self.axes.items())


def cell_name(spec: Mapping[str, Any], plugins: Mapping[str, bytes] | None = None) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a resolved experiment, and of its plugins if it has any."""
    digest = sha256(json.dumps(spec, sort_keys=True).encode())
    for name, source in sorted((plugins or {}).items()):
        digest.update(f"{name} {len(source)} ".encode() + source)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Sweep:
    """A sweep: the experiment as it was written, without the keys of sweeps, and the cells in their order."""

    name: str
    experiment: dict[str, Any]
    axes: dict[str, list[Any]]
    cells: tuple[Cell, ...]
    zipped: bool = False
    where: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for sweep.yaml."""
        runs = [{"folder": cell.name, "axes": cell.axes} for cell in self.cells]
        sweep_keys = {"axes": self.axes, "zip": self.zipped, "where": self.where}
        return {"name": self.name, **sweep_keys, "experiment": self.experiment, "runs": runs}


def load(
    name_or_file: str,
    overrides: Sequence[str] = (),
    axes: Sequence[str] = (),
    seeds: str = "",
    zipped: bool = False,
    where: str = "",
) -> Sweep:
    """Return a sweep of a named experiment or a YAML file. Axes of the command line are added to those of the file.

    BadInput if an axis or a value can't be used, before anything runs.
    """
    data = loading.read(name_or_file)
    sweep_keys = {key: data.pop(key, None) for key in KEYS}
    if not isinstance(sweep_keys["zip"], bool | None):
        raise BadInput("zip", sweep_keys["zip"], "must be true or false")
    if not isinstance(sweep_keys["where"], str | None):
        raise BadInput("where", sweep_keys["where"], "must be an expression, such as domains * rails <= 16")
    # plugins come before overrides, which may have keys of their definitions
    loading.load_plugins(data, name_or_file)
    data = loading.apply(loading.from_folder_of(name_or_file, data), overrides)
    given_axes = list(map(_axis, axes))
    if seeds:
        given_axes.append((SEED, _seeds(seeds)))
    for key, count in Counter(key for key, _ in given_axes).items():
        if count > 1:
            raise BadInput("--axis", key, "is given twice: all values of an axis at once, such as domains=2,4,8")
    values_by_axis = dict(_axes_of_file(sweep_keys["axes"])) | dict(given_axes)
    if not values_by_axis:
        raise BadInput("--axis", "", "is missing: a sweep needs axes, such as --axis domains=2,4,8 or --seeds 1..5")
    zipped = zipped or bool(sweep_keys["zip"])
    where = where or sweep_keys["where"] or ""
    for key, values in values_by_axis.items():
        _check_values(key, values)
    cells = tuple(_cells(data, name_or_file, values_by_axis, zipped, where))
    spec_name = str(cells[0].spec["name"])
    return Sweep(spec_name, data, values_by_axis, cells, zipped, where)


def _axes_of_file(axes: object) -> Iterator[tuple[str, list[Any]]]:
    if axes is None:
        return
    if not isinstance(axes, dict):
        raise BadInput("axes", axes, "must be keys with lists of values, such as {domains: [2, 4]}")
    for key, values in axes.items():
        if not isinstance(key, str) or not isinstance(values, list):
            raise BadInput(f"axes.{key}", values, "must be a list of values, such as [2, 4]")
        yield key, values


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise BadInput("--axis", text, "must be KEY=V1,V2,..., such as domains=2,4,8")
    axis_values = cast(list[Any], parse_yaml(f"[{values}]", f"--axis {key}"))
    return key.strip(), axis_values


def _seeds(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last) + 1) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    # a range can have more values than len() can count
    if not seeds or seeds[MAX_RUNS:]:
        allowed = f"must be a range, such as 1..5, or a list, such as 1,3,7, of {MAX_RUNS:,} seeds or fewer"
        raise BadInput("--seeds", text, allowed)
    return list(seeds)


def _check_values(key: str, values: list[Any]) -> None:
    if not values:
        raise BadInput(f"axis {key}", values, "must have one value or more")
    # checked first, since each value is then compared with all others
    if len(values) > MAX_RUNS:
        raise BadInput(f"axis {key}", f"{len(values):,} values", f"must be {MAX_RUNS:,} or fewer")
    checked_values = list[Any]()
    for value in values:
        if value in checked_values and type(value) is type(checked_values[checked_values.index(value)]):
            raise BadInput(f"axis {key}", value, "is there twice: each value once")
        checked_values.append(value)


def _cells(
    data: dict[str, Any], name_or_file: str, axes: dict[str, list[Any]], zipped: bool, where: str
) -> Iterator[Cell]:
    """Yield the cell of each combination that `where` doesn't leave out. BadInput if two of them are the same."""
    lengths = {key: len(values) for key, values in axes.items()}
    if zipped and len(set(lengths.values())) > 1:
        raise BadInput("zip", lengths, "needs axes with equally many values")
    number = min(lengths.values()) if zipped else prod(lengths.values())
    if number > MAX_RUNS:
        raise BadInput("axes", f"{number:,} combinations", f"must be {MAX_RUNS:,} or fewer")
    condition = _Condition(where, axes) if where else None
    cells_by_name: dict[str, Cell] = {}
    for values in zip(*axes.values(), strict=True) if zipped else product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        if condition and not condition.holds(chosen):
            continue
        cell = Cell(chosen, _resolved(data, name_or_file, chosen), copies())
        if other := cells_by_name.get(cell.name):
            key = next(key for key in axes if other.axes[key] != chosen[key])
            raise BadInput(f"axis {key}", chosen[key], f"makes the same run as {other.axes[key]!r}: each value once")
        cells_by_name[cell.name] = cell
        yield cell
    if not cells_by_name:
        raise BadInput("where", where, "leaves no combination")


def _resolved(data: dict[str, Any], name_or_file: str, values: Mapping[str, Any]) -> dict[str, Any]:
    overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in values.items()]
    hosts = values.get("hosts", data.get("hosts", 1))
    # checked first: else a message would ask for the keys that several machines need
    if hosts != 1:
        raise BadInput("hosts", hosts, "is for run: a run of a sweep is on one machine")
    try:
        spec: ExperimentSpec = loading.make(data, name_or_file, overrides)
    except BadInput as error:
        error.args = (re.sub("^-o(?=[ :])", "axis", str(error)),)
        raise
    return spec.resolved()


class _Condition:
    """The expression `where`: comparisons, arithmetic, and, or, not, in, on axes by the last word of their keys."""

    def __init__(self, text: str, axes: Mapping[str, Any]) -> None:
        self._text = text
        self._names = {key.rpartition(".")[2]: key for key in axes}
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadInput("where", text, "is no expression, such as domains * rails <= 16") from error

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether it is true for these values of the axes. BadInput if it can't be computed."""
        try:
            return bool(self._value(self._tree, values))
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as error:  # ValueError: a number too long to show
            raise BadInput("where", self._text, f"can't be computed: {error}") from error

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return node.value
            case ast.Name() if node.id in self._names:
                return values[self._names[node.id]]
            case ast.List() | ast.Tuple():
                return [self._value(part, values) for part in node.elts]
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, values)
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand, values)
            case ast.BoolOp(op=ast.And()):
                return all(self._value(part, values) for part in node.values)
            case ast.BoolOp():
                return any(self._value(part, values) for part in node.values)
            case ast.BinOp() if type(node.op) in _OPERATORS:
                left = self._value(node.left, values)
                right = self._value(node.right, values)
                return _computed(node.op, left, right)
            case ast.Compare() if all(type(op) in _OPERATORS for op in node.ops):
                return _compared(node.ops, [self._value(part, values) for part in (node.left, *node.comparators)])
        allowed = f"may have {', '.join(self._names)}, numbers, text, + - * / %, comparisons, and, or, not, in"
        raise BadInput("where", self._text, allowed)


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of arithmetic. TypeError unless both are numbers: Python computes with texts and lists, too."""
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise TypeError(f"{left!r} and {right!r} are not both numbers")
    return _OPERATORS[type(operator)](left, right)


def _compared(operators: Sequence[ast.cmpop], sides: Sequence[Any]) -> bool:
    """Return whether each comparison of a chain such as 2 <= x < 4 holds."""
    comparisons = zip(operators, sides, sides[1:], strict=False)
    return all(_OPERATORS[type(operator)](left, right) for operator, left, right in comparisons)
