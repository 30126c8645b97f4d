"""Tasks in arrays give back the tasks they were made of, and the same errors."""

import pytest

from railyard.workloads.columns import Columns
from railyard.workloads.schedule import Phase, Schedule
from railyard.workloads.tasks import Compute, Task, Transfer

PHASE = Phase("a", "collective", "", 1, 1, 1)
TASKS: tuple[Task, ...] = (Compute(0, 0.5, 0), Transfer(0, 1, 7, 0, (0,)), Transfer(1, 2, 8, 0, (1,), 3))


def test_columns_give_back_their_tasks() -> None:
    columns = Columns.joined([Columns.of(TASKS[:1]), Columns.of(()), Columns.of(TASKS[1:])])
    assert tuple(columns) == TASKS
    assert [columns[0], columns[-1], *columns[1:]] == [TASKS[0], TASKS[2], *TASKS[1:]]
    assert columns == Columns.of(TASKS)
    assert hash(columns) == hash(Columns.of(TASKS))
    assert columns != Columns.of(TASKS[:2])


@pytest.mark.parametrize(
    "bad",
    [
        Transfer(2, 2, 1, 0),
        Transfer(2, 1, 0, 0),
        Transfer(2, 1, 1, 0, (), -1),
        Transfer(2, 1, 1, 0, (3,)),
        Transfer(2, 1, 1, 0, (-1,)),
        Transfer(0, 1, 1, 0, (2,)),
        Compute(1, 1.0, 0, (0,)),
    ],
)
def test_bad_task_gives_the_same_error_in_columns(bad: Task) -> None:
    with pytest.raises(ValueError, match="task 3") as of_objects:
        Schedule("s", 4, 2, (PHASE,), (*TASKS, bad)).check()
    with pytest.raises(ValueError, match="task 3") as of_columns:
        Schedule("s", 4, 2, (PHASE,), Columns.of((*TASKS, bad))).check()
    assert str(of_columns.value) == str(of_objects.value)
