"""Streams and events of torch.cuda that do no work: the recorder learns from them which operations wait for which."""

from collections.abc import Callable
from typing import Any

import torch

from railyard.workloads.recording.ranks.recorder import DEFAULT_STREAM, Positions, Recorder


class _Job:
    """The streams of this process, which is one rank."""

    def __init__(self) -> None:
        self.recorder = Recorder(0, 1)
        self.streams: dict[int, Stream] = {}

    def number_of(self, stream: Any) -> int:
        """Return the number of a stream, or of the current one."""
        return self.recorder.stream if stream is None else int(stream.number)


_JOB = _Job()


class Event:
    """A point in a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._positions: Positions = ()

    def record(self, stream: Any = None) -> None:
        """Set the point to the end of a stream."""
        self._positions = _JOB.recorder.event(_JOB.number_of(stream))

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the point."""
        _JOB.recorder.wait_event(_JOB.number_of(stream), self._positions)

    def synchronize(self) -> None:
        """Let the script wait for the point."""
        _JOB.recorder.synchronize(self._positions)

    def query(self) -> bool:
        """Return true: everything is done."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return a millisecond: nothing is measured here."""
        return 1.0


class Stream:
    """A queue of work."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = len(_JOB.streams)
        self.cuda_stream = self.number
        self.device = torch.device("cpu")
        self._outer: list[int] = []
        _JOB.streams[self.number] = self

    def record_event(self, event: Any = None) -> Any:
        """Return an event at its end."""
        recorded = event or Event()
        recorded.record(self)
        return recorded

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Wait for the end of another stream."""
        _JOB.recorder.wait_event(self.number, _JOB.recorder.event(stream.number))

    def synchronize(self) -> None:
        """Let the script wait for its end."""
        _JOB.recorder.synchronize(_JOB.recorder.event(self.number))

    def query(self) -> bool:
        """Return true: everything is done."""
        return True

    def is_capturing(self) -> bool:
        """Return false: nothing is captured in a graph."""
        return False

    def __enter__(self) -> "Stream":
        self._outer.append(_JOB.recorder.switch_stream(self.number))
        return self

    def __exit__(self, *_: object) -> None:
        _JOB.recorder.switch_stream(self._outer.pop())


class NoStream:
    """The context of `torch.cuda.stream(None)`."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _set_stream(stream: Any) -> None:
    _JOB.recorder.switch_stream(stream.number)


def _stream(stream: Any) -> Any:
    return NoStream() if stream is None else stream


def _synchronize(*_: Any) -> None:
    for number in _JOB.recorder.streams():
        _JOB.recorder.synchronize(_JOB.recorder.event(number))


def replacements(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    """Return what takes the place of the names in torch.cuda, for the rank of a recorder."""
    _JOB.recorder = recorder
    _JOB.streams.clear()
    default = Stream()
    assert default.number == DEFAULT_STREAM
    return {
        "Event": Event,
        "Stream": Stream,
        "ExternalStream": Stream,
        "default_stream": lambda *_: default,
        "current_stream": lambda *_: _JOB.streams[recorder.stream],
        "stream": _stream,
        "set_stream": _set_stream,
        "synchronize": _synchronize,
    }
