"""Speeds of trainings over one rail and several (Nezha Fig. 12, 16, 17 and 18, Table 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.nezha import (
    FIG_16,
    FIG_16_COLUMNS,
    GPT_BATCHES,
    GPT_GAIN_128,
    GPT_GAIN_ABSTRACT,
    GPT_PIPELINE,
    SECOND_NIC_GAIN,
    THIRD_NIC_GAIN,
    TRAINING_GAINS,
    gain_tolerance,
)
from railyard.workloads.allreduce.balancing.costs import paper_rail, paper_rails
from railyard.workloads.jobs.training import GPT_LINK_RATE, SPEEDS_NODES, Step, TrainingSpec, gpt_step, predicted_step_s
from railyard.workloads.models.catalogue import GptModel

if TYPE_CHECKING:
    import matplotlib.figure

# Fig. 15: AlexNet sends up to 4 MB at a time, VGG-11 up to 16 MB
BUCKETS: Final = {"alexnet": "4MiB", "vgg-11": "16MiB"}
FIG_16_MOST_NODES: Final = 6
FIG_17_NODES: Final = (2, 4, 8, 16)
GPT_MODELS: Final = ("gpt3-2.7b", "gpt3-30b")
# ours and the paper's measured ratios differ by up to this much where the model has everything that they depend on
WITHIN: Final = 0.15
FITTED: Final = "step times of 1 to 3 NICs on 4 nodes give computing and exposed communication, so this is a fitted row"
TWO_GPUS: Final = "two GPUs of a node share neither its bus nor its processor here"
OTHER_BASELINE: Final = "the baseline is one rail with Nezha; that of the paper is {}, of which it gives no speeds"
AT_MOST_TWICE: Final = (
    "two equal rails at most double the allreduces; the paper explains more by fewer collisions and retransmissions"
)


class Setting(NamedTuple):
    """A training on so many nodes with these rails, as `tcp+sharp`."""

    model: str
    batch: int
    nodes: int
    mix: str


def figure() -> Figure:
    """Speeds of AlexNet and VGG-11, and of GPT-3 on 16 to 128 nodes."""
    rows: list[tuple[Cell, ...]] = []
    for (model, batch, nodes), speeds in FIG_16.items():
        for (gpus, nics), published in zip(FIG_16_COLUMNS, speeds, strict=True):
            ours = gpus * speed(Setting(model, batch, nodes, _nics(nics)))
            rows.append(("Fig. 16", f"{model} {batch}", nodes, f"{gpus} GPUs, {nics} NICs", published, ours))
    for nodes in FIG_17_NODES:
        rows.append(
            ("Fig. 17", "alexnet 32", nodes, "gain of tcp+tcp", None, gain(Setting("alexnet", 32, nodes, "tcp+tcp")))
        )
    for model in GPT_MODELS:
        for nodes in GPT_BATCHES:
            rows.append(("Fig. 18", model, nodes, "seconds with one rail", None, _gpt_s(model, nodes, "single:eth1")))
            rows.append(("Fig. 18", model, nodes, "seconds with two rails", None, _gpt_s(model, nodes, "nezha")))
    return Figure(
        title="Training speed over several rails",
        source="Nezha Fig. 12, 16, 17 and 18, Table 3, sections 5.3 to 5.3.4",
        columns=("figure", "model", "nodes", "where", "published", "computed"),
        rows=rows,
        draw=_draw,
        claims=(
            *_fig_16_claims(),
            *_second_nic_claims(),
            *_third_nic_claims(),
            *_fig_12_claims(),
            *_comparison_claims(),
            *_scaling_claims(),
            *_gpt_claims(),
        ),
        notes=(
            "Computing and the part of the communication that it does not hide are of Fig. 16's 1 to 3 NICs on 4 "
            "nodes; 6, 8 and more nodes and other rails are predicted with Eq. 1 to 5.",
            "GPT-3: computing at 40% of a V100's peak. Each of a node's two GPUs has a tensor slice, and the "
            "allreduces of both take the node's NICs, one after the other. Left out is the traffic of pipeline "
            "parallelism; that of tensor parallelism stays in a node.",
        ),
    )


@cache
def _step(model: str, batch: int) -> Step:
    training = {"kind": "training", "model": model, "batch": batch, "bucket": BUCKETS[model], "exposed": "auto"}
    spec = TrainingSpec.model_validate(training)
    return spec.step(SPEEDS_NODES, 1.0, 1.0)


def _nics(count: int) -> str:
    return "+".join(["tcp"] * count)


def speed(setting: Setting) -> float:
    """Return the samples/s of all nodes together with one GPU each, by Nezha's shares."""
    step = _step(setting.model, setting.batch)
    seconds = predicted_step_s(step, paper_rails(setting.mix), setting.nodes, _policy(setting.mix), 0)
    return setting.nodes * setting.batch / seconds


