"""A controller with a user's app, without a run. It prints its port and events.

python -m tests.unit.controller.openflow.user_app_server FILE
"""

import json
import signal
import socket
import sys

from railyard.controller.openflow.server import OpenFlowServer


def main() -> None:
    """Serve switches until a signal ends the process."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = OpenFlowServer(
        lambda event: None, sys.argv[1], lambda what, detail: print(json.dumps([what, detail]), flush=True)
    )
    server.serve([listener])
    print(listener.getsockname()[1], flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
