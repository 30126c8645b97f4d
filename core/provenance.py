"""Provenance of a run's figures: the machine, programs and libraries, and the project's commit."""

import subprocess
from importlib import metadata
from typing import Any, Final

from railyard.core import plugins
from railyard.core.host import PROJECT, Machine

LIBRARIES: Final = ("mininet", "os-ken", "pyroute2", "numpy", "pandas", "pyarrow", "pydantic", "matplotlib", "psutil")


def provenance(machine: Machine, datapath: str, reason: str, frames_per_s: float, seed: int) -> dict[str, Any]:
    """Plain data for provenance.json. `frames_per_s`: what the machine was measured to carry."""
    return {
        "kernel": machine.kernel,
        "cpu": machine.cpu_model,
        "cores": machine.cores,
        "root": machine.root,
        "ovs": machine.ovs_version,
        "datapath": datapath,
        "datapath_why": reason,
        "frames_per_s": round(frames_per_s),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "seed": seed,
        "plugins": {str(plugin.path): plugin.sha256 for plugin in plugins.loaded()},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain")),
    }


def _git(*arguments: str) -> str:
    """What git says, or nothing where this isn't a checkout (or is another user's)."""
    command = ["git", "-c", f"safe.directory={PROJECT}", "-C", str(PROJECT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
