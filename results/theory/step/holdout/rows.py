"""Measured steps (measured.csv), and the model's prediction of each."""

import csv
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Final, cast

from railyard.core.installation import data_file
from railyard.results.theory.step.hardware import Hardware, make_hardware
from railyard.results.theory.step.step_time import step_time
from railyard.results.theory.step.strategy import Recipe, Recompute, Strategies, one_strategy
from railyard.topologies.platforms import Precision
from railyard.workloads.models.catalogue import load_transformer, model_names
from railyard.workloads.models.transformer import Transformer

FILE: Final = data_file("results/theory/step/holdout/measured.csv")
LONG_SEQUENCE: Final = 4096
OF_2022: Final = ("korthikanti", "megatron", "vtrain")
"""Tables of GPTs trained without today's overlaps, whose output layer Eq. 6 to 11 spread over all stages."""
TITLES: Final = {
    "korthikanti": "A100, Korthikanti Table 5",
    "megatron": "A100, Megatron-LM Table 1",
    "vtrain": "A100, GPT of 2021/22",
    "dgxc": "H100",
    "mpt": "A100, MPT with FSDP",
    "mpt-h100": "H100, MPT with FSDP of 2023",
    "bridge": "Megatron-Bridge",
}


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """A row of measured.csv. `values`: its cells by column; `fitted`: constants were chosen on it."""

    values: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.values[column]

    @property
    def fitted(self) -> bool:
        """True if constants were chosen on it."""
        return self["use"] == "fit"

    @property
    def seconds(self) -> float:
        """Measured time, s."""
        return float(self["seconds"])

    @cached_property
    def can_be_predicted(self) -> bool:
        """True if Railyard has the model's shape."""
        return bool(self["shape"]) or self["model"] in model_names()

    @property
    def is_moe(self) -> bool:
        """True if the model has experts."""
        return self.can_be_predicted and bool(self.model.moe_layers)

    @cached_property
    def model(self) -> Transformer:
        """The model, at the row's sequence length."""
        return _model(self["model"], self["shape"], int(self["sequence"]), self["table"] not in OF_2022)

    @property
    def recipe(self) -> Recipe:
        """Everything but model, cluster and strategy."""
        of_2022 = self["table"] in OF_2022
        return Recipe(
            global_batch=int(self["global_batch"]),
            recompute=cast(Recompute, self["recompute"]),
            sequence_parallel=self["sequence_parallel"] == "yes",
            zero=int(self["zero"]),
            overlap_data=not of_2022,
            overlap_input_gradients=self["table"] != "megatron",
            overlap_experts=self["overlap_experts"] == "yes",
            cuda_graphs=self["cuda_graphs"] == "yes",
            kernels_of_2022=self["table"] in ("mpt", "mpt-h100"),
            equal_stages=of_2022,
        )

    @property
    def strategy(self) -> Strategies:
        """The dimensions that it was split by."""
        names = ("tensor", "context", "pipeline", "data", "expert", "virtual_stages", "micro_batch")
        return one_strategy(**{name: int(self[name]) for name in names})

    @cached_property
    def hardware(self) -> Hardware:
        """The cluster, with the row's own rates where it gives them."""
        hardware = make_hardware(self["platform"], int(self["gpus"]), precision=cast(Precision, self["precision"]))
        if self["rail_gbit_s"]:
            hardware = replace(hardware, rail_bytes_per_s=float(self["rail_gbit_s"]) * 1e9 / 8)
        if self["hbm_gb_s"]:
            hardware = replace(hardware, memory_bytes_per_s=float(self["hbm_gb_s"]) * 1e9)
        return hardware

    @property
    def regime(self) -> str:
        """The group that errors are reported for."""
        title = TITLES[self["table"]]
        if self["table"] == "dgxc":
            return f"{title} {self['precision']}"
        if self["table"] in ("mpt", "mpt-h100"):
            if int(self["sequence"]) > LONG_SEQUENCE:
                return f"{title}, longer"
            return f"{title}, s <= {LONG_SEQUENCE:,}"
        if self["table"] == "bridge":
            return f"{title} {self['release']}, {'MoE' if self.is_moe else 'dense'}"
        return title


@cache
def measured_steps() -> tuple[MeasuredStep, ...]:
    """Return every row, in the order of the file."""
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    return tuple(MeasuredStep(row) for row in csv.DictReader(lines))


@cache
def predicted_s(row: MeasuredStep) -> float:
    """Return the predicted time of a row, s."""
    return predicted_on_s(row, row.hardware)


def predicted_on_s(row: MeasuredStep, hardware: Hardware) -> float:
    """Return the predicted time of a row's job on other hardware than its own, s."""
    return float(step_time(row.model, row.recipe, hardware, row.strategy).total_s[0])


@cache
def _model(name: str, shape: str, sequence: int, fused_attention: bool) -> Transformer:
    """Return a model of the catalogue, or the GPT that `shape` has: layers, hidden size, heads, vocabulary."""
    if not shape:
        return load_transformer(name).model_copy(update={"sequence": sequence})
    layers, hidden, heads, vocabulary = map(int, shape.split())
    gpt = load_transformer("gpt-175b")
    update = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "head_size": hidden // heads}
    update |= {"ffn": 4 * hidden, "vocabulary": vocabulary, "sequence": sequence, "positions": sequence}
    update["fused_attention"] = fused_attention
    return gpt.model_copy(update=update)
