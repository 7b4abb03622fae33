"""Describes models of Hugging Face to the planner."""

from __future__ import annotations

from typing import Any

import torch

from contextile import _core
from contextile.transformers import _linear
from contextile.transformers._layer_kinds import described, layers_of, refuse_own_attention

FULL = "full"
SLIDING = "sliding"
CHUNKED = "chunked"
# The mask of the attention in layers of each kind; "" for layers that do not attend.
_MASKS = {"full_attention": FULL, "sliding_attention": SLIDING, "mlp": "", "moe": ""}
_MASKS_IN_ORDER = {"hybrid": FULL, "hybrid_sliding": SLIDING, "linear_attention": "", "conv": ""}


def text_config(model: Any) -> Any:
    config = getattr(model, "config", model)
    get = getattr(config, "get_text_config", None)
    return get() if get is not None else config


def _windows(model: Any, config: Any) -> dict[str, tuple[str, int]]:
    """Returns the masks of a model's layers by name, with the number of layers."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    chunk = getattr(config, "attention_chunk_size", None)
    masks = {**_MASKS, "chunked_attention": CHUNKED} if chunk else _MASKS
    if set(kinds or []) - masks.keys() and _linear.covers(model, config):
        masks = {**masks, **_MASKS_IN_ORDER}
    unknown = sorted(set(kinds or []) - masks.keys())
    if unknown:
        remedy = (
            "; give a model whose linear layers compute on whole documents "
            "(contextile.torch.gather_layers)"
        )
        raise _core.InvalidArgument(
            "model: expected layers of full_attention and sliding_attention, found "
            f"{', '.join(unknown)}" + (remedy if _MASKS_IN_ORDER.keys() & unknown else "")
        )
    window = getattr(config, "sliding_window", None)
    has_window = bool(window) and getattr(config, "use_sliding_window", True) is not False
    if kinds is None:
        chosen = [SLIDING if has_window else FULL] * config.num_hidden_layers
    else:
        chosen = [
            FULL if masks[kind] == SLIDING and not has_window else masks[kind] for kind in kinds
        ]
    if not any(chosen):
        raise _core.InvalidArgument(
            f"model: expected layers that attend, found only {', '.join(sorted(set(kinds or [])))}"
        )
    rules = {FULL: "causal", SLIDING: f"sliding_window:{window}", CHUNKED: f"chunked:{chunk}"}
    return {name: (rule, chosen.count(name)) for name, rule in rules.items() if name in chosen}


def _check_attention_of(config: Any) -> None:
    """Raises unless a configuration describes one kind of attention with heads."""
    kind = getattr(config, "model_type", type(config).__name__)
    for name in ("num_attention_heads", "hidden_size", "num_hidden_layers"):
        if not isinstance(getattr(config, name, None), int):
            raise _core.InvalidArgument(
                f"model: expected a decoder of attention layers, found {kind}, whose configuration "
                f"has no whole number {name}"
            )
    # Layers of two shapes need two plans; these are the names under which configurations keep the
    # second.
    for name, first in (
        ("global_head_dim", "head_dim"),
        ("num_global_key_value_heads", "num_key_value_heads"),
        ("swa_head_dim", "head_dim"),
        ("swa_num_attention_heads", "num_attention_heads"),
        ("swa_num_key_value_heads", "num_key_value_heads"),
        ("swa_v_head_dim", "v_head_dim"),
    ):
        other = getattr(config, name, None)
        if other is not None and other != getattr(config, first, other):
            raise _core.InvalidArgument(
                f"model: expected layers of one shape, found {kind} with {first} "
                f"{getattr(config, first)} and {name} {other}"
            )


def batch_of(model: Any, **changes: Any) -> dict[str, Any]:
    """Returns the arguments of ``contextile.plan`` that describe a model.

    They are the masks ``full`` and ``sliding`` with the number of layers of each, heads,
    dimensions, dtype, scale, softcap and sinks.

    Parameters
    ----------
    model
        A model or its configuration.
    **changes
        Arguments that replace those found: ``mask={"full": …}``, ``dtype=…``.

    Returns
    -------
    dict

    Raises
    ------
    InvalidArgument
        Layers have another kind of attention than full, sliding and chunked, or they are linear,
        recurrent or convolutional and neither pass states between ranks nor run on whole documents.

    Examples
    --------
    >>> from contextile.transformers import batch_of
    >>> from transformers import MistralConfig
    >>> config = MistralConfig(num_hidden_layers=2, sliding_window=64)
    >>> found = batch_of(config, dtype="bf16")
    >>> found["mask"], found["heads"]
    ({'sliding': ('sliding_window:64', 2)}, (32, 8))
    """
    config = text_config(model)
    try:
        return {**_found_in(model, config, changes), **changes}
    except _core.Error:
        raise
    except Exception as error:  # configurations raise what they like where layers differ
        kind = getattr(config, "model_type", type(config).__name__)
        raise _core.InvalidArgument(
            f"model: expected a decoder whose layers have one shape of attention, found {kind}: "
            f"{error}"
        ) from error


def _found_in(model: Any, config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    layers = layers_of(model) if isinstance(model, torch.nn.Module) else None
    if isinstance(model, torch.nn.Module) and getattr(model.config, "is_encoder_decoder", False):
        refuse_own_attention(model)
    if layers is not None:
        if "mask" not in changes and any(layer.kind == "cross" for layer in layers):
            raise _core.InvalidArgument(
                "model: expected mask=, for the model has an encoder and a decoder: "
                "batch_of(model, **masks.encoder_decoder(…))"
            )
        if "mask" not in changes:
            _windows(model, config)  # refuses layers that attend in another way
        return {**described(layers), "dtype": getattr(model, "dtype", torch.float32)}
    _check_attention_of(config)
    heads = config.num_attention_heads
    head_dim = (
        getattr(config, "qk_head_dim", None)
        or getattr(config, "head_dim", None)
        or config.hidden_size // heads
    )
    dtype = getattr(model, "dtype", None) or getattr(config, "dtype", None) or torch.float32
    found = {
        "mask": changes["mask"] if "mask" in changes else _windows(model, config),
        "heads": (heads, getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": head_dim,
        "value_dim": getattr(config, "v_head_dim", None) or head_dim,
        "dtype": dtype,
    }
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if scalar is not None:
        found["scale"] = float(scalar) ** -0.5
    elif getattr(config, "attention_multiplier", None) is not None:
        found["scale"] = float(config.attention_multiplier)
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap:
        found["softcap"] = float(softcap)
    if getattr(config, "model_type", "") == "gpt_oss":
        found["sink"] = True
    return found
