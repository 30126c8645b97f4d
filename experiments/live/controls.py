"""Controls of the live page: faults that a click injects and repairs, traffic, and the record of the clicks.

A click uses the code of the failure scripts and the registry of fault kinds, so a new kind needs nothing here. Every
click is an event of the run, and a script of all clicks can be saved and run again.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from pydantic import ValidationError

from railyard.core import crash, watch
from railyard.core.config import dump_yaml, find_problems
from railyard.core.errors import BadInput, RailyardError, one_line, print_error
from railyard.experiments.live.clicks import Click, Clicks, as_dict
from railyard.experiments.live.first_packets import FirstPackets
from railyard.experiments.live.traffic import STARTABLE, PageTraffic
from railyard.experiments.run.observers import FIRST_PACKET
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.failure.active import ActiveFault
from railyard.failure.faults import Fault
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.plan import Plan

ACTIONS: Final = ("inject", "repair", "start", "stop", "pause", "resume")
WAIT_S: Final = 0.25

OnClick = Callable[[int, str, dict[str, Any]], None]  # called with when (monotonic ns), what was done, and its detail


class Show(Protocol):
    """Callback that shows an event with its detail on the page; `ns`: when (monotonic), now without it."""

    def __call__(self, event: str, detail: dict[str, Any], ns: int | None = None) -> None: ...


class Controls:
    """Record of clicks on a fabric of `experiment`, and their execution.

    `show` gets each click, with what is active; `script_fd`: the open file of the saved script, or -1. `has_probes`:
    the pairs that a fault affects are probed, to show when packets flow again.
    """

    def __init__(self, show: Show, experiment: dict[str, Any], script_fd: int = -1, has_probes: bool = False) -> None:
        self._clicks = Clicks(experiment)
        self._show = show
        self._script_fd = script_fd
        self._has_probes = has_probes
        # events that come while no fabric is up, for the next one
        self._unrecorded: list[tuple[int, str, dict[str, Any]]] = []
        self._record: OnClick = self._keep
        self._net: EmulatedNet | None = None
        self._traffic: PageTraffic | None = None
        self._probes: FirstPackets | None = None
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._lock = threading.Lock()

    @contextmanager
    def on(self, net: EmulatedNet, record: OnClick) -> Iterator[None]:
        """Let clicks change a fabric while entered, and record them; then stop and repair what they began."""
        self._net = net
        self._record = record
        for unrecorded in self._unrecorded:
            record(*unrecorded)
        self._unrecorded.clear()
        if isinstance(net.plan, Plan):
            self._clicks.policy = net.plan.spec.chosen_policy
            self._probes = FirstPackets(net.plan, self._show_first_packet) if self._has_probes else None
            self._traffic = PageTraffic(
                net.plan,
                None if self._clicks.experiment.get("routing") else getattr(net, "fabric_controller", None),
                on_end=lambda event_name, error: self._note(f"{event_name}-failed", {"text": error}),
                on_event=lambda ns, event_name, detail: self._show(event_name, detail, ns),
            )
        try:
            yield
        finally:
            with self._lock:
                self._net = None
                if self._traffic:
                    self._traffic.close()
                self._traffic = None
                for click in self._clicks.active:
                    with suppress(RailyardError, OSError):
                        self._repair(click)
                if self._probes:
                    self._probes.close()
                self._probes = None
                self._record = self._keep

    @contextmanager
    def probing(self, fault: Fault) -> Iterator[Callable[[int], None]]:
        """Probe, as after a click, the pairs that a fault of the experiment affects; leave before its repair.

        The function that it returns is to be called with when the fault was injected, monotonic ns.
        """
        if self._probes is None:
            yield lambda at_ns: None
            return
        with self._probes.during(fault) as injected:
            yield injected

    def wait_while_paused(self) -> None:
        """Wait until the page lets the run go on."""
        while not self._may_go_on.wait(WAIT_S):
            watch.check()

    def carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request and return the page's answer: what is active then, or the error.

        `do`: inject or repair, with a fault as in an experiment's file; start or stop, with `what` (workload,
        background, policy) and its `text` in YAML; pause, which holds the run before its next step, or resume.
        """
        try:
            with self._lock:
                self._carry_out(request)
        except (RailyardError, OSError) as error:
            return {"error": one_line(str(error))}
        except Exception as error:  # a defect must not end the thread that answers
            print_error(f"the live page: {request!r:.100} failed: {crash.describe(error)}", crash.STATUS)
            return {"error": crash.describe(error)}
        return self.state

    def _carry_out(self, request: dict[str, Any]) -> None:
        do = request.get("do")
        action = request.get("what")
        if do not in ACTIONS:
            raise BadInput("do", do, f"is not known: allowed are {', '.join(ACTIONS)}")
        if do in ("pause", "resume"):
            if do == "pause":
                self._may_go_on.clear()
            else:
                self._may_go_on.set()
            self._note(do, {})
            return
        if self._net is None:
            raise RailyardError("no fabric is up at the moment")
        if do in ("start", "stop"):
            if not isinstance(action, str) or action not in STARTABLE:
                raise BadInput("what", action, f"is not known: allowed are {', '.join(STARTABLE)}")
            if self._traffic is None:
                raise RailyardError("this fabric takes no traffic of the page: its engines make their own")
            detail = {"what": action}
            if do == "start":
                settings = self._traffic.start(action, str(request.get("text", "")))
                detail["text"] = dump_yaml(settings, default_flow_style=True, width=10**6).partition("\n")[0]
                self._clicks.start(action, settings)
                self._save()
            else:
                self._traffic.stop(action)
            self._note(do, detail)
            return
        fault = fault_of(self._net, request)
        if do == "inject":
            self._inject(self._net, fault)
            return
        click = next((click for click in self._clicks.active if click.fault == fault), None)
        if click is None:
            raise BadInput("target", fault.target, f"has no {fault.kind} of the page to repair")
        self._repair(click)

    @property
    def state(self) -> dict[str, Any]:
        """State of the controls, for the page: active faults, traffic, whether the run is held, and the command."""
        running = self._traffic.running if self._traffic else []
        held = not self._may_go_on.is_set()
        active = [as_dict(click.fault) for click in self._clicks.active]
        command = self._clicks.commands(time.monotonic())
        return {"active": active, "running": running, "paused": held, "command": command}

    def _inject(self, net: EmulatedNet, fault: Fault) -> None:
        injection = ActiveFault(net, fault)
        probes = self._probes.begin(fault) if self._probes else None
        click = Click(fault, fault.scope(net.plan), time.monotonic(), injection=injection)
        try:
            injection.prepare()
            self._clicks.faults.append(click)
            at_ns = injection.inject()
            self._note("inject", as_dict(fault), at_ns)
            self._save()
            injection.confirm()
        except BaseException:
            if click in self._clicks.faults:
                self._clicks.faults.remove(click)
            if probes and self._probes:
                self._probes.end(probes)
            with suppress(RailyardError, OSError):
                if injection.is_injected:
                    self._repair(click)
                else:
                    injection.close()
            raise
        if probes and self._probes:
            self._probes.observe(probes, at_ns, click.is_repaired)

    def _repair(self, click: Click) -> None:
        assert click.injection
        click.is_repaired.set()
        at_ns = click.injection.repair()
        click.repaired_s = at_ns / 1e9
        self._note("repair", as_dict(click.fault), at_ns)
        self._save()

    def _show_first_packet(self, fault: Fault, at_ns: int, ms: float) -> None:
        self._show(FIRST_PACKET, {"kind": fault.kind, "target": fault.target, "ms": round(ms, 1)}, at_ns)

    def _keep(self, ns: int, event_name: str, detail: dict[str, Any]) -> None:
        self._unrecorded.append((ns, event_name, detail))

    def _note(self, act: str, detail: dict[str, Any], ns: int | None = None) -> None:
        """Record and show what was done, at a time (monotonic ns) or now."""
        ns = ns or time.monotonic_ns()
        self._record(ns, act, detail)
        self._show(act, {**detail, **self.state}, ns)

    def _save(self) -> None:
        if self._script_fd >= 0:
            text = self._clicks.saved(time.monotonic()).encode()
            os.pwrite(self._script_fd, text, 0)
            os.ftruncate(self._script_fd, len(text))


def fault_of(net: EmulatedNet, request: dict[str, Any]) -> Fault:
    """Return the fault that a request names by `kind`, `target` and the kind's own keys, as in an experiment's file.

    BadInput for one that the fabric can't have.
    """
    try:
        fault = BaseFaultSpec.model_validate({key: request[key] for key in request if key != "do"}).fault
    except ValidationError as error:
        first = find_problems(error)[0]
        raise BadInput(first.field, first.value, first.allowed) from None
    if problem := fault.definition.target_problem(net.plan, fault.target):
        raise BadInput("target", fault.target, problem)
    return fault
