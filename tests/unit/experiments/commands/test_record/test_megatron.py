"""A GPT of Megatron Core, recorded unmodified: its bytes are those of closed forms, stage by stage."""

from pathlib import Path

import pytest

from tests.unit.experiments.commands.test_record.recordings import SCRIPTS, bytes_by_operation, record, trace_of

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap record")
pytest.importorskip("megatron.core", reason="Megatron Core is missing: pip install megatron-core")
WIDTH = 64
LAYERS_OF_STAGE = 2
VOCABULARY = 256
LENGTH = 32
MICRO_BATCHES = 4
ACTIVATIONS = 2 * LENGTH * WIDTH * 2
"""Bytes of a micro-batch of 2 sequences in bfloat16."""


def aligned(*elements: int) -> int:
    """Return the elements that parameters take in Megatron's buffer, where each begins at a multiple of 64."""
    return sum(-(-count // 64) * 64 for count in elements)


def elements_of_stage(tensor: int, is_first: bool) -> int:
    """Return the elements of a rank's buffer of parameters, which is filled up to a multiple of 128."""
    attention = aligned(3 * WIDTH * WIDTH // tensor, 3 * WIDTH // tensor, WIDTH * WIDTH // tensor, WIDTH)
    mlp = aligned(4 * WIDTH * WIDTH // tensor, 4 * WIDTH // tensor, 4 * WIDTH * WIDTH // tensor, WIDTH)
    elements = LAYERS_OF_STAGE * (attention + mlp + aligned(*[WIDTH] * 4))
    elements += aligned(VOCABULARY * WIDTH // tensor)
    # the first stage has positions, the last one a norm
    elements += aligned(LENGTH * WIDTH) if is_first else aligned(WIDTH, WIDTH)
    return -(-elements // 128) * 128


def test_megatron_sends_its_groups_bytes(tmp_path: Path) -> None:
    """16 ranks: 2 ways of tensors, 2 stages of 2 layers, 4 replicas with a distributed optimizer."""
    folder = tmp_path / "megatron"
    script = str(SCRIPTS / "megatron_gpt.py")
    status = record("--ranks", "16", "--steps", "3", "--out", str(folder), "--", "python", script)
    data = trace_of(folder)
    assert status == 0
    assert data["communicators"]["TENSOR_MODEL_PARALLEL_GROUP"] == [[n, n + 1] for n in range(0, 16, 2)]
    assert data["communicators"]["PIPELINE_MODEL_PARALLEL_GROUP"] == [[n, n + 8] for n in range(8)]
    assert data["communicators"]["DATA_PARALLEL_GROUP_WITH_CP"][:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    first, last = data["programs"]
    assert first["ranks"] == list(range(8))
    assert last["ranks"] == list(range(8, 16))
    # two AllReduces a layer, forward and backward, and that of the embedding
    activations = (2 * 2 * LAYERS_OF_STAGE + 1) * ACTIVATIONS
    assert bytes_by_operation(first) == bytes_of_stage(activations, elements_of_stage(2, is_first=True))
    # that of the output layer backward; maximum, the target's logit and the sum of exponentials of each token
    assert bytes_by_operation(last) == bytes_of_stage(
        activations + 3 * 2 * LENGTH * 4, elements_of_stage(2, is_first=False)
    )


def bytes_of_stage(activations: int, elements: int) -> dict[tuple[str, str], int]:
    """Return the bytes of a step: gradients in float32, parameters and messages in bfloat16, a norm of gradients."""
    return {
        ("TENSOR_MODEL_PARALLEL_GROUP", "all-reduce"): MICRO_BATCHES * activations,
        ("PIPELINE_MODEL_PARALLEL_GROUP", "send"): MICRO_BATCHES * ACTIVATIONS,
        ("PIPELINE_MODEL_PARALLEL_GROUP", "recv"): MICRO_BATCHES * ACTIVATIONS,
        ("DATA_PARALLEL_GROUP_WITH_CP", "reduce-scatter"): 4 * elements,
        ("DATA_PARALLEL_GROUP_WITH_CP", "all-gather"): 2 * elements,
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "all-reduce"): 4,
    }
