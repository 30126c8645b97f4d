"""Labs on packets: every command of a lab's text runs, prints what the text says, and is checked by its records."""

from pathlib import Path

import pytest

from railyard.experiments.labs import checking
from railyard.experiments.labs.definition import LABS, Lab, NotDone, Setting
from tests.emulation.lab_blocks import BLOCK_S, run_all
from tests.unit.lab_pages import stem


def as_written(setting: Setting, name: str) -> object:
    """The right answer of a question, as a student writes it."""
    answer = next(question for question in setting.lab.questions if question.name == name).right(setting)
    return ", ".join(answer) if isinstance(answer, frozenset) else answer


@pytest.mark.parametrize("lab", list(map(LABS.__getitem__, LABS)), ids=stem)
def test_a_labs_commands_run_and_are_checked(lab: Lab, tmp_path: Path, slow: float) -> None:
    setting = Setting.of(lab, "", tmp_path / f"lab{lab.number}")
    run_all(setting, BLOCK_S * slow)
    answers = {question.name: as_written(setting, question.name) for question in lab.questions}
    outcomes = {outcome.item: outcome for outcome in checking.check(setting, answers)}
    for run in lab.runs:
        outcome = outcomes.pop(f"run {run.name}")
        assert outcome.state == "right" or "verdict is invalid" in outcome.message, outcome
    assert {outcome.state for outcome in outcomes.values()} == {"right"}
    strangers = [Setting.of(lab, f"student{n}", setting.folder) for n in range(20)]
    for run in lab.runs:
        stranger = next(each for each in strangers if each.overrides(run) != setting.overrides(run))
        with pytest.raises(NotDone, match="another experiment"):
            stranger.records(run.name)
    for question in lab.questions:
        for mistake in question.mistakes:
            wrong = mistake.answer(setting)
            given = ", ".join(wrong) if isinstance(wrong, frozenset) else wrong
            state = checking.judge(setting, question, given).state
            assert state == "wrong" or checking.is_same(given, question.right(setting), question.within)
        assert checking.judge(setting, question, "no such thing").state == "wrong"
