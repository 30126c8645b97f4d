"""Errors of command lines, for golden files: `data_regression.check(command_errors(capsys, cases))`."""

import re
from collections.abc import Mapping, Sequence

import pytest

from railyard.experiments import cli


def command_errors(
    capsys: pytest.CaptureFixture[str],
    cases: Mapping[str, Sequence[str]],
    status: int = 2,
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the error that each command line must print, by the case's name: one line, and nothing else.

    `names`: texts that differ from machine to machine, such as a folder, with what the golden file has for each.
    """
    errors: dict[str, str] = {}
    for case, words in cases.items():
        assert cli.main(list(words)) == status, case
        printed = capsys.readouterr()
        assert printed.out == "", case
        assert printed.err.startswith("error: "), case
        assert printed.err.count("\n") == 1, case
        message = printed.err.removeprefix("error: ").removesuffix("\n")
        for text, name in (names or {}).items():
            message = message.replace(text, name)
        # a list of which a part is shown becomes longer with each model and experiment
        errors[case] = re.sub(r"allowed are [^:;]* and \d+ more", "allowed are ...", message)
    return errors