def _policy(mix: str) -> str:
    return "nezha" if "+" in mix else f"single:{mix}0"


def gain(setting: Setting) -> float:
    """Return the speed over that of the better single rail, times."""
    single_speeds = [speed(setting._replace(mix=kind)) for kind in setting.mix.split("+")]
    return speed(setting) / max(single_speeds)


def _fig_16_claims() -> list[Claim]:
    """Return each cell of Fig. 16 over its first column."""
    claims: list[Claim] = []
    for (model, batch, nodes), speeds in FIG_16.items():
        baseline = speed(Setting(model, batch, nodes, "tcp"))
        for (gpus, nics), published in list(zip(FIG_16_COLUMNS, speeds, strict=True))[1:]:
            # as many GPUs train on as many samples in the same time
            ours = gpus * speed(Setting(model, batch, nodes, _nics(nics))) / baseline
            note = ""
            if gpus > 1:
                note = TWO_GPUS
            elif nodes == SPEEDS_NODES:
                note = FITTED
            name = f"{model} {batch}, {nodes} nodes, {gpus} GPUs and {nics} NICs: of one"
            stated = published / speeds[0]
            claims.append(Claim(name, stated, ours, "times", gain_tolerance(stated, WITHIN), note=note))
    return claims


def _second_nic_claims() -> Iterator[Claim]:
    """Yield what a second NIC adds with two GPUs a node, and by nodes (5.3.3)."""
    gains = {key: gain(Setting(*key, "tcp+tcp")) for key in FIG_16}
    least_gain = min(gains.values())
    note = "two GPUs of a node gain as much as one here; Fig. 16 itself has 1.17 to 1.31"
    name = "2 GPUs a node: least gain of a second NIC"
    yield Claim(name, SECOND_NIC_GAIN, least_gain, "times", bound="at least", note=note)
    less_by_nodes = 0
    less_by_gpus = 0
    of_trainings = f"of {len(_trainings())} trainings"
    for model, batch in _trainings():
        less_by_nodes += gains[model, batch, FIG_16_MOST_NODES] <= gains[model, batch, SPEEDS_NODES]
        speeds = dict(zip(FIG_16_COLUMNS, FIG_16[model, batch, FIG_16_MOST_NODES], strict=True))
        less_by_gpus += speeds[2, 2] / speeds[2, 1] <= speeds[1, 2] / speeds[1, 1]
    name = "trainings in which a second NIC gains no more on 6 nodes than on 4"
    yield Claim(name, 0, less_by_nodes, of_trainings)
    name = "6 nodes, by Fig. 16: trainings in which a second NIC gains no more with 2 GPUs than with one"
    note = "with two GPUs the second NIC adds more samples/s, but less of what there was"
    yield Claim(name, 0, less_by_gpus, of_trainings, note=note)


