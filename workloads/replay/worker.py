"""A replay's worker process: `python -m railyard.workloads.replay.worker`, pickles in, pickles out.

In: the Job; then "connect"; then ("go", start_ns, deadline_ns). Out: "listening", "connected", numbers of delivered
bytes, a PhaseOver for each watched phase, and at last the Outcome. Any failure comes out as a RuntimeError in place of
the next answer.
"""

import gc
import pickle
import sys
from typing import Any

from railyard.core.process_limits import raise_open_file_limit
from railyard.workloads.replay.engine import Engine
from railyard.workloads.replay.job import Job
from railyard.workloads.replay.sockets import connect, listen


def _send_message(message: Any) -> None:
    pickle.dump(message, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve one job."""
    job: Job = pickle.load(sys.stdin.buffer)
    raise_open_file_limit()
    try:
        listeners = listen(job)
        _send_message("listening")
        pickle.load(sys.stdin.buffer)
        engine = Engine(job, *connect(job, listeners))
        _send_message("connected")
        _, start_ns, deadline_ns = pickle.load(sys.stdin.buffer)
        gc.disable()
        outcome = engine.run(start_ns, _send_message, deadline_ns)
        _send_message(outcome)
        if not outcome.broken:
            sys.stdin.buffer.read()  # keep the connections until all workers have finished
        # else let go of them: so the other workers learn of it at once
    except (OSError, TimeoutError) as error:
        _send_message(RuntimeError(str(error)))


if __name__ == "__main__":
    main()
