"""The message of an error that a call raises, for golden files of all messages of a module."""

from collections.abc import Callable

import pytest


def message_of(error: type[BaseException], call: Callable[[], object]) -> str:
    """Return the message of the error that a call raises; the test fails if it raises another one, or none."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