def _third_nic_claims() -> Iterator[Claim]:
    """Yield what a third NIC adds to two on 6 nodes with a GPU each (5.3.3)."""
    note = "the communication of a step is divided by the NICs here, so that the third one adds more"
    for model, batch in _trainings():
        two_nics = Setting(model, batch, FIG_16_MOST_NODES, "tcp+tcp")
        ours = speed(two_nics._replace(mix="tcp+tcp+tcp")) / speed(two_nics)
        name = f"{model} {batch}, {FIG_16_MOST_NODES} nodes: three NICs over two"
        within = gain_tolerance(THIRD_NIC_GAIN, WITHIN)
        yield Claim(name, THIRD_NIC_GAIN, ours, "times", within, note=note)


def _trainings() -> list[tuple[str, int]]:
    """Return model and batch of each training of Fig. 16."""
    return [(model, batch) for model, batch, nodes in FIG_16 if nodes == FIG_16_MOST_NODES]


def _fig_12_claims() -> list[Claim]:
    """Return the gains that the text states beside Fig. 12, and how many pairs of systems are in another order."""
    claims: list[Claim] = []
    for (training, mix, nodes, baseline), (stated, is_upper_bound) in TRAINING_GAINS.items():
        model, _, batch = training.partition(" batch ")
        if baseline == "single" and not is_upper_bound:
            # of Fig. 16
            continue
        ours = gain(Setting(model, int(batch), nodes, mix))
        note = "" if baseline == "single" else OTHER_BASELINE.format("Gloo" if baseline == "gloo" else "NCCL")
        name = f"{model} {batch}, {nodes} nodes, {mix}: of {'the better rail' if baseline == 'single' else baseline}"
        claims.append(Claim(name, stated, ours, "times", gain_tolerance(stated, WITHIN), note=note))
    for model in BUCKETS:
        gains = [gain(Setting(model, 32, 8, mix)) for mix in ("tcp+tcp", "tcp+sharp", "tcp+glex")]
        note = "by Table 1 and Fig. 2 GLEX is no faster than SHARP on 8 nodes, so TCP gains as much beside either"
        name = f"{model} 32, 8 nodes: pairs of rails in another order of gains"
        claims.append(Claim(name, 0, _inversions(gains), f"of {len(gains) - 1} pairs", note=note))
    return claims


def _inversions(values: Sequence[float]) -> int:
    """Return how many neighbours rise in a sequence that should fall."""
    return sum(after > before for before, after in pairwise(values))


def _comparison_claims() -> Iterator[Claim]:
    """Yield how the gain of a second TCP rail differs between nodes, and between models (5.3)."""
    few_nodes = gain(Setting("vgg-11", 64, 4, "tcp+tcp"))
    many_nodes = gain(Setting("vgg-11", 64, 8, "tcp+tcp"))
    name = "vgg-11 64, tcp+tcp: gain on 8 nodes over that on 4"
    yield Claim(name, 1, many_nodes / few_nodes, "times", bound="at least", stated="superior means")
    by_model = gain(Setting("alexnet", 32, 8, "tcp+tcp")) / gain(Setting("vgg-11", 32, 8, "tcp+tcp"))
    name = "8 nodes, tcp+tcp: gain of alexnet 32 over that of vgg-11 32"
    yield Claim(name, 1, by_model, "times", bound="at least", stated="varies means")


def _scaling_claims() -> list[Claim]:
    """Return claims on more nodes."""
    gains = [gain(Setting("alexnet", 32, nodes, "tcp+tcp")) for nodes in FIG_17_NODES]
    note = (
        "set-ups of a ring grow with its nodes, and AlexNet's buckets of 4 MB are small: the gain falls above 8 nodes"
    )
    six_nodes = speed(Setting("alexnet", 32, 6, "tcp+tcp"))
    two_gpus_on_four = 2 * speed(Setting("alexnet", 32, 4, "tcp"))
    return [
        Claim(
            "alexnet 32, 2 to 16 nodes: steps at which the gain falls",
            0,
            _inversions(gains[::-1]),
            f"of {len(gains) - 1} steps",
            note=note,
        ),
        Claim(
            "alexnet 32: 6 nodes with 2 NICs over 4 nodes with 2 GPUs", 1, six_nodes / two_gpus_on_four, "times", 0.05
        ),
    ]


