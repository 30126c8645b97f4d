"""Trainings under faults: the figures of a training, the lines of programs, and wrong keys of the section."""

from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.experiments.measures.training.measure import Training
from railyard.experiments.measures.training.outcome import (
    AFTER,
    BEFORE,
    DURING,
    Report,
    Sent,
    detected_s,
    outcome,
    pace,
    stalled_s,
    weights_by_step,
)
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.parsing import parse
from railyard.workloads.training.program import TRAINING_PROGRAMS, Line

MS = 1_000_000
STEPS = 20


def trained(gaps_ms: list[int], ranks: int = 3) -> list[Report]:
    """Return what ranks report that do a step after each gap; rank r reports r ms later."""
    reports, at = [], 0
    for step, gap in enumerate(gaps_ms, 1):
        at += gap
        reports += [Report((at + rank) * MS, rank, "step", step, f"{step:016x}") for rank in range(ranks)]
    return reports


REFERENCE = weights_by_step(trained([100] * STEPS))


def test_training_without_effect_stalls_and_loses_nothing() -> None:
    found = outcome(trained([100] * STEPS), REFERENCE, 3, STEPS, 1050 * MS, 1450 * MS)
    assert (found.detected_s, found.stalled_s, found.steps_lost) == (None, 0, 0)
    assert found.weights_equal
    assert found.ranks_equal
    assert found.completed
    assert dict(found.step_s) == {BEFORE: 0.1, DURING: 0.1, AFTER: 0.1}


@given(at=st.integers(2, STEPS - 2), pause_ms=st.integers(150, 9000), noticed_ms=st.integers(0, 140))
def test_pause_after_the_fault_is_the_stall(at: int, pause_ms: int, noticed_ms: int) -> None:
    reports = trained([100] * at + [pause_ms] + [100] * (STEPS - at - 1))
    t_fault = (100 * at + 10) * MS
    reports.append(Report(t_fault + noticed_ms * MS, 2, "discarded", at + 1, "timeout"))
    found = outcome(reports, REFERENCE, 3, STEPS, t_fault, t_fault + 50 * MS)
    assert found.stalled_s == pytest.approx(pause_ms / 1000 - 0.1)
    assert found.detected_s == pytest.approx(noticed_ms / 1000)
    assert found.steps_lost == 1


@given(data=st.data(), done=st.integers(6, STEPS), kept=st.integers(0, 5))
def test_steps_since_the_checkpoint_are_lost(data: st.DataObject, done: int, kept: int) -> None:
    first = trained([100] * done)
    at = done * 100 + 500
    ended = [Report((at + rank) * MS, rank, "ended", 1) for rank in range(3)]
    again = [r._replace(at_ns=r.at_ns + at * MS) for r in trained([100] * STEPS) if r.step > kept]
    reports = data.draw(st.permutations(ended)) + first + again
    found = outcome(reports, REFERENCE, 3, STEPS, (at - 600) * MS, at * MS, killed=frozenset({1}))
    assert found.steps_lost == done - kept
    assert found.detected_s == pytest.approx(0.6)  # rank 0's end: rank 1's is the fault's own
    assert found.weights_equal


def test_other_weights_of_one_rank_are_found() -> None:
    reports = trained([100] * STEPS)
    other = [r._replace(detail="0" * 16) if (r.rank, r.step) == (1, 7) else r for r in reports]
    found = outcome(other, REFERENCE, 3, STEPS, 1050 * MS, 1450 * MS)
    assert not found.weights_equal
    assert not found.ranks_equal
    assert found.first_difference == 7


def test_rank_that_misses_the_last_step_is_not_done() -> None:
    reports = [r for r in trained([100] * STEPS) if (r.rank, r.step) != (2, STEPS)]
    assert not outcome(reports, REFERENCE, 3, STEPS, 1050 * MS, 1450 * MS).completed


def sent(pauses_ms: dict[int, int], step_ms: int = 60, steps: int = 100) -> list[Sent]:
    """Return samples every 20 ms of GPUs that send 200 segments at the end of each step; `pauses_ms`: before a step.

    Before that they connect with 10 segments, and wait for 2 s.
    """
    ends, at_ms = list[int](), 2000
    for step in range(steps):
        at_ms += step_ms + pauses_ms.get(step, 0)
        ends.append(at_ms)
    return [Sent(t * MS, 10 + 200 * bisect_right(ends, t)) for t in range(20, at_ms + 200, 20)]


