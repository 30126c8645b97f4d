"""Schedules of any shape, for tests that hold for all of them."""

from hypothesis import strategies as st

from railyard.workloads.schedule import Phase, Schedule
from railyard.workloads.tasks import Compute, Task, Transfer

SIDE = st.integers(2, 5)
PHASE = Phase("any", "collective", "point-to-point", 1, 2, 1)


@st.composite
def schedules(draw: st.DrawFn, most_tasks: int = 12, most_bytes: int = 600_000, most_s: float = 0.002) -> Schedule:
    """Transfers in stripes and computations, of two phases, on 2 x 2 or 3 x 2 GPUs.

    Each waits for any that end where it runs.
    """
    gpus, rails = draw(st.sampled_from([(4, 2), (6, 2)]))
    tasks: list[Task] = []
    for _ in range(draw(st.integers(1, most_tasks))):
        here = draw(st.integers(0, gpus - 1))
        ends_here = [n for n, task in enumerate(tasks) if here in _ends(task)]
        after = tuple(draw(st.lists(st.sampled_from(ends_here), unique=True, max_size=3)) if ends_here else ())
        phase = draw(st.integers(0, 1))
        if draw(st.booleans()) or draw(st.booleans()):
            dst = (here + draw(st.integers(1, gpus - 1))) % gpus
            stripe = draw(st.integers(0, 2))
            tasks.append(Transfer(here, dst, draw(st.integers(1, most_bytes)), phase, after, stripe))
        else:
            tasks.append(Compute(here, draw(st.floats(0, most_s)), phase, after))
    schedule = Schedule("any", gpus, rails, (PHASE, PHASE), tuple(tasks))
    schedule.check()
    return schedule


def _ends(task: Task) -> tuple[int, ...]:
    return (task.src, task.dst) if isinstance(task, Transfer) else (task.gpu,)
