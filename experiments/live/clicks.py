"""Record of the clicks on a live page, and what repeats them: an experiment, command lines, lines of a script."""

import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.config import dump_yaml
from railyard.core.installation import RUN
from railyard.experiments.api.specs import class_name
from railyard.experiments.live.traffic import STARTABLE
from railyard.experiments.spec.faults import fault_dict
from railyard.failure.active import ActiveFault
from railyard.failure.faults import Fault, FaultScope
from railyard.failure.scenario.random_faults import idle_s
from railyard.failure.script import Timed

_KEPT_KEYS: Final = ("name", "title", "fabrics", "seed", "heartbeats")  # of the experiment, in the saved script
_STEERED_KEYS: Final[dict[str, Any]] = {
    "routing": None,
    "background": [],
    "grid": None,
}  # can't be given together with faults
_FAULT_KEYS: Final[dict[str, Any]] = {"faults": [], "scripts": [], "grid": None}  # not beside these
DEFAULT_WORKLOAD: Final = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "10s"}
_MIN_REPAIR_S: Final = 0.1
# recovery is measured by what flows before the first fault of the saved script
_FIRST_AT_S: Final = 1.0
_TWO: Final = "Faults can't be beside policies or background load. For what was started, an experiment of its own:"


@dataclass
class Click:
    """A fault of a click, what it affects, and when it was injected and repaired, monotonic s; None while active.

    `injection`: the fault on the fabric, which repairs it.
    """

    fault: Fault
    scope: FaultScope
    injected_s: float
    repaired_s: float | None = None
    is_repaired: threading.Event = field(default_factory=threading.Event, compare=False)
    injection: ActiveFault | None = field(default=None, compare=False, repr=False)


@dataclass
class Clicks:
    """All clicks on the page of an `experiment`; of traffic and policies what was started, without its times."""

    experiment: dict[str, Any]
    faults: list[Click] = field(default_factory=list)
    started: dict[str, list[Any]] = field(default_factory=lambda: {sort: [] for sort in STARTABLE})
    policy: str = ""  # the fabric's own

    @property
    def active(self) -> list[Click]:
        """The faults that are active."""
        return [click for click in self.faults if click.repaired_s is None]

    def start(self, sort: str, settings: Any) -> None:
        """Add a workload, background load or policy."""
        if settings not in self.started[sort]:
            self.started[sort].append(settings)

    def experiments(self, now_s: float) -> list[dict[str, Any]]:
        """Return the sections that repeat the clicks, for one experiment, or for two if one can't have them all.

        A fault that is still active lasts until now. Of several background loads, one after the other, the last is
        kept.
        """
        specs: list[dict[str, Any]] = []
        chosen: dict[str, Any] = {}
        if self.started["workload"]:
            chosen["workloads"] = self.started["workload"]
        if self.faults:
            faults = list(map(fault_dict, script_of(self.faults, now_s)))
            specs.append({**chosen, "scripts": [{"name": "clicks", "faults": faults}]})
        if self.started["background"] or self.started["policy"]:
            # routing is measured by the times of workloads
            if not chosen:
                chosen["workloads"] = self.experiment.get("workloads") or [DEFAULT_WORKLOAD]
            specs.append(chosen | self._steered())
        if chosen and not specs:
            specs.append(chosen)
        return specs

    def _steered(self) -> dict[str, Any]:
        """Return the sections of policies and background load that were started."""
        sections: dict[str, Any] = {}
        background = self.started["background"]
        if background:
            sections["background"] = background[-1:]
        policies = self.started["policy"]
        if not policies:
            policies = [self.policy]
            if self.policy not in HEALTH_POLICIES:
                policies = ["dr"]
        sections["routing"] = self.experiment.get("routing") or {"policies": policies}
        return sections

    def saved(self, now_s: float) -> str:
        """Return the experiment that repeats the clicks as YAML; a second one is a comment in it."""
        kept = {key: self.experiment[key] for key in _KEPT_KEYS if key in self.experiment}
        first, *later_specs = self.experiments(now_s) or [{"scripts": []}]
        lines = [dump_yaml(kept | first)]
        for other in later_specs:
            lines += [f"# {line}\n" for line in (_TWO, *dump_yaml(other).splitlines())]
        return "".join(lines)

    def commands(self, now_s: float) -> str:
        """Return what repeats the clicks: a command line for each experiment, for a script's fabric lines of Python."""
        if sys.argv[1:2] not in (["run"], ["shell"]):
            return "\n".join(self._lines())
        base = without_live(sys.argv[2:])
        commands = list[str]()
        for sections in self.experiments(now_s):
            if "scripts" in sections:
                removed = _STEERED_KEYS
            elif "routing" in sections:
                removed = _FAULT_KEYS
            else:
                removed = {}
            emptied: dict[str, Any] = {}
            for key, empty in removed.items():
                if self.experiment.get(key) and key not in sections:
                    emptied[key] = empty
            words = ["run", *base]
            for key, value in (sections | emptied).items():
                words += ["-o", _override(key, value)]
            commands.append(f"{RUN} {shlex.join(words)}")
        return "\n".join(commands)

    def _lines(self) -> list[str]:
        """Return the lines of a script that has the fabric as `net`."""
        lines: list[str] = []
        for settings in self.started["workload"]:
            lines.append(f"net.run(ry.{_call(class_name(settings['kind']), settings)})")
        timed = list[tuple[float, str]]()
        for number, click in enumerate(self.faults, 1):
            settings = as_dict(click.fault)
            arguments = [repr(settings.pop("kind")), repr(settings.pop("target"))]
            arguments += [f"{key}={value!r}" for key, value in settings.items()]
            timed.append((click.injected_s, f"fault{number} = net.fault({', '.join(arguments)})"))
            if click.repaired_s is not None:
                timed.append((click.repaired_s, f"fault{number}.repair()"))
        lines += [line for _, line in sorted(timed)]
        for sort in ("background", "policy"):
            for settings in self.started[sort]:
                text = dump_yaml(settings, default_flow_style=True).partition("\n")[0]
                lines.append(f"# {sort} {text}: for experiments alone")
        return lines


