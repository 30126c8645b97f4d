"""Records of jobs: each job alone and together with the others, its iterations, and its use of links."""

from dataclasses import dataclass
from typing import Final

from railyard.core.records import Record
from railyard.results.measured import RecordKind

ALONE: Final = "alone"
TOGETHER: Final = "together"
INTERLEAVED: Final = "interleaved"
JOB_SLOWDOWN: Final = "job_slowdown"
"""The metric of a job: its mean iteration together with the others over its mean iteration alone."""
FAULT_SLOWDOWN: Final = "fault_slowdown"
"""The metric of a job: its mean iteration while a fault lasts over that without the fault."""


@dataclass(frozen=True, slots=True)
class JobRun(Record):
    """A row of jobs.csv: all iterations of a job in a mode.

    `mode`: `alone` on its GPUs, `together` with the other jobs, `interleaved` (together, with shifted starts), or the
    kind and target of a fault that is injected while all jobs run.
    `placed_by`: the policy that chose its GPUs. `gpus`: in the order of its ranks. `start_s`: after the replay began.
    `iteration_s`: the mean. `waiting_share`: of the job's time, in which a GPU, on average, neither sends, receives nor
    computes. `pairs_wrong`: GPU pairs that didn't receive what they should. `port_bytes`: counted on the rail links of
    the job's GPUs, also what these forward. `iteration_predicted_s`: without noise, by even shares of hashed links.
    `iteration_mean_s`, `iteration_least_s`, `iteration_most_s`: mean and interval of simulations with noise and hashes;
    with a fault without noise.

    With a fault, also: `fault_start_s`, `fault_end_s`: when it was injected and repaired, after the replay began.
    `fault_slow_down_together`: predicted, while the fault lasts, by what the job does meanwhile.
    `fault_slow_down_alone`: predicted without the other jobs, if the fault lasted for all of the job. `not_predicted`:
    why the job has no prediction.
    """

    job: str
    mode: str
    placed_by: str
    gpus: str
    start_s: float
    iterations: int
    iteration_s: float
    iteration_predicted_s: float | None
    waiting_share: float
    asked_bytes: int
    delivered_bytes: int
    pairs_wrong: int
    port_bytes: int
    iteration_mean_s: float | None = None
    iteration_least_s: float | None = None
    iteration_most_s: float | None = None
    fault_start_s: float | None = None
    fault_end_s: float | None = None
    fault_slow_down_alone: float | None = None
    fault_slow_down_together: float | None = None
    not_predicted: str = ""


@dataclass(frozen=True, slots=True)
class JobIteration(Record):
    """A row of job_iterations.csv: an iteration of a job, from the end of the one before. `end_s`: after the start."""

    job: str
    mode: str
    iteration: int
    seconds: float
    predicted_s: float | None
    end_s: float


@dataclass(frozen=True, slots=True)
class JobLink(Record):
    """A row of job_links.csv: a job's use of a link in one direction, by the measured times of its transfers.

    `link`: node and side. `shared_s`: of `busy_s`, with another job. `shared_with`: these jobs.
    """

    link: str
    direction: str
    job: str
    bytes: int
    busy_s: float
    shared_s: float
    shared_with: str


@dataclass(frozen=True, slots=True)
class JobPort(Record):
    """A row of job_ports.csv: bytes that a port counted while jobs ran, beside those that their routes say.

    `link`: node and side; all uplinks of a switch together. `jobs`: whose transfers or acknowledgements cross it; "" if
    it should carry nothing. `expected_bytes`: of transfers, with headers. `allowed_bytes`: by which the counter may
    differ from that, for acknowledgements, connections and control traffic.
    """

    mode: str
    link: str
    direction: str
    jobs: str
    counted_bytes: int
    expected_bytes: int
    allowed_bytes: int

    @property
    def off_bytes(self) -> int:
        """The bytes by which the counter differs from the routes."""
        return abs(self.counted_bytes - self.expected_bytes)


@dataclass(frozen=True, slots=True)
class LinkSharing(Record):
    """A row of link_sharing.csv: when jobs used a link in one direction at the same time, s after the start."""

    link: str
    direction: str
    jobs: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class JobShift(Record):
    """A row of job_shifts.csv: by how much later a job begins than before, and what that is predicted to change.

    `slow_down_before`, `slow_down_after`: predicted. Compatibility: 1 if jobs never want more of a link than there is.
    """

    job: str
    shift_s: float
    slow_down_before: float
    slow_down_after: float
    compatibility_before: float
    compatibility_after: float


@dataclass(frozen=True, slots=True)
class JobBurst(Record):
    """A row of job_bursts.csv: when a job uses the link that jobs share most, together or interleaved, s."""

    mode: str
    link: str
    direction: str
    job: str
    start_s: float
    end_s: float


JOB_RUNS: Final = RecordKind("job_runs", JobRun, "jobs.csv", before="measurements", sweep_file="jobs.parquet")
JOB_ITERATIONS: Final = RecordKind("job_iterations", JobIteration, "job_iterations.csv", before="measurements")
JOB_LINKS: Final = RecordKind("job_links", JobLink, "job_links.csv", before="measurements")
JOB_PORTS: Final = RecordKind("job_ports", JobPort, "job_ports.csv", before="measurements")
LINK_SHARING: Final = RecordKind("link_sharing", LinkSharing, "link_sharing.csv", before="measurements")
JOB_SHIFTS: Final = RecordKind("job_shifts", JobShift, "job_shifts.csv", before="measurements")
JOB_BURSTS: Final = RecordKind("job_bursts", JobBurst, "job_bursts.csv", before="measurements")
