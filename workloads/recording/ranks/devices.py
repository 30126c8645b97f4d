"""GPUs that aren't there: calls of torch.cuda are answered, and tensors of device "cuda" live on the CPU.

docs/recording.md lists everything that is replaced.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from railyard.workloads.recording.ranks import attention, streams
from railyard.workloads.recording.ranks.recorder import Recorder

GPU_NAME: Final = "NVIDIA H100 80GB HBM3"
GPU_MEMORY: Final = 80 << 30
CAPABILITY: Final = (9, 0)
NCCL_VERSION: Final = (2, 27, 5)
CPU: Final = torch.device("cpu")
CUDA: Final = torch.device("cuda")


def install(stack: ExitStack, recorder: Recorder, gpus: int, local_rank: int) -> None:
    """Replace everything for one rank. `gpus`: of its node."""
    _replace_cuda(recorder, gpus, local_rank)
    _replace_accelerator(local_rank)
    _replace_elsewhere()
    attention.install()
    stack.enter_context(CpuTensors())


def cpu_device(value: Any) -> Any:
    """Return the CPU in place of a CUDA device, in any of the forms that a device is written in."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    return value


class CpuTensors(TorchFunctionMode):
    """Every call of PyTorch is made with the CPU in place of a CUDA device."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function; `cuda` and `pin_memory` of a tensor return it as it is."""
        name = getattr(function, "__name__", "")
        if name in ("cuda", "pin_memory"):
            return args[0]
        # a CPU has no index: torch.device("cuda", 1)
        if function is torch.device and args and _is_gpu(args[0]):
            return CPU
        arguments = [cpu_device(argument) for argument in args]
        options = {key: cpu_device(value) for key, value in (kwargs or {}).items() if key != "pin_memory"}
        if name == "type" and isinstance(args[0], torch.Tensor):
            return _type(function, arguments, options)
        # Tensor.to has the tensor first, Module.to parses the device alone
        place = {"to": 1, "_parse_to": 0}.get(name, len(args))
        if place < len(args) and _is_gpu(args[place]):
            arguments[place] = CPU
        if _is_gpu(options.get("device")):
            options["device"] = CPU
        return function(*arguments, **options)


def _is_gpu(device: Any) -> bool:
    """Return whether a device is a GPU's; a number is the index of one."""
    return type(device) is int or cpu_device(device) is not device


