"""Rows of buffers: taken, overwritten, added to, and merged by their log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor

from contextile.torch._kernels.stage_calls import Rows


def take(part: Tensor, rows: Rows) -> Tensor:
    """Returns rows of a part: a view of one run, a copy of others."""
    return part[rows] if isinstance(rows, slice) else part.index_select(0, rows)


def put(part: Tensor, rows: Rows, values: Tensor) -> None:
    """Overwrites rows of a part, which do not repeat."""
    if isinstance(rows, slice):
        part[rows].copy_(values)
    else:
        part.index_copy_(0, rows, values.to(part.dtype))


def add(part: Tensor, rows: Rows, values: Tensor) -> None:
    """Adds to rows of a part, which may repeat."""
    if isinstance(rows, slice):
        part[rows].add_(values)
    else:
        part.index_add_(0, rows, values.to(part.dtype))


def fill(part: Tensor, rows: Rows, value: float) -> None:
    """Sets rows of a part to one value."""
    if isinstance(rows, slice):
        part[rows].fill_(value)
    else:
        part.index_fill_(0, rows, value)


def merged(o: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the merge of two partial results. Rows that saw nothing have lse -inf."""
    both = torch.logaddexp(lse, more_lse)
    weight = torch.exp(more_lse - both).nan_to_num_(0.0)  # 0 where both saw nothing
    return torch.lerp(o, more.to(o.dtype), weight.unsqueeze(-1)), both


def merge_rows(parts: list[Tensor], rows: Rows, out: Tensor, lse: Tensor, is_first: bool) -> None:
    """Merges a partial result into rows, or overwrites those that hold none."""
    if not is_first:
        out, lse = merged(take(parts[0], rows), take(parts[1], rows), out, lse)
    put(parts[0], rows, out)
    put(parts[1], rows, lse)
