"""Small copies of models of Hugging Face, with random weights."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from contextile.transformers._linear import FAMILIES

SIZES: dict[str, Any] = {
    **dict.fromkeys(
        (
            "hidden_size",
            "d_model",
            "n_embd",
            "word_embed_proj_dim",
            "embedding_size",
            "dim",
            "emb_dim",
        ),
        32,
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "d_ff",
            "ffn_hidden_size",
        ),
        48,
    ),
    **dict.fromkeys(("intermediate_size_mlp", "hidden_dim", "dim_ff"), 48),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "num_layers",
            "decoder_layers",
            "encoder_layers",
            "n_layers",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "num_heads",
            "decoder_attention_heads",
            "encoder_attention_heads",
        ),
        4,
    ),
    "n_heads": 4,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 128),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "num_key_value_heads"), 2
    ),
    **dict.fromkeys(("num_global_key_value_heads", "swa_num_key_value_heads"), 1),
    "swa_num_attention_heads": 4,
    **dict.fromkeys(
        (
            "num_experts_per_tok",
            "n_group",
            "topk_group",
            "n_shared_experts",
            "first_k_dense_replace",
            "moe_topk",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "q_lora_rank",
            "kv_lora_rank",
            "shared_expert_intermediate_size",
            "expert_ffn_hidden_size",
        ),
        16,
    ),
    **dict.fromkeys(
        (
            "head_dim",
            "d_kv",
            "v_head_dim",
            "swa_head_dim",
            "swa_v_head_dim",
            "hidden_size_per_layer_input",
        ),
        8,
    ),
    "global_head_dim": 16,
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 4),
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "dropout"), 0.0),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "entity_vocab_size"), 64),
    "sliding_window": 7,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "decoder_start_token_id": 1,
    "start_token_id": 1,
    "local_radius": 5,
    "no_rope_layer_interval": 2,
    # Sizes of towers.
    "image_size": 16,
    "patch_size": 4,
    "depth": 2,
}
# Further sizes of types whose linear layers pass states: one such layer, and one that attends.
HYBRID_SIZES = {
    **dict.fromkeys(
        ("mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim", "linear_head_dim"), 8
    ),
    **dict.fromkeys(
        (
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_num_heads",
            "num_key_value_heads",
        ),
        4,
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    "mamba_d_ssm": 64,
    "qk_nope_head_dim": 4,
    "attn_layer_indices": [1],
    "num_dense_layers": 1,
}
# Other sizes, which are tried one after another where a type cannot be built.
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "only set": {},
    "latent": {"head_dim": 4, "qk_head_dim": 8, "num_key_value_heads": 4},
    "rotary": {"rotary_dim": 4, "attention_head_size": 8},
    "wide": {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "head_dim": 16,
    },
}
# Thresholds beyond which a model reads the length of a call, within that of a small document.
_THRESHOLDS = {"floor_scale": 4, "original_max_position_embeddings": 8}
_MOST_PARAMETERS = 3e7
_MOST_LAYERS = 4


def _settings(known: dict[str, Any], config: Any) -> dict[str, Any]:
    """Returns the settings of a configuration that a copy takes over."""
    left_out = {
        *getattr(config, "sub_configs", {}),
        "transformers_version",
        "architectures",
        "dtype",
        "quantization_config",
        "auto_map",
        "per_layer_config",
    }
    return {
        name: value
        for name, value in known.items()
        if name not in left_out and not name.startswith("_") and name != "model_type"
    }


def _of_layers(known: dict[str, Any]) -> dict[str, Any]:
    """Returns settings for layers of every kind that a model has, one or two of each."""
    count = known.get("num_hidden_layers")
    lists = {
        name: value
        for name, value in known.items()
        if isinstance(value, list) and len(value) == count
    }
    if not isinstance(count, int) or count <= 2 or not lists:
        return {}
    first: dict[str, int] = {}
    for layer, kinds in enumerate(zip(*lists.values(), strict=True)):
        first.setdefault(repr(kinds), layer)
    chosen = sorted({0, 1, *list(first.values())[:_MOST_LAYERS]})
    return {
        "num_hidden_layers": len(chosen),
        **{name: [value[layer] for layer in chosen] for name, value in lists.items()},
    }


def _thresholds(known: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns small lengths beyond which a model reads the length of a call, and its RoPE."""
    changes: dict[str, Any] = {
        name: least for name, least in _THRESHOLDS.items() if isinstance(known.get(name), int)
    }
    rope = known.get("rope_parameters")
    if not isinstance(rope, dict):
        return changes
    width = (
        sizes.get("qk_rope_head_dim")
        or sizes.get("head_dim")
        or sizes.get("hidden_size", 32) // sizes.get("num_attention_heads", 4)
    )
    by_layer = any(isinstance(value, dict) for value in rope.values())
    small: dict[str, Any] = {
        name: _small_rope(one, width) if isinstance(one, dict) else one
        for name, one in (rope if by_layer else {"": rope}).items()
    }
    changes["rope_parameters"] = small if by_layer else small[""]
    if any(
        isinstance(one, dict) and one.get("rope_type") in ("dynamic", "longrope")
        for one in small.values()
    ):
        changes["max_position_embeddings"] = _THRESHOLDS["original_max_position_embeddings"]
    return changes


