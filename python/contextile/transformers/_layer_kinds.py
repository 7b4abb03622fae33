"""Finds out how the layers of a model attend, from a copy of the model without weights."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import sys
import warnings
import weakref
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from contextile import _core, masks
from contextile.transformers._model_masks import Form, form_of
from contextile.transformers._older import adapted

_PROBE = "contextile_probe"
_TAKEN_OVER = ("LongT5LocalAttention",)  # layers with code of their own that _local replaces


class Layer(NamedTuple):
    """The attention of a layer, as its call describes it."""

    kind: str  # full, sliding or chunked; encoder, decoder or cross in models that have both
    form: Form
    heads: tuple[int, int]
    dims: tuple[int, int]  # of queries and keys, of values
    scale: float
    softcap: float
    has_sink: bool
    has_blocks: bool = False  # true if tokens of an image, or of a prefix, attend each other


def _is_cross(module: Any) -> bool:
    """Returns whether a layer of a decoder that is computing attends the encoder.

    Layers say so in a variable. Those of some models have nothing else that tells.
    """
    if torch.compiler.is_compiling():
        return True
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # Python's only way to callers
    while frame is not None:
        if frame.f_code.co_name == "forward" and frame.f_locals.get("self") is module:
            return frame.f_locals.get("is_cross_attention", True) is not False
        frame = frame.f_back
    return True


@functools.cache
def _uses_interface(kind: type) -> bool:
    """Returns whether a layer attends by the implementation that is set for its model."""
    functions = [
        inspect.unwrap(value)
        for base in kind.__mro__
        for value in vars(base).values()
        if inspect.isfunction(value)
    ]
    return any("ALL_ATTENTION_FUNCTIONS" in function.__code__.co_names for function in functions)


@functools.lru_cache(maxsize=64)
def _own_attention(model: weakref.ref[Any]) -> str | None:
    for name, module in cast(torch.nn.Module, model()).named_modules():
        kind: type = type(module)
        inner = [type(part).__name__ for part in module.modules() if part is not module]
        is_layer = "Attention" in kind.__name__ and not any("Attention" in part for part in inner)
        if is_layer and kind.__name__ not in _TAKEN_OVER and not _uses_interface(kind):
            return f"{name} ({kind.__name__})"
    return None


def refuse_own_attention(model: torch.nn.Module) -> None:
    """Raises if a layer of a model attends by code of its own."""
    part = _own_attention(weakref.ref(model))
    if part is not None:
        raise _core.InvalidArgument(
            "model: expected layers that attend by the attention interface of transformers, found "
            f"{type(model).__name__} with {part}, which attends by code of its own on each rank "
            "alone"
        )


def kind_of(module: Any, window: int | None, is_causal: bool) -> str:
    """Returns the kind of a layer, which names its mask."""
    config = getattr(module, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        if is_causal:
            return "decoder"
        if not getattr(module, "is_decoder", False):
            return "encoder"
        return "cross" if _is_cross(module) else "decoder"
    if window is not None:
        return "sliding"
    kinds = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    kind = (
        kinds[index]
        if kinds and isinstance(index, int) and index < len(kinds)
        else "full_attention"
    )
    return {"chunked_attention": "chunked", "sliding_attention": "sliding"}.get(kind, "full")


def is_causal_of(module: Any, others: dict[str, Any]) -> bool:
    """Returns whether a layer attends no later tokens."""
    return others.get("is_causal", getattr(module, "is_causal", True)) is not False


_found: list[Layer] = []
# Forms of the masks that the copy was given, by the mask's identity.
_forms: dict[int, tuple[Tensor, Form]] = {}


def _record(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Stands for attention in the copy: notes the layer and returns queries as if attended."""
    is_causal = is_causal_of(module, others)
    _, form = _forms.get(id(attention_mask), (None, Form(is_causal)))
    _found.append(
        Layer(
            kind_of(module, sliding_window, is_causal),
            form._replace(window=form.window or sliding_window, blocks=None),
            (query.shape[1], key.shape[1]),
            (query.shape[3], value.shape[3]),
            1.0 / math.sqrt(query.shape[3]) if scaling is None else float(scaling),
            float(softcap or 0.0),
            s_aux is not None,
            form.blocks is not None,
        )
    )
    out = query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))
    return out, None


