"""Controls of the live page: faults that a click injects and repairs, traffic, and the record of the clicks.

A click uses the code of the failure scripts and the registry of fault kinds, so a new kind needs nothing here. Every
click is an event of the run, and a script of all clicks can be saved and run again.
"""

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import yaml
from pydantic import ValidationError

from railyard.core import crash, watch
from railyard.core.config import find_problems
from railyard.core.errors import BadInput, RailyardError, print_error
from railyard.experiments.live.traffic import EXAMPLES, PageTraffic
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.experiments.spec.scripts import fault_dict
from railyard.failure.faults import Fault, FaultScope
from railyard.failure.scenario import script
from railyard.failure.scenario.random_faults import idle_s
from railyard.failure.scenario.script import Timed
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.plan import Plan

_KEPT_KEYS: Final = ("name", "title", "fabrics", "seed", "heartbeats")  # of the experiment, in the saved script
_MIN_REPAIR_S: Final = 0.1
_FIRST_AT_S: Final = 1.0  # in the saved script: recovery is measured by what flows before

ACTIONS: Final = ("inject", "repair", "start", "stop", "pause", "resume")
WAIT_S: Final = 0.25

OnClick = Callable[[str, dict[str, Any]], None]  # called with what was done, and its detail


class Show(Protocol):
    """Shows what happened, and its detail, on the page; `ns`: when (monotonic), now without it."""

    def __call__(self, what: str, detail: dict[str, Any], ns: int | None = None) -> None: ...


@dataclass
class Click:
    """A fault of a click, what it affects, and when it was injected and repaired, monotonic s; None while active."""

    fault: Fault
    scope: FaultScope
    injected_s: float
    repaired_s: float | None = None


class Controls:
    """Record of clicks on a fabric of `experiment`, and their execution.

    `show` gets each click, with what is active; `script_fd`: the open file of the saved script, or -1.
    """

    def __init__(self, show: Show, experiment: dict[str, Any], script_fd: int = -1) -> None:
        self.clicks: list[Click] = []
        self._show, self._experiment, self._script_fd = show, experiment, script_fd
        self._record: OnClick = lambda what, fault: None
        self._net: EmulatedNet | None = None
        self._traffic: PageTraffic | None = None
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._lock = threading.Lock()

    @contextmanager
    def on(self, net: EmulatedNet, record: OnClick) -> Iterator[None]:
        """Let clicks change a fabric while entered, and record them; then stop and repair what they began."""
        self._net, self._record = net, record
        if isinstance(net.plan, Plan):
            self._traffic = PageTraffic(
                net.plan,
                None if self._experiment.get("routing") else getattr(net, "fabric_controller", None),
                on_end=lambda what, error: self._note(f"{what}-failed", {"text": error}),
                on_event=lambda ns, what, detail: self._show(what, detail, ns),
            )
        try:
            yield
        finally:
            with self._lock:
                self._net = None
                if self._traffic:
                    self._traffic.close()
                self._traffic = None
                for click in self._active:
                    with suppress(RailyardError, OSError):
                        self._repair(net, click)

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
            return {"error": str(error)}
        except Exception as error:  # a defect must not end the thread that answers
            print_error(f"the live page: {request!r:.100} failed: {crash.describe(error)}", crash.STATUS)
            return {"error": crash.describe(error)}
        return self.state

    def _carry_out(self, request: dict[str, Any]) -> None:
        do, what = request.get("do"), request.get("what")
        if do not in ACTIONS:
            raise BadInput("do", do, f"is not known: allowed are {', '.join(ACTIONS)}")
        if do in ("pause", "resume"):
            (self._may_go_on.clear if do == "pause" else self._may_go_on.set)()
            self._show(do, self.state)
            return
        if self._net is None:
            raise RailyardError("no fabric is up at the moment")
        if do in ("start", "stop"):
            if not isinstance(what, str) or what not in EXAMPLES:
                raise BadInput("what", what, f"is not known: allowed are {', '.join(EXAMPLES)}")
            if self._traffic is None:
                raise RailyardError("this fabric takes no traffic of the page: its engines make their own")
            detail = {"what": what}
            if do == "start":
                given = self._traffic.start(what, str(request.get("text", "")))
                detail["text"] = yaml.safe_dump(given, default_flow_style=True, width=10**6).partition("\n")[0]
            else:
                self._traffic.stop(what)
            self._note(do, detail)
            return
        fault = fault_of(self._net, request)
        if do == "inject":
            self._inject(self._net, fault)
            return
        click = next((click for click in self._active if click.fault == fault), None)
        if click is None:
            raise BadInput("target", fault.target, f"has no {fault.kind} of the page to repair")
        self._repair(self._net, click)

    @property
    def state(self) -> dict[str, Any]:
        """State of the controls, for the page: active faults, traffic, whether the run is held, and the command."""
        running = self._traffic.running if self._traffic else []
        held = not self._may_go_on.is_set()
        return {"active": self.active, "running": running, "paused": held, "command": self.command}

    @property
    def active(self) -> list[dict[str, Any]]:
        """The faults that are active, as a failure script has them."""
        return [as_dict(click.fault) for click in self._active]

    @property
    def command(self) -> str:
        """The command line that repeats the clicks on faults; empty without any, and for a fabric of a script."""
        if not self.clicks or sys.argv[1:2] not in (["run"], ["shell"]):
            return ""
        given = yaml.safe_dump(self._scripts(), default_flow_style=True, width=10**6).strip()
        return shlex.join(["run_experiment.py", "run", *_without_live(sys.argv[2:]), "-o", f"scripts={given}"])

    @property
    def _active(self) -> list[Click]:
        return [click for click in self.clicks if click.repaired_s is None]

    def _inject(self, net: EmulatedNet, fault: Fault) -> None:
        script.prepare(net, fault)
        click = Click(fault, fault.scope(net.plan), time.monotonic())
        self.clicks.append(click)
        try:
            script.apply(net, fault)
            self._note("inject", as_dict(fault))
            self._save()
            script.confirm(net, fault)
        except BaseException:
            self.clicks.remove(click)
            with suppress(RailyardError, OSError):
                self._repair(net, click)
            raise

    def _repair(self, net: EmulatedNet, click: Click) -> None:
        script.repair(net, click.fault)
        click.repaired_s = time.monotonic()
        self._note("repair", as_dict(click.fault))
        self._save()

    def _note(self, act: str, detail: dict[str, Any]) -> None:
        """Record and show what was done."""
        self._record(act, detail)
        self._show(act, {**detail, **self.state})

    def _save(self) -> None:
        if self._script_fd >= 0:
            kept = {key: self._experiment[key] for key in _KEPT_KEYS if key in self._experiment}
            text = yaml.safe_dump(kept | {"scripts": self._scripts()}, sort_keys=False).encode()
            os.pwrite(self._script_fd, text, 0)
            os.ftruncate(self._script_fd, len(text))

    def _scripts(self) -> list[dict[str, Any]]:
        """Return the clicks as an experiment's scripts. A fault that is still active lasts until now."""
        return [{"name": "clicks", "faults": [fault_dict(timed) for timed in script_of(self.clicks, time.monotonic())]}]


