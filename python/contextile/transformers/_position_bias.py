"""Finds the table behind the position bias that layers of T5 pass on."""

from __future__ import annotations

import inspect
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _core
from contextile.torch import RelativeBias, relative_bias


class _Known(NamedTuple):
    position_bias: weakref.ref[Tensor]
    bias: RelativeBias


# The biases that layers with a table have computed, by identity. The layers after such a layer
# receive its tensor and have no table.
_known: dict[int, _Known] = {}


def _refuse(position_bias: Tensor) -> _core.InvalidArgument:
    return _core.InvalidArgument(
        "attention: expected no position_bias but that of a layer with relative_attention_bias, "
        "by the buckets of T5, for attention by a plan computes it from positions, found a tensor "
        f"of {list(position_bias.shape)}"
    )


def _table_of(module: Any) -> RelativeBias | None:
    """Returns the bias of a layer with a table as T5Attention has it, or None."""
    table = getattr(module, "relative_attention_bias", None)
    if not isinstance(table, torch.nn.Embedding):
        return None
    most = getattr(module, "relative_attention_max_distance", None)
    bucket = getattr(module, "_relative_position_bucket", None)
    if not isinstance(most, int) or not callable(bucket):  # another kind of layer
        return None
    options = {
        "bidirectional": not module.is_decoder,
        "num_buckets": getattr(module, "relative_attention_num_buckets", None),
        "max_distance": most,
    }
    accepted = inspect.signature(bucket).parameters  # UMT5's layers take them from themselves
    try:
        buckets = bucket(
            torch.arange(-most, most + 1),
            **{name: options[name] for name in options if name in accepted},
        )
    except (AttributeError, TypeError):
        return None
    return relative_bias(table.weight.t(), -most, buckets=buckets)


def _is_of(position_bias: Tensor, bias: RelativeBias) -> bool:
    """Compares the first and the last query of a bias, which show every offset, with the table."""
    if position_bias.dim() != 4 or position_bias.shape[:2] != (1, bias.table.shape[0]):
        return False
    queries, keys = position_bias.shape[2:]
    with torch.no_grad():
        for q in {0, queries - 1}:
            at = (torch.arange(keys) - q - bias.first_offset).clamp(0, len(bias.buckets) - 1)
            if not torch.equal(
                position_bias[0, :, q],
                bias.table[:, bias.buckets[at].long()].to(position_bias.dtype),
            ):
                return False
    return True


def _remembered(position_bias: Tensor, bias: RelativeBias) -> Tensor:
    """Makes layers that are given this tensor attend with a bias."""
    key = id(position_bias)
    _known[key] = _Known(weakref.ref(position_bias, lambda _: _known.pop(key, None)), bias)
    return position_bias


def bias_of_layer(
    module: Any, position_bias: Tensor | None, *, is_cross: bool = False
) -> RelativeBias | None:
    """Returns the bias by position that a layer's ``position_bias`` stands for.

    Layers of T5 that attend the encoder pass zeros. Raises InvalidArgument on any other tensor that
    is no table's.
    """
    if position_bias is None:
        return None
    if is_cross and not torch.compiler.is_compiling() and not bool(position_bias.any()):
        return None
    if torch.compiler.is_compiling():
        raise _refuse(position_bias)
    bias = _table_of(module)
    if bias is None:
        known = _known.get(id(position_bias))
        if known is None or known.position_bias() is not position_bias:
            raise _refuse(position_bias)
        return known.bias
    if not _is_of(position_bias, bias):
        raise _refuse(position_bias)
    _remembered(position_bias, bias)
    return bias


def local_bias(module: Any, position_bias: Tensor | None) -> tuple[RelativeBias, Tensor]:
    """Returns the bias of a local layer, and a tensor that stands for it in the layers after."""
    bias = _table_of(module)
    if bias is None:
        known = None if position_bias is None else _known.get(id(position_bias))
        if position_bias is None or known is None or known.position_bias() is not position_bias:
            raise _refuse(torch.empty(0) if position_bias is None else position_bias)
        return known.bias, position_bias
    return bias, _remembered(torch.empty(0), bias)
