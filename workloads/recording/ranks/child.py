"""The process that runs ranks: it imports PyTorch once, and forks for each rank that the recorder asks for.

Started by launcher.py in the interpreter of the user's script, on this machine or at a GPU of a fabric. It needs
nothing but Python and PyTorch. The recorder asks over a socket, which is its standard input, and sends with each rank's
number the rank's own connection and the file descriptor for its output. When the recorder is killed, the kernel kills
this process and its ranks (PR_SET_PDEATHSIG), or the fabric's sandbox ends with them; they have no files.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from railyard.workloads.recording.ranks.recorder import Recorder

PR_SET_PDEATHSIG: Final = 1
MAX_MESSAGE: Final = 65_536
REAP_S: Final = 0.1
LIBC: Final = ctypes.CDLL(None)


def main() -> None:
    """Import PyTorch, then serve the recorder until it is gone."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    job = json.loads(control.recv(MAX_MESSAGE))
    # at a GPU, a thread that has ended has started this process, and it ends with the sandbox
    if not job["addresses"]:
        die_with_parent()
    # the checkout's folders (core, results, ...) must not hide modules of the script
    sys.path = [folder for folder in sys.path if folder not in (job["project"], "")]
    try:
        import torch

        # what scripts import themselves, or PyTorch at some call: once, not once for each rank. torch._dynamo must look
        # at the functions of torch.cuda before they are replaced.
        import torch._dynamo
        import torch.distributed
        import torch.distributed.tensor
    except ImportError as error:
        control.send(json.dumps({"kind": "unusable", "error": str(error)}).encode())
        return
    torch.set_num_threads(1)
    if job["real"]:
        from railyard.workloads.recording.ranks import network

        try:
            address = network.enter_first(job["addresses"])
        except OSError as error:
            control.send(json.dumps({"kind": "no-namespace", "error": str(error)}).encode())
            return
        # it serves until this process ends
        store = torch.distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        job["store"] = [address, store.port]
    control.send(json.dumps({"kind": "ready", "torch": torch.__version__}).encode())
    control.settimeout(REAP_S)
    rank_of_process: dict[int, int] = {}
    while True:
        reap(control, rank_of_process)
        try:
            text, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, 2)
        except TimeoutError:
            continue
        if not text:
            return
        rank = json.loads(text)["rank"]
        process = os.fork()
        if process == 0:
            control.close()
            run_rank(rank, job, *descriptors)
        rank_of_process[process] = rank
        for descriptor in descriptors:
            os.close(descriptor)


def reap(control: socket.socket, rank_of_process: dict[int, int]) -> None:
    """Tell the recorder which ranks have ended, and how."""
    for process in [*rank_of_process]:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            rank = rank_of_process.pop(process)
            message = {"kind": "exit", "rank": rank, "status": os.waitstatus_to_exitcode(status)}
            control.send(json.dumps(message).encode())


