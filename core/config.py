"""Configuration files in YAML: reading, strict checks, and each mistake as field, value, and what is allowed."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.safe_files import decoded, read_input
from railyard.core.units import format_time

# PyYAML takes a few seconds for so much; a placement of 65,536 ranks fits
MAX_YAML_BYTES: Final = 2**20
MAX_YAML_CHARACTERS: Final = 4 * MAX_YAML_BYTES
MAX_YAML_DEPTH: Final = 50
# with what is put around it, such a name fits in the name of a file
MAX_NAME: Final = 64

Items = TypeVar("Items", bound=tuple[float, ...] | None)


class ConfigModel(BaseModel):
    """Base of everything that is read from a file: unknown keys are refused, and values don't change later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, data: object) -> object:
        # before pydantic's check, which doesn't know near misses
        refuse_unknown_keys(data, cls.model_fields)
        return data


def refuse_unknown_keys(data: object, allowed_keys: Iterable[str]) -> None:
    """Raise a pydantic error that names every unknown key of a mapping."""
    if not isinstance(data, Mapping):
        return
    names = list(allowed_keys)
    lines: list[tuple[str, object, str]] = []
    for key, value in data.items():
        if key not in names:
            allowed = unknown_name_hint(str(key), names).replace("known", "a known key", 1)
            lines.append((str(key), value, allowed))
    if lines:
        raise PydanticCustomError("of_fields", "unknown keys", {"lines": lines})


def field_error(field: str, value: object, allowed: str) -> PydanticCustomError:
    """Return an error that names the wrong one of several fields, where a ValueError would name them all."""
    return PydanticCustomError("of_fields", "a wrong field", {"lines": [(field, value, allowed)]})


def check_unique(numbers: Items) -> Items:
    """Return numbers of a key; ValueError if one is given twice."""
    if numbers is not None and len(set(numbers)) < len(numbers):
        raise ValueError("must name each once")
    return numbers


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False)]
"""Of an experiment's fabrics, counted from 0."""


class OnFabrics(ConfigModel):
    """Base of what may be for some of an experiment's fabrics alone: those whose numbers are in `on`."""

    on: Numbers | None = None

    @model_validator(mode="before")
    @classmethod
    def _restore_on_key(cls, data: object) -> object:
        """Rename the key `on`, which YAML 1.1 reads as true."""
        if not isinstance(data, dict):
            return data
        return {"on" if key is True else key: value for key, value in data.items()}

    def is_on(self, number: int) -> bool:
        """Return whether it is for the fabric with this number."""
        return self.on is None or number in self.on


