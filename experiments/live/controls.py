"""Controls of the live page: faults that a click injects and repairs, and the record of the clicks.

A click uses the code of the failure scripts and the registry of fault kinds, so a new kind needs nothing here. Every
click is an event of the run, and a script of all clicks can be saved and run again.
"""

import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import yaml
from pydantic import ValidationError

from railyard.core.config import find_problems
from railyard.core.errors import BadInput, RailyardError
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.experiments.spec.scripts import fault_dict
from railyard.failure.faults import Fault
from railyard.failure.scenario import script
from railyard.failure.scenario.script import Timed
from railyard.topologies.build.network import EmulatedNet

_KEPT_KEYS: Final = ("name", "title", "fabrics", "seed", "heartbeats")  # of the experiment, in the saved script
_MIN_REPAIR_S: Final = 0.1
_FIRST_AT_S: Final = 1.0  # in the saved script: recovery is measured by what flows before

OnClick = Callable[[str, dict[str, Any]], None]  # called with inject or repair, and the fault


@dataclass
class Click:
    """A fault of a click: when it was injected and repaired, monotonic s; `repaired_s` is None while it is active."""

    fault: Fault
    injected_s: float
    repaired_s: float | None = None


class Controls:
    """Record of clicks on a fabric of `experiment`, and their execution.

    `show` gets each click, with what is active; `script_fd`: the open file of the saved script, or -1.
    """

    def __init__(self, show: OnClick, experiment: dict[str, Any], script_fd: int = -1) -> None:
        self.clicks: list[Click] = []
        self._show, self._experiment, self._script_fd = show, experiment, script_fd
        self._record: OnClick = lambda what, fault: None
        self._net: EmulatedNet | None = None
        self._lock = threading.Lock()

    @contextmanager
    def on(self, net: EmulatedNet, record: OnClick) -> Iterator[None]:
        """Let clicks change a fabric while entered, and record them; then repair what they broke."""
        self._net, self._record = net, record
        try:
            yield
        finally:
            with self._lock:
                self._net = None
                for click in self._active:
                    with suppress(RailyardError, OSError):
                        self._repair(net, click)

    def carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request: `do` (inject, repair), `kind`, `target`, `parameters`. Return the page's answer."""
        try:
            with self._lock:
                if self._net is None:
                    raise RailyardError("no fabric is up at the moment")
                fault = fault_of(self._net, request)
                if request.get("do") == "inject":
                    self._inject(self._net, fault)
                elif request.get("do") == "repair":
                    click = next((click for click in self._active if click.fault == fault), None)
                    if click is None:
                        raise BadInput("target", fault.target, f"has no {fault.kind} of the page to repair")
                    self._repair(self._net, click)
                else:
                    raise BadInput("do", request.get("do"), "is not known: allowed are inject, repair")
        except (RailyardError, OSError) as error:
            return {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}  # a defect must not end the thread that answers
        return {"active": self.active, "command": self.command}

    @property
    def active(self) -> list[dict[str, Any]]:
        """The faults that are active, as a failure script has them."""
        return [as_dict(click.fault) for click in self._active]

    @property
    def command(self) -> str:
        """The command line that repeats the clicks so far."""
        given = yaml.safe_dump(self._scripts(), default_flow_style=True, width=10**6).strip()
        return shlex.join(["run_experiment.py", "run", *_without_live(sys.argv[2:]), "-o", f"scripts={given}"])

    @property
    def _active(self) -> list[Click]:
        return [click for click in self.clicks if click.repaired_s is None]

    def _inject(self, net: EmulatedNet, fault: Fault) -> None:
        script.prepare(net, fault)
        click = Click(fault, time.monotonic())
        self.clicks.append(click)
        try:
            script.apply(net, fault)
            self._note("inject", fault)
            script.confirm(net, fault)
        except BaseException:
            self.clicks.remove(click)
            with suppress(RailyardError, OSError):
                self._repair(net, click)
            raise

    def _repair(self, net: EmulatedNet, click: Click) -> None:
        script.repair(net, click.fault)
        click.repaired_s = time.monotonic()
        self._note("repair", click.fault)

    def _note(self, act: str, fault: Fault) -> None:
        found = as_dict(fault)
        self._record(act, found)
        self._show(act, {**found, "active": self.active, "command": self.command})
        if self._script_fd >= 0:
            kept = {key: self._experiment[key] for key in _KEPT_KEYS if key in self._experiment}
            text = yaml.safe_dump(kept | {"scripts": self._scripts()}, sort_keys=False).encode()
            os.pwrite(self._script_fd, text, 0)
            os.ftruncate(self._script_fd, len(text))

    def _scripts(self) -> list[dict[str, Any]]:
        """Return the clicks as an experiment's scripts. A fault that is still active lasts until now."""
        now, first = time.monotonic(), self.clicks[0].injected_s if self.clicks else 0.0
        faults = [
            fault_dict(
                Timed(
                    click.fault,
                    round(click.injected_s - first + _FIRST_AT_S, 1),
                    round(max(_MIN_REPAIR_S, (click.repaired_s or now) - click.injected_s), 1),
                )
            )
            for click in self.clicks
        ]
        return [{"name": "clicks", "faults": faults}]


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
