"""Paths of files in a file of the user's: relative ones start at its folder, as those under `plugins` do.

A field of a model is such a path by its type, `InputPath` or `NameOrPath`. What is typed on a command line starts at
the working folder. Parsed, all are absolute: other processes, and a copy of the file elsewhere, mean the same file.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel

from railyard.core.config import is_path


@dataclass(frozen=True)
class _Mark:
    """Marks a field that is a path; with `or_name`, only where its text ends as that of a YAML or JSON file does."""

    or_name: bool = False

    def absolute(self, text: str, folder: str | Path = "") -> str:
        """Return the text as an absolute path, if it is one; a relative one starts at `folder`."""
        if self.or_name and not is_path(text):
            return text
        return os.path.abspath(Path(folder, text))  # noqa: PTH100 - a link stays the name that the user gave


_PATH = _Mark()
_NAME_OR_PATH = _Mark(or_name=True)
InputPath = Annotated[str, _PATH, AfterValidator(_PATH.absolute)]
NameOrPath = Annotated[str, _NAME_OR_PATH, AfterValidator(_NAME_OR_PATH.absolute)]
"""The name of a definition that comes with Railyard, or the path of a YAML or JSON file."""
Models = Callable[[Mapping[Any, Any]], Iterable[type[BaseModel]]]


def _marks_of(model: type[BaseModel]) -> dict[str, _Mark]:
    """Return the fields of a model that are paths, also those that may be None instead."""
    marks = {}
    for name, field in model.model_fields.items():
        alternatives = [get_args(alternative)[1:] for alternative in get_args(field.annotation)]
        for annotation in chain(field.metadata, *alternatives):
            if isinstance(annotation, _Mark):
                marks[name] = annotation
    return marks


def from_folder(data: Any, folder: Path, models: Models) -> Any:
    """Return the data of a file in `folder` with absolute paths.

    `models`: those that a mapping may be for.
    """
    if isinstance(data, list):
        return [from_folder(item, folder, models) for item in data]
    if not isinstance(data, dict):
        return data
    marks: dict[str, _Mark] = {}
    for model in models(data):
        marks |= _marks_of(model)
    changed = {}
    for key, value in data.items():
        mark = marks.get(key)
        is_text = mark is not None and isinstance(value, str) and value
        changed[key] = mark.absolute(value, folder) if mark and is_text else from_folder(value, folder, models)
    return changed
