"""Fabrics and faults in a script: handles on a fabric that another process serves in a sandbox of its own."""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self

from railyard.core.config import parse_model
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.records import Recovery
from railyard.experiments.api import messages as m
from railyard.experiments.api import timing
from railyard.experiments.api.connection import Connection
from railyard.experiments.api.machine import CAPACITY, TURN
from railyard.experiments.api.processes import PORT, Process, Processes, arguments_of
from railyard.experiments.api.results import Results
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results.runs.records import Run
from railyard.topologies.spec import FabricSpec as BaseSpec
from railyard.workloads.spec import Workload
from railyard.workloads.training.programs import mpi

NAME: Final = "script"
"""The experiment's name in the records of a fabric that a script built."""
_numbers: Final = count(1)


class Fabric:
    """A running fabric, in a sandbox of its own; close it, or use it as a context manager.

    `addresses`: of its GPUs, by name. `switches`: the names of its switches and HB bridges. Rates are bit/s. Several
    threads may use it: workloads, faults and measurements are served one after the other, programs at once.
    """

    def __init__(
        self,
        connection: Connection,
        info: m.FabricInfo,
        spec: BaseSpec,
        seed: int,
        turn: AbstractContextManager[object],
    ) -> None:
        """`turn` is entered while anything is measured."""
        self._connection = connection
        self._info = info
        self.spec = spec
        self.seed = seed
        self.addresses = dict(info.addresses)
        self.switches = info.switches
        self.rail_bps = info.rail_bps
        self.hb_bps = info.hb_bps
        self.datapath = info.datapath
        self.build_s = info.build_s
        self.live_url = info.live_url
        """Address of its live page; empty without one."""
        self._started: list[Process] = []
        self._turn = turn
        # each fault holds its turn until its repair
        self._turns: list[ExitStack] = []
        self._close = weakref.finalize(self, _end, connection, self._turns)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of its GPUs."""
        return tuple(self.addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox, with all programs in it."""
        self._close()

    def ping(self, src: str, dst: str, count: int = 3, timeout: float = 1.0) -> m.Ping:
        """Send `count` datagrams there and back, each with `timeout` s: true if all returned."""
        answer: m.Ping = self._measure(m.Probe, src=src, dst=dst, count=count, timeout=timeout)
        return answer

    def iperf(self, src: str, dst: str, seconds: int = 2) -> float:
        """Return the payload rate of one TCP flow, bit/s, measured by iperf3."""
        return float(self._measure(m.Iperf, src=src, dst=dst, seconds=seconds))

    def exec(
        self, node: str, command: str | Sequence[str], *, timeout: float | None = None, check: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command at a GPU or switch, text by a shell, and return its output and exit status.

        subprocess.TimeoutExpired after `timeout` s. With `check`, subprocess.CalledProcessError for another status
        than 0.
        """
        argv = command
        if isinstance(command, str):
            argv = ["sh", "-c", command]
        with self.processes(node).popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, errors = process.communicate(timeout=timeout)
        done = subprocess.CompletedProcess(process.args, process.returncode or 0, output, errors)
        if check:
            done.check_returncode()
        return done

    def run(self, workload: Workload, repeats: int = 1, seed: int | None = None) -> Results:
        """Replay a workload and return what was measured, with predictions and the verdict.

        While a fault is active there are no predictions: detours cross the same links.
        """
        if not isinstance(workload, Workload):
            raise BadInput("workload", workload, 'must be one such as ry.AllToAll(bytes="8MB")')
        data = workload.model_dump(mode="json", exclude_none=True)
        if seed is None:
            seed = self.seed
        with self._turn:
            return self._result(self._ask(m.RunWorkload, workload=data, repeats=repeats, seed=seed))

    def fault(self, kind: str, target: str, **parameters: Any) -> "Fault":
        """Inject a fault, which its context repairs at the end. BadInput if the fabric has no such target."""
        data = {"kind": kind, "target": target, **parameters}
        for key, value in data.items():
            if key in ("at", "repair", "repeats", "on"):
                raise BadInput(key, value, "is for experiments: a script's fault lasts from this call to its repair")
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise BadInput(key, value, "must be text, a number, or lists and mappings of these") from None
        return Fault(self, data)

    def processes(self, node: str) -> Processes:
        """Return the starter of programs at a GPU or switch."""
        node_names = (*self.addresses, *self.switches)
        if node not in node_names:
            raise BadInput("node", node, unknown_name_hint(str(node), node_names))
        return Processes(self._ask, node, self._started)

    def ranks(
        self,
        args: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        **options: Any,
    ) -> list[Process]:
        """Start a program at each GPU, as torch.distributed expects it; by default at all GPUs.

        RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR (the first GPU's) and MASTER_PORT are set. `options`: see `popen`.
        """
        names = self._known_gpus(gpus)
        if not isinstance(port, int) or not 1 <= port <= 65535:
            raise BadInput("port", port, "must be 1 to 65535")
        shared = {"WORLD_SIZE": str(len(names)), "LOCAL_RANK": "0", "MASTER_PORT": str(port)}
        shared["MASTER_ADDR"] = ""
        if names:
            shared["MASTER_ADDR"] = self.addresses[names[0]]
        environment = os.environ if env is None else env
        processes: list[Process] = []
        # an error at one GPU ends the programs at those before it
        with ExitStack() as on_error:
            for rank, name in enumerate(names):
                rank_environment = {**environment, **shared, "RANK": str(rank)}
                processes.append(self.processes(name).popen(args, env=rank_environment, **options))
                on_error.callback(processes[-1].close)
            on_error.pop_all()
        return processes

    def mpirun(self, args: str | Sequence[str], gpus: Sequence[str] | None = None, **options: Any) -> Process:
        """Start a program under Open MPI's mpirun, with a rank at each GPU, by default at all; return mpirun.

        `options`: see `popen`.
        """
        names = self._known_gpus(gpus)
        argv = arguments_of(args)
        if not names:
            raise BadInput("gpus", gpus, "must name a GPU")
        for name in names:
            self.exec(name, mpi.address_command(self.addresses[name]), check=True)
        return self.processes(names[0]).popen(mpi.mpirun_command(names, argv), **options)

    def _known_gpus(self, gpus: Sequence[str] | None) -> list[str]:
        if isinstance(gpus, str) or not isinstance(gpus, Iterable | None):
            raise BadInput("gpus", gpus, 'must be a list of GPUs such as ["d0g0", "d1g0"]')
        if gpus is None:
            return list(self.gpus)
        names = list(gpus)
        for name in names:
            if name not in self.addresses:
                raise BadInput("gpus", name, unknown_name_hint(str(name), self.addresses))
        return names

    def end_processes(self) -> None:
        """Kill every program that was started here and still runs."""
        while self._started:
            self._started.pop().close()

    def _ask(self, kind: type[m.Request], files: Sequence[int] = (), **fields: Any) -> Any:
        return self._connection.ask(kind, files, **fields)

    def _measure(self, kind: type[m.Request], **fields: Any) -> Any:
        """Return the value of a measurement; its records, with the machine's load, go to `ry.timing`."""
        with self._turn:
            value, run = self._ask(kind, **fields)
        self._result(run)
        return value

    def _result(self, run: Run) -> Results:
        results = Results(run)
        timing.record(results)
        return results

    def __repr__(self) -> str:
        state = "running" if self._close.alive else "closed"
        return f"<Fabric {self._info.title}: {len(self.addresses)} GPUs, {state}>"

    def _repr_html_(self) -> str:
        """Return the drawing for a notebook."""
        if not self._close.alive:
            return f"<code>{self!r}</code>"
        return str(self._ask(m.Draw))


class Fault:
    """An active fault of a fabric, repaired by `repair` or at the end of its context."""

    def __init__(self, fabric: Fabric, data: dict[str, Any]) -> None:
        self._fabric = fabric
        self._data = data
        self._repaired: Results | None = None
        with ExitStack() as on_error:
            on_error.enter_context(fabric._turn)
            self._number: int = fabric._ask(m.InjectFault, fault=data)
            self._turn = on_error.pop_all()
        fabric._turns.append(self._turn)

    @property
    def results(self) -> Results:
        """Records of the fault: its recovery until now, or all of it once it is repaired, and the verdict.

        While the fault is active, this waits until packets flow again, 5 s at most.
        """
        return self._repaired or self._fabric._result(self._fabric._ask(m.ObserveFault, fault=self._number))

    @property
    def recovery(self) -> Recovery:
        """Times of the recovery, ms: `detect_ms`, `reroute_ms`, `first_packet_ms`, ...; None for what never came."""
        return self.results.analysis.run.rows(RECOVERIES)[0]

    def repair(self) -> Results:
        """Repair it, wait until its detours are withdrawn, and return its records."""
        if self._repaired is None:
            with self._turn:
                self._repaired = self._fabric._result(self._fabric._ask(m.RepairFault, fault=self._number))
        return self._repaired

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.repair()

    def __repr__(self) -> str:
        state = "repaired" if self._repaired else "active"
        return f"<Fault {self._data['kind']} {self._data['target']}: {state}>"


class MakeFault(Protocol):
    """`Fabric.fault`, or the fixture `fault`."""

    def __call__(self, kind: str, target: str, **parameters: Any) -> Fault: ...


def _end(connection: Connection, turns: Iterable[ExitStack]) -> None:
    """End a sandbox, and the turns that faults in it still hold."""
    connection.close()
    for turn in turns:
        turn.close()


def visible_paths(visible: Iterable[str | Path]) -> tuple[str, ...]:
    """Return the absolute paths of what a sandbox shows. BadInput unless it is a list of paths that exist."""
    if isinstance(visible, str | bytes) or not isinstance(visible, Iterable):
        raise BadInput("visible", visible, "must be a list of paths")
    paths = tuple(str(Path(m.path_text("visible", path)).absolute()) for path in visible)
    for path in paths:
        if not Path(path).exists():
            raise BadInput("visible", path, "doesn't exist")
    return paths


def fabric(
    spec: BaseSpec,
    *,
    reroute: bool = True,
    seed: int = 1,
    visible: Iterable[str | Path] = (),
    live: bool | Literal["control"] = False,
    no_queue: bool = False,
) -> Fabric:
    """Build a fabric in a sandbox of its own and return it when traffic can flow.

    `reroute`: the controller finds detours around faults. `visible`: folders of /tmp and /var/tmp that programs need,
    besides the working folder. `live`: serve its live page and print the address; "control": with controls. `no_queue`:
    build and measure at once, also while other runs measure on this machine. BadInput, MachineLacks with the remedy, or
    another RailyardError.
    """
    if not isinstance(spec, BaseSpec):
        raise BadInput("spec", spec, 'must be one such as ry.FabricSpec(kind="rail-only", domains=2, rails=4)')
    shown = visible_paths(visible)
    if not isinstance(live, bool) and live != "control":
        raise BadInput("live", live, 'must be True, False or "control"')
    mode: str | None = None
    if live == "control":
        mode = live
    elif live:
        mode = ""
    data = {"name": NAME, "fabrics": [spec.model_dump(mode="json", exclude_none=True)], "seed": seed}
    name = f"{NAME} {NAME}-{os.getpid()}-{next(_numbers)}"
    how = {"reroute": reroute, "visible": shown, "live": mode}
    order = parse_model(m.Build, {"spec": data, "caller": os.getpid(), "name": name, **how})
    turn: AbstractContextManager[object] = nullcontext() if no_queue else TURN
    with turn, CAPACITY.shared(), ExitStack() as on_error:
        connection = Connection(order.model_copy(update={"capacity": CAPACITY.measured}))
        on_error.callback(connection.close)
        info: m.FabricInfo = connection.started.result()
        on_error.pop_all()
        CAPACITY.measured = info.capacity or CAPACITY.measured
    if info.live_url:
        print(f"live page: {info.live_url}", file=sys.stderr)
    return Fabric(connection, info, spec, seed, turn)
