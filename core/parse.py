"""Reading one of several kinds of thing from plain data."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from railyard.core.config import MISSING, ConfigModel, find_problems
from railyard.core.errors import BadInput, unknown_name_hint

T = TypeVar("T", bound=ConfigModel)


def parse_by_kind(data: object, kinds: Mapping[str, type[T]], field: str) -> T:
    """What the `kind` among the data says. BadInput names the first field that is wrong, below `field`.

    The kind is looked at first, so that all other messages are about the one kind that was meant.
    """
    if not isinstance(data, Mapping):
        raise BadInput(field, data, "must be keys and values")
    kind = data.get("kind", MISSING)
    if not isinstance(kind, str) or kind not in kinds:
        raise BadInput(f"{field}.kind", kind, unknown_name_hint(str(kind), kinds))
    try:
        return kinds[kind].model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, field)[0]) from error
