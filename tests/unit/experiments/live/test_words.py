"""Events in words: the terminal has those of the live page."""

import json
import shutil
import subprocess

import pytest

from railyard.experiments.run.words import words
from tests.emulation.programs import ROOT

EVENTS = [
    ("inject", {"kind": "link-down", "target": "d0g1"}, "fault: link-down at d0g1"),
    ("silent", {"switch": "rail0"}, "no heartbeats from rail0"),
    ("silent", {"hb-link": "d0g1"}, "no heartbeats over the HB link of d0g1"),
    ("silent", {"gpu": "d0g1"}, "no heartbeats from GPU d0g1"),
    ("resumed", {"link": "d0g1:rail1"}, "heartbeats over the link of d0g1:rail1 again"),
    ("controller-resumed", {"switches": 2}, "controller acts again, with 2 switches"),
    ("resumed", {"switch": "rail0"}, "heartbeats from rail0 again"),
    ("rerouted", {"routes": 1, "detours": 0}, "1 route changed; 0 detours in use"),
    ("first-packet", {"kind": "gpu-crash", "target": "d0g1", "ms": 0}, "gpu-crash at d0g1 cut no packets off"),
    ("first-packet", {"kind": "gpu-crash", "target": "d0g1", "ms": 5.2},
        "packets flow again, 5.2 ms after gpu-crash at d0g1"),
    ("rail-lost", {"rails": [1]}, "a node noticed the loss of 1"),
    ("not-known", {"a": 1, "b": "", "c": [1]}, "not known, a 1"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "detail", "text"), EVENTS)
def test_event_is_a_sentence(what: str, detail: dict[str, object], text: str) -> None:
    assert words(what, detail) == text


def test_page_has_the_same_sentences() -> None:
    if not (node := shutil.which("node")):
        pytest.skip("without node no JavaScript runs here")
    source = (ROOT / "experiments/live/static/words.js").read_text(encoding="utf-8")
    events = json.dumps([{"what": what, "detail": detail} for what, detail, _ in EVENTS])
    script = f"{source}\nconsole.log(JSON.stringify({events}.map(words)));"
    done = subprocess.run([node, "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [text for _, _, text in EVENTS]
