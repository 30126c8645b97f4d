"""Messages of errors, which tests compare with golden files."""

from collections.abc import Callable, Mapping

import pytest

from railyard.core.errors import RailyardError

CheckMessages = Callable[[Mapping[str, Callable[[], object]]], None]
"""The fixture `check_messages`."""


def message_of(call: Callable[[], object]) -> str:
    """Return the type and the message of the error that a call raises, which is one line."""
    with pytest.raises((RailyardError, ValueError)) as caught:
        call()
    message = f"{caught.type.__name__}: {caught.value}"
    assert "\n" not in message
    return message
