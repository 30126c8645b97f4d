"""The route agent of a machine that has a part of a fabric: `python -m railyard.controller.processes.routes_main`.

The controller, on another machine, commands it by messages.py.
"""

import os
import sys
from contextlib import suppress

from railyard.controller.agent.route_agent import RouteAgent
from railyard.controller.processes import messages
from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Message, Parent, Ready


def _reply(agent: RouteAgent, command: messages.ToRoutes) -> Message:
    match command:
        case messages.ChangeRoutes(changes=changes):
            outcome = agent.change_all(changes)
            refused = {gpu: (error.errno or 0, error.strerror or "") for gpu, error in outcome.refused.items()}
            return messages.RoutesChanged(done=outcome.done, refused=refused)
        case messages.ReadRoutes(gpu=gpu, metric=metric):
            try:
                return messages.Routes(routes=agent.routes_at(gpu, metric))
            except OSError as error:
                return messages.Routes(routes={}, why=error.strerror or str(error))
    raise ValueError(f"unknown command {command}")


def main() -> None:
    """Execute the controller's commands until it ends."""
    with suppress(PermissionError):  # as the controller
        os.nice(-15)
    sys.setswitchinterval(0.0005)
    parent = Parent(*messages.ToRoutes.__subclasses__())
    raise_open_file_limit()
    first = parent.receive()
    elsewhere = {gpu.name for gpu in first.plan.gpus if gpu not in first.gpus}
    agent = RouteAgent(first.plan, elsewhere)
    agent.learn_interfaces()
    parent.send(Ready())
    for command in parent:
        parent.send(_reply(agent, command))


if __name__ == "__main__":
    main()
