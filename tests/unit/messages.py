"""Messages of errors, for golden files: `data_regression.check(messages(call, cases))`."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

from railyard.core.errors import BadInput

_T = TypeVar("_T")


def messages(
    call: Callable[[_T], object], cases: Mapping[str, _T], error: type[Exception] = BadInput
) -> dict[str, str]:
    """Return the message of the error that each case must raise, by the case's name. It must be one line.

    The place of a definition in this checkout, which some begin with, is left out.
    """
    raised = {}
    for name, case in cases.items():
        with pytest.raises(error) as caught:
            call(case)
        raised[name] = re.sub(r"^\S+\.py:\d+: ", "", str(caught.value))
        assert "\n" not in raised[name], name
    return raised
