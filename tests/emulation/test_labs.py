"""Labs on packets: every command of a lab's text runs, prints what the text says, and is checked by its records."""

from pathlib import Path

import pytest

from railyard.experiments.labs.definition import Lab, Setting, in_order
from railyard.experiments.labs.pages import stem
from tests.emulation.lab_blocks import BLOCK_S, assert_checked, run_all


@pytest.mark.long
@pytest.mark.parametrize("lab", in_order(), ids=stem)
def test_a_labs_commands_run_and_are_checked(lab: Lab, tmp_path: Path) -> None:
    """Variants, but for lab 2."""
    setting = Setting.of(lab, "", tmp_path / f"lab{lab.number}")
    run_all(setting, BLOCK_S)
    assert_checked(setting)
