"""Capabilities of this machine, what their absence rules out, and the commands that install them.

`detect` changes nothing and takes a fraction of a second: it tries what has to be tried inside a throwaway namespace.
The other functions are decisions on its result. Speed is measured elsewhere (calibration).
"""

import errno
import fcntl
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, NamedTuple

from railyard.core.errors import MissingRequirement
from railyard.core.installation import INSTALL, python_extra

Datapath = Literal["system", "netdev-tso", "netdev"]
"""How an Open vSwitch forwards: in the kernel, in userspace with TSO, in userspace without."""

NETNS_DIR: Final = Path("/run/netns")  # where network namespaces have names, as `ip netns` has them
CLONE_NEWNET: Final = 0x40000000
# an ordinary user's PATH doesn't lead to where most of these live
SEARCH_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
OVS_PROGRAMS: Final = ("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl")
OTHER_PROGRAMS: Final = ("mnexec", "iperf3", "ip", "tc", "unshare", "nsenter", "ethtool", "nft", "etcd", "mpirun")
UNSHARE_OPTIONS: Final = ("--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
# a program that looks at this machine may be late on a busy one, which is no reason to call it missing
PROBE_S: Final = 60.0
USER_NAMESPACE_OPTIONS: Final = ("--user", "--map-root-user")
# since OVS 2.14 without DPDK; the kernel's AF_PACKET loses segments before 4.19 (OVS, topics/userspace-tso)
TSO_OVS: Final = (2, 14)
TSO_KERNEL: Final = (4, 19)
CONGESTION_CONTROLS: Final = ("cubic", "reno", "bbr")
PEER_LIBRARIES: Final = ("torch", "mpi4py", "torchft")

# A qdisc is there if it can be put on a throwaway loopback; some refuse to be made without arguments.
_QDISCS: Final = {
    "htb": "root htb",
    "tbf": "root tbf rate 1mbit burst 10kb latency 10ms",
    "ingress": "ingress",
    "netem": "root netem",
    "fq": "root fq",
    "fq_codel": "root fq_codel",
    "red": "root red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 10mbit",
    "prio": "root prio",
}
_HOOKS: Final = {
    "numgen": "ingress device lo priority 0; numgen random mod 100 < 1 drop;",
    "egress": "egress device lo priority 0; meta mark 0 dup to meta oif;",
}
_QDISC_PROBE: Final = "tc qdisc add dev lo {what} && echo {name} && tc qdisc del dev lo {qdisc}"
_HOOK_PROBE: Final = "nft 'table netdev {name}_probe {{ chain probe {{ type filter hook {rule} }}; }}' && echo {name}"


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of this machine.

    `programs`: path by name. Sizes are bytes; `*_error` is the reason of a failure.
    """

    root: bool
    sandbox_error: str  # `unshare` as a run does it
    user_namespaces: bool
    apparmor_restricts: bool  # AppArmor refuses user namespaces to programs that it has no profile for
    tun_error: str  # opening /dev/net/tun
    tun_for_all: bool  # ordinary users may
    programs: Mapping[str, str]
    ovs_version: str
    kernel: str
    kernel_modules: bool  # modules are installed for this kernel
    kernel_datapath: bool
    qdiscs: frozenset[str]
    numgen: bool
    egress_hook: bool  # nftables sees frames as they leave an interface, and can copy them
    mptcp: bool
    libraries: frozenset[str]  # of PEER_LIBRARIES
    congestion_controls: frozenset[str]
    cores: float  # usable ones, see usable_cores
    cpu_model: str
    memory_bytes: int
    disk_free_bytes: int
    low_limits: tuple[tuple[str, str], ...] = ()  # limits of this process that are too low: (detail, remedy)


class Capability(NamedTuple):
    """A line of `doctor`: found or not, in what form, what its absence rules out, and the command that gets it."""

    name: str
    found: bool
    detail: str
    rules_out: str
    remedy: str


def _run(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": SEARCH_PATH, "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, check=False, env=environment, timeout=PROBE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


def detect(folder: Path | None = None) -> Machine:
    """Look at this machine; `folder` (default: here) is where runs would be written."""
    # here, since it takes a tenth of a child process's imports, and those don't call this
    import psutil

    root = os.geteuid() == 0
    user_options = () if root else USER_NAMESPACE_OPTIONS
    features = _kernel_features(user_options)
    version = re.search(r"\d+(\.\d+)+", _run("ovs-vswitchd", "--version").stdout)
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    tun = Path("/dev/net/tun")
    apparmor = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    # loaded or built in: a run changes nothing of the machine, so it doesn't load the module
    has_module = Path("/sys/module/openvswitch").exists()
    kernel_datapath = has_module or _run("genl", "ctrl", "get", "name", "ovs_datapath").returncode == 0
    return Machine(
        root=root,
        sandbox_error=_sandbox_error(user_options),
        user_namespaces=_run("unshare", *USER_NAMESPACE_OPTIONS, "--net", "true").returncode == 0,
        apparmor_restricts=apparmor.exists() and apparmor.read_text().strip() == "1",
        tun_error=_tun_error(tun),
        tun_for_all=tun.exists() and tun.stat().st_mode & 0o006 == 0o006,
        programs=_installed_programs(),
        ovs_version=version[0] if version else "",
        kernel=platform.release(),
        kernel_modules=Path("/lib/modules", platform.release()).exists(),
        kernel_datapath=kernel_datapath,
        qdiscs=features & _QDISCS.keys(),
        numgen="numgen" in features,
        egress_hook="egress" in features,
        mptcp=_has_mptcp(),
        libraries=frozenset(name for name in PEER_LIBRARIES if find_spec(name)),
        congestion_controls=_congestion_controls(),
        cores=usable_cores(),
        cpu_model=cpu[1] if cpu else platform.machine(),
        memory_bytes=psutil.virtual_memory().available,
        disk_free_bytes=shutil.disk_usage(folder or Path.cwd()).free,
        low_limits=low_limits(),
    )


def _kernel_features(user_options: Sequence[str]) -> frozenset[str]:
    """Return the names of the qdiscs and nftables features that work in a network namespace of its own."""
    probes = []
    for name, qdisc in _QDISCS.items():
        probes.append(_QDISC_PROBE.format(name=name, what=qdisc, qdisc=qdisc.split()[0]))
    for name, rule in _HOOKS.items():
        probes.append(_HOOK_PROBE.format(name=name, rule=rule))
    output = _run("unshare", *user_options, "--net", "sh", text="\n".join(probes)).stdout
    return frozenset(output.split())


def _installed_programs() -> dict[str, str]:
    paths = {name: shutil.which(name, path=SEARCH_PATH) for name in OVS_PROGRAMS + OTHER_PROGRAMS}
    return {name: path for name, path in paths.items() if path}


def _sandbox_error(user_options: Sequence[str]) -> str:
    """Return why `unshare` as a run does it fails; "" if it works."""
    sandbox = _run("unshare", *user_options, *UNSHARE_OPTIONS, "true")
    if sandbox.returncode == 0:
        return ""
    lines = sandbox.stderr.strip().splitlines()
    if not lines:
        return f"exit status {sandbox.returncode}"
    return lines[-1]


def _tun_error(tun: Path) -> str:
    """Return why the tun device can't be used; "" if it can."""
    try:
        with os.fdopen(os.open(tun, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as device:
            fcntl.ioctl(device, _TUNGETFEATURES, bytes(4))
    except OSError as error:
        return _NO_TUN if error.errno in (errno.ENOTTY, errno.EINVAL) else str(error.strerror)
    return ""


def _has_mptcp() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP):
        return True
    return False


def _congestion_controls() -> frozenset[str]:
    """Return those that are loaded, and those that can be: the kernel loads one when root first sets it on a socket."""
    names = set(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        for name in CONGESTION_CONTROLS:
            with suppress(OSError):
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
                names.add(name)
    return frozenset(names)


def _numbers(version: str) -> tuple[int, ...]:
    """`6.18.44-fc` -> (6, 18, 44)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        return ()
    return tuple(int(part) for part in match[0].split("."))


def datapath_choice(machine: Machine) -> tuple[Datapath, str]:
    """Return the Open vSwitch datapath and why: the kernel's, else userspace with TSO, else plain userspace."""
    if machine.kernel_datapath and machine.root:
        return "system", "the kernel has the openvswitch module"
    reason = "the kernel has no openvswitch module loaded"
    if machine.kernel_datapath:
        reason = "the openvswitch module needs root"
    if _numbers(machine.ovs_version) < TSO_OVS:
        return "netdev", f"{reason}; Open vSwitch {machine.ovs_version} has no userspace TSO (2.14 and later have)"
    if _numbers(machine.kernel) < TSO_KERNEL:
        return "netdev", f"{reason}; Linux {machine.kernel} loses segments under userspace TSO (4.19 and later don't)"
    return "netdev-tso", f"{reason}; userspace with TSO"


_TUNGETFEATURES: Final = 0x800454CF  # of linux/if_tun.h
_NO_TUN: Final = "is no tun device"
_LIMITS: Final = (  # the least that a run of a few GPUs needs
    (resource.RLIMIT_NOFILE, 256, "{:,} open files, {:,} needed", "ulimit -n 65536"),
    (resource.RLIMIT_AS, 700_000_000, "{:,} bytes of address space, {:,} needed", "ulimit -v unlimited"),
    (resource.RLIMIT_FSIZE, 50_000_000, "{:,} bytes in a file, {:,} needed", "ulimit -f unlimited"),
    (resource.RLIMIT_NPROC, 60, "{:,} processes and threads, {:,} needed", "ulimit -u 10000"),
)


def low_limits() -> tuple[tuple[str, str], ...]:
    """Return the limits of this process that are too low for any run: (limit and need, how to raise it)."""
    limits = []
    # the root that the machine has, and no container of a user's, has no limit of processes
    is_root = os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    for number, need, detail, remedy in _LIMITS[:-1] if is_root else _LIMITS:
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY and limit < need:
            limits.append((detail.format(limit, need), f"raise the limit: {remedy}"))
    return tuple(limits)


_ALLOW_USERS: Final = "sudo sysctl user.max_user_namespaces=10000"
_ALLOW_IN_APPARMOR: Final = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
_ALLOW_TUN: Final = "sudo chmod 666 /dev/net/tun"


def _module_remedy(machine: Machine, name: str) -> str:
    """How to get a part of the kernel."""
    if machine.kernel_modules:
        return f"sudo modprobe {name} (Ubuntu: first sudo apt-get install linux-modules-extra-$(uname -r))"
    return "boot a kernel with modules, such as Debian's: sudo apt-get install linux-image-$(dpkg --print-architecture)"


def _required(machine: Machine) -> Iterator[Capability]:
    """Without these nothing runs, in the order in which to get them."""

    def programs(title: str, names: tuple[str, ...], detail: str, rules_out: str) -> Capability:
        absent = [name for name in names if name not in machine.programs]
        if absent:
            detail = f"no {', '.join(absent)}"
        return Capability(title, not absent, detail, rules_out, INSTALL)

    limits = [*machine.low_limits, ("as high as needed", "")]
    yield Capability("limits of this process", not machine.low_limits, limits[0][0], "every run", limits[0][1])
    remedy = f"use sudo, or: {_ALLOW_IN_APPARMOR if machine.apparmor_restricts else _ALLOW_USERS}"
    if os.strerror(errno.EAGAIN) in machine.sandbox_error:
        remedy = "raise the limit of processes: ulimit -u 10000"
    elif machine.root and "LD_PRELOAD" in os.environ and "FAKEROOTKEY" in os.environ:
        remedy = "type it without fakeroot, whose root has no rights"
    elif machine.root:
        remedy = "in a container: docker run --privileged ..."
    detail = machine.sandbox_error or ("as root" if machine.root else "as an ordinary user")
    yield Capability("namespaces", not machine.sandbox_error, detail, "every run", remedy)
    yield programs("Open vSwitch", OVS_PROGRAMS, machine.ovs_version, "rail and spine switches")
    if datapath_choice(machine)[0] != "system":
        remedy = "sudo modprobe tun; in a container: docker run --device /dev/net/tun ..."
        if machine.tun_error == os.strerror(errno.EACCES):
            remedy = f"use sudo, or: {_ALLOW_TUN}"
        if machine.tun_error == _NO_TUN:
            remedy = "sudo rm /dev/net/tun; sudo mknod /dev/net/tun c 10 200"
        detail = machine.tun_error or "can be opened"
        yield Capability("/dev/net/tun", not machine.tun_error, detail, "userspace switches", remedy)
    yield programs("util-linux, iproute2", ("unshare", "nsenter", "ip", "tc"), "", "every run")
    yield programs("mnexec", ("mnexec",), "", "Mininet's commands in a GPU")
    yield programs("ethtool", ("ethtool",), "", "offloads set as the datapath needs them")
    yield programs("iperf3", ("iperf3",), "", "calibrated links")
    htb = "htb" in machine.qdiscs
    yield Capability("qdisc htb", htb, "", "link rates", _module_remedy(machine, "sch_htb"))


def _faster(machine: Machine) -> Iterator[Capability]:
    """Without these the switches are slower, and times less exact."""
    choice, reason = datapath_choice(machine)
    remedy = f"as root: {_module_remedy(machine, 'openvswitch')}"
    yield Capability("kernel datapath", choice == "system", reason, "the fastest switches", remedy)
    remedy = "Open vSwitch 2.14 on Linux 4.19, or later"
    yield Capability("userspace TSO", choice != "netdev", reason, "fast switches without the module", remedy)
    hook = INSTALL if "nft" not in machine.programs else "a kernel of 5.16 or later"
    yield Capability("nftables egress hook", machine.egress_hook, "", "switches with buffers of their own", hook)


def _optional(machine: Machine) -> Iterator[Capability]:
    """Without these some experiments can't run."""
    # shown to root, too, so that a teacher knows what the class can do
    remedies: list[str] = []
    if not machine.user_namespaces:
        remedies.append(_ALLOW_USERS)
    if machine.apparmor_restricts:
        remedies.append(_ALLOW_IN_APPARMOR)
    if not machine.tun_for_all:
        remedies.append(_ALLOW_TUN)
    yield Capability("no root needed", not remedies, "", "runs without sudo", "; ".join(remedies))
    uses = {"netem": "delay, jitter", "red": "ECN marks", "fq": "pacing", "fq_codel": "fair queues"}
    uses |= {"prio": "priorities", "tbf": "shaping by token bucket", "ingress": "policing"}
    for name, use in uses.items():
        yield Capability(f"qdisc {name}", name in machine.qdiscs, "", use, _module_remedy(machine, f"sch_{name}"))
    numgen = INSTALL if "nft" not in machine.programs else _module_remedy(machine, "nft_numgen")
    yield Capability("nftables numgen", machine.numgen, "", "gray loss without netem", numgen)
    yield Capability("MPTCP", machine.mptcp, "", "multi-rail by the kernel", "sudo sysctl net.mptcp.enabled=1")
    torch = "torch" in machine.libraries
    yield Capability("PyTorch", torch, "", "Gloo to compare with, training over DDP", python_extra("gloo"))
    mpi = "mpi4py" in machine.libraries and "mpirun" in machine.programs
    yield Capability("Open MPI", mpi, machine.programs.get("mpirun", ""), "MPI to compare with", python_extra("mpi"))
    torchft = "torchft" in machine.libraries
    yield Capability("torchft", torchft, "", "fault-tolerant training", python_extra("torchft"))
    for name in CONGESTION_CONTROLS:
        is_available = name in machine.congestion_controls
        yield Capability(
            f"TCP {name}", is_available, "", f"congestion control {name}", _module_remedy(machine, f"tcp_{name}")
        )
    etcd = machine.programs.get("etcd", "")
    yield Capability("etcd", bool(etcd), etcd, "the registry on a real etcd", INSTALL)


def capabilities(machine: Machine) -> dict[str, list[Capability]]:
    """Return every capability by its importance, the most important group first."""
    groups = {"needed": _required, "faster": _faster, "optional": _optional}
    return {name: list(capabilities_of(machine)) for name, capabilities_of in groups.items()}


def require(machine: Machine) -> None:
    """MissingRequirement, with what to type, for the first thing without which nothing runs."""
    for capability in _required(machine):
        if not capability.found:
            problem = f"this machine lacks {capability.name}"
            if capability.detail:
                problem += f" ({capability.detail})"
            raise MissingRequirement(problem, capability.remedy)


def cpu_cgroups(proc: Path = Path("/proc/self")) -> list[Path]:
    """Return the folders of the CPU controller's cgroups that this process is in, innermost first, as far as visible.

    Of cgroup 1 and 2. `proc`: the folder of a process in /proc.
    """
    # by version: the cgroup that is mounted, and where
    mounts = dict[str, tuple[str, Path]]()
    for line in (proc / "mountinfo").read_text().splitlines():
        where, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") or (kind.startswith("cgroup ") and "cpu" in kind.split()[2].split(",")):
            mounts[kind.split()[0]] = where.split()[3], Path(where.split()[4])
    folders = list[Path]()
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        version = ""
        if "cpu" in controllers.split(","):
            version = "cgroup"
        elif not controllers:
            version = "cgroup2"
        if version in mounts:
            root, mounted = mounts[version]
            inside = path.removeprefix(root.rstrip("/")).lstrip("/")
            folder = mounted
            # a cgroup outside of what is mounted isn't visible here
            if (mounted / inside).is_dir() and ".." not in inside:
                folder = mounted / inside
            ancestors = [folder, *folder.parents]
            folders += [place for place in ancestors[: ancestors.index(mounted) + 1] if (place / "cpu.stat").exists()]
    return folders


def usable_cores() -> float:
    """Return how many cores this process may use: by its CPU affinity, and by the quotas of its cgroups."""
    cores: float = len(os.sched_getaffinity(0))
    for folder in cpu_cgroups():
        with suppress(OSError):
            quota = ""
            period = ""
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            elif (folder / "cpu.cfs_quota_us").exists():
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            if quota.isdecimal() and int(period):  # else none: "max", -1
                cores = min(cores, int(quota) / int(period))
    return cores


def raise_open_file_limit() -> None:
    """Raise the limit of open files to the hard limit: 64 GPUs that send to each other need 4,032 sockets."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
