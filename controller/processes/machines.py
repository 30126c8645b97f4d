"""Route agents of a fabric on several machines, used as one: that of this machine, and those at connections."""

import errno
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress

from railyard.controller.agent.route_agent import Outcome, RouteAgent
from railyard.controller.processes import messages
from railyard.core.errors import RailyardError
from railyard.core.worker import Ready, Worker
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Route

_Change = tuple[list[Route], list[Route]]


class RouteAgents(RouteAgent):
    """`remote_agents`: each other machine's agent, with the GPUs there."""

    def __init__(
        self, plan: Plan, elsewhere: Container[str], remote_agents: Sequence[tuple[Worker, frozenset[Gpu]]]
    ) -> None:
        super().__init__(plan, elsewhere)
        self._plan = plan
        self._remote_agents = remote_agents
        self._agent_of: dict[Gpu, Worker] = {}
        for agent, gpus in remote_agents:
            self._agent_of |= dict.fromkeys(gpus, agent)

    def learn_interfaces(self) -> None:
        """Call once when the links are there, on all machines."""
        for agent, gpus in self._remote_agents:
            agent.send(messages.LearnRoutes(plan=self._plan, gpus=gpus))
        super().learn_interfaces()
        for agent, _ in self._remote_agents:
            agent.receive(Ready)

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, Route]:
        """Return one GPU's current routes of that metric, by key."""
        if gpu not in self._agent_of:
            return super().routes_at(gpu, metric)
        try:
            reply = self._agent_of[gpu].ask(messages.ReadRoutes(gpu=gpu, metric=metric), messages.Routes)
        except RailyardError as error:
            # its machine is gone, which ends the run
            raise OSError(errno.EHOSTUNREACH, str(error)) from error
        if reply.why:
            raise OSError(0, reply.why)
        return reply.routes

    def change_all(self, changes: Mapping[Gpu, tuple[Iterable[Route], Iterable[Route]]]) -> Outcome:
        """Make the changes of many GPUs, {gpu: (remove, put)}, on all machines at the same time."""
        requests: list[tuple[Worker, dict[Gpu, _Change]]] = []
        for agent, gpus in self._remote_agents:
            remote_changes: dict[Gpu, _Change] = {}
            for gpu, (remove, put) in changes.items():
                if gpu in gpus:
                    remote_changes[gpu] = list(remove), list(put)
            if remote_changes:
                requests.append((agent, remote_changes))
                # `receive` raises it again
                with suppress(RailyardError):
                    agent.send(messages.ChangeRoutes(changes=remote_changes))
        # this machine's routes change while the other agents work
        local_changes = {gpu: change for gpu, change in changes.items() if gpu not in self._agent_of}
        local_outcome = super().change_all(local_changes)
        done = local_outcome.done
        refused = dict(local_outcome.refused)
        for agent, remote_changes in requests:
            try:
                reply = agent.receive(messages.RoutesChanged)
            except RailyardError as error:
                # its machine is gone, which ends the run
                refused |= dict.fromkeys(remote_changes, OSError(errno.EHOSTUNREACH, str(error)))
                continue
            done += reply.done
            for gpu, (error_number, text) in reply.refused.items():
                refused[gpu] = OSError(error_number, text)
        return Outcome(done, refused)
