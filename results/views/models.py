"""Tables of models and platforms as `list` and `describe` print them: rows of cells, numbers with their units."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from railyard.core.config import is_path, read_yaml
from railyard.core.units import format_rate, format_size
from railyard.results.format import NOTHING, digits
from railyard.topologies.platforms import PLATFORMS, SYSTEMS, Platform
from railyard.workloads.models.catalogue import CATALOGUE, LayersModel, load_model, load_transformer, model_names
from railyard.workloads.models.layer_kind import LayerKind
from railyard.workloads.models.transformer import Transformer

Row = tuple[str, ...]
MODEL_COLUMNS: Final = ("MODEL", "PARAMETERS", "ACTIVE", "LAYERS", "HIDDEN", "HEADS", "KV HEADS", "MLP", "EXPERTS")
PLATFORM_COLUMNS: Final = ("PLATFORM", "K", "HB", "RAIL", "MEMORY", "HBM", "BF16", "FP8", "MXFP8", "NVFP4")
LAYER_COLUMNS: Final = (
    "LAYERS",
    "KIND",
    "PARAMETERS",
    "ACTIVE",
    "QUERIES",
    "KEYS",
    "VALUES",
    "MLP",
    "MATMULS",
    "SCORES",
)
TENSOR_COLUMNS: Final = ("LAYER", "WEIGHTS", "BIASES")
_STEPS: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def count(number: float) -> str:
    """405,853,388,800 -> `405.9 B`."""
    for step, letter in _STEPS:
        if number >= step:
            return f"{digits(number / step)} {letter}"
    return f"{number:,.0f}"


def flops(number: float) -> str:
    """1.43e11 -> `143.0 GFLOP`."""
    if number >= 1e12:
        return f"{digits(number / 1e12)} TFLOP"
    return f"{digits(number / 1e9)} GFLOP"


def kind_of(name: str) -> Literal["model", "platform", ""]:
    """Return what has a name, or what the file of this path is; nothing for anything else, such as an experiment."""
    if not is_path(name):
        if name in model_names():
            return "model"
        return "platform" if name in PLATFORMS else ""
    if name.endswith(".json"):
        return "model"
    data = read_yaml(Path(name), "NAME")
    if not isinstance(data, dict):
        return ""
    if "hb_bps" in data:
        return "platform"
    return "model" if "kind" in data and "fabrics" not in data else ""


def source_of(name: str) -> str:
    """Return line 1 of the file of a model or platform, which names its source; nothing of a user's own."""
    if is_path(name):
        return ""
    folder = SYSTEMS
    file_name = name
    if name in model_names():
        folder = CATALOGUE
    else:
        file_name = PLATFORMS[name].name
    first_line = (folder / f"{file_name}.yaml").read_text("utf-8").partition("\n")[0]
    return first_line.removeprefix("# ")


def model_rows() -> Iterator[Row]:
    """Yield a row for each model of the catalogue."""
    for name in model_names():
        model = load_model(name)
        if isinstance(model, LayersModel):
            parameters = count(model.parameters)
            yield name, parameters, parameters, str(len(model.layers)), *[NOTHING] * 5
        else:
            yield name, *_shape_cells(load_transformer(name))


def _shape_cells(shape: Transformer) -> Row:
    """Return the cells of a transformer; of its MLPs the width of an expert, where it has experts."""
    experts = NOTHING
    width = shape.ffn
    if shape.experts:
        experts = f"{shape.experts_per_token} of {shape.experts}"
        width = shape.expert_ffn
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, width)
    parameters = (count(shape.all_parameters), count(shape.active_parameters))
    return *parameters, *map("{:,}".format, sizes), experts


def platform_rows() -> Iterator[Row]:
    """Yield a row for each platform that comes with Railyard."""
    for name in PLATFORMS:
        yield name, *_platform_cells(PLATFORMS[name])


def _platform_cells(platform: Platform) -> Row:
    low = platform.low_precision_flops
    memory_rate = platform.memory_bytes_per_s
    peaks = []
    for peak in (platform.flops, low.fp8, low.mxfp8, low.nvfp4):
        peaks.append(f"{peak / 1e12:,.0f}" if peak else NOTHING)
    return (
        str(platform.domain_gpus),
        format_rate(platform.hb_bps),
        format_rate(platform.rail_bps),
        f"{platform.memory_bytes / 1e9:.0f} GB",
        f"{digits(memory_rate / 1e12, 3)} TB/s" if memory_rate else NOTHING,
        *peaks,
    )


def facts_of_model(name: str) -> list[Row]:
    """Return (fact, value) of a model as a whole."""
    model = load_model(name, "NAME")
    if isinstance(model, LayersModel):
        return [("parameters", f"{model.parameters:,}"), ("gradients", format_size(model.gradient_bytes))]
    shape = load_transformer(name, "NAME")
    sequence = shape.sequence
    embedding = count(shape.embedding_parameters)
    output = "shared with it" if shape.tied_embeddings else count(shape.output_parameters)
    forward = shape.forward_flops(sequence) / sequence
    causal = shape.forward_flops(sequence, causal=True) / sequence
    scores = "fused" if shape.fused_attention else "not fused"
    facts: list[Row] = [
        ("parameters", f"{shape.all_parameters:,} counted, {count(shape.parameters)} stated"),
        ("of one token", f"{count(shape.active_parameters)}, without the input embedding"),
        ("embedding", f"{embedding}; output layer {output}"),
        (
            "forward pass",
            f"{flops(forward)} a token of a sequence of {sequence:,}; {flops(causal)} with causal attention",
        ),
        ("attention", scores),
    ]
    if shape.experts:
        facts.insert(2, ("routed experts", f"{count(shape.all_expert_parameters)} in {shape.moe_layers} layers"))
    return facts


def layer_rows(name: str) -> tuple[tuple[str, ...], list[Row]]:
    """Return the headings and a row for each kind of layer, or for each layer of a list of layers."""
    model = load_model(name, "NAME")
    if isinstance(model, LayersModel):
        return TENSOR_COLUMNS, [(layer.name, f"{layer.weights:,}", f"{layer.biases:,}") for layer in model.layers]
    shape = load_transformer(name, "NAME")
    return LAYER_COLUMNS, [_kind_cells(kind, shape.sequence) for kind in shape.layer_kinds]


def _kind_cells(kind: LayerKind, sequence: int) -> Row:
    """Return the cells of a kind of layer: parameters, then widths and FLOPs of one token."""
    widths = (kind.query_width, kind.key_width, kind.value_width, kind.mlp_width)
    return (
        str(kind.layers),
        kind.name,
        count(kind.parameters),
        count(kind.active_parameters),
        *map("{:,}".format, widths),
        flops(kind.matmul_flops),
        flops(kind.attention_flops(sequence) / sequence),
    )


def facts_of_platform(name: str) -> list[Row]:
    """Return (fact, value) of a platform."""
    platform = PLATFORMS[name]
    domain_gpus, hb_rate, rail_rate, memory, memory_rate, *peaks = _platform_cells(platform)
    facts: list[Row] = [
        ("HB domain", f"{domain_gpus} GPUs, {hb_rate} per GPU and direction"),
        ("rail", f"{rail_rate} per GPU and direction: C_F/C_S is {platform.ratio:g}"),
        ("memory", f"{memory}, {memory_rate}"),
    ]
    names = ("bf16", "fp8", "mxfp8", "nvfp4")
    for precision, peak in zip(names, peaks, strict=True):
        value = "not in its data sheet" if peak == NOTHING else f"{peak} TFLOP/s, dense"
        facts.append((precision, value))
    return facts
