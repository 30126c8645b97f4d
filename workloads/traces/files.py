"""A trace's files: one for all ranks, or one for each, found by the number before their suffix. Read, and no more."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from railyard.core.errors import BadInput

_RANKED: Final = re.compile(r"(?:(?P<stem>.+)\.)?(?:rank)?(?P<rank>0|[1-9][0-9]{0,5})\.(?P<suffix>et|json)")


@dataclass(frozen=True)
class Files:
    """`name`: what they have in common; `content`: of each rank's file in order, or of the one for all (`shared`)."""

    name: str
    names: tuple[str, ...]
    content: tuple[bytes, ...]
    shared: bool


def read_files(path: str, field: str) -> Files:
    """What `path` means: a file; a folder or a beginning (PATH.0.et, PATH.1.et, ...) of files that have a rank each.

    BadInput if there is nothing, more than one trace, or a rank between others that has no file.
    """
    given_path = Path(path)
    try:
        if given_path.is_file() and not _RANKED.fullmatch(given_path.name):
            return Files(given_path.stem, (given_path.name,), (given_path.read_bytes(),), shared=True)
        return _read_rank_files(given_path, field)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(field, path, f"can't be read: {reason}") from error


def is_trace_prefix(stem: str) -> bool:
    """Whether the working folder has a file such as STEM.0.et."""
    matches = (_RANKED.fullmatch(file.name) for file in Path().iterdir())
    return any(match["stem"] == stem for match in matches if match)


def _read_rank_files(given_path: Path, field: str) -> Files:
    folder = given_path if given_path.is_dir() else given_path.parent
    match = _RANKED.fullmatch(given_path.name)
    expected_stem = None if given_path.is_dir() else match["stem"] if match and given_path.exists() else given_path.name
    rank_files: defaultdict[tuple[str | None, str], dict[int, Path]] = defaultdict(dict)
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = _RANKED.fullmatch(file.name)
        if found and file.is_file() and (given_path.is_dir() or found["stem"] == expected_stem):
            rank_files[found["stem"], found["suffix"]][int(found["rank"])] = file
    if match and given_path.exists():
        rank_files = defaultdict(dict, {k: v for k, v in rank_files.items() if k[1] == match["suffix"]})
    if not rank_files:
        allowed = "is no trace: give a file, or a folder or the beginning of files such as NAME.0.et, NAME.1.et"
        raise BadInput(field, str(given_path), allowed)
    if len(rank_files) > 1:
        choices = ", ".join(sorted(f"{stem or ''}.*.{suffix}" for stem, suffix in rank_files))
        raise BadInput(field, str(given_path), f"has several traces: give the first file of one of {choices}")
    (stem, _), by_rank = next(iter(rank_files.items()))
    for rank in range(max(by_rank) + 1):
        if rank not in by_rank:
            raise BadInput(
                field, str(given_path), f"misses rank {rank}: there are files for ranks up to {max(by_rank)}"
            )
    paths = [by_rank[rank] for rank in range(len(by_rank))]
    content = tuple(file.read_bytes() for file in paths)
    return Files(stem or folder.resolve().name, tuple(file.name for file in paths), content, shared=False)


def trace_name(path: str) -> str:
    """What a trace is called, by its path alone: without folder, rank and suffix."""
    name = Path(path).name
    match = _RANKED.fullmatch(name)
    return (match["stem"] if match else Path(name).stem) or Path(path).resolve().parent.name


def parse_json(content: bytes, where: str) -> Any:
    """Plain data of a JSON file. BadInput says where it breaks off."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        location = f"line {error.lineno}, column {error.colno}"
        raise BadInput(where, location, f"is cut off or no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(where, "its content", "is no JSON in UTF-8") from error
