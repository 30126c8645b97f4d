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
    "nemotron3-super": {
        **sizes(88, 4096, 2688, 131072, 8192, (32, 2)),
        "model_type": "nemotron_h",
        "head_dim": 128,
        "hybrid_override_pattern": "MEMEMEM*E" + "MEMEMEM*E" * 2 + "MEMEMEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME",
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": 2688,
        "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "chunk_size": 128,
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


GLM: Final = {"n_shared_experts": 1, "num_experts_per_tok": 8, "attention_bias": True, "head_dim": 128}
GLM_SIZES: Final = sizes(92, 5120, 12288, 151552, 131072, (96, 8))
COUNTS: Final[dict[str, tuple[Config, int]]] = {
    "mistral-7b": ({**sizes(32, 4096, 14336, 32000, 32768, (32, 8)), "model_type": "mistral"}, 7_241_732_096),
    "qwen3-8b": (
        {**sizes(36, 4096, 12288, 151936, 40960, (32, 8)), "model_type": "qwen3", "head_dim": 128},
        8_190_735_360,
    ),
    "qwen2-7b": (
        {
            **sizes(28, 3584, 18944, 152064, 131072, (28, 4)),
            "model_type": "qwen2",
            "use_sliding_window": False,
            "sliding_window": 131072,
        },
        7_615_616_512,
    ),
    "gemma2-9b": (
        {**sizes(42, 3584, 14336, 256000, 8192, (16, 8)), "model_type": "gemma2", "tie_word_embeddings": True},
        9_241_705_984,
    ),
    "glm-4.5": (
        {
            **GLM_SIZES,
            **GLM,
            "model_type": "glm4_moe",
            "n_routed_experts": 160,
            "first_k_dense_replace": 3,
            "moe_intermediate_size": 1536,
            "use_qk_norm": True,
        },
        # published are 358,337,776,896 with the layer for multi-token prediction
        358_337_776_896 - (3_935_625_472 + 2 * 5120**2 + 3 * 5120 + 2 * 151552 * 5120),
    ),
}
"""Models with their parameters as Hugging Face's transformers counts those of their classes."""


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_other_architectures(name: str, tmp_path: Path) -> None:
    config, parameters = COUNTS[name]
    assert load_transformer(written(tmp_path, config)).all_parameters == parameters


def test_windows_are_as_in_the_file(tmp_path: Path) -> None:
    gemma = COUNTS["gemma2-9b"][0]
    mistral = COUNTS["mistral-7b"][0]
    whole = {"layer_types": ["full_attention"] * 42, "sliding_window": 4096}
    for config, windows in (
        ({**mistral, "sliding_window": 4096}, [4096]),
        (gemma, [4096, None]),
        ({**gemma, "sliding_window": 2048}, [2048, None]),
        ({**gemma, "sliding_window": None}, [None]),
        ({**gemma, **whole}, [None]),
    ):
        model = load_transformer(written(tmp_path, config))
        assert [kind.window for kind in model.layer_kinds] == windows


def test_every_architecture_is_read_in_a_test() -> None:
    configs = [*CONFIGS.values(), *(config for config, _ in COUNTS.values())]
    assert {config["model_type"] for config in configs} == READERS.keys()


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
    "word as length before extension": changed("llama3-70b", rope_scaling={"original_max_position_embeddings": "8k"}),
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
    "dense layers in a hybrid": changed("nemotron3-super", hybrid_override_pattern="M-M-M*-"),
    "half a shared expert": changed("nemotron3-super", moe_shared_expert_intermediate_size=1344),
    "no state space": changed("nemotron3-super", mamba_num_heads=...),
    "no rank": changed("deepseek-v3", kv_lora_rank=...),
    "half a ratio": changed("mpt-7b", expansion_ratio=2.5),
}


def test_messages_of_configs_that_cannot_be_read(tmp_path: Path, check_messages: CheckMessages) -> None:
    calls = {}
    for number, (case, config) in enumerate(BAD.items()):
        calls[case] = partial(load_transformer, written(tmp_path, config, f"{number}.json"))
    calls["missing file"] = partial(load_transformer, str(tmp_path / "none.json"))
    check_messages(calls)
