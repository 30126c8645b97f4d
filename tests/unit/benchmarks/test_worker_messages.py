"""The benchmark of messages between processes: both protocols answer, and a bad option is refused."""

import pytest

from benchmarks import worker_messages


def test_both_protocols_are_measured() -> None:
    found = worker_messages.measure(messages=3, repeats=2)
    assert {what: {protocol: len(us) for protocol, us in by.items()} for what, by in found.items()} == {
        "event": {"typed": 2, "plain": 2},
        "round trip": {"typed": 2, "plain": 2},
    }
    assert worker_messages.table_of(found).row_count == 2


@pytest.mark.parametrize("option", ["--messages", "--repeats"])
def test_a_count_below_one_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker_messages.main([option, "0"]) == 2
    assert f"{option}: 0 must be 1 or more" in capsys.readouterr().err
