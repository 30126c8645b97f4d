"""Notebooks, run cell by cell in a kernel of their own."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

nbclient: Final = pytest.importorskip("nbclient", reason="nbclient is missing: script/bootstrap")
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")  # IPython sets FORCE_COLOR


@contextmanager
def kernel(notebook: Any, folder: Path, cell_s: float) -> Iterator[Any]:
    """Start a kernel in a folder, and yield the client whose `execute_cell` runs a cell of the notebook."""
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=cell_s, allow_errors=True, resources=resources)
    with tempfile.TemporaryDirectory(prefix="ipc-") as sockets:  # their paths can't be long
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{sockets}/kernel"  # a test's network namespace has no loopback
        with client.setup_kernel():
            yield client


def code_cells(notebook: Any) -> list[tuple[Any, int]]:
    """Return the cells that run, each with its number: the arguments of `execute_cell`."""
    return [(cell, n) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def printed_by(cell: Any) -> str:
    """Return what a cell wrote to stdout and stderr."""
    return _COLOUR.sub("", "".join(output.get("text", "") for output in cell.outputs))


def errors_of(cell: Any) -> list[str]:
    """Return the exceptions that ended a cell."""
    return [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]
