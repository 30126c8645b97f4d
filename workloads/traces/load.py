"""Opening a trace: which files, which format, how many ranks."""

from collections.abc import Mapping
from pathlib import Path

from railyard.core.errors import BadInput
from railyard.workloads.traces.chakra import read_chakra, read_groups
from railyard.workloads.traces.common import Format, Trace
from railyard.workloads.traces.files import Files, parse_json, read_files
from railyard.workloads.traces.param import read_param
from railyard.workloads.traces.simai import read_simai


def load(
    path: str,
    format_: Format | None,
    groups: str | None,
    domains: int,
    rails: int,
    flops_per_s: float,
    field: str = "workload",
) -> Trace:
    """The trace at `path`, for a fabric of this shape. `groups`: a file of process groups, for Chakra.

    BadInput names a field below `field`, or the place in a file.
    """
    files = read_files(path, f"{field}.path")
    found = format_ or _format(files)
    if groups is not None and found != "chakra":
        raise BadInput(f"{field}.groups", groups, f"is only for Chakra: a {found} trace defines its groups itself")
    if found == "chakra":
        trace = read_chakra(files, _groups(groups, f"{field}.groups"))
    elif found == "param":
        trace = read_param(files, flops_per_s)
    elif files.shared:
        trace = read_simai(files, domains * rails, rails)
    else:
        raise BadInput(f"{field}.path", path, "must be one file: a SimAI workload is the same for all ranks")
    if len(trace.ranks) > domains * rails:
        fabric = f"{domains} domains x {rails} rails"
        raise BadInput(f"{field}.path", path, f"has {len(trace.ranks)} ranks, more than the {fabric} have GPUs")
    if len(trace.ranks) < 2:
        raise BadInput(f"{field}.path", path, "has one rank only, and nobody to send to")
    return trace


def _format(files: Files) -> Format:
    """By the suffix; JSON by what is in its first entry."""
    suffix = Path(files.names[0]).suffix
    if suffix == ".et":
        return "chakra"
    if suffix != ".json":
        return "simai"
    content = files.content[0]
    if not content.lstrip().startswith(b"["):
        return "chakra"
    data = parse_json(content, files.names[0])
    first = data[0] if data else None
    return "param" if not isinstance(first, Mapping) or {"comms", "compute"} & set(first) else "chakra"


def _groups(path: str | None, field: str) -> dict[str, tuple[int, ...]]:
    if path is None:
        return {}
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(field, path, f"can't be read: {reason}") from error
    return read_groups(content, Path(path).name)
