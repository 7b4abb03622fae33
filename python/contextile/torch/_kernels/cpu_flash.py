"""``torch:cpu``: aten's fused attention for CPUs, an entry at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contextile.torch._kernels.kernel import Params, RowKernel, no_terms
from contextile.torch._kernels.row_ops import merged, output_with_delta
from contextile.torch._kernels.stage_calls import Call

_aten = torch.ops.aten
# Rows of a triangle or a window that share one dense mask.
_MAX_ROWS = 256
# With fewer keys, the kernel returns 0 for queries or keys that are NaN (PyTorch 2.15).
_MIN_KEYS = 16


class _Piece(NamedTuple):
    """Rows [a, b) and keys [c, d) of a call: all pairs, a square triangle, or a dense mask."""

    a: int
    b: int
    c: int
    d: int
    is_causal: bool = False
    mask: Tensor | None = None  # added to scores, [rows, keys]


def _mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -math.inf)


def _pieces(call: Call, dtype: torch.dtype) -> Iterator[_Piece]:
    """Yields pieces of entries. The kernel's triangles are square, its other masks are dense."""
    for a, b, c, d in call.entries():
        rows, keys = b - a, d - c
        if call.entry_class == "full":
            yield _Piece(a, b, c, d)
        elif call.entry_class == "causal":
            if keys > rows:
                yield _Piece(a, b, c, d - rows)
            yield _Piece(a, b, d - rows, d, is_causal=True)
        else:
            for first in range(0, rows, _MAX_ROWS):
                last = min(first + _MAX_ROWS, rows)
                is_window = call.entry_class == "window"
                width = call.window if is_window else 0
                at = torch.arange(last - first + width) - torch.arange(last - first).unsqueeze(1)
                seen = (at >= 0) & (at <= width) if is_window else at >= 0
                end = c + last + width
                yield _Piece(a + first, a + last, c + first, end, mask=_mask(seen, dtype))
                if not is_window and last < rows:
                    yield _Piece(a + first, a + last, end, d)


class CpuFlash(RowKernel):
    """aten's fused attention for CPUs."""

    name = "torch:cpu"
    devices = ("cpu",)

    def refusal(self, params: Params) -> str:
        if params.head_dim != params.value_dim:
            return (
                f"it takes a value dim equal to the head dim of {params.head_dim}, found "
                f"{params.value_dim}"
            )
        return no_terms(params)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, params: Params
    ) -> tuple[Tensor, Tensor]:
        out = q.new_zeros(q.shape, dtype=torch.float32)
        lse = q.new_full(q.shape[:2], -math.inf, dtype=torch.float32)
        for piece in _pieces(call, q.dtype):
            rows, keys = slice(piece.a, piece.b), slice(piece.c, piece.d)
            if piece.d - piece.c < _MIN_KEYS:
                part, part_lse = _by_products(q[rows], k[keys], v[keys], piece, params.scale)
                out[rows], lse[rows] = merged(out[rows], lse[rows], part, part_lse)
                continue
            o, sums = _aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
                _batch(q[rows]),
                _batch(k[keys]),
                _batch(v[keys]),
                0.0,
                piece.is_causal,
                attn_mask=piece.mask,
                scale=params.scale,
            )
            part, part_lse = o[0].transpose(0, 1), sums[0].transpose(0, 1).float()
            out[rows], lse[rows] = merged(out[rows], lse[rows], part, part_lse)
        return out, lse

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        lse: Tensor,
        delta: Tensor,
        call: Call,
        params: Params,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        out = output_with_delta(do, delta)
        for piece in _pieces(call, q.dtype):
            rows, keys = slice(piece.a, piece.b), slice(piece.c, piece.d)
            found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
                _batch(do[rows]),
                _batch(q[rows]),
                _batch(k[keys]),
                _batch(v[keys]),
                _batch(out[rows]),
                lse[rows].transpose(0, 1).unsqueeze(0),
                0.0,
                piece.is_causal,
                attn_mask=piece.mask,
                scale=params.scale,
            )
            for total, at, part in zip((dq, dk, dv), (rows, keys, keys), found, strict=True):
                total[at] += part[0].transpose(0, 1)
        return dq, dk, dv


def _by_products(
    q: Tensor, k: Tensor, v: Tensor, piece: _Piece, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the forward of a piece of few keys."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    scores = torch.matmul(q.float().transpose(0, 1), keys.transpose(1, 2)) * scale
    if piece.is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -math.inf)
    if piece.mask is not None:
        scores = scores + piece.mask.float()
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights, values).transpose(0, 1), lse.transpose(0, 1)


def _batch(rows: Tensor) -> Tensor:
    """[rows, heads, dim] -> [1, heads, rows, dim]."""
    return rows.transpose(0, 1).unsqueeze(0)
