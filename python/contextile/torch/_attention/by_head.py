"""Attention under masks that differ by head: one call for each group of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._attention.bias import Alibi, Bias
from contextile.torch._execute.dtensor import has_dtensors
from contextile.torch._execute.executor import Prepared


def _taken(tensor: Tensor, dim: int, heads: tuple[int, ...]) -> Tensor:
    if heads == tuple(range(heads[0], heads[0] + len(heads))):
        return tensor.narrow(dim, heads[0], len(heads))
    return tensor.index_select(dim, torch.tensor(heads, device=tensor.device))


def _bias_of(bias: Bias | None, heads: tuple[int, ...]) -> Bias | None:
    if bias is None:
        return None
    if isinstance(bias, Alibi):
        return bias._replace(slopes=_taken(bias.slopes, 0, heads))
    return bias._replace(table=_taken(bias.table, 0, heads))


def _check(
    prepared: Prepared,
    mask: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    sink: Tensor | None,
    bias: Bias | None,
    dropout: float,
) -> None:
    """Raises if a call would lose heads, or has what groups of heads have not."""
    heads = prepared.rules[mask].heads
    mask = mask or prepared.mask_names[0]
    if not torch.compiler.is_compiling() and has_dtensors(*tensors, sink):
        raise _core.InvalidArgument(
            f"attention: expected no DTensors under mask '{mask}', which differs by head, found "
            "some"
        )
    found = tuple(tensor.shape[-2] if tensor.dim() > 1 else 0 for tensor in tensors)
    if found != (heads[0], heads[1], heads[1]):
        raise _core.InvalidArgument(
            f"mask '{mask}': expected {heads[0]} heads of queries and {heads[1]} of keys and "
            f"values, found {found[0]}, {found[1]} and {found[2]}"
        )
    own = None if bias is None else bias.slopes if isinstance(bias, Alibi) else bias.table
    for name, tensor in (("sink", sink), ("bias", own)):
        if tensor is not None and tensor.shape[0] != heads[0]:
            raise _core.InvalidArgument(
                f"{name}: expected one for each of {heads[0]} query heads, found {tensor.shape[0]}"
            )
    if dropout > 0.0:
        raise _core.InvalidArgument(
            "dropout_p: expected 0 under a mask that differs by head, whose groups would drop "
            f"alike, found {dropout}"
        )


def attend_by_head(
    attend: Callable[..., Any],
    prepared: Prepared,
    mask: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    sink: Tensor | None,
    bias: Bias | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Returns out and lse of all heads, by a call of ``attend`` for each group. Collective.

    A KV head of several groups is given to each; autograd sums its gradients.
    """
    _check(prepared, mask, tensors, sink, bias, dropout)
    groups = prepared.head_groups[mask]
    q, k, v = tensors
    outs, lses = [], []
    for group in groups:
        out, lse = attend(
            _taken(q, -2, group.q_heads),
            _taken(k, -2, group.kv_heads),
            _taken(v, -2, group.kv_heads),
            mask=group.mask,
            sink=None if sink is None else _taken(sink, 0, group.q_heads),
            bias=_bias_of(bias, group.q_heads),
        )
        outs.append(out)
        lses.append(lse)
    order = [head for group in groups for head in group.q_heads]
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return _taken(torch.cat(outs, -2), -2, back), _taken(torch.cat(lses, -1), -1, back)
