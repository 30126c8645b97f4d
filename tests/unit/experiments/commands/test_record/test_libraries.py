"""Trainers of torchtitan and Transformers, recorded unmodified: their bytes are those of closed forms."""

import json
from pathlib import Path

import pytest

from tests.unit.experiments.commands.test_record.recordings import SCRIPTS, bytes_by_operation, record, trace_of

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap record")


def write_inputs(folder: Path) -> None:
    """Write a tokenizer of 100 words, and texts, where torchtitan's configurations look for them."""
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"w{number}" for number in range(100)]
    vocabulary = {word: number for number, word in enumerate([*words, "<s>", "</s>", "?"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    assets = folder / "tests" / "assets"
    (assets / "tokenizer").mkdir(parents=True)
    (assets / "c4_test").mkdir()
    tokenizer.save(str(assets / "tokenizer" / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (assets / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(names))
    line = json.dumps({"text": " ".join(words * 4)})
    (assets / "c4_test" / "data.json").write_text(f"{line}\n" * 64)


def test_torchtitan_sends_its_meshes_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its small Llama 3, 6 layers of width 256, on 16 ranks: tensors in 2 parts, sequence parallelism, FSDP of 8."""
    pytest.importorskip("torchtitan.train", reason="torchtitan or triton is missing")
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["--module", "llama3", "--config", "llama3_debugmodel", "--training.disable_cuda_graphs",
                "--parallelism.spmd_backend", "partial_dtensor", "--parallelism.tensor_parallel_degree", "2",
                "--training.seq_len", "64", "--training.local_batch_size", "1"]  # fmt: skip
    words = ["--ranks", "16", "--out", str(tmp_path / "out"), "--", "python", "-m", "torchtitan.train"]
    assert record(*words, *settings) == 0
    tensors = 45
    norms = 13
    tokens = 64
    activations = tokens * 256 * 2
    layer = (4 * 256 * 256 + 3 * 256 * 768) // 2 + 2 * 256
    embedding = 2048 * 256 // 2
    output = embedding + 256
    parameters = embedding + 6 * layer + output
    (program,) = trace_of(tmp_path / "out")["programs"]
    assert bytes_by_operation(program) == {
        # the tokens of all ranks
        ("batch", "all-reduce"): 8,
        # two of each layer and one of the embedding or the output, forward and backward; those of layers once more
        # forward, as activations are recomputed
        ("tp", "reduce-scatter"): 2 * (2 * 6 + 1) * activations,
        ("tp", "all-gather"): (3 * 2 * 6 + 2) * activations,
        # gradients of norms; maximum, sum and the target's logit of each token; norms of gradients
        ("tp", "all-reduce"): norms * 256 * 2 + 3 * tokens * 4 + tensors * 4,
        # bfloat16; the output with its norm once more, for the loss, which is computed in parts
        ("fsdp", "all-gather"): 2 * (2 * parameters + output),
        ("fsdp", "reduce-scatter"): 4 * parameters,
        ("fsdp", "all-reduce"): tensors * 4,
        # the loss, its maximum, the tokens so far
        ("loss_mesh", "all-reduce"): 4 + 4 + 8,
    }


def test_trainer_of_transformers_sends_its_gradients(tmp_path: Path) -> None:
    """A GPT-2 of 2 layers of width 64, 256 words and 32 positions."""
    pytest.importorskip("accelerate", reason="accelerate is missing")
    script = str(SCRIPTS / "transformers_gpt2.py")
    status = record("--ranks", "64", "--out", str(tmp_path / "out"), "--", "python", script)
    assert status == 0
    layer = 12 * 64 * 64 + 13 * 64
    parameters = (256 + 32) * 64 + 2 * layer + 2 * 64
    tensors = 2 + 2 * 12 + 2
    (program,) = trace_of(tmp_path / "out")["programs"]
    assert bytes_by_operation(program) == {
        # the number of tokens of each rank
        ("world", "all-gather"): 64 * 8,
        # gradients, and which parameters were used, as find_unused_parameters asks for it
        ("world", "all-reduce"): 4 * parameters + 4 * tensors,
    }