def script_of(clicks: Sequence[Click], now_s: float) -> list[Timed]:
    """Return clicks as the faults of a script, in the order of their injections; those still active last until now.

    A script needs time between a repair and the next fault of the same part: a faster click comes later in it.
    """
    actions = [(click.injected_s, 1, i) for i, click in enumerate(clicks)]
    actions += [(click.repaired_s or now_s, 0, i) for i, click in enumerate(clicks)]
    delay_s = _FIRST_AT_S - min(actions)[0] if clicks else 0.0
    at, until = dict[int, float](), dict[int, float]()
    for when, is_injection, i in sorted(actions):
        if is_injection:
            idle = (until[j] + idle_s(clicks[j].scope, clicks[i].scope) - when for j in until)
            delay_s = max(delay_s, *idle) if until else delay_s
            at[i] = round(when + delay_s, 1)
        else:
            until[i] = max(round(when + delay_s, 1), at[i] + _MIN_REPAIR_S)
    return [Timed(clicks[i].fault, at[i], round(until[i] - at[i], 1)) for i in at]


def _without_live(arguments: Sequence[str]) -> list[str]:
    """Return a command line's arguments without the options of the page."""
    kept = list[str]()
    skipped = ""
    for word in arguments:
        if skipped == "--save-script" or (skipped == "--live" and word == "control"):
            skipped = ""
        elif word.partition("=")[0] in ("--live", "--save-script"):
            skipped = word
        else:
            skipped = ""
            kept.append(word)
    return kept


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


def as_dict(fault: Fault) -> dict[str, Any]:
    """Return a fault as an experiment's file has it, without its times."""
    return {
        key: value
        for key, value in fault_dict(Timed(fault, _FIRST_AT_S, _FIRST_AT_S)).items()
        if key not in ("at", "repair")
    }