def _plain(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError("must be lower-case letters, digits and single hyphens between them")
    if len(name) > MAX_NAME:
        raise ValueError(f"has {len(name):,} characters: a name has {MAX_NAME} or fewer")
    return name


PlainName = Annotated[str, AfterValidator(_plain)]  # a name that becomes part of a label or a folder's name


def check_numbers(on: tuple[int, ...] | None, fabrics: int, field: str) -> None:
    """Raise BadInput for a number that no fabric has, or that is given twice.

    `fabrics`: how many there are.
    """
    for number in on or ():
        if number >= fabrics:
            raise BadInput(field, number, f"is no fabric: the experiment has {fabrics}, counted from 0")
    if len(set(on or ())) < len(on or ()):
        raise BadInput(field, list(on or ()), "must name each fabric once")


def is_path(name: str) -> bool:
    """Return whether a name is that of a YAML or JSON file."""
    return name.endswith((".yaml", ".yml", ".json"))


def read_yaml(path: Path, field: str, written: str = "") -> object:
    """The file's plain data. BadInput names the field that gave the path, and the path as it was `written`."""
    written = written or str(path)
    content = read_input(path, field, MAX_YAML_BYTES, written)
    try:
        return parse_yaml(decoded(content), field, written)
    except UnicodeDecodeError as error:
        raise BadInput(field, written, "is not text in UTF-8") from error


def parse_yaml(text: str, field: str, written: str = "") -> object:
    """Plain data, as `yaml.safe_load` makes it, but no key may be given twice. BadInput names the field, and the line
    if there are several; `written`: the file, where the text is not what the user gave.
    """
    try:
        return yaml.load(text, _Loader)
    except UnicodeEncodeError as error:
        # halves of surrogate pairs
        raise BadInput(field, written or text, "is not YAML: it can't be encoded in UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadInput(field, written or text, f"is not YAML: {where}{problem}") from error


_CParser: Any = getattr(yaml.cyaml, "CParser", None) if yaml.__with_libyaml__ else None
_BASES: Any = (Composer, _CParser, SafeConstructor, Resolver) if _CParser else (yaml.SafeLoader,)


class _Loader(*_BASES):  # type: ignore[misc]  # the bases depend on the machine
    """YAML with bounds, checked before anything is built of it.

    PyYAML itself takes the last of several values of a key, where YAML 1.2 (section 3.2.1.3) allows one.
    """

    def __init__(self, text: str) -> None:
        # PyYAML's C part, where it is installed, finds the events of which nodes are composed here: a file is read in a
        # quarter of the time
        if _CParser:
            _CParser.__init__(self, text)
            for base in (Composer, SafeConstructor, Resolver):
                base.__init__(self)
        else:
            super().__init__(text)
        # Characters of nodes, aliases spelled out. A file of a kilobyte can stand for terabytes, since an alias may
        # repeat a list of aliases.
        self._sizes: dict[yaml.Node, int] = {}
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        event = self.peek_event()
        mark = event.start_mark
        self._depth += 1
        if self._depth > MAX_YAML_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"is nested deeper than {MAX_YAML_DEPTH}", problem_mark=mark)
        node = cast(yaml.Node, super().compose_node(parent, index))
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            # a mapping's value lists pairs of nodes, a sequence's nodes, and a scalar's characters
            size = 1
            for item in node.value:
                parts = item if isinstance(item, tuple) else (item,)
                size += sum(self._sizes.get(part, 1) for part in parts)
            self._sizes[node] = size
        elif node not in self._sizes:
            raise yaml.MarkedYAMLError(problem="an alias is part of what it stands for", problem_mark=mark)
        if self._sizes[node] > MAX_YAML_CHARACTERS:
            problem = f"has more than {MAX_YAML_CHARACTERS:,} characters, aliases spelled out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in names:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            if name:
                names.add(name)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            # PyYAML lets many kinds through: !!bool foo, !!int '', 2020-13-01
            tag = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(problem=f"is no {tag}", problem_mark=node.start_mark) from error
        if isinstance(value, int) and abs(value) >= 2**64:
            raise yaml.MarkedYAMLError(problem="a number is 2^64 or more", problem_mark=node.start_mark)
        if isinstance(value, str) and not value.replace("\n", "").replace("\t", "").isprintable():
            raise yaml.MarkedYAMLError(problem="has a control character", problem_mark=node.start_mark)
        return value


_INT_TAG: Final = "tag:yaml.org,2002:int"
_FLOAT_TAG: Final = "tag:yaml.org,2002:float"
_INT: Final = re.compile(r"^(?:[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+)$")
_FLOAT: Final = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    return int(text, 16 if text.startswith("0x") else 10)


def _read_numbers_as_yaml_1_2(loader: Any) -> None:
    """Let 1e4 be a number, 010 be ten and 1:30 be text, as in YAML 1.2.

    PyYAML is a reader of YAML 1.1, to which these are text, eight and ninety. Two readings of 1.1 stay, as none is a
    trap: 1_000 is a thousand, and `yes`, `no`, `on` and `off` are true and false.
    """
    kept: dict[Any, list[tuple[str, re.Pattern[str]]]] = {}
    for first, resolvers in loader.yaml_implicit_resolvers.items():
        kept[first] = [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT_TAG, _FLOAT_TAG)]
    loader.yaml_implicit_resolvers = kept
    loader.add_implicit_resolver(_INT_TAG, _INT, list("-+0123456789"))
    loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))
    loader.add_constructor(_INT_TAG, _construct_int)


