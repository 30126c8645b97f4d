"""config.json files of Hugging Face against the catalogue: of each published file, the keys that say its shape."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from railyard.workloads.models.catalogue import load_transformer
from railyard.workloads.models.hugging_face import READERS
from tests.unit.workloads.messages import CheckMessages

Config = dict[str, Any]


def sizes(layers: int, hidden: int, ffn: int, vocabulary: int, positions: int, heads: tuple[int, int]) -> Config:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "tie_word_embeddings": False,
    }


LLAMA3: Final = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
YARN: Final = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
DEEPSEEK: Final = {
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_scaling": YARN,
}
QWEN3: Final = {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1}
CONFIGS: Final[dict[str, Config]] = {
    "llama3-70b": {
        **sizes(80, 8192, 28672, 128256, 131072, (64, 8)),
        "model_type": "llama",
        "mlp_bias": False,
        "rope_scaling": LLAMA3,
    },
    "mixtral-8x7b": {
        **sizes(32, 4096, 14336, 32000, 32768, (32, 8)),
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3-30b-a3b": {
        **sizes(48, 2048, 6144, 151936, 40960, (32, 4)),
        **QWEN3,
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    },
    "gpt-oss-120b": {
        **sizes(36, 2880, 2880, 201088, 131072, (64, 8)),
        "model_type": "gpt_oss",
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "initial_context_length": 4096,
    },
    "deepseek-v3": {
        **sizes(61, 7168, 18432, 129280, 163840, (128, 128)),
        **DEEPSEEK,
        "model_type": "deepseek_v3",
        "n_routed_experts": 256,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
    },
    "kimi-k2": {
        **sizes(61, 7168, 18432, 163840, 131072, (64, 64)),
        **DEEPSEEK,
        "model_type": "kimi_k2",
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "nemotron4-340b": {
        **sizes(96, 18432, 73728, 256000, 4096, (96, 8)),
        "model_type": "nemotron",
        "hidden_act": "relu2",
    },
    "mpt-7b": {
        "model_type": "mpt",
        "n_layers": 32,
        "d_model": 4096,
        "n_heads": 32,
        "expansion_ratio": 4,
        "max_seq_len": 2048,
        "vocab_size": 50368,
        "no_bias": True,
        "attn_config": {"alibi": False},
    },
}


def written(tmp_path: Path, config: object, name: str = "config.json") -> str:
    path = tmp_path / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_the_model_of_the_catalogue(name: str, tmp_path: Path) -> None:
    read = load_transformer(written(tmp_path, CONFIGS[name]))
    published = load_transformer(name)
    assert read.parameters == read.all_parameters == published.all_parameters
    assert read.layer_kinds == published.layer_kinds
    assert read.outer_parameters == published.outer_parameters
    # Qwen3's file has the extended positions alone
    assert read.sequence == (40960 if name == "qwen3-30b-a3b" else published.sequence)


def test_counts_of_other_architectures(tmp_path: Path) -> None:
    """Mistral 7B and Qwen3 8B, as Hugging Face's transformers counts the parameters of their classes."""
    mistral = {**sizes(32, 4096, 14336, 32000, 32768, (32, 8)), "model_type": "mistral", "sliding_window": 4096}
    model = load_transformer(written(tmp_path, mistral))
    assert model.all_parameters == 7_241_732_096
    assert [kind.window for kind in model.layer_kinds] == [4096]
    qwen = {**sizes(36, 4096, 12288, 151936, 40960, (32, 8)), "model_type": "qwen3", "head_dim": 128}
    assert load_transformer(written(tmp_path, qwen)).all_parameters == 8_190_735_360


def test_every_architecture_is_read_in_a_test() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} | {"mistral", "qwen3"} == READERS.keys()


def changed(name: str, **keys: object) -> Config:
    config = {**CONFIGS[name], **keys}
    return {key: value for key, value in config.items() if value is not ...}


BAD: Final[dict[str, object]] = {
    "not JSON": "{",
    "a list": "[1]",
    "deep": "[" * 100_000,
    "no model type": {"hidden_size": 8},
    "another architecture": changed("llama3-70b", model_type="gemma3"),
    "near miss": changed("llama3-70b", model_type="lama"),
    "missing key": changed("llama3-70b", hidden_size=...),
    "word as size": changed("llama3-70b", hidden_size="8192"),
    "negative size": changed("llama3-70b", num_hidden_layers=-1),
    "many layers": changed("llama3-70b", num_hidden_layers=10**12),
    "heads that kv heads don't divide": changed("llama3-70b", num_key_value_heads=7),
    "heads that don't divide hidden": changed("llama3-70b", num_attention_heads=72),
    "more experts a token than experts": changed("mixtral-8x7b", num_experts_per_tok=9),
    "windows": changed("qwen3-30b-a3b", use_sliding_window=True),
    "dense layers in between": changed("qwen3-30b-a3b", mlp_only_layers=[3]),
    "uneven windows": changed("gpt-oss-120b", layer_types=["full_attention", "sliding_attention"] * 18),
    "windows in a word": changed("gpt-oss-120b", layer_types="full_attention"),
    "experts in every second layer": changed("deepseek-v3", moe_layer_freq=2),
    "no rank": changed("deepseek-v3", kv_lora_rank=...),
    "half a ratio": changed("mpt-7b", expansion_ratio=2.5),
}


def test_messages_of_configs_that_cannot_be_read(tmp_path: Path, check_messages: CheckMessages) -> None:
    calls = {}
    for number, (case, config) in enumerate(BAD.items()):
        calls[case] = partial(load_transformer, written(tmp_path, config, f"{number}.json"))
    calls["missing file"] = partial(load_transformer, str(tmp_path / "none.json"))
    check_messages(calls)
