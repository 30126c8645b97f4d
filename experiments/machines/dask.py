"""Agents that Dask workers start: the machines of a cluster join a run, as those with an agent do."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from railyard.core.errors import MissingRequirement
from railyard.core.installation import program_command, python_extra
from railyard.core.remote import TOKEN_VARIABLE
from railyard.core.sandbox.launcher import die_with_parent
from railyard.core.units import format_time
from railyard.experiments.spec.experiment import ExperimentSpec

END_S: Final = 10.0  # for an agent to end after its run


@contextmanager
def agents(on: str, spec: ExperimentSpec, join: str, token: str) -> Iterator[None]:
    """Let workers on other machines start an agent each, which joins at `join`. MissingRequirement for too few."""
    if find_spec("distributed") is None:
        raise MissingRequirement("--on: this machine lacks Dask's package distributed", python_extra("cluster"))
    from railyard.experiments.sweep.cluster import Cluster  # Dask takes a second to load
    from railyard.experiments.sweep.machine import identify

    cluster = Cluster(on)
    try:
        others = [name for name in cluster.names() if name != identify()["machine"]]
        named = cluster.worker_names()
        if isinstance(spec.hosts, tuple):
            others = [name for name in others if named[name] in spec.hosts[1:]]
        needed = spec.machine_count - 1
        if len(others) < needed:
            wanted = f" of {', '.join(spec.hosts[1:])}" if isinstance(spec.hosts, tuple) else ""
            what = f"--on: {on} has workers on {len(others)} other machines{wanted}, and hosts needs {needed}"
            raise MissingRequirement(what, "start a worker on each of the others")
        wait = format_time(spec.underlay.wait)
        runs = [cluster.start(name, execute, join, named[name], token, wait) for name in others[:needed]]
        yield
        for run in runs:
            if line := run.result(END_S):
                print(line, file=sys.stderr)
    finally:
        cluster.close()


def ensure_token() -> None:
    """Make a token for this run, unless there is one."""
    os.environ.setdefault(TOKEN_VARIABLE, secrets.token_hex(16))


def execute(join: str, name: str, token: str, wait: str) -> str:
    """Run an agent on the machine of a Dask worker, for one run; return its last line if it failed.

    It dies with the worker, and ends if no run is there in time.
    """
    process = subprocess.run(
        program_command("agent", "--join", join, "--name", name, "--once", "--within", wait),
        env={**os.environ, TOKEN_VARIABLE: token},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
        check=False,
    )
    lines: list[Any] = process.stderr.decode(errors="replace").strip().splitlines()
    return f"{name}: {lines[-1]}" if process.returncode and lines else ""