_read_numbers_as_yaml_1_2(_Loader)


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that YAML 1.1 or 1.2 would read as something else: `yes`, `010`, `1e4`."""


_Dumper.add_implicit_resolver(_INT_TAG, _INT, list("-+0123456789"))
_Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))


def dump_yaml(data: object, **layout: Any) -> str:
    """Return plain data as YAML that `parse_yaml` reads as the same. `layout`: PyYAML's options."""
    return str(yaml.dump(data, Dumper=_Dumper, **{"sort_keys": False, **layout}))


class Problem(NamedTuple):
    """A value that can't be used: the field's path, the value given, and what is allowed."""

    field: str
    value: object
    allowed: str


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()  # stands for the value of a key that isn't there
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "must be {} or more"),
    "greater_than": ("gt", "must be above {}"),
    "less_than_equal": ("le", "must be {} or less"),
    "less_than": ("lt", "must be below {}"),
    "too_short": ("min_length", "must have {} or more"),
    "too_long": ("max_length", "must have {} or fewer"),
}
_TYPES: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
    "bool_type": "must be true or false",
    "string_type": "must be text",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type"), "must be keys and values"),
}


def find_problems(error: ValidationError, prefix: str = "") -> list[Problem]:
    """Everything that pydantic found, in the order of the fields; the branches of a union make one problem."""
    problems: dict[str, Problem] = {}
    for item in error.errors():
        # pydantic puts the branch of a union into the location; people write only the field's own path
        path = [str(p) for p in item["loc"] if not str(p).startswith(("function-", "literal[", "constrained-"))]
        if path[-1:] == ["[key]"]:
            # pydantic's mark where a key is wrong, and not what it stands for
            del path[-1]
        for new in _problems_of(dict(item), ".".join([*([prefix] if prefix else []), *path])):
            if old := problems.get(new.field):
                # `is not a rate: ...`, `is not known: allowed are auto` -> `...; or auto`
                more = new.allowed.rpartition("allowed are ")[2].removeprefix("must be ")
                new = old._replace(allowed=f"{old.allowed}; or {more}")
            problems[new.field] = new
    return list(problems.values())


def _problems_of(item: dict[str, Any], field: str) -> list[Problem]:
    kind = str(item["type"])
    context = item.get("ctx", {})
    value = item["input"]
    if kind == "of_fields":
        problems = []
        for key, key_value, allowed in context["lines"]:
            problems.append(Problem(f"{field}.{key}".lstrip("."), key_value, allowed))
        return problems
    if kind == "missing":
        return [Problem(field, MISSING, "given, but this key is needed")]
    if kind == "literal_error":
        allowed = unknown_name_hint(str(value), re.findall(r"'([^']*)'", context["expected"]))
    elif kind in _BOUNDS:
        name, template = _BOUNDS[kind]
        bound = context[name]
        # of values with a unit, only times have bounds
        if isinstance(value, str):
            bound = format_time(bound)
        allowed = template.format(bound)
    elif kind == "string_type" and value is not None and not isinstance(value, list | dict):
        allowed = "must be text: put it in quotes"
    else:
        message = str(item["msg"]).removeprefix("Value error, ")
        allowed = _TYPES.get(kind, message[:1].lower() + message[1:])
    return [Problem(field, value, allowed)]


T = TypeVar("T", bound=BaseModel)


def parse_by_kind(data: object, kinds: Mapping[str, type[T]], field: str) -> T:
    """Return the model of the `kind` among the data. BadInput names the first wrong field, below `field`."""
    if not isinstance(data, Mapping):
        raise BadInput(field, data, "must be keys and values")
    # the kind is checked first, so that all other messages are about the one that was meant
    kind = data.get("kind", MISSING)
    if not isinstance(kind, str) or kind not in kinds:
        raise BadInput(f"{field}.kind", kind, unknown_name_hint(str(kind), kinds))
    return parse_model(kinds[kind], data, field)


def parse_model(model: type[T], data: object, field: str = "") -> T:
    """Return the model of plain data. BadInput names the first wrong field, below `field`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, field)[0]) from error
