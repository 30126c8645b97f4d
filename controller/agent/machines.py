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
    """`others`: each other machine's agent, with the GPUs there."""

    def __init__(self, plan: Plan, elsewhere: Container[str], others: Sequence[tuple[Worker, frozenset[Gpu]]]) -> None:
        super().__init__(plan, elsewhere)
        self._plan = plan
        self._others = others
        self._agent_of = {gpu: agent for agent, gpus in others for gpu in gpus}

    def learn_interfaces(self) -> None:
        """Call once when the links are there, on all machines."""
        for agent, gpus in self._others:
            agent.send(messages.LearnRoutes(plan=self._plan, gpus=gpus))
        super().learn_interfaces()
        for agent, _ in self._others:
            agent.receive(Ready)

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, Route]:
        """Return one GPU's current routes of that metric, by key."""
        if gpu not in self._agent_of:
            return super().routes_at(gpu, metric)
        try:
            found = self._agent_of[gpu].ask(messages.ReadRoutes(gpu=gpu, metric=metric), messages.Routes)
        except RailyardError as error:  # its machine is gone, which ends the run
            raise OSError(errno.EHOSTUNREACH, str(error)) from error
        if found.why:
            raise OSError(0, found.why)
        return found.routes

    def change_all(self, changes: Mapping[Gpu, tuple[Iterable[Route], Iterable[Route]]]) -> Outcome:
        """Make the changes of many GPUs, {gpu: (remove, put)}, on all machines at the same time."""
        asked = list[tuple[Worker, dict[Gpu, _Change]]]()
        refused = dict[Gpu, OSError]()
        for agent, gpus in self._others:
            if there := {gpu: (list(remove), list(put)) for gpu, (remove, put) in changes.items() if gpu in gpus}:
                asked.append((agent, there))
                with suppress(RailyardError):  # `receive` says so
                    agent.send(messages.ChangeRoutes(changes=there))
        own = super().change_all({gpu: change for gpu, change in changes.items() if gpu not in self._agent_of})
        done = own.done
        refused |= own.refused
        for agent, there in asked:
            try:
                reply = agent.receive(messages.RoutesChanged)
            except RailyardError as error:  # its machine is gone, which ends the run
                refused |= dict.fromkeys(there, OSError(errno.EHOSTUNREACH, str(error)))
                continue
            done += reply.done
            refused |= {gpu: OSError(number, text) for gpu, (number, text) in reply.refused.items()}
        return Outcome(done, refused)
