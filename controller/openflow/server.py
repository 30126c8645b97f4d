"""Serve OpenFlow to the switches on os-ken, over sockets that listen inside their namespaces (processes/clients.py)."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import controller as os_ken_controller
from os_ken.controller import ofp_handler
from os_ken.lib import hub

from railyard.controller.openflow.app import RailyardApp, SwitchEvent
from railyard.controller.openflow.user_app import start


class _Datapath(os_ken_controller.Datapath):  # type: ignore[misc]
    """A connection whose end is noticed when it ends: stock os-ken, with native threads, waits for its next echo."""

    def serve(self) -> None:
        sender = hub.spawn(self._send_loop)
        self.send_msg(self.ofproto_parser.OFPHello(self))
        try:
            self._recv_loop()
        finally:
            self.close()
            if self.send_q is not None:
                self.send_q.put((b"", True))
            hub.joinall([sender])
            self.is_active = False


def _accept(listener: socket.socket) -> None:
    def serve(connection: socket.socket, address: object) -> None:
        with contextlib.closing(_Datapath(connection, address)) as datapath:
            datapath.serve()

    while True:
        try:
            connection, address = listener.accept()
        except OSError:
            # closed: the run is over
            return
        hub.spawn(serve, connection, address)


class OpenFlowServer:
    """The app and its sockets. `listener` receives every event.

    `user_app`: the file of an app that decides forwarding in its place, whose events go to `emit`.
    """

    def __init__(
        self,
        listener: Callable[[SwitchEvent], None],
        user_app: str = "",
        emit: Callable[[str, dict[str, Any]], None] = lambda what, detail: None,
    ) -> None:
        cfg.CONF(args=[], project="os_ken", default_config_files=[])
        manager = app_manager.AppManager.get_instance()
        # OFPHandler would open ports of its own as it starts; only its event handling is wanted
        handler = manager.instantiate(ofp_handler.OFPHandler)
        app_manager.OSKenApp.start(handler)
        self.app: RailyardApp = manager.instantiate(RailyardApp)
        self.app.listener = listener
        self.app.observes = bool(user_app)
        self.app.start()
        if user_app:
            start(manager, user_app, emit)

    def serve(self, sockets: Iterable[socket.socket]) -> None:
        """Accept the switches that connect to these sockets, from now on."""
        for listening in sockets:
            threading.Thread(target=_accept, args=(listening,), daemon=True).start()