def _call(name: str, settings: dict[str, Any]) -> str:
    arguments = [f"{key}={value!r}" for key, value in settings.items() if key != "kind"]
    return f"{name}({', '.join(arguments)})"


def _override(key: str, value: object) -> str:
    text = dump_yaml(value, default_flow_style=True, width=10**6).partition("\n")[0]
    return f"{key}={text}"


def script_of(clicks: Sequence[Click], now_s: float) -> list[Timed]:
    """Return clicks as the faults of a script, in the order of their injections; those still active last until now.

    A script needs time between a repair and the next fault of the same part: a faster click comes later in it.
    """
    actions: list[tuple[float, int, int]] = []
    for number, click in enumerate(clicks):
        actions.append((click.injected_s, 1, number))
        actions.append((click.repaired_s or now_s, 0, number))
    if not actions:
        return []
    delay_s = _FIRST_AT_S - min(actions)[0]
    injected_at: dict[int, float] = {}
    repaired_at: dict[int, float] = {}
    for when, is_injection, number in sorted(actions):
        if is_injection:
            # the delay grows where the part of an earlier fault must be left alone for some time
            for earlier, repaired_s in repaired_at.items():
                ready_s = repaired_s + idle_s(clicks[earlier].scope, clicks[number].scope)
                delay_s = max(delay_s, ready_s - when)
            injected_at[number] = round(when + delay_s, 1)
        else:
            repaired_at[number] = max(round(when + delay_s, 1), injected_at[number] + _MIN_REPAIR_S)
    script: list[Timed] = []
    for number, at_s in injected_at.items():
        script.append(Timed(clicks[number].fault, at_s, round(repaired_at[number] - at_s, 1)))
    return script


def without_live(arguments: Sequence[str]) -> list[str]:
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


def as_dict(fault: Fault) -> dict[str, Any]:
    """Return a fault as an experiment's file has it, without its times."""
    timed = fault_dict(Timed(fault, _FIRST_AT_S, _FIRST_AT_S))
    return {key: value for key, value in timed.items() if key not in ("at", "repair")}
