"""Start any program at a node of a fabric: in its network namespace, with the node's name as its host name."""

import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Final

from railyard.core.host import SEARCH_PATH
from railyard.core.sandbox.launcher import libc
from railyard.topologies.build import namespaces
from railyard.topologies.build.ovs import OVS_DIR

_CLONE_NEWUTS: Final = 0x04000000


def start(
    node: str,
    argv: Sequence[str],
    streams: "tuple[int | IO[bytes], int | IO[bytes], int | IO[bytes]]",
    environment: Mapping[str, str],
    cwd: str | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own;

    `streams`: its stdin, stdout and stderr, as of subprocess.Popen.

    PATH is extended by the system's folders, and ovs-vsctl finds the node's own switch. OSError as by Popen.
    """
    at = str(OVS_DIR / node)
    path = environment.get("PATH", "")
    variables = {**environment, "PATH": f"{path}{os.pathsep}{SEARCH_PATH}".strip(os.pathsep)}
    variables |= {"OVS_RUNDIR": at, "OVS_DBDIR": at}
    if not os.path.isdir(variables.get("TMPDIR", "/")):  # noqa: PTH112 - may be any text
        del variables["TMPDIR"]
    outcome: list[subprocess.Popen[bytes] | BaseException] = []

    def in_namespaces() -> None:
        try:
            namespaces.enter(node)
            libc.unshare(_CLONE_NEWUTS)
            socket.sethostname(node)
            stdin, stdout, stderr = streams
            process = subprocess.Popen(
                argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=variables, start_new_session=True
            )
            outcome.append(process)
        except BaseException as error:
            outcome.append(error)

    # its namespaces end with it
    thread = threading.Thread(target=in_namespaces)
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