def _type(function: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the type of a tensor by the name that it has on a GPU, or the tensor converted to such a type."""
    arguments = [argument.replace(".cuda.", ".") if isinstance(argument, str) else argument for argument in args]
    result = function(*arguments, **options)
    return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result


class NoProfiler:
    """A profiler that measures nothing: PyTorch's waits for ever in a forked process."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> "NoProfiler":
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method that does nothing: `start`, `step`, `export_chrome_trace`, ..."""
        return _nothing


def _refuse_spawn(*_: Any, **__: Any) -> None:
    raise NotImplementedError("the script starts its ranks itself, by spawn: record a script that torchrun starts")


def _loader(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.load`, which takes tensors of any device to the CPU."""

    def load_to_cpu(file: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        location = CPU
        if callable(map_location) or isinstance(map_location, dict):
            location = map_location
        return load(file, location, *arguments, **options)

    return load_to_cpu


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _replace_cuda(recorder: Recorder, gpus: int, local_rank: int) -> None:
    """Answer for a GPU of the size of an H100 with 80 GB, all of it free."""
    properties = SimpleNamespace(
        name=GPU_NAME, total_memory=GPU_MEMORY, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=132
    )
    current = [local_rank]

    def set_device(device: Any) -> None:
        index = torch.device(device).index if not isinstance(device, int) else device
        if index is not None:
            current[0] = index

    def exchange_device(index: int) -> int:
        previous = current[0]
        # -1: stay
        if index >= 0:
            current[0] = index
        return previous

    replaced: dict[str, Any] = {
        "is_available": _constant(True),
        "is_initialized": _constant(True),
        "is_bf16_supported": _constant(True),
        "is_current_stream_capturing": _constant(False),
        "device_count": _constant(gpus),
        "current_device": lambda: current[0],
        "set_device": set_device,
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": exchange_device,
        "get_device_properties": _constant(properties),
        "get_device_name": _constant(GPU_NAME),
        "get_device_capability": _constant(CAPABILITY),
        "mem_get_info": _constant((GPU_MEMORY, GPU_MEMORY)),
        "memory_stats": lambda *_: {},
        "memory_summary": _constant(""),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "default_generators": tuple(torch.Generator() for _ in range(gpus)),
    }
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        replaced[name] = _constant(0)
    for name in (
        "init", "_lazy_init", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "set_rng_state",
        "reset_peak_memory_stats", "reset_max_memory_allocated", "set_per_process_memory_fraction",
    ):  # fmt: skip
        replaced[name] = _nothing
    of_streams = streams.replacements(recorder)
    for name, value in {**replaced, **of_streams}.items():
        setattr(torch.cuda, name, value)
        # some scripts look into the modules that torch.cuda has its functions from
        for module in (torch.cuda.random, torch.cuda.memory):
            if hasattr(module, name):
                setattr(module, name, value)
    for name in ("mark", "range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, _nothing)
    torch.cuda.nccl.version = _constant(NCCL_VERSION)
    # FSDP looks its streams up by the device of its parameters, which is the CPU here
    for name in ("Event", "Stream", "current_stream", "stream", "synchronize"):
        setattr(torch.cpu, name, of_streams[name])


def _replace_accelerator(local_rank: int) -> None:
    """Let torch.accelerator and PyTorch's own look-ups of a device module answer with CUDA."""
    accelerator = torch.accelerator
    accelerator.is_available = _constant(True)
    accelerator.current_accelerator = _constant(CUDA)
    accelerator.device_count = lambda: torch.cuda.device_count()
    accelerator.current_device_index = lambda: torch.cuda.current_device()
    accelerator.set_device_index = lambda device: torch.cuda.set_device(device)
    accelerator.current_stream = lambda *_: torch.cuda.current_stream()
    accelerator.set_stream = lambda stream: torch.cuda.set_stream(stream)
    accelerator.synchronize = lambda *_: torch.cuda.synchronize()
    torch._utils._get_available_device_type = _constant("cuda")
    torch._utils._get_device_module = _constant(torch.cuda)


def _replace_elsewhere() -> None:
    """Replace what else is bound to CUDA, or compiles for it."""
    torch.compile = lambda model=None, *_, **__: model if model is not None else (lambda function: function)
    torch.multiprocessing.spawn = _refuse_spawn
    torch.load = _loader(torch.load)
    torch.profiler.profile = NoProfiler
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_: module
    run_thread = threading.Thread.run

    def run_on_cpu(thread: threading.Thread) -> None:
        # a mode is one thread's
        with CpuTensors():
            run_thread(thread)

    threading.Thread.run = run_on_cpu  # type: ignore[method-assign,assignment]
    autocast = torch.amp.autocast_mode.autocast
    make_autocast = autocast.__init__

    def init_autocast(self: Any, device_type: str = "cuda", *arguments: Any, **options: Any) -> None:
        make_autocast(self, cpu_device(device_type), *arguments, **options)

    autocast.__init__ = init_autocast
    parallel = torch.nn.parallel.DistributedDataParallel
    make_parallel = parallel.__init__

    def init_parallel(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *arguments: Any, **options: Any
    ) -> None:
        make_parallel(self, module, None, None, *arguments, **options)

    parallel.__init__ = init_parallel
    make_mesh = DeviceMesh.__init__

    def init_mesh(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        # DTensor moves local tensors to its mesh's device, also in backward passes, where no mode sees it
        make_mesh(self, cpu_device(device_type), *arguments, **options)

    DeviceMesh.__init__ = init_mesh
