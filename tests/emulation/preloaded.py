"""Railyard's programs in processes that are forked from this one, which has their modules: new Pythons take half of a
small run's CPU time to import them.

Processes, namespaces, signals, exit statuses and what `ps` shows are those of new Pythons. Tests of what differs start
those: of open files, limits, other users, and variables that Dask reads when it is imported.

Their reports have figures without shapes, unless all tests were asked for (`are_figures_drawn`); those of new Pythons
are drawn.
"""

import atexit
import faulthandler
import functools
import gc
import importlib.util
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import mininet.log
from setproctitle import setproctitle

from railyard.__main__ import main
from railyard.core import watch, worker
from railyard.core.host import CLONE_NEWNET
from railyard.core.installation import PROJECT
from railyard.core.registry import REGISTRIES
from railyard.core.sandbox import launcher
from railyard.experiments.sweep import machine
from railyard.results.plots import style
from railyard.results.views import report
from tests import figures
from tests.emulation import forked

MODULES: Final = (  # what a run imports when it comes to need it
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "matplotlib.style",
    "pandas",
    "pyarrow.parquet",
    "pyroute2",
    "railyard.controller.processes.controller_main",
    "railyard.controller.processes.heartbeat_main",
    "railyard.experiments.api.server",
    "railyard.experiments.cli",
    "railyard.experiments.commands.run",
    "railyard.experiments.live.launch",
    "railyard.experiments.live.recorded",
    "railyard.experiments.machines.joining",
    "railyard.experiments.run.measuring",
    "railyard.experiments.run.runner",
    "railyard.experiments.run.sandboxed",
    "railyard.experiments.sweep.local",
    "railyard.failure.probes.traffic",
    "railyard.workloads.allreduce.engine.worker",
    "railyard.workloads.replay.worker",
)
are_figures_drawn = False
_NEW_UTS_IPC: Final = 0x04000000 | 0x08000000


def start(
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.STDOUT,
    network_of: int | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `python run_experiment.py ARGUMENTS` or `python -m MODULE ARGUMENTS` in the network of a process."""
    load()
    # it replaces the program that Popen would start: what is to run there never returns
    return subprocess.Popen(
        argv, cwd=cwd, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True,
        preexec_fn=partial(_be_command_line, list(argv), dict(environment), network_of),
    )  # fmt: skip


@functools.cache
def load() -> None:
    """Import what runs need, once for this process and those that are forked from it."""
    for module in MODULES:
        importlib.import_module(module)
    for registry in list(REGISTRIES.values()):
        registry.names()
    for name in report.templates().list_templates(extensions=["j2"]):
        report.templates().get_template(name)
    gc.collect()
    gc.freeze()  # a process that is forked from this one need not visit what was here


def _start_run(argv: Sequence[str], environment: Mapping[str, str], held: Sequence[int]) -> "subprocess.Popen[bytes]":
    """In place of `machine.start`."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=partial(_be_run, list(argv), dict(environment), [*held], os.getpid()),
    )  # fmt: skip


def _be_run(argv: list[str], environment: dict[str, str], held: list[int], parent: int) -> NoReturn:
    launcher.die_with_parent(parent)
    _put_files_away(held)
    _run(argv, environment)


def _be_command_line(argv: list[str], environment: dict[str, str], network_of: int | None) -> NoReturn:
    launcher.start, worker.start, machine.start = _start_sandbox, start_worker, _start_run
    if network_of is not None:
        with Path(f"/proc/{network_of}/ns/net").open("rb") as network:
            forked.call(forked.libc.setns(network.fileno(), CLONE_NEWNET), "setns")
    _put_files_away(())
    _run(argv, environment)


def _start_sandbox(
    argv: Sequence[str],
    folder: Path | None,
    environment: Mapping[str, str],
    inherited: Collection[int],
    interactive: bool = False,
) -> "subprocess.Popen[bytes]":
    """In place of `launcher.start`, for root."""
    what = partial(_be_unshare, list(argv), folder, dict(environment), [*inherited], os.getpid())
    return subprocess.Popen(argv, preexec_fn=what, process_group=None if interactive else 0)


def _be_unshare(
    argv: list[str], folder: Path | None, environment: dict[str, str], inherited: list[int], parent: int
) -> NoReturn:
    launcher.prepare_child(parent)
    _put_files_away(inherited)
    if folder:
        os.chdir(folder)
    forked.call(forked.libc.unshare(forked.NAMESPACES | _NEW_UTS_IPC), "unshare")
    child = os.fork()
    if child:
        signal.set_wakeup_fd(-1)  # the launcher's, which is closed now; the child's end is a signal
        os.closerange(3, max(inherited) + 1)
        _, status = os.waitpid(child, 0)
        os._exit(1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))  # 1, as `unshare` itself
    forked.call(forked.libc.prctl(forked.PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    forked.mount_proc()
    _run(argv, environment)


def start_worker(argv: Sequence[str], output: IO[bytes], inherited: Collection[int]) -> "subprocess.Popen[bytes]":
    """In place of `worker.start`."""
    return subprocess.Popen(
        argv, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=inherited,
        preexec_fn=partial(_be_worker, list(argv), [*inherited]),
    )  # fmt: skip


def start_server(argv: Sequence[str], output: IO[bytes], inherited: Collection[int]) -> "subprocess.Popen[bytes]":
    """In place of `connection.start`."""
    load()
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        preexec_fn=partial(_be_server, list(argv), [*inherited]),
    )  # fmt: skip


def _be_server(argv: list[str], inherited: list[int]) -> NoReturn:
    launcher.start, worker.start = _start_sandbox, start_worker
    _be_worker(argv, inherited)


def _be_worker(argv: list[str], inherited: list[int]) -> NoReturn:
    _put_files_away(inherited)
    watch._watcher = watch._Watcher()
    _run(argv, dict(os.environ))


def _put_files_away(kept: Collection[int]) -> None:
    """Let every open file but the standard streams be /dev/null: objects that have its number may still close it."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names that are no paths)
        if int(name) > 2 and int(name) not in (null, *kept):
            try:
                os.dup2(null, int(name), inheritable=False)
            except OSError:  # that of the listing itself
                continue


def _run(argv: list[str], environment: dict[str, str]) -> NoReturn:
    """Make this process like a new Python, run the program, and end."""
    setproctitle(" ".join(argv))  # for `ps`
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.orig_argv, tempfile.tempdir = argv[1:], argv, None
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTSTP, signal.SIGWINCH):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__
    logging.root.handlers.clear()
    warnings.simplefilter("ignore")
    atexit._clear()
    if not are_figures_drawn:
        style.finish = figures.as_text
    is_unbuffered = "PYTHONUNBUFFERED" in environment
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(fd, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        if mode == "w":
            stream.reconfigure(line_buffering=fd == 2, write_through=is_unbuffered)  # type: ignore[attr-defined]
        setattr(sys, name, stream)
    for handler in mininet.log.lg.handlers:
        handler.setStream(sys.stderr)  # in place of that of when it was imported
    os._exit(_status_of(argv))


def _status_of(argv: list[str]) -> int:
    status: Any = 1
    try:
        if "-m" in argv[:3]:
            sys.argv = argv[argv.index("-m") + 1 :]
            spec = importlib.util.find_spec(sys.argv[0])
            assert spec
            assert spec.origin
            runpy.run_path(spec.origin, run_name="__main__")  # run_module needs a loader that pytest doesn't have
            status = 0
        else:
            status = main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(status, str):
        os.write(2, status.encode() + b"\n")
        return 1
    return int(status or 0)
