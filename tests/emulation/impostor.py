"""What an ordinary user may do to pass for a run, for test_live_access.py.

`python -m tests.emulation.impostor WAY TEXT`: in its namespaces there are a GPU d0g1, and an `ss` that says with which
privileges it was started.
"""

import os
import secrets
import select
import socket
import subprocess
import sys

from railyard.core.host import SEARCH_PATH, USER_NAMESPACE_OPTIONS
from railyard.core.sandbox.run_socket import RunSocket

NAMESPACES = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
ONE = ["unshare", *USER_NAMESPACE_OPTIONS, *NAMESPACES, "--net"]
# the host's network namespace is pinned as d0g1 before the process leaves it
PIN = (
    "mount -t tmpfs tmpfs /run && mkdir /run/netns && touch /run/netns/d0g1 && "
    "mount --bind /proc/self/ns/net /run/netns/d0g1"
)
SS = (
    "printf '#!/bin/sh\\nid -u\\ncat /proc/self/uid_map\\nls -d /proc/self/fd/*\\nenv\\n' >/run/ss && chmod 755 /run/ss"
)
OVER = "for ss in /bin/ss /usr/bin/ss /sbin/ss; do [ ! -e $ss ] || mount --bind /run/ss $ss; done"
READY = "echo ready; sleep 1000"
WAYS = {
    "variables": ([*ONE], f"{PIN} && {SS} && {OVER}; {READY}"),
    "listens": ([*ONE], f"{PIN} && {SS} && {OVER}; {READY}"),
    "claims-root": ([*ONE], f"{PIN} && {SS} && {OVER}; {READY}"),
    "nested": (["unshare", *USER_NAMESPACE_OPTIONS, *ONE], f"{PIN} && {SS} && {OVER}; {READY}"),
    "host-network": (["unshare", *USER_NAMESPACE_OPTIONS, *NAMESPACES], f"{PIN}; exec unshare --net sh -c '{READY}'"),
    "no-network": (["unshare", *USER_NAMESPACE_OPTIONS, *NAMESPACES], f"{PIN}; {READY}"),
    "symlink": ([*ONE], f"{PIN}; umount /run/netns/d0g1; ln -sf /proc/1/ns/net /run/netns/d0g1; {READY}"),
    "pipe": ([*ONE], f"{PIN}; umount /run/netns/d0g1; rm /run/netns/d0g1; mkfifo /run/netns/d0g1; {READY}"),
    "strange-names": ([*ONE], f"{PIN}; touch '/run/netns/d[/red]' \"$(printf '/run/netns/d\\033]0;x\\007')\"; {READY}"),
    "outside": ([*ONE], f"{PIN}; umount /run/netns/d0g1; rm -r /run/netns; ln -s $PLACE /run/netns; {READY}"),
}  # fmt: skip


class Claim(RunSocket):
    """A socket with the name of one of root's."""

    def __enter__(self) -> "Claim":
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0railyard/0/{secrets.token_hex(8)}")
        self._listener.listen(128)
        return self


def main(way: str, text: str) -> None:
    argv, script = WAYS[way]
    environment = {**os.environ, "PATH": SEARCH_PATH, "RAILYARD_SANDBOX": "1", "RAILYARD_RUN": text}
    with Claim(text) if way == "claims-root" else RunSocket("" if way == "variables" else text) as found:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv, "sh", "-c", script], env=environment)
        while process.poll() is None:
            if select.select(found.waiting, [], [], 0.1)[0]:
                found.answer()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