@given(step=st.integers(30, 90), pause_ms=st.integers(0, 5000), step_ms=st.integers(20, 500))
def test_pause_of_the_traffic_is_the_stall(step: int, pause_ms: int, step_ms: int) -> None:
    usual = pace(sent({}, step_ms))
    assert usual
    t_fault = (2000 + step_ms * (step - 2)) * MS
    found = stalled_s(sent({step: pause_ms}, step_ms), usual, t_fault)
    assert found == pytest.approx(pause_ms / 1000, abs=0.1 + 2 * step_ms / 1000)


def test_pauses_before_the_fault_and_a_late_start_are_no_stall() -> None:
    usual = pace(sent({}))
    assert usual
    assert usual.longest_s < 0.3
    assert stalled_s(sent({0: 3000, 40: 2000}), usual, (2000 + 5000 + 60 * 50) * MS) < 0.1


def test_program_that_sends_next_to_nothing_has_no_pace() -> None:
    assert pace([]) is None
    assert pace([Sent(n * MS, 0) for n in range(100)]) is None
    assert pace(sent({}, steps=2)) is None


def test_failing_rank_detects_unless_the_fault_killed_it() -> None:
    reports = [Report(5 * MS, 1, "ended", 1), Report(7 * MS, 0, "ended", 1), Report(9 * MS, 2, "ended", 0)]
    assert detected_s(reports, 2 * MS) == pytest.approx(0.003)
    assert detected_s(reports, 2 * MS, frozenset({1})) == pytest.approx(0.005)
    assert detected_s(reports, 8 * MS) is None
    assert detected_s(reports, 2 * MS, frozenset({1}), until=6 * MS) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step 12 abc", Line(1, "step", 12, "abc")),
        ("discarded 3 Timed out after 5 s", Line(1, "discarded", 3, "Timed out after 5 s")),
        ("[1,2]<stdout>:step 4 ff\n", Line(2, "step", 4, "ff")),
        ("loss 0.3", None),
        ("step x", None),
    ],
)
def test_lines_of_programs_name_rank_and_step(text: str, line: Line | None) -> None:
    assert Line.parse(text, 1) == line


def experiment(**training: Any) -> dict[str, Any]:
    """Return an experiment with one training on 3 x 2 GPUs."""
    return {
        "name": "mine",
        "fabrics": [{"kind": "rail-only", "domains": 3, "rails": 2}],
        "trainings": [{"program": "ddp", **training}],
    }


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ({"program": "dpp"}, "trainings.0.program"),
        ({"gpus": ["d0g0", "d9g0"]}, "trainings.0.gpus.1"),
        ({"gpus": ["d0g0", "d0g0"]}, "trainings.0.gpus"),
        ({"gpus": ["d0g0"]}, "trainings.0.gpus"),
        ({"steps": 1}, "trainings.0.steps"),
        ({"program": "command"}, "trainings.0.arguments.command"),
        ({"program": "command", "arguments": {"command": "a 'b"}}, "trainings.0.arguments.command"),
        ({"program": "command", "arguments": {"command": [], "width": 8}}, "trainings.0.arguments.width"),
        ({"arguments": {"min_groups": 2}}, "trainings.0.arguments.min_groups"),
        ({"faults": [{"kind": "link-down", "target": "d7g0"}]}, "trainings.0.faults.0.target"),
        ({"faults": [{"kind": "link-down", "target": "d1g0"}] * 2}, "trainings.0.faults.1"),
    ],
)
def test_wrong_training_names_its_field(training: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as found:
        parse(experiment(**training))
    assert found.value.field == field


def test_resolved_training_is_the_same_training() -> None:
    for name in TRAINING_PROGRAMS.names():
        own = ["trainings.0.arguments={command: python train.py}"] if name == "command" else []
        spec = load_any("training-faults", [f"program={name}", *own])
        trainings = Training().items(spec)
        assert Training().items(parse(spec.resolved())) == trainings
        assert trainings[0].program == name


@pytest.mark.parametrize("name", ["ddp_test", "torchft_test"])
def test_page_shows_the_example_of_today(name: str) -> None:
    root = Path(__file__).parents[5]
    example = (root / "examples" / f"{name}.py").read_text()
    assert f"```python\n{example}```" in (root / "docs" / "training.md").read_text()
