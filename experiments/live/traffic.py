"""Traffic and policies that the live page starts on a fabric of GPUs: a repeated workload, background load."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final

from pydantic import ValidationError

from railyard.controller.agent.steering import steering_on
from railyard.controller.health.estimator import HealthSpec
from railyard.controller.processes.clients import AgentsProcess, ControllerProcess
from railyard.core.config import find_problems, parse_yaml
from railyard.core.errors import BadInput, RailyardError, unknown_name_hint
from railyard.core.worker import OnEvent
from railyard.experiments.live.choices import policies
from railyard.experiments.live.phases import PHASE, PhaseProgress
from railyard.topologies.build.network import FabricController
from railyard.topologies.plan import Plan
from railyard.workloads.background.flows import Background
from railyard.workloads.background.spec import BackgroundSpec, check_background
from railyard.workloads.matrix.waiting import unreachable_pairs
from railyard.workloads.replay.job import windows_for_links
from railyard.workloads.replay.run import Aborted, replay
from railyard.workloads.spec import build, parse_workload

DEADLINE_S: Final = 3600.0
STARTABLE: Final = ("workload", "background", "policy")


class PageTraffic:
    """Workload, background load and health routing of a fabric.

    `on_end(what, error)` is called if one ends by itself, `on_event` with the events of the policy's agents.
    """

    def __init__(
        self,
        plan: Plan,
        controller: FabricController | None,
        on_end: Callable[[str, str], None],
        on_event: OnEvent,
    ) -> None:
        self._plan = plan
        self._controller = controller
        self._on_end = on_end
        self._on_event = on_event
        # closing the stack of a name stops its traffic
        self._running: dict[str, ExitStack] = {}

    @property
    def running(self) -> list[str]:
        """Names of the traffic and policies that run."""
        return list(self._running)

    def start(self, sort: str, text: str) -> Any:
        """Start a workload, background load or policy, given as in an experiment's file; return it as plain data.

        BadInput if it can't run on the fabric, or one of this sort runs already.
        """
        if sort in self._running:
            raise BadInput(sort, text, "runs already: stop it first")
        # parse_yaml has bounds: an alias could stand for gigabytes
        data = parse_yaml(text, sort)
        with ExitStack() as stack:
            started = {"workload": self._replay, "background": self._load, "policy": self._steer}[sort](data, stack)
            self._running[sort] = stack.pop_all()
        return started

    def stop(self, sort: str) -> None:
        """Stop it. BadInput if none runs."""
        if sort not in self._running:
            raise BadInput(sort, sort, "does not run")
        self._running.pop(sort).close()

    def close(self) -> None:
        """Stop all."""
        for sort in self.running:
            with suppress(RailyardError, OSError):
                self.stop(sort)

    def _load(self, data: object, stack: ExitStack) -> Any:
        try:
            spec = BackgroundSpec.model_validate(data)
        except ValidationError as error:
            first = find_problems(error)[0]
            raise BadInput(f"background.{first.field}".rstrip("."), first.value, first.allowed) from None
        check_background([spec], self._plan.spec)
        stack.enter_context(Background(self._plan, [spec]))
        return spec.model_dump(mode="json", exclude_none=True)

    def _steer(self, data: object, stack: ExitStack) -> Any:
        name = str(data)
        controller = self._controller
        if name not in policies():
            raise BadInput("policy", name, unknown_name_hint(name, policies()))
        if not self._plan.spec.forwards_in_domains:
            policy = self._plan.spec.chosen_policy
            raise BadInput("policy", name, f"can't be started: the fabric's policy {policy} keeps its rails apart")
        if not isinstance(controller, ControllerProcess) or controller.registry_address:
            raise BadInput("policy", name, "can't be started: the experiment's own policies steer this fabric")
        health = HealthSpec()
        address = controller.start_health(health)
        stack.callback(controller.stop_health)
        agents = AgentsProcess(self._plan, self._on_event)
        stack.callback(agents.stop)
        agents.steer(steering_on(self._plan.spec, name), address, health.stale)
        stack.callback(agents.release)
        return name

    def _replay(self, data: object, stack: ExitStack) -> Any:
        plan = self._plan
        abort = threading.Event()
        spec = parse_workload(data)
        schedule = build(spec, plan.spec, plan.rail_bps, plan.hb_bps).schedule
        windows = windows_for_links(plan.hb_bps, plan.rail_bps, plan.spec.mtu)

        def show(ns: int, names: list[str]) -> None:
            self._on_event(ns, PHASE, {"names": names})

        def repeat() -> None:
            try:
                while not abort.is_set():
                    phases = PhaseProgress(schedule, show)
                    replay(
                        schedule, windows, 0, DEADLINE_S, abort=abort, started=phases.started, watched=phases.watched,
                        unreachable=unreachable_pairs(schedule, plan.spec),
                    )  # fmt: skip
            except Aborted:
                pass
            except RailyardError as error:
                self._running.pop("workload", None)
                self._on_end("workload", str(error))
            finally:
                show(time.monotonic_ns(), [])

        thread = threading.Thread(target=repeat, name="workload of the live page", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(abort.set)
        return spec.model_dump(mode="json", exclude_none=True)
