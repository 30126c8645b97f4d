"""Recordings of scripts, and their bytes: what the tests of `record` share."""

import json
from pathlib import Path
from typing import Any

from railyard.experiments import cli

SCRIPTS = Path(__file__).parents[4] / "training_scripts"
STARTED = "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\nrank = dist.get_rank()\n"


def record(*words: str) -> int:
    """Return the exit status of `record`."""
    return cli.main(["record", *words])


def trace_of(folder: Path) -> dict[str, Any]:
    """Return the trace in a folder."""
    data: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return data


def script(tmp_path: Path, text: str) -> str:
    """Write a script that goes on with `text` when its process group is there; return its path."""
    path = tmp_path / "train.py"
    path.write_text(STARTED + text)
    return str(path)


def bytes_by_operation(program: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Return the bytes of each kind of operation on each communicator."""
    totals: dict[tuple[str, str], int] = {}
    for operation in program["operations"]:
        if "communicator" in operation:
            key = (operation["communicator"], operation["op"])
            totals[key] = totals.get(key, 0) + operation.get("bytes", 0)
    return totals
