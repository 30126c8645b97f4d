"""`predict busbw`: what nccl-tests should show on a platform, in its own columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import matplotlib.figure
import numpy as np
from rich.console import Console

from railyard.core.errors import BadInput, nearest_multiples, unknown_name_hint
from railyard.experiments.predict.output import Predicted
from railyard.results.format import percent
from railyard.results.plots import style
from railyard.results.theory.collectives.fit import (
    LARGE,
    constants_from,
    interval_share,
    links_of,
    measured,
    platform_constants,
)
from railyard.results.theory.collectives.own_rows import OwnCollectives, group_of, operation_named, read_own
from railyard.results.theory.collectives.times import ROOTED, FloatArray, Operation, bus_factor, collective_s, ideal_s
from railyard.topologies.platforms import PLATFORMS, full_name

NAME: Final = "busbw"
DESCRIPTION: Final = "What nccl-tests should show on a platform's HB domains and rails, in its own columns"
FORMS: Final = ("measured", "ideal")
PROGRAMS: Final[dict[Operation, str]] = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "alltoall", "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
SIZES: Final = tuple(2**exponent for exponent in range(20, 35))  # nccl-tests -b 1M -e 16G -f 2
FLOAT_BYTES: Final = 4
WHOLE_BUFFERS: Final[tuple[Operation, ...]] = ("all-reduce", *ROOTED)
"""Collectives of which every rank has the whole buffer."""
COLUMNS: Final = ("size_bytes", "count", "time_us", "algbw_gb_s", "busbw_gb_s", "low_us", "high_us", "ideal_busbw_gb_s")
DEFAULT_GPUS: Final = 16


@dataclass(frozen=True, slots=True)
class BusbwOptions:
    """Options of `predict busbw`. `gpus` and `domain_gpus` may be 0: then the file's, or 16 and the platform's."""

    platform: str = "h100"
    gpus: int = 0
    domain_gpus: int = 0
    collective: str = "all-reduce"
    nccl: str = ""
    form: str = "measured"
    forwarding: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    """Options with their defaults, checked."""

    platform: str
    operation: Operation
    gpus: int
    domain_gpus: int
    form: str
    forwarding: bool
    own: OwnCollectives | None


def predict_busbw(options: BusbwOptions) -> Predicted:
    """Return the rows that nccl-tests should show. BadInput for options that can't be used."""
    job = _checked(options)
    rows = _rows(job)
    return Predicted(
        NAME,
        f"Bus bandwidth of {job.operation} on {job.gpus:,} GPUs of {job.platform}",
        COLUMNS,
        rows,
        partial(_drawn, rows),
        partial(_print, job, rows),
        {"notes": list(_notes(job))},
    )


def _checked(options: BusbwOptions) -> _Job:
    # constants are found by the full name
    platform = full_name(options.platform)
    if platform not in PLATFORMS:
        allowed = f"{unknown_name_hint(options.platform, PLATFORMS)}, or the path of a .yaml file"
        raise BadInput("--platform", options.platform, allowed)
    if options.form not in FORMS:
        raise BadInput("--form", options.form, unknown_name_hint(options.form, FORMS))
    operation = operation_named(options.collective)
    if options.forwarding and operation != "all-to-all":
        raise BadInput(
            "--forwarding", operation, "takes no way through HB domains to another rail: only all-to-all does"
        )
    gpus = options.gpus or DEFAULT_GPUS
    domain_gpus = options.domain_gpus or PLATFORMS[platform].domain_gpus
    # the user's output knows its servers better than the platform's file
    own = None
    if options.nccl:
        own = read_own(options.nccl, operation, platform)
        file_gpus, host_gpus = group_of(own.rows)
        gpus = options.gpus or file_gpus
        domain_gpus = options.domain_gpus or host_gpus
    if gpus > domain_gpus and gpus % domain_gpus:
        allowed = f"must be whole HB domains of {domain_gpus:,} GPUs: {nearest_multiples(gpus, domain_gpus)}"
        raise BadInput("--gpus", gpus, allowed)
    return _Job(platform, operation, gpus, min(gpus, domain_gpus), options.form, options.forwarding, own)


def _rows(job: _Job) -> list[tuple[Any, ...]]:
    links = links_of(PLATFORMS[job.platform])
    domains = job.gpus // job.domain_gpus
    group = (job.domain_gpus, domains, links)
    sizes = np.array(SIZES, dtype=np.float64)
    # shown beside the prediction in either form, so that both can be compared
    ideal = ideal_s(job.operation, sizes, *group, forwarding=job.forwarding)
    seconds = ideal
    if job.form == "measured":
        constants = platform_constants(job.platform)
        if job.own:
            constants = job.own.constants
        seconds = collective_s(job.operation, sizes, *group, constants, forwarding=job.forwarding)
    factor = float(bus_factor(job.operation, job.gpus))
    rows: list[tuple[Any, ...]] = []
    for size, time_s, least_s in zip(SIZES, seconds.tolist(), ideal.tolist(), strict=True):
        # nccl-tests prints the elements of one rank's buffer
        count = size // FLOAT_BYTES
        if job.operation not in WHOLE_BUFFERS:
            count //= job.gpus
        share = _interval(job, size)
        algbw = size / time_s / 1e9
        interval_us = (1e6 * time_s * (1 - share), 1e6 * time_s * (1 + share))
        rows.append((size, count, 1e6 * time_s, algbw, factor * algbw, *interval_us, factor * size / least_s / 1e9))
    return rows


