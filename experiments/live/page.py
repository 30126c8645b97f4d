"""The run's end of the live page: what the page shows, and the requests of its controls.

The page is an observer of the run. A child process (server.py) serves it. Nothing here waits for that process: messages
are dropped when it does not read them.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

import psutil

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.safe_files import Folder
from railyard.core.worker import Message, Ready, Worker
from railyard.experiments.live import recorded
from railyard.experiments.live.choices import choices
from railyard.experiments.live.controls import Controls
from railyard.experiments.live.messages import RECORD_ENDED, Answer, HideFabric, Serve, Show, ShowFabric, ToPage
from railyard.experiments.live.phases import PHASE, PhaseProgress
from railyard.experiments.run import observers
from railyard.experiments.run.observers import Observer, ReplayCallbacks
from railyard.experiments.run.words import sentences_of_measures
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.failure.faults import Fault
from railyard.results.runs.records import LIVE, Event
from railyard.topologies.build.network import EmulatedNet
from railyard.workloads.schedule import Schedule

MODULE: Final = "railyard.experiments.live.server"
STEP: Final = "step"  # the event whose `text` is what the run does now
# a page that is stopped must not hold the run's memory
_MAX_WAITING: Final = 512
_LOOK_S: Final = 0.5  # between two looks whether the server is there
_HEALTH_S: Final = 0.2  # between two health samples that are sent on
# a message for each pair and decision, of which the page shows none
_SKIPPED: Final = frozenset({"choice"})


class Page(Observer):
    """A served page, and the controls that it offers."""

    def __init__(self, serve: Serve, controls: Controls) -> None:
        self.controls = controls
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._waiting: queue.Queue[Message | None] = queue.Queue(_MAX_WAITING)
        inherited = [fd for fd in (serve.listener, serve.diagnosis, serve.record) if fd >= 0]
        self._worker = Worker(MODULE, "the live page", Ready, on_event=self._on_event, pass_fds=inherited)
        self._worker.open(serve)
        # a run does not depend on its page: no interval is invalid without it
        self._worker.watched.release()
        self._health_s = 0.0
        self._has_ended = threading.Event()
        for loop in (self._send_all, self._answer_all, self._name_interruptions):
            threading.Thread(target=loop, name="live page", daemon=True).start()

    def send(self, message: ToPage) -> None:
        """Send when the server reads it; drop it if too many wait."""
        with suppress(queue.Full):
            self._waiting.put_nowait(message)

    def provenance(self) -> Mapping[str, str]:
        """Return the name of its recording."""
        return {"live_page": recorded.PAGE}

    def begin_step(self, text: str) -> None:
        """Show what the run does next; wait first while the page holds the run."""
        self.controls.wait_while_paused()
        self.show(time.monotonic_ns(), STEP, {"text": text})

    def show(self, ns: int, event: str, detail: dict[str, Any]) -> None:
        """Show an event, from any thread; of health samples, a few in a second."""
        if event == "health":
            if time.monotonic() < self._health_s:
                return
            self._health_s = time.monotonic() + _HEALTH_S
        if event not in _SKIPPED:
            self.send(Show(ns=ns, what=event, detail=detail))

    @contextmanager
    def fabric(self, label: str, net: EmulatedNet, events: list[Event]) -> Iterator[None]:
        """Show a fabric that is up while entered, and let the page's controls change it. At the end all is repaired.

        What was clicked is added to `events`.
        """

        def record(ns: int, event: str, detail: dict[str, Any]) -> None:
            events.append(click_event(label, ns, event, detail))

        self.send(ShowFabric(label=label, plan=net.plan))
        try:
            with self.controls.on(net, record):
                yield
        finally:
            self.send(HideFabric())

    def probing(self, fault: Fault) -> AbstractContextManager[Callable[[int], None]]:
        """Show when packets flow again after a fault, if the page has controls; else nothing is probed."""
        return self.controls.probing(fault)

    def replay_callbacks(self, schedule: Schedule, callbacks: ReplayCallbacks) -> ReplayCallbacks:
        """Show the phases of a replay that are under way."""

        def show_phases(ns: int, names: list[str]) -> None:
            self.show(ns, PHASE, {"names": names})

        progress = PhaseProgress(schedule, show_phases, callbacks.watched)

        def start(start_ns: int) -> None:
            callbacks.started(start_ns)
            progress.started(start_ns)

        return ReplayCallbacks(start, progress.watched)

    def close(self) -> None:
        """End the server."""
        self._has_ended.set()
        self._requests.put(None)
        # a full queue empties itself: sending to a server that has ended fails
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._worker.end()

    def _on_event(self, ns: int, event_name: str, detail: dict[str, Any]) -> None:
        if event_name == "control":
            self._requests.put(detail)
        elif event_name == RECORD_ENDED:
            text = f"is no longer recorded in {recorded.RECORD}: {detail['reason']}"
            watch.show(watch.Interruption("the live page", text, ns, ns))

    def _name_interruptions(self) -> None:
        """Announce that the server died, or each time that it was stopped."""
        # the run goes on without a page, so no error would say it
        was_stopped = False
        while not self._has_ended.wait(_LOOK_S):
            status = self._server_status()
            now = time.monotonic_ns()
            if status in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE):
                if not self._has_ended.is_set():
                    watch.show(watch.Interruption("the live page", "died: the run goes on without it", now, now))
                return
            is_stopped = status == psutil.STATUS_STOPPED
            if is_stopped and not was_stopped:
                text = f"is stopped: the run goes on without it (kill -CONT {self._worker.pid} continues it)"
                watch.show(watch.Interruption("the live page", text, now, now))
            was_stopped = is_stopped

    def _server_status(self) -> str:
        """Return the state of the server's process; dead if it is gone."""
        try:
            return psutil.Process(self._worker.pid).status()
        except psutil.NoSuchProcess:
            return psutil.STATUS_DEAD

    def _send_all(self) -> None:
        # if the server has ended, the run goes on without a page
        with suppress(RailyardError):
            while message := self._waiting.get():
                self._worker.send(message)

    def _answer_all(self) -> None:
        while request := self._requests.get():
            self.send(Answer(number=request["number"], detail=self.controls.carry_out(request["request"])))


