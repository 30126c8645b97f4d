"""Each event that the source can emit has a sentence of its own, for the terminal and the live page."""

import ast
import errno
import re
from collections.abc import Iterator
from functools import cache

import pytest

from railyard.controller.agent.route_agent import refusal
from railyard.core.records import IntervalId
from railyard.experiments.run.progress import event_text
from railyard.experiments.run.words import sentence_names, words
from railyard.results.runs.records import Event
from railyard.topologies.addresses import Gpu
from railyard.topologies.routing import Hop, Route
from tests.emulation.programs import ROOT

EMITTERS = frozenset({"emit", "_emit", "_emit_port", "show", "_show", "_note", "_on_event"})
"""Functions that emit an event: its name is the first argument, or the second one after a time in ns."""
FOLDERS = (
    "controller", "experiments/live", "experiments/run", "experiments/measures", "experiments/fabrics", "results/runs",
)  # fmt: skip
"""Folders of the modules that emit events."""
CONSTANT = re.compile(r'^([A-Z_]+)(?:: Final)? = "([^"]*)"', re.MULTILINE)
EMITS = re.compile(r"\bEvent\(|emit|_?show\(|_note\(|_on_event\(")
INTERNAL = frozenset({"control", "record-ended", "process-interrupted", "interruption", "presence"})
"""Messages between processes of Railyard that no run records and no page shows."""
DYNAMIC = {
    "act": ("inject", "repair", "start", "stop", "pause", "resume"),  # passed on by _note of live/controls.py
    "do": ("start", "stop", "pause", "resume"),
    "operation": ("inject", "repair"),
    "event": ("rail-lost", "migrated"),
    "event.what": ("switch-up", "switch-down"),
    "report.what": ("training-discarded", "training-ended"),
    "fault.kind": ("inject",),  # event_text names an injection by its source
    "row.fault": ("inject",),
    "script.name": ("script",),
    "name": tuple(
        f"replacement-{step}"
        for step in (
            "fault", "detected", "decided", "adopted", "optical-links-down", "optical-links-up", "replaced",
            "state-moved", "job-resumed",
        )
    ),
    "f'replacement-{name}'": (),  # the same
    "f'{source}-{event_name}'": (),  # of measures, which have sentences of their own
    "f'{event_name}-failed'": ("workload-failed", "background-failed", "policy-failed"),
    "[]": (),  # of phases: a callback that is called show too
    "event_name": (),  # the same
    "what": (),  # passed on by a function that is listed above
    "event_kind": (),  # the same
}  # fmt: skip
"""Names that are no constants in the source, with the events that they stand for."""


def constants_of(expression: ast.expr, constants: dict[str, str]) -> list[str]:
    """Return the strings that an expression can be; for one that is not constant its source in angle brackets."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=body, orelse=orelse):
            return [*constants_of(body, constants), *constants_of(orelse, constants)]
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in constants:
            return [constants[name]]
        case _:
            return [f"<{ast.unparse(expression)}>"]


def emitted_names(tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    """Yield the name of every event that a module emits or records."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func).rpartition(".")[2]
        if function == "Event" and len(node.args) == 4:
            source, *_ = constants_of(node.args[1], constants)
            for name in constants_of(node.args[2], constants):
                with_source = f"{source}-{name}"
                yield with_source if with_source in sentence_names() else name
        elif function in EMITTERS and 2 <= len(node.args) <= 3:
            has_time = "ns" in ast.unparse(node.args[0])
            yield from constants_of(node.args[1 if has_time else 0], constants)


@cache
def all_emitted_names() -> dict[str, set[str]]:
    """Return each event name or expression of the source, with the modules that emit it."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    sources = {path: path.read_text() for path in paths}
    shared: dict[str, str] = {}
    for source in sources.values():
        shared.update(CONSTANT.findall(source))
    trees = {path: ast.parse(source) for path, source in sources.items() if EMITS.search(source)}
    emitters: dict[str, set[str]] = {}
    for path, tree in trees.items():
        constants = shared | dict(CONSTANT.findall(sources[path]))
        for name in emitted_names(tree, constants):
            emitters.setdefault(name, set()).add(path.name)
    return emitters


def test_every_event_in_the_source_has_a_sentence() -> None:
    missing = {}
    for name, module_names in all_emitted_names().items():
        expression = name.removeprefix("<").removesuffix(">")
        is_dynamic = expression != name
        names = DYNAMIC.get(expression, (name,)) if is_dynamic else (name,)
        unnamed = set(names) - sentence_names() - INTERNAL
        if unnamed:
            missing[name] = (unnamed, module_names)
    assert missing == {}


@pytest.mark.parametrize(
    "name", ["learned", "ready", "decided", "controller-crashed", "training-ended", "background-sent"]
)
def test_the_walk_finds_events_that_are_known_to_be_emitted(name: str) -> None:
    listed = {event for events in DYNAMIC.values() for event in events}
    assert name in all_emitted_names() or name in listed


INTERVAL = IntervalId("rail-only", "gpt", repeat=1).as_dict()
EVENTS = [
    ("controller", "learned", {"fabric": "rail-only"}, "controller has the interfaces of all GPUs"),
    ("controller", "ready", {"fabric": "rail-only"}, "controller has set up the flows of all switches"),
    ("controller", "failed", {"fabric": "a", "policy": "mine", "why": "KeyError"}, "policy mine failed: KeyError"),
    ("controller", "registry", {"address": "/run/x", "why": ""}, "registry of health scores started"),
    ("replacement", "decided", INTERVAL, "the replacement of the GPU was decided"),
    ("script", "storm", {**INTERVAL, "seed": 0, "faults": [{"kind": "a"}, {"kind": "b"}]},
        "script storm begins with 2 faults"),
    ("training", "ended", {**INTERVAL, "rank": 0, "step": 0, "text": ""}, "process of rank 0 ended with exit status 0"),
    ("background", "on", {**INTERVAL, "text": "40% of rail 0", "share": 0.4},
        "background traffic begins: 40% of rail 0"),
    ("fabric", "uplink-bytes", {**INTERVAL, "bytes": {"rail0 up": [1, 2]}}, "the bytes of every uplink were counted"),
    ("allreduce", "rails lost", {**INTERVAL, "rails": ["r0"], "kept": True},
        "rails r0 were lost though no fault was injected"),
    ("plugin", "own-event", {**INTERVAL, "count": 3}, "own event, count 3"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "what", "detail", "text"), EVENTS)
def test_event_of_a_source_is_a_sentence(source: str, what: str, detail: dict[str, object], text: str) -> None:
    assert event_text(Event(1, source, what, detail)) == text


def test_a_refused_route_is_named_by_its_prefix() -> None:
    route = Route("10.1.0.0/24", (Hop("rail", Gpu(1, 0)),))
    error = refusal(Gpu(0, 0), route, errno.ENETUNREACH, count=3)
    text = words("refused", {"gpu": "d0g0", "why": error.strerror})
    assert text == "a route was refused: d0g0: route to 10.1.0.0/24: Network is unreachable (and 2 more)"


def test_no_sentence_holds_python_or_a_key_of_details() -> None:
    for name in sentence_names():
        text = words(name, {})
        assert not re.search(r"[{}\[\]_]|None|True|False", text), (name, text)
