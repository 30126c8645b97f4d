"""A replay's worker process: `python -m railyard.workloads.replay.worker`, by messages.py.

Listen, Connect and Go come in, in this order.
"""

import gc

from railyard.core.process_limits import raise_open_file_limit
from railyard.core.worker import Failed, Parent, Ready
from railyard.workloads.replay.engine import Engine
from railyard.workloads.replay.messages import Connect, Delivered, Finished, Go, Listen, PhaseOver
from railyard.workloads.replay.phases import PhaseEnd
from railyard.workloads.replay.sockets import connect, listen


def main() -> None:
    """Serve one job."""
    parent = Parent(Listen, Connect, Go)
    job = parent.receive().job
    raise_open_file_limit()

    def report(progress: int | PhaseEnd) -> None:
        parent.send(PhaseOver(end=progress) if isinstance(progress, PhaseEnd) else Delivered(size=progress))

    try:
        listeners = listen(job)
        parent.send(Ready())
        parent.receive()
        engine = Engine(job, *connect(job, listeners))
        parent.send(Ready())
        go = parent.receive()
        gc.disable()
        outcome = engine.run(go.start_ns, report, go.deadline_ns)
        parent.send(Finished(outcome=outcome))
        if not outcome.broken:
            parent.receive()  # keep the connections until all workers have finished
        # else close them, so that the other workers find out at once
    except (OSError, TimeoutError) as error:
        parent.send(Failed(why=str(error)))


if __name__ == "__main__":
    main()