def _small_rope(rope: dict[str, Any], width: int) -> dict[str, Any]:
    pairs = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
    small = {
        name: value[:pairs] if isinstance(value, list) else value for name, value in rope.items()
    }
    if "mrope_section" in rope:
        small["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    if rope.get("original_max_position_embeddings"):
        small["original_max_position_embeddings"] = _THRESHOLDS["original_max_position_embeddings"]
    return small


def shrink(config: Any, variant: str, *, keep: bool = False) -> Any:
    """Returns a configuration with sizes that are small, or as near as it allows.

    ``keep`` keeps its other settings, which are otherwise the defaults of its type.
    """
    known = config.to_dict()
    kind = config.model_type
    linear = (
        "" if kind not in FAMILIES else "conv" if kind.startswith("lfm") else "linear_attention"
    )
    changes = {**SIZES, **(HYBRID_SIZES if linear else {}), **VARIANTS[variant]}
    # Types with linear layers take sizes that they do not list, but a second shape only if they do.
    second = ("global_", "num_global_", "swa_")
    sizes: dict[str, Any] = {
        name: size
        for name, size in changes.items()
        if name in known or (linear and not name.startswith(second))
    }
    if variant == "only set":
        sizes = {name: size for name, size in sizes.items() if known.get(name) is not None}
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            sizes[name] = shrink(getattr(config, name), variant, keep=keep)
    for name in ("layer_types", "layers_block_type"):
        if linear and name in known and kind not in ("bamba", "falcon_h1"):
            sizes[name] = [linear, "full_attention"]
    kinds = known.get("layer_types")
    if kinds and len(kinds) != 2 and not linear:
        sizes["layer_types"] = [
            kinds[0],
            next((other for other in kinds if other != kinds[0]), kinds[0]),
        ]
    if keep:
        # Nothing is drawn in training.
        sizes |= {
            name: 0.0
            for name, value in known.items()
            if isinstance(value, float)
            and any(word in name for word in ("drop", "jitter", "noise"))
        }
        few = {
            name: 1
            for name in ("num_experts_per_token", "moe_k", "top_k_experts")
            if isinstance(known.get(name), int)
        }
        sizes = {
            **_settings(known, config),
            **sizes,
            **few,
            **_of_layers(known),
            **_thresholds(known, sizes),
        }
    try:
        return type(config)(**sizes)
    except Exception:
        for name, size in sizes.items():
            setattr(config, name, size)
    return config


def fill(model: nn.Module) -> None:
    """Gives a model random weights by which its parts differ, the same for the same sizes."""
    for parameter in model.parameters():
        generator = torch.Generator().manual_seed(parameter.numel())
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3, generator=generator)
        elif parameter.is_floating_point():  # gates that begin at 0 are open, too
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def small_copies(model: Any) -> Iterator[nn.Module]:
    """Yields copies of a model with small sizes and random weights, each with other sizes.

    They are in fp32 on the CPU, for evaluation. Sizes with which none can be built are left out.
    The state of PyTorch's random numbers stays as it is.
    """
    for variant in VARIANTS:
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                config = shrink(copy.deepcopy(model.config), variant, keep=True)
                with torch.device("meta"):
                    count = sum(parameter.numel() for parameter in type(model)(config).parameters())
                if count > _MOST_PARAMETERS:
                    continue
                torch.default_generator.manual_seed(0)  # those of GPUs stay as they are
                with torch.device("cpu"):
                    small = type(model)(copy.deepcopy(config)).float().eval()
                fill(small)
        except Exception as error:
            logging.getLogger(__name__).info(
                "no copy of %s, %s: %s", type(model).__name__, variant or "first sizes", error
            )
            continue
        yield small