def die_with_parent() -> None:
    """Let the kernel kill this process with the one that started it, and so each process that is forked from it."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_programs_with_rank() -> None:
    """Let the kernel kill whatever programs this process starts when it ends."""
    start = subprocess.Popen.__init__

    def start_bound(process: Any, *arguments: Any, **options: Any) -> None:
        if options.get("preexec_fn") is None:
            options["preexec_fn"] = die_with_parent
        start(process, *arguments, **options)

    subprocess.Popen.__init__ = start_bound  # type: ignore[method-assign,assignment]


def run_rank(rank: int, job: dict[str, Any], connection_descriptor: int, output_descriptor: int) -> None:
    """Run the script as one rank in a process of its own, and end that process."""
    from railyard.workloads.recording.ranks.exchange import Exchange
    from railyard.workloads.recording.ranks.recorder import Recorder

    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    end_programs_with_rank()
    os.dup2(output_descriptor, 1)
    os.dup2(output_descriptor, 2)
    exchange = Exchange(socket.socket(fileno=connection_descriptor))
    if job["addresses"]:
        from railyard.workloads.recording.ranks import network

        network.enter_gpu(list(job["addresses"])[rank])
    recorder = Recorder(rank, job["ranks"])
    try:
        run_script(job, recorder, exchange)
    except SystemExit as error:
        if error.code not in (None, 0):
            exchange.tell("failed", error=f"SystemExit: {error.code}", where=script_line(error, job))
            os._exit(1)
    except BaseException as error:
        traceback.print_exc()
        description = f"{type(error).__name__}: {error}"
        exchange.tell("failed", error=description, where=script_line(error, job), name=type(error).__name__)
        flush()
        os._exit(1)
    end(recorder, exchange)


def run_script(job: dict[str, Any], recorder: "Recorder", exchange: Any) -> None:
    """Run the script with everything replaced."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    from railyard.workloads.recording.ranks import devices
    from railyard.workloads.recording.ranks.computing import FlopCounter
    from railyard.workloads.recording.ranks.initialization import Initialization

    rank = recorder.rank
    local_ranks = job["ranks_per_node"]
    local_rank = rank % local_ranks
    os.environ.update(environment(rank, job))
    sys.argv = [job["script"], *job["arguments"]]
    register_optimizer_step_pre_hook(lambda *_: recorder.wait_for_all())

    def after_step(optimizer: Any, *_: Any) -> None:
        steps = recorder.end_step(id(optimizer))
        if recorder.is_open:
            exchange.tell("progress", steps=steps, operations=len(recorder.operations))
        if job["steps"] and steps >= job["steps"]:
            end(recorder, exchange)

    register_optimizer_step_post_hook(after_step)
    with ExitStack() as stack:
        Initialization(recorder, exchange, real_network(rank, job)).install()
        devices.install(stack, recorder, local_ranks, local_rank)
        if job["fake"]:
            from railyard.workloads.recording.ranks.fake_tensors import FakeLargeTensors

            stack.enter_context(FakeLargeTensors(recorder, job["balanced"]))
        else:
            stack.enter_context(FlopCounter(recorder, job["balanced"]))
        if job["is_module"]:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(job["script"], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(job["script"]).resolve().parent))
            runpy.run_path(job["script"], run_name="__main__")


def real_network(rank: int, job: dict[str, Any]) -> Any:
    """Return where a rank of a real run finds the others; None to record alone."""
    if not job["real"]:
        return None
    from railyard.workloads.recording.ranks.network import LOOPBACK, Network

    addresses = list(job["addresses"].values()) or [LOOPBACK] * job["ranks"]
    store_address, store_port = job["store"]
    return Network(addresses[rank], store_address, store_port)


def environment(rank: int, job: dict[str, Any]) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank."""
    per_node = job["ranks_per_node"]
    nodes = -(-job["ranks"] // per_node)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": job["ranks"],
        "LOCAL_RANK": rank % per_node,
        "LOCAL_WORLD_SIZE": per_node,
        "GROUP_RANK": rank // per_node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": job["ranks"],
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "record",
    }
    return {name: str(value) for name, value in variables.items()}


def script_line(error: BaseException, job: dict[str, Any]) -> str:
    """Return the last line of the user's own code that an error came through: `train.py:33`."""
    frames = traceback.extract_tb(error.__traceback__)
    folder = str(Path.cwd()) if job["is_module"] else str(Path(job["script"]).resolve().parent)
    for frame in reversed(frames):
        # Python's own start of a module is in no file
        if frame.filename.startswith("<"):
            continue
        path = str(Path(frame.filename).resolve())
        if path.startswith(folder) and "site-packages" not in path and "/workloads/recording/" not in path:
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


def end(recorder: "Recorder", exchange: Any) -> None:
    """Send the recording, and end the process at once: what the script would do after its last step isn't wanted."""
    record = recorder.close()
    exchange.tell("done", json.dumps(record).encode(), rank=recorder.rank)
    flush()
    os._exit(0)


def flush() -> None:
    """Write what the script has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
