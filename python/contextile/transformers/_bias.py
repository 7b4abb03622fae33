"""Finds the table behind the position bias that layers of T5 pass on."""

from __future__ import annotations

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
        "attention: expected no position_bias but that of a layer with relative_attention_bias, by the buckets of T5, for "
        f"attention by a plan computes it from positions, found a tensor of {list(position_bias.shape)}"
    )


def _table_of(module: Any) -> RelativeBias | None:
    """Returns the bias of a layer with a table as T5Attention has it, or None."""
    table = getattr(module, "relative_attention_bias", None)
    if not isinstance(table, torch.nn.Embedding):
        return None
    try:
        most = int(module.relative_attention_max_distance)
        buckets = module._relative_position_bucket(
            torch.arange(-most, most + 1),
            bidirectional=not module.is_decoder,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=most,
        )
    except (AttributeError, TypeError):  # another kind of layer
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
            if not torch.equal(position_bias[0, :, q], bias.table[:, bias.buckets[at].long()].to(position_bias.dtype)):
                return False
    return True


def bias_of_layer(module: Any, position_bias: Tensor | None) -> RelativeBias | None:
    """Returns the bias by position that a layer's ``position_bias`` stands for.

    Raises InvalidArgument if it is no table's.
    """
    if position_bias is None:
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
    key = id(position_bias)
    _known[key] = _Known(weakref.ref(position_bias, lambda _: _known.pop(key, None)), bias)
    return bias
