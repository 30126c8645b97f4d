"""Tasks of a schedule in arrays, for schedules of which a single object for each task would take too much memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from railyard.workloads.tasks import Compute, Task, Transfer

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Columns(Sequence[Task]):
    """Tasks in arrays of one length. A computation has its GPU as `src` and as `dst`, and no bytes.

    Task n waits for `after[after_end[n - 1]:after_end[n]]`.
    """

    # each task is made when it is read: a million objects take seconds and a gigabyte
    src: Numbers
    dst: Numbers
    bytes: Numbers
    seconds: npt.NDArray[np.float64]
    is_compute: npt.NDArray[np.bool_]
    phase: Numbers
    stripe: Numbers
    after_end: Numbers
    after: Numbers

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> "Columns":
        """Return tasks in arrays."""
        if isinstance(tasks, Columns):
            return tasks
        rows: list[tuple[int, int, int, float, bool, int, int]] = []
        after: list[int] = []
        for task in tasks:
            if isinstance(task, Transfer):
                rows.append((task.src, task.dst, task.bytes, 0.0, False, task.phase, task.stripe))
            else:
                rows.append((task.gpu, task.gpu, 0, task.seconds, True, task.phase, 0))
            after += task.after
        src, dst, size, seconds, is_compute, phase, stripe = zip(*rows, strict=True) if rows else ((),) * 7
        return cls(
            src=np.array(src, dtype=np.int64),
            dst=np.array(dst, dtype=np.int64),
            bytes=np.array(size, dtype=np.int64),
            seconds=np.array(seconds, dtype=np.float64),
            is_compute=np.array(is_compute, dtype=bool),
            phase=np.array(phase, dtype=np.int64),
            stripe=np.array(stripe, dtype=np.int64),
            after_end=np.cumsum([len(task.after) for task in tasks], dtype=np.int64),
            after=np.array(after, dtype=np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence["Columns"]) -> "Columns":
        """Return the tasks of all parts, one part after the other."""
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        joined: dict[str, npt.NDArray[Any]] = {}
        for column in fields(cls):
            joined[column.name] = _joined_column([getattr(part, column.name) for part in parts])
        offsets = np.cumsum([0, *(len(part.after) for part in parts[:-1])])
        joined["after_end"] += np.repeat(offsets, [len(part) for part in parts])
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.src)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        # IndexError, and numbers from the end
        n = range(len(self))[index]
        first = int(self.after_end[n - 1]) if n else 0
        after = tuple(self.after[first : self.after_end[n]].tolist())
        if self.is_compute[n]:
            return Compute(int(self.src[n]), float(self.seconds[n]), int(self.phase[n]), after)
        ends = int(self.src[n]), int(self.dst[n])
        return Transfer(*ends, int(self.bytes[n]), int(self.phase[n]), after, int(self.stripe[n]))

    def __iter__(self) -> Iterator[Task]:
        start = 0
        after = self.after.tolist()
        columns = (getattr(self, f.name).tolist() for f in fields(self)[:-1])
        for src, dst, size, seconds, is_compute, phase, stripe, end in zip(*columns, strict=True):
            waits = tuple(after[start:end])
            start = end
            yield Compute(src, seconds, phase, waits) if is_compute else Transfer(src, dst, size, phase, waits, stripe)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def __hash__(self) -> int:
        return hash((len(self), int(self.bytes.sum()), int(self.after.sum())))

    def suspects(self) -> list[int]:
        """Return the numbers of the tasks that break a rule of `Schedule.check`."""
        transfers = ~self.is_compute
        number = np.arange(len(self))
        wrong = transfers & ((self.src == self.dst) | (self.bytes <= 0) | (self.stripe < 0))
        waiting = np.repeat(number, np.diff(self.after_end, prepend=0))
        late = (self.after < 0) | (self.after >= waiting)
        other = np.where(late, 0, self.after)
        elsewhere = (self.src[other] != self.src[waiting]) & (self.dst[other] != self.src[waiting])
        wrong[waiting[late | elsewhere]] = True
        return np.flatnonzero(wrong).tolist()


def _joined_column(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the parts of a column as one array; one that repeats a single value without memory stays so."""
    if all(len(part) and part.strides == (0,) for part in parts):
        values = {part[0] for part in parts}
        if len(values) == 1:
            return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts)
