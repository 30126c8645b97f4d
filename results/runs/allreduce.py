"""What a multi-rail experiment writes down. Sizes in bytes: `size` as in the paper, `sent` what was really summed.

Times are seconds unless the name says otherwise; `*_ns` is CLOCK_MONOTONIC. Lists by rail are in the fabric's order.
"""

from dataclasses import dataclass, field
from typing import Final

MIN_SHARE: Final = 0.005
"""Of what was sent: a rail that carried less carried nothing to speak of."""


@dataclass(frozen=True, slots=True)
class Rails:
    """A fabric: `kinds`, `names`, `bps` (payload that a NIC carries) by rail; `scale` times slower than the paper's.

    `mix` is what its rails are together, `tcp+sharp`; `cpu_s_per_byte` of a node's processor, none where it is empty;
    `threshold`: bytes before scaling up to which Eq. 6 leaves all to one rail, where a split has to gain what makes
    Nezha try it; None if that is at no size.
    """

    label: str
    nodes: int
    mix: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    bps: tuple[float, ...]
    setup_s: tuple[float, ...]
    scale: float
    mtu: int
    build_s: float = 0.0
    cpu_s_per_byte: tuple[float, ...] = ()
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """Allreduces of one size under one policy. `measured` of the `operations` count: others are for learning, or the
    first of a turn.

    `mean_s`, `p99_s` of an operation, from the first rank's start to the last one's end; `typical_s`: the mean of each
    turn's median, in which one that the machine held up is nothing; `shares` that each
    rail carried of what counted, `rail_s` how long each took for them, from the last rank's start (0: nothing to do).
    `settled_after`: operations until the shares first stood for a hundred (None: never; 0: from the first on). `wrong`:
    elements other than numpy's sum, of `checked`. `copied`: bytes copied in memory for a byte of the buffer.
    `predicted_s`: what the equations say. All seconds are the fabric's own time, `dilation` times less than a clock
    showed.
    """

    fabric: str
    policy: str
    size: int
    sent: int
    repeat: int
    operations: int
    measured: int
    mean_s: float
    typical_s: float
    p99_s: float
    shares: tuple[float, ...]
    rail_s: tuple[float, ...]
    settled_after: int | None
    wrong: int
    checked: int
    copied: float
    predicted_s: float | None
    dilation: float = 1.0

    @property
    def split(self) -> bool:
        """Whether more than one rail carried some of it. (A few of many operations, in which it was looked whether to
        split, make no split.)"""
        return sum(share > MIN_SHARE for share in self.shares) > 1

    @property
    def relative_spread(self) -> float:
        """By what part of the slowest rail's time the fastest was earlier; 0 where only one worked."""
        used = [time for time in self.rail_s if time > 0]
        return (max(used) - min(used)) / max(used) if len(used) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A rail that was taken from a node, or from all, while allreduces ran, and given back. ms are from the fault.

    `inside`: whether it fell into an operation, not between two. `detect_ms` until the first node knew, `migrate_ms`
    until the last one had its new tasks (None: never); `worst_s` the longest operation, `median_s` before the fault.
    `carried`: whether the rail carried something before; `home_ms` from the repair until it does again, None where it
    doesn't, or never had.
    """

    fabric: str
    policy: str
    repeat: int
    fault: str
    node: int
    rail: str
    size: int
    t_fault: int
    t_repair: int
    inside: bool
    detect_ms: float | None
    migrate_ms: float | None
    home_ms: float | None
    median_s: float
    worst_s: float
    operations: int
    wrong: int
    checked: int
    error: str = ""
    carried: bool = True


@dataclass(frozen=True, slots=True)
class NicRate:
    """What one NIC of the node that was cut off sent and received, bit/s, in bins that begin at `t_ms`."""

    fabric: str
    policy: str
    repeat: int
    fault: str
    rail: str
    repair_ms: float
    t_ms: tuple[float, ...]
    bps: tuple[float, ...]


def name_of(model: str, batch: int) -> str:
    """`vgg-11 batch 64`; of a GPT, whose batch is its model's own and told as 0, `gpt3-2.7b`."""
    return f"{model} batch {batch}" if batch else model


@dataclass(frozen=True, slots=True)
class Training:
    """A training that was replayed: medians of `steps`. `samples` a step and node, `bytes` a step and node.

    `batch` is 0 where the model has one of its own.
    All seconds are the fabric's own time, as a point's are.
    """

    fabric: str
    policy: str
    model: str
    batch: int
    repeat: int
    steps: int
    samples: float
    bytes: int
    compute_s: float
    step_s: float
    predicted_s: float | None
    dilation: float = 1.0

    @property
    def name(self) -> str:
        return name_of(self.model, self.batch)

    @property
    def samples_per_s(self) -> float:
        """Of a node."""
        return self.samples / self.step_s


@dataclass(frozen=True, slots=True)
class DdpRun:
    """A network that PyTorch's DDP really trained, over Gloo and over Railyard's backend, from the same weights.

    Losses are means over the ranks, a step each; `losses_apart` the largest difference of any rank's and step's, over
    Gloo's. Times of a step are medians without the first. `bytes`: gradients of a step.
    """

    fabric: str
    policy: str
    repeat: int
    bytes: int
    gloo_losses: tuple[float, ...]
    losses: tuple[float, ...]
    losses_apart: float
    gloo_step_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """A policy that didn't run: for want of something on this machine, or (`failed`) since it broke down."""

    fabric: str
    policy: str
    why: str
    failed: bool


@dataclass(frozen=True, slots=True)
class LostRails:
    """Rails that a policy's processes lost at a size though no fault was injected.

    `kept`: the point has turns without them; else the turn is in no point, and whatever these processes hadn't ended
    yet was measured anew.
    """

    fabric: str
    policy: str
    size: int
    repeat: int
    rails: tuple[str, ...]
    kept: bool


@dataclass
class Multirail:
    """All of it. Empty in a run of anything else."""

    fabrics: list[Rails] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    rates: list[NicRate] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    lessons: list[DdpRun] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    lost: list[LostRails] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.fabrics)