def _note_mask(*args: Any, mask_function: Any = None, q_length: int = 2, **others: Any) -> Tensor:
    """Returns a mask by which its layers are recognized."""
    mask = torch.empty((1, 1, q_length, q_length), dtype=torch.bool, device="meta")
    _forms[id(mask)] = mask, form_of(mask_function)
    return mask


def _arguments_of(model: Any, with_types: bool) -> dict[str, Any]:
    tokens = torch.zeros((1, 2), dtype=torch.int64, device="meta")
    # With a mask, models do not look for packed documents, for which they would read positions.
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "use_cache": False}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens
    if with_types:
        given |= {"token_type_ids": tokens, "mm_token_type_ids": tokens}
    accepted = inspect.signature(type(model).forward).parameters
    return {name: value for name, value in given.items() if name in accepted}


def layers_of(model: Any, *, with_types: bool = False) -> list[Layer] | None:
    """Returns the layers of a model in the order of their calls.

    A copy of the model without weights runs on two tokens, with token types if they are wanted.
    Returns None if it cannot.
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return None
    AttentionInterface.register(_PROBE, _record)
    AttentionMaskInterface.register(_PROBE, _note_mask)
    # Frequencies that follow the longest position need its value, which tensors without values do
    # not have. The same model with plain ones has the same layers.
    for config in (copy.deepcopy(model.config), _with_plain_rope(model.config)):
        found = _layers_with(type(model), config, with_types)
        if found:
            return found
    return None


def _with_plain_rope(config: Any) -> Any:
    """Returns a copy of a configuration whose frequencies of RoPE do not follow a call."""
    config = copy.deepcopy(config)
    for part in [
        config,
        *(getattr(config, name, None) for name in getattr(config, "sub_configs", {})),
    ]:
        ropes = getattr(part, "rope_parameters", None)
        nested = [one for one in (ropes or {}).values() if isinstance(one, dict)]
        for rope in nested or ([ropes] if isinstance(ropes, dict) else []):
            rope["rope_type"] = "default"
    return config


def _layers_with(kind: type, config: Any, with_types: bool) -> list[Layer]:
    _found.clear()
    try:
        with warnings.catch_warnings(), torch.device("meta"), torch.no_grad():
            warnings.simplefilter("ignore")
            twin = kind(config).eval()
            twin.set_attn_implementation(_PROBE)
            with adapted(_record, _note_mask):
                twin(**_arguments_of(twin, with_types))
        return list(_found)
    except Exception as error:
        logging.getLogger(__name__).info(
            "no copy of %s without weights runs: %s", kind.__name__, error
        )
        return []
    finally:
        _found.clear()
        _forms.clear()


def rule_of(form: Form) -> Any:
    """Returns the mask of a form, without the blocks, which each batch has its own of."""
    if form.chunk:
        return f"chunked:{form.chunk}"
    if not form.is_causal:
        return "full" if form.window is None else masks.within(form.window - 1, form.window - 1)
    return "causal" if form.window is None else f"sliding_window:{form.window}"


def described(layers: list[Layer]) -> dict[str, Any]:
    """Returns the arguments of a plan for layers; those that differ are dicts by mask."""
    named: dict[str, Layer] = {}
    counts: dict[str, int] = {}
    for layer in layers:
        name = next((name for name, other in named.items() if other == layer), "")
        if not name:
            same = sum(other.kind == layer.kind for other in named.values())
            name = layer.kind if not same else f"{layer.kind}_{same + 1}"
            named[name] = layer
        counts[name] = counts.get(name, 0) + 1
    named = dict(sorted(named.items()))

    def one(get: Any) -> Any:
        values = {name: get(layer) for name, layer in named.items()}
        first = next(iter(values.values()))
        return first if all(value == first for value in values.values()) else values

    found = {
        "mask": {name: (rule_of(layer.form), counts[name]) for name, layer in named.items()},
        "heads": one(lambda layer: layer.heads),
        "head_dim": one(lambda layer: layer.dims[0]),
        "value_dim": one(lambda layer: layer.dims[1]),
        "scale": one(lambda layer: layer.scale),
    }
    for key, value in (
        ("softcap", one(lambda layer: layer.softcap)),
        ("sink", one(lambda layer: layer.has_sink)),
    ):
        if value:
            found[key] = value
    return found
