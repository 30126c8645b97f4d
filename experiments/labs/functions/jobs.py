"""Answers of lab 12: rail links that two jobs share, and the student's runs of jobs together and shifted in time."""

from collections.abc import Sequence

from railyard.experiments.labs.definition import NotDone, Setting
from railyard.experiments.labs.functions.waiting import forwarder, yaml_list
from railyard.experiments.measures.jobs.records import JOB_SHIFTS, JOB_SLOWDOWN
from railyard.topologies.addresses import Gpu

__all__ = ("even_gpus", "forwarder", "measured_shift_s", "measured_slow_down", "odd_gpus", "shared_links", "yaml_list")


def even_gpus(rails: Sequence[int]) -> list[str]:
    """Return the GPUs of the job `even`, two of each HB domain in the order of its rings.

    `rails`: all four, of which this job has the first two in domains 0 and 2, and the last two in the other domains.
    """
    places = [(0, rails[:2]), (1, rails[2:]), (2, rails[:2]), (3, rails[2:])]
    return _names(places)


def odd_gpus(rails: Sequence[int]) -> list[str]:
    """Return the GPUs of the job `odd` in the order of its rings: all that the job `even` hasn't."""
    places = [(0, rails[2:]), (2, rails[2:]), (1, rails[:2]), (3, rails[:2])]
    return _names(places)


def _names(places: Sequence[tuple[int, Sequence[int]]]) -> list[str]:
    """Return the names of the GPUs of some domains, on some rails each."""
    names: list[str] = []
    for domain, rails in places:
        names += [Gpu(domain, rail).name for rail in rails]
    return names


def shared_links(setting: Setting) -> frozenset[str]:
    """Return the GPUs over whose rail links both jobs send on the way to the rail switch, by policy dr."""
    rails = setting["ranks"]
    return _senders(setting, even_gpus(rails)) & _senders(setting, odd_gpus(rails))


def _senders(setting: Setting, gpus: Sequence[str]) -> frozenset[str]:
    """Return the GPUs over whose rail links a job leaves HB domains, in both of its rings."""
    senders: set[str] = set()
    for ring in (gpus[0::2], gpus[1::2]):
        next_gpus = [*ring[1:], ring[0]]
        for src, dst in zip(ring, next_gpus, strict=True):
            senders.add(forwarder(setting, src, dst))
    return frozenset(senders)


def measured_slow_down(setting: Setting, run: str, job: str, workload: str) -> float:
    """Return the slow-down of a job in one of the student's runs. `workload`: how the jobs ran, such as all jobs."""
    return setting.measurement(run, workload=workload, phase=job, metric=JOB_SLOWDOWN).value


def measured_shift_s(setting: Setting) -> float:
    """Return the shift in time that the student's run applied, s. NotDone if it has none."""
    shifts = [row.shift_s for row in setting.records("interleaved").run.rows(JOB_SHIFTS)]
    if not shifts:
        raise NotDone("the run has no shift of a job")
    return max(shifts)
