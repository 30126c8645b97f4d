"""Agents that Dask workers start: the machines of a cluster join a run, as those with an agent do."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from railyard.core.errors import MissingRequirement
from railyard.core.installation import program_command, python_extra
from railyard.core.remote import TOKEN_VARIABLE
from railyard.core.sandbox.launcher import die_with_parent
from railyard.core.units import format_time
from railyard.core.wait import poll
from railyard.experiments.spec.experiment import ExperimentSpec

if TYPE_CHECKING:
    from railyard.experiments.sweep.cluster import Cluster
    from railyard.experiments.sweep.keys import Keys

END_S: Final = 10.0  # for an agent to end after its run


@contextmanager
def agents(on: str, keys: "Keys | None", spec: ExperimentSpec, join: str, token: str) -> Iterator[None]:
    """Let workers on other machines start an agent each, which joins at `join`. MissingRequirement for too few.

    `keys`: those of the Dask scheduler; None for those of Dask's configuration, or none.
    """
    # this import loads Dask, which takes a second
    from railyard.experiments.sweep.cluster import ASK_EVERY_S, Cluster

    cluster = Cluster(on, keys)
    try:
        needed = spec.machine_count - 1
        # workers may be starting
        poll(lambda: len(_others(cluster, spec)) >= needed, spec.underlay.wait, ASK_EVERY_S)
        other_machines = _others(cluster, spec)
        if len(other_machines) < needed:
            counted = f"{len(other_machines)} other machines"
            if isinstance(spec.hosts, tuple):
                counted += f" of {', '.join(spec.hosts[1:])}"
            problem = f"--on: {on} has workers on {counted}, and hosts needs {needed}"
            raise MissingRequirement(problem, "start a worker on each of the others")
        wait = format_time(spec.underlay.wait)
        runs: list[Any] = []
        for name, worker_name in islice(other_machines.items(), needed):
            runs.append(cluster.start(name, execute, join, worker_name, token, wait))
        yield
        for run in runs:
            if line := run.result(END_S):
                print(line, file=sys.stderr)
    finally:
        cluster.close()


def require() -> None:
    """Raise MissingRequirement if Dask isn't installed."""
    if find_spec("distributed") is None:
        raise MissingRequirement("--on: this machine lacks Dask's package distributed", python_extra("cluster"))


def _others(cluster: "Cluster", spec: ExperimentSpec) -> dict[str, str]:
    """Return the other machines that may take part now, each with the name of its worker."""
    from railyard.experiments.sweep.machine import identify

    machine_names = cluster.names()
    own_machine = identify()["machine"]
    named = cluster.worker_names()
    other_machines: dict[str, str] = {}
    for machine_name in machine_names:
        worker_name = named[machine_name]
        is_asked_for = not isinstance(spec.hosts, tuple) or worker_name in spec.hosts[1:]
        if machine_name != own_machine and is_asked_for:
            other_machines[machine_name] = worker_name
    return other_machines


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
