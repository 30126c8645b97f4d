"""Opening of a live page before the sandbox starts: the socket on the machine's loopback that the sandbox inherits."""

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.safe_files import Folder
from railyard.experiments.live.access import HOST, diagnosis_socket, owner_of
from railyard.experiments.run.folder import reporting_path_errors


@dataclass(frozen=True)
class OpenedPage:
    """Parts that a sandbox needs to serve a page (page.py): its `task`, None without a page, open files, its URL."""

    task: dict[str, Any] | None = None
    fds: tuple[int, ...] = ()
    url: str = ""

    @property
    def extensions(self) -> dict[str, dict[str, Any]]:
        """Tasks of the extensions that the sandbox loads (run/sandboxed.py): the page, if there is one."""
        return {"railyard.experiments.live.page": self.task} if self.task else {}


@contextmanager
def opened_page(mode: str | None, save_script: Path | None) -> Iterator[OpenedPage]:
    """Listen on a free port of 127.0.0.1 while entered, and print the page's address.

    `mode`: the value of --live, None without it. BadInput for a wrong one, MissingRequirement if the kernel can't name
    the users of connections.
    """
    if mode not in (None, "", "control"):
        raise BadInput("--live", mode, "is not known: allowed is control, or nothing for a page that only shows")
    if save_script and mode != "control":
        raise BadInput("--save-script", str(save_script), "needs --live control: nothing can be clicked without it")
    if mode is None:
        yield OpenedPage()
        return
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        diagnosis = stack.enter_context(diagnosis_socket())
        address = listener.getsockname()
        script = -1
        with socket.create_connection(address) as client, listener.accept()[0]:
            if owner_of(diagnosis, client.getsockname(), address) is None:
                raise MissingRequirement("this kernel can't name a connection's user", "load its module inet_diag")
        if save_script:
            with reporting_path_errors("--save-script", save_script), Folder(save_script.parent) as folder:
                script = folder.open_empty(save_script.name)
            stack.callback(os.close, script)
        token = secrets.token_urlsafe(16)
        fds = (listener.fileno(), diagnosis.fileno())
        task = {"listener": fds[0], "diagnosis": fds[1], "port": address[1], "token": token, "script": script}
        task |= {"users": allowed_users(os.environ), "control": mode == "control"}
        url = f"http://{HOST}:{address[1]}/{token}/"
        print(f"live page: {url}", file=sys.stderr, flush=True)
        yield OpenedPage(task, fds if script < 0 else (*fds, script), url)


def allowed_users(environment: Mapping[str, str]) -> list[int]:
    """Return who may connect: root, this user, and the one who became root by sudo."""
    uid = environment.get("SUDO_UID", "")
    users = {0, os.geteuid()}
    if os.geteuid() == 0 and uid.isdigit():
        users.add(int(uid))
    return sorted(users)
