"""Hugging Face's config.json of a published model, read as the shape of a transformer.

A config.json has no number of parameters: they are counted. The sequence length is the one of the training before
positions were extended (`original_max_position_embeddings`), if the file has it. Layers for multi-token prediction
aren't counted, as in published totals.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from railyard.core.config import MAX_YAML_BYTES, MISSING, find_problems
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.safe_files import read_input
from railyard.workloads.models.transformer import Transformer

Config = Mapping[str, Any]
Values = dict[str, Any]
_SHAPE: Final = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "sequence": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
}
_LLAMA: Final = {**_SHAPE, "biases": "mlp_bias"}
_MIXTRAL: Final = {**_SHAPE, "experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
_QWEN3_MOE: Final = {
    **_MIXTRAL,
    "experts": "num_experts",
    "expert_ffn": "moe_intermediate_size",
    "moe_every": "decoder_sparse_step",
}
# latent attention has keys and values for every head, whatever num_key_value_heads says
_DEEPSEEK: Final = {
    **{field: key for field, key in _SHAPE.items() if field != "kv_heads"},
    "head_size": "qk_nope_head_dim",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "expert_groups": "n_group",
    "groups_per_token": "topk_group",
    "dense_layers": "first_k_dense_replace",
}
_GLM4_MOE: Final = {**_DEEPSEEK, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}
_LATENT: Final = {
    "query_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "rope_size": "qk_rope_head_dim",
    "value_size": "v_head_dim",
}
_NEMOTRON_H: Final = {
    **{field: key for field, key in _SHAPE.items() if field != "layers"},
    "ffn": "moe_intermediate_size",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_hidden": "moe_latent_size",
    "expert_groups": "n_group",
    "groups_per_token": "topk_group",
}
_STATE_SPACE: Final = {
    "heads": "mamba_num_heads",
    "head_size": "mamba_head_dim",
    "groups": "n_groups",
    "state_size": "ssm_state_size",
    "kernel": "conv_kernel",
    "chunk": "chunk_size",
}
_MPT: Final = {
    "layers": "n_layers",
    "hidden": "d_model",
    "heads": "n_heads",
    "vocabulary": "vocab_size",
    "sequence": "max_seq_len",
}


def _taken(config: Config, keys: Mapping[str, str]) -> Values:
    """Return the values of the keys that a file has, by field."""
    return {field: config[key] for field, key in keys.items() if config.get(key) is not None}


def _llama(config: Config) -> Values:
    return _taken(config, _LLAMA) | {"gated": True}


def _mistral(config: Config) -> Values:
    return _llama(config) | _windows(config)


def _mixtral(config: Config) -> Values:
    return _taken(config, _MIXTRAL) | _windows(config) | {"gated": True}


def _qwen2(config: Config) -> Values:
    return _without_windows(config) | {"qkv_biases": True}


def _qwen3(config: Config) -> Values:
    return _without_windows(config) | {"query_key_norms": True}


def _without_windows(config: Config) -> Values:
    """Return a Qwen's shape. BadInput for windows, which these models only have in some upper layers."""
    if config.get("use_sliding_window"):
        raise BadInput("use_sliding_window", True, "must be false")
    return _llama(config)


def _gemma2(config: Config) -> Values:
    # what older files leave out: the embedding is shared, and every second layer has a window
    shape = {"tied_embeddings": True, "head_size": 256}
    if config.get("sliding_window", 4096) is not None and "layer_types" not in config:
        shape |= {"window": 4096, "full_attention_every": 2}
    return shape | _llama(config) | _windows(config) | {"post_norms": True}


def _glm4_moe(config: Config) -> Values:
    shape = _taken(config, _GLM4_MOE) | {"gated": True, "qkv_biases": bool(config.get("attention_bias"))}
    return shape | {"query_key_norms": bool(config.get("use_qk_norm"))}


def _qwen3_moe(config: Config) -> Values:
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise BadInput("mlp_only_layers", dense, "must be the first layers, counted from 0, or none")
    return _qwen3(config) | _taken(config, _QWEN3_MOE) | {"dense_layers": len(dense)}


def _gpt_oss(config: Config) -> Values:
    shape = _taken(config, _MIXTRAL) | {"gated": True, "biases": True}
    if "layer_types" not in config:
        shape["full_attention_every"] = 2
    return shape | _windows(config) | _taken(config, {"sequence": "initial_context_length"})


def _deepseek(config: Config) -> Values:
    if config.get("moe_layer_freq", 1) != 1:
        raise BadInput("moe_layer_freq", config["moe_layer_freq"], "must be 1")
    return _taken(config, _DEEPSEEK) | {"gated": True, "latent_attention": _taken(config, _LATENT)}


