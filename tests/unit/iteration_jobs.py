"""Small jobs for the tests of iteration times and of the search."""

from dataclasses import replace

import numpy as np

from railyard.results.theory.iteration.iteration_time import (
    FloatArray,
    Job,
    Recipe,
    Strategy,
    gpu_bytes,
    iteration_time,
    make_cluster,
)
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.layout import Parallelism

MODEL = GptModel(
    kind="gpt",
    parameters=1_000_000_000,
    layers=16,
    hidden=2048,
    heads=16,
    sequence=1024,
    vocabulary=51_200,
    domain_gpus=8,
    training=Parallelism(tensor=4, pipeline=4, data=4, micro_batch=1, global_batch=128),
)
STRATEGY = Strategy(
    tensor_hb=2, tensor_network=2, pipeline_hb=2, pipeline_network=2, data_hb=2, data_network=2,
    micro_batch=2, virtual_stages=2,
)  # fmt: skip
"""On 64 GPUs in HB domains of 8: every dimension has a part inside and a part outside."""


def job(gpus: int = 64, domain_gpus: int = 8, global_batch: int = 128) -> Job:
    return Job(MODEL, Recipe(global_batch), make_cluster("h100", gpus, domain_gpus))


def one(strategy: Strategy[float]) -> Strategy[FloatArray]:
    """Arrays of length 1."""
    return Strategy(*(np.array([float(value)]) for value in strategy.columns))


def seconds(of: Job, strategy: Strategy[float] = STRATEGY) -> float:
    return float(iteration_time(of, one(strategy)).total_s[0])


def size(of: Job, strategy: Strategy[float] = STRATEGY) -> float:
    """Bytes of the fullest GPU."""
    return float(gpu_bytes(of, one(strategy))[0])


def with_constants(of: Job, **changed: float) -> Job:
    constants = replace(of.cluster.constants, **changed)
    return replace(of, cluster=replace(of.cluster, constants=constants))