def _gpt_step(model: str, nodes: int) -> Step:
    """Return a step of GPT-3, of which an eighth of the nodes share a stage's gradients."""
    gpt = GptModel.load(model)
    training = gpt.training.model_copy(update={"global_batch": GPT_BATCHES[nodes]})
    return gpt_step(model, gpt.model_copy(update={"training": training}), nodes // GPT_PIPELINE)


def _gpt_s(model: str, nodes: int, policy: str) -> float:
    """Return the seconds of a step of GPT-3."""
    step = _gpt_step(model, nodes)
    rails = [replace(paper_rail("tcp"), name=name, rate=GPT_LINK_RATE) for name in ("eth1", "eth2")]
    return predicted_step_s(step, rails, nodes // GPT_PIPELINE, policy, 0)


def _gpt_communication_s(model: str, nodes: int) -> float:
    """Return the seconds that communication adds to a step with one rail."""
    return _gpt_s(model, nodes, "single:eth1") - _gpt_step(model, nodes).compute_s


def _gpt_gain(model: str, nodes: int) -> float:
    return _gpt_s(model, nodes, "single:eth1") / _gpt_s(model, nodes, "nezha")


def _gpt_claims() -> list[Claim]:
    """Return claims on Fig. 18: gains by nodes."""
    claims: list[Claim] = []
    for model in GPT_MODELS:
        # on 16 nodes the batch is another one
        node_counts = [nodes for nodes in GPT_BATCHES if nodes > min(GPT_BATCHES)]
        gains = [_gpt_gain(model, nodes) for nodes in node_counts]
        name = f"{model}, 32 to 128 nodes: steps at which the gain falls"
        claims.append(Claim(name, 0, _inversions(gains[::-1]), f"of {len(gains) - 1} steps"))
        communication_s = [_gpt_communication_s(model, nodes) for nodes in node_counts]
        no_longer = sum(after <= before for before, after in pairwise(communication_s))
        name = f"{model}, 32 to 128 nodes: steps at which communication doesn't take longer"
        claims.append(Claim(name, 0, no_longer, f"of {len(communication_s) - 1} steps"))
        ours = _gpt_gain(model, 128)
        claims.append(
            Claim(f"{model}, 128 nodes: of one rail", GPT_GAIN_128, ours, "times", WITHIN, note=AT_MOST_TWICE)
        )
    ours = _gpt_gain(GPT_MODELS[0], 128)
    name = f"{GPT_MODELS[0]}, 128 nodes: of Gloo, abstract"
    claims.append(Claim(name, GPT_GAIN_ABSTRACT, ours, "times", WITHIN, note=AT_MOST_TWICE))
    return claims


def _draw(drawn: "matplotlib.figure.Figure") -> None:
    left_axes, right_axes = drawn.subplots(1, 2)
    for number, (model, batch, nodes) in enumerate(FIG_16):
        published = FIG_16[model, batch, nodes][:3]
        computed = [speed(Setting(model, batch, nodes, _nics(nics))) for nics in (1, 2, 3)]
        colour = style.SERIES[number % len(style.SERIES)]
        left_axes.plot(published, computed, "o", color=colour, label=f"{model} {batch}, {nodes} nodes")
    left_axes.axline((0, 0), slope=1, color=style.MUTED, linewidth=1)
    left_axes.legend(fontsize=7)
    style.quiet(left_axes, "y", xlabel="published, samples/s", ylabel="computed, samples/s")
    node_counts = list(GPT_BATCHES)
    for colour, model in zip(style.SERIES, GPT_MODELS, strict=False):
        right_axes.plot(
            node_counts, [_gpt_gain(model, count) for count in node_counts], "o-", color=colour, label=model
        )
    right_axes.legend(fontsize=8)
    style.quiet(right_axes, "y", xlabel="nodes", ylabel="gain of two rails, times")