def _interval(job: _Job, size: int) -> float:
    """Return the half width of a row's interval, as a share of its time."""
    if job.form == "ideal":
        return 0.0
    if job.own:
        # a time can't be below 0, however wide the errors are
        return min(0.99, job.own.worst_error)
    return interval_share(job.platform, job.gpus > job.domain_gpus, size >= LARGE)


def _print(job: _Job, rows: list[tuple[Any, ...]], console: Console) -> None:
    """Print the rows as nccl-tests does, and the notes as its comments."""
    # as nccl-tests prints it, so that tools which read its output read this too
    redop = "none"
    if job.operation in ("all-reduce", "reduce-scatter", "reduce"):
        redop = "sum"
    root = 0 if job.operation in ROOTED else -1
    fabric = f"{job.gpus} GPUs in HB domains of {job.domain_gpus}, {job.platform}"
    lines = [
        f"# {PROGRAMS[job.operation]}_perf, predicted: {fabric}",
        "#",
        "#                                                              out-of-place",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
    ]
    for size, count, time_us, algbw, busbw, *_ in rows:
        # as many digits as nccl-tests has room for
        time_text = f"{time_us:.2f}"
        if time_us >= 1e4:
            time_text = f"{time_us:.0f}"
        numbers = f"{time_text:>8} {algbw:>7.2f} {busbw:>7.2f}     N/A"
        lines.append(f"{size:>12} {count:>13}     float {redop:>7} {root:>7} {numbers}")
    lines += [f"# {note}" for note in _notes(job)]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _notes(job: _Job) -> Iterator[str]:
    """Yield where the constants come from, how sure they are, and what wasn't measured."""
    if job.form == "ideal":
        yield "ideal: bytes at the full rate of the tier that takes longer, without latency"
        return
    domains = job.gpus // job.domain_gpus
    if job.own:
        file_gpus, host_gpus = group_of(job.own.rows)
        yield (
            f"fitted on {len(job.own.rows)} rows of your output, of {file_gpus} GPUs, {host_gpus} a host; with every "
            f"other row left out, {percent(job.own.error)} off on average, {percent(job.own.worst_error)} at worst"
        )
        return
    several = domains > 1
    wide = percent(interval_share(job.platform, several, large=False), 0)
    narrow = percent(interval_share(job.platform, several, large=True), 0)
    yield f"9 of 10 measured rows that were not fitted are within {narrow} from 64 MiB on, and within {wide} below"
    # from here on: where the job lies outside what was measured
    source = constants_from(job.platform)
    if job.platform not in {row.platform for row in measured()}:
        yield f"no output of {job.platform} is in the data: constants of {source}, with the rates of {job.platform}"
    if domains > 2:
        yield f"measured were at most 2 HB domains: {domains:,} are extrapolated"
    if job.domain_gpus > 8:
        yield f"measured were HB domains of at most 8 GPUs: {job.domain_gpus:,} are extrapolated"
    if job.operation != "all-reduce":
        yield (
            f"measured was all-reduce alone: {job.operation} is extrapolated, with its own bytes at the efficiency "
            "of a ring"
        )


def _drawn(rows: list[tuple[Any, ...]]) -> matplotlib.figure.Figure:
    """Draw bus bandwidth against size, with the interval and the ideal."""
    drawn = style.new_figure(8.0, 4.5)
    axes = drawn.subplots()
    sizes, time_us, busbw, low_us, high_us, ideal = (_column(rows, index) for index in (0, 2, 4, 5, 6, 7))
    # bus bandwidth falls as the time rises
    least = busbw * time_us / high_us
    most = busbw * time_us / low_us
    axes.fill_between(sizes, least, most, color=style.BLUE, alpha=0.2, label="interval")
    axes.plot(sizes, busbw, ".-", color=style.BLUE, label="predicted")
    axes.plot(sizes, ideal, "--", color=style.GREY, label="ideal")
    style.log2_ticks(axes, SIZES[::3])
    axes.legend()
    style.quiet(axes, "y", xlabel="size, bytes", ylabel="bus bandwidth, GB/s", ylim=(0, None))
    return drawn


def _column(rows: list[tuple[Any, ...]], index: int) -> FloatArray:
    return np.array([row[index] for row in rows], dtype=np.float64)
