"""Bytes of a GPU's memory that a strategy takes, at the fullest stage: the first."""

import numpy as np

from railyard.results.theory.iteration.arrays import FloatArray, Strategies
from railyard.results.theory.iteration.job import Job

PARAMETER_STATE = 14
"""Bytes beside the gradient: a 16-bit parameter, and for Adam its fp32 copy and two fp32 moments."""


def stage_parameters(job: Job, s: Strategies) -> FloatArray:
    """Parameters of a GPU of the first stage: its layers, and the embedding, both split over t."""
    layers = job.model.layers * job.model.layer_parameters / s.pipeline
    return (layers + job.model.embedding_parameters) / s.tensor


def activation_bytes(job: Job, s: Strategies) -> FloatArray:
    """Of the micro-batches that a first stage holds in 1F1B: p of them, or all m where there are fewer.

    Korthikanti et al. 2022, per layer and micro-batch: s b h (34 + 5 a s/h)/t; selective recomputation keeps 34 s b h/t
    and full recomputation 2 s b h/t, with one layer's rest while it is done again; without sequence parallelism 10 of
    the 34, or all of the 2, aren't split. Interleaving multiplies by 1 + (p - 1)/(p v).
    """
    model, recipe = job.model, job.recipe
    unit = s.micro_batch * model.sequence * model.hidden
    attention = 5 * model.heads * model.sequence / model.hidden / s.tensor
    rest = 34 / s.tensor if recipe.sequence_parallel else 10 + 24 / s.tensor
    edge = 2 / s.tensor if recipe.sequence_parallel else 2 * np.ones_like(s.tensor)
    kept = {"none": rest + attention, "selective": rest, "full": edge}[recipe.recompute]
    working = {"none": 0 * rest, "selective": attention, "full": rest + attention}[recipe.recompute]
    p, v = s.pipeline, s.virtual_stages
    interleaving = np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    in_flight = np.minimum(s.micro_batches, p) / p * interleaving
    return np.asarray(unit * (kept * model.layers * in_flight + working))


def gpu_bytes(job: Job, s: Strategies) -> FloatArray:
    """Parameters, gradients, Adam's state and activations: 16 bytes a parameter, 18 with fp32 gradients."""
    state = stage_parameters(job, s) * (PARAMETER_STATE + job.recipe.gradient_bytes)
    return state + activation_bytes(job, s)