@contextmanager
def taking_part(task: Mapping[str, Any], spec: ExperimentSpec, folder: Folder | None) -> Iterator[None]:
    """Serve a page that follows the run while entered, and record what it shows in a run's folder, if it has one.

    `task`: as launch.py makes it. OSError if there is a record already.
    """
    try:
        with served(task, spec.resolved(), folder):
            yield
    finally:
        if folder:
            # a disk that is full has been reported
            with suppress(OSError):
                recorded.write_page(folder)


@contextmanager
def served(
    task: Mapping[str, Any] | None, experiment: dict[str, Any], folder: Folder | None = None
) -> Iterator[Page | None]:
    """Serve a page that follows the run while entered, and record what it shows in a run's folder.

    Without a task of launch.py, do neither. OSError if there is a record already.
    """
    if task is None:
        yield None
        return
    record = folder.open_to_append(recorded.RECORD) if folder else -1
    arguments = {key: value for key, value in task.items() if key != "script"}
    offered = choices(experiment) if arguments["control"] else {}
    serve = Serve(
        title=experiment["name"],
        record=record,
        choices=offered,
        begin_ns=time.monotonic_ns(),
        sentences=sentences_of_measures(),
        **arguments,
    )
    page = Page(serve, Controls(observers.show, experiment, task["script"], has_probes=serve.control))
    for fd in (serve.listener, serve.diagnosis, *([record] if folder else [])):
        os.close(fd)
    try:
        with observers.subscribed(page):
            yield page
    finally:
        page.close()


def click_event(label: str, ns: int, event_name: str, detail: dict[str, Any]) -> Event:
    """Return the record of a click on a fabric, at a time, monotonic ns."""
    return Event(ns, LIVE, event_name, {"fabric": label, **detail})