def _nemotron_h(config: Config) -> Values:
    """Return pairs of a state space (M) and experts (E), and attention (*) alone."""
    pattern = str(config.get("hybrid_override_pattern", ""))
    counts = Counter(pattern)
    if counts["M"] != counts["E"] or not counts["M"] or counts.keys() - set("ME*"):
        raise BadInput("hybrid_override_pattern", pattern, "must be of M, E and *, as many M as E")
    width = config.get("moe_intermediate_size", 0)
    shared = config.get("moe_shared_expert_intermediate_size", 0)
    if not isinstance(width, int) or not isinstance(shared, int) or (width and shared % width):
        raise BadInput("moe_shared_expert_intermediate_size", shared, f"must be a multiple of {width}")
    return _taken(config, _NEMOTRON_H) | {
        "layers": counts["M"] + counts["*"],
        "attention_layers": counts["*"],
        "shared_experts": shared // max(1, width),
        "state_space": _taken(config, _STATE_SPACE),
    }


def _nemotron(config: Config) -> Values:
    return _taken(config, _LLAMA) | {"norm_biases": True}


def _mpt(config: Config) -> Values:
    values = _taken(config, _MPT)
    biases = not config.get("no_bias", True)
    values |= {"biases": biases, "norm_biases": biases, "tied_embeddings": config.get("tie_word_embeddings", True)}
    ratio = config.get("expansion_ratio", 4)
    if not isinstance(ratio, int):
        raise BadInput("expansion_ratio", ratio, "must be a whole number")
    if isinstance(values.get("hidden"), int):
        values["ffn"] = ratio * values["hidden"]
    attention = config.get("attn_config")
    if not (isinstance(attention, dict) and (attention.get("alibi") or attention.get("rope"))):
        values["positions"] = values.get("sequence", 0)
    return values


def _windows(config: Config) -> Values:
    """Return the window, and which layers have none."""
    window = config.get("sliding_window")
    if window is None:
        return {}
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise BadInput("layer_types", kinds, "must be a list")
    if "full_attention" not in kinds:
        return {"window": window}
    every = kinds.index("full_attention") + 1
    expected = ["full_attention" if layer % every == 0 else "sliding_attention" for layer in range(1, len(kinds) + 1)]
    if kinds != expected:
        raise BadInput("layer_types", kinds[: every + 1], "must have full_attention in every n-th layer alone")
    return {} if every == 1 else {"window": window, "full_attention_every": every}


READERS: Final[dict[str, Callable[[Config], Values]]] = {
    "deepseek_v3": _deepseek,
    "gemma2": _gemma2,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "nemotron_h": _nemotron_h,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
"""By `model_type`."""
_LATENT_KEYS: Final = {f"latent_attention.{name}": key for name, key in _LATENT.items()}
_KEYS: Final = {
    "mpt": _MPT,
    "deepseek_v3": _DEEPSEEK | _LATENT_KEYS,
    "kimi_k2": _DEEPSEEK | _LATENT_KEYS,
    "glm4_moe": _GLM4_MOE,
    "nemotron_h": _NEMOTRON_H | {f"state_space.{name}": key for name, key in _STATE_SPACE.items()},
    "qwen3_moe": _QWEN3_MOE,
}
"""Keys of fields, for messages, by `model_type`; the others have Mixtral's."""
_TRAINING_LENGTH: Final = "original_max_position_embeddings"


def read_config(path: Path, field: str) -> Transformer:
    """Return the model of a config.json. BadInput names `field`, the file and the key that can't be used."""
    config = _read_json(path, field)
    where = f"{field} {path.name}"
    if "model_type" not in config:
        raise BadInput(f"{where}.model_type", MISSING, "given, but this key is needed")
    model_type = config["model_type"]
    if not isinstance(model_type, str) or model_type not in READERS:
        raise BadInput(f"{where}.model_type", model_type, unknown_name_hint(str(model_type), READERS))
    # parameters: a stand-in, until the shape can be counted
    shape = {"kind": "transformer", "parameters": 1}
    try:
        shape |= READERS[model_type](config)
        shape |= _training_length(config)
        model = Transformer.model_validate(shape)
    except BadInput as error:
        raise BadInput(f"{where}.{error.field}", error.value, error.allowed) from error
    except ValidationError as error:
        problem = find_problems(error)[0]
        key = _KEYS.get(model_type, _MIXTRAL).get(problem.field, problem.field)
        if problem.field == "sequence" and _training_length(config):
            key = _TRAINING_LENGTH
        raise BadInput(f"{where}.{key}", problem.value, problem.allowed) from error
    return model.model_copy(update={"parameters": model.all_parameters})


def _training_length(config: Config) -> Values:
    """Return the sequence length before positions were extended, if the file has it."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return {}
    return _taken(scaling, {"sequence": _TRAINING_LENGTH})


def _read_json(path: Path, field: str) -> Config:
    """Return the keys and values of a JSON file."""
    content = read_input(path, field, MAX_YAML_BYTES)
    try:
        data = json.loads(content)
    except ValueError as error:
        raise BadInput(field, str(path), f"is not JSON: {error}") from error
    except RecursionError as error:
        raise BadInput(field, str(path), "is nested too deeply") from error
    if not isinstance(data, dict):
        raise BadInput(f"{field} {path.name}", data, "must be keys and values")
    return data
