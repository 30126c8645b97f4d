"""Run Railyard on mutated inputs, and show each that it doesn't answer well.

    .venv/bin/python -m tests.fuzz --count 10000 --seed 1
    .venv/bin/python -m tests.fuzz --seed 1 --only 4711     one input again; its files stay in /tmp/railyard-fuzz

An answer is good if the exit status is documented, standard error has no traceback and one line of `MAX_LINE`
characters at most, and the command needed neither more than 10 s of CPU time nor more than 1 GB of memory (resident,
Railyard's own 0.3 GB included). Nor may it wait for more than 10 s: of the time in which it used no CPU, as much counts
as the machine's cores were idle meanwhile, since on a busy machine it may have waited for them. Each input runs in a
process of its own, forked from one in which all of Railyard is loaded.
"""

import argparse
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import psutil

from railyard.core.installation import PROGRAM
from railyard.core.registry import REGISTRIES
from railyard.experiments import cli
from tests.fuzz.answer import MAX_BYTES, MAX_CPU_S, Answer
from tests.fuzz.inputs import case, make_samples

MAX_WALL_S: Final = 300  # on a busy machine, ten seconds of CPU time take longer
KEPT: Final = Path(tempfile.gettempdir(), "railyard-fuzz")


def answers(seed: int, numbers: Iterator[int], folder: Path, jobs: int) -> Iterator[Answer]:
    """Yield the answer to each input, in the order in which they are done; so many processes run at once."""
    samples = folder / "samples"
    make_samples(samples)
    _load()
    running: dict[int, tuple[int, float, float]] = {}  # number, and when it began, by pid
    while running or jobs:
        while len(running) < jobs:
            if (number := next(numbers, None)) is None:
                jobs = 0
            elif pid := os.fork():
                running[pid] = number, time.monotonic(), psutil.cpu_times().idle
            else:
                _answer(seed, number, folder / str(number), samples)
        if not running:
            break
        pid, status, usage = os.wait3(0)
        number, begun_s, idle_s = running.pop(pid)
        wall_s, idle_s = time.monotonic() - begun_s, psutil.cpu_times().idle - idle_s
        work = folder / str(number)
        kind, _, command = (work / "command").read_text().partition("\n")
        errors = (work / "errors").read_text(errors="backslashreplace")
        cpu_s, peak_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        code = os.waitstatus_to_exitcode(status)
        yield Answer(number, kind, code, errors, wall_s, cpu_s, idle_s, peak_bytes, command)
        if work.parent != KEPT:
            shutil.rmtree(work)


def _load() -> None:
    """Import what inputs use, which then is shared by their processes."""
    for name in cli.commands():
        import_module(f"railyard.experiments.commands.{name.replace('-', '_')}")
    for registry in list(REGISTRIES.values()):
        registry.names()
    import_module("networkx")  # a trace that is read in full needs it, for 0.1 s
    gc.collect()
    gc.freeze()  # or each process copies the pages of all objects as soon as it collects garbage
    sys.stdout.flush()


def _answer(seed: int, number: int, work: Path, samples: Path) -> None:
    """Run the command of one input, and end this process with its status."""
    status = 99
    try:
        shutil.rmtree(work, ignore_errors=True)
        (work / "in").mkdir(parents=True)
        (work / "command").touch()
        (work / "errors").touch()
        os.chdir(work / "in")
        kind, arguments = case(seed, number, samples)
        Path("../command").write_text(f"{kind}\n{arguments!r}")
        for name, fd in (("output", 1), ("errors", 2)):
            os.dup2(os.open(f"../{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 2 * MAX_BYTES  # to protect the machine
        signal.alarm(MAX_WALL_S)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S + 1, MAX_CPU_S + 2))
        sys.argv = [PROGRAM, *arguments]
        status = cli.main(arguments)
        sys.stdout.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run the inputs and print those that were answered badly; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="how many inputs")
    parser.add_argument(
        "--first", type=int, default=0, metavar="NUMBER", help="where to start, to share out a long run"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of a single input")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    numbers = range(given.first, given.first + given.count) if given.only is None else [given.only]
    folder = Path(tempfile.mkdtemp()) if given.only is None else KEPT
    if folder == KEPT:
        shutil.rmtree(KEPT, ignore_errors=True)
    counts: Counter[str] = Counter()
    try:
        for answer in answers(given.seed, iter(numbers), folder, given.jobs):
            problems = answer.problems()
            counts[f"status {answer.status}"] += 1
            counts["bad"] += bool(problems)
            if problems or given.only is not None:
                what = f"{', '.join(problems) or 'good'}, {answer.cpu_s:.1f} s of CPU in {answer.wall_s:.1f} s"
                print(f"{answer.number} {answer.kind}: {what}\n  {answer.command[:400]}")
                print(*(f"  {line[:400]}" for line in answer.errors.splitlines()[-4:]), sep="\n", flush=True)
    finally:
        if folder != KEPT:
            shutil.rmtree(folder)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return int(counts["bad"] > 0)


if __name__ == "__main__":
    sys.exit(main())
