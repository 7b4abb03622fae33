"""``torch:flex``: FlexAttention, one call for each stage, with intervals of keys by row.

No key is copied twice, and any bands are one call. PyTorch's operators are called below autograd:
backward takes the final log-sum-exp, as every stage's backward must.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from contextile.torch._kernels.kernel import Params, RowKernel
from contextile.torch._kernels.stage_calls import Intervals

_LOG_2 = math.log(2)  # the operators take and return log-sum-exps to base 2


class _Softcap:
    """A softcap as ``score_mod``, and its gradient as the operators take it."""

    def __init__(self, cap: float) -> None:
        self._cap = cap

    def forward(self, score: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        return self._cap * torch.tanh(score / self._cap)

    def joint(self, score: Tensor, b: Any, h: Any, q: Any, k: Any, grad: Tensor) -> list[Any]:
        part = torch.tanh(score / self._cap)
        return [grad * (1 - part * part), None, None, None, None]


def _identity(score: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
    return score


def _identity_joint(score: Tensor, b: Any, h: Any, q: Any, k: Any, grad: Tensor) -> list[Any]:
    return [grad, None, None, None, None]


def _mask_mod(low: Tensor, high: Tensor) -> Any:
    width = low.shape[1]

    def seen(b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
        inside = (low[q, 0] <= k) & (k < high[q, 0])
        for number in range(1, width):
            inside = inside | ((low[q, number] <= k) & (k < high[q, number]))
        return inside

    return seen


def _block_mask(stage: Intervals) -> BlockMask:
    if stage.mask is None:
        lists: list[Any] = [part[None, None] for pair in stage.blocks for part in pair]
        make: Any = BlockMask
        stage.mask = make(
            (stage.num_rows, stage.num_keys),
            *lists[:8],
            (stage.block, stage.block),
            _mask_mod(stage.low, stage.high),
        )
    found: BlockMask = stage.mask
    return found


@contextlib.contextmanager
def _vmap_works() -> Iterator[None]:
    """Lets the dense form, which uses vmap, work where a dispatch mode is around the call.

    Such are compiled code and selective checkpoints. An operator that they call runs without the
    dispatch keys of vmap.
    """
    inside: Any = torch._C  # noqa: SLF001  # PyTorch has no public names for it
    with inside._PreserveDispatchKeyGuard():  # noqa: SLF001
        for name in ("DynamicLayerFrontMode", "Batched", "VmapMode", "DynamicLayerBackMode"):
            key = getattr(inside.DispatchKey, f"FuncTorch{name}")
            inside._dispatch_tls_set_dispatch_key_excluded(key, False)  # noqa: SLF001
        yield


class Flex(RowKernel):
    """FlexAttention. On a CPU its products are dense."""

    name = "torch:flex"
    takes_intervals = True
    devices = ("cpu",)

    def refusal(self, params: Params) -> str:
        return "it has no bias and no dropout" if params.has_terms else ""

    @_vmap_works()
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Intervals, params: Params
    ) -> tuple[Tensor, Tensor]:
        score_mod = _Softcap(params.softcap).forward if params.softcap else _identity
        out, lse, *_ = torch.ops.higher_order.flex_attention(
            _batch(q),
            _batch(k),
            _batch(v),
            score_mod,
            _block_mask(call).as_tuple(),
            params.scale,
            {},
        )
        return out[0].transpose(0, 1), lse[0].transpose(0, 1) * _LOG_2

    @_vmap_works()
    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        lse: Tensor,
        delta: Tensor,
        call: Intervals,
        params: Params,
    ) -> tuple[Tensor, Tensor, Tensor]:
        softcap = _Softcap(params.softcap)
        score_mod = softcap.forward if params.softcap else _identity
        joint = softcap.joint if params.softcap else _identity_joint
        # An output of 0 with the gradient -delta of the log-sum-exp stands for the final output.
        found = torch.ops.higher_order.flex_attention_backward(
            _batch(q),
            _batch(k),
            _batch(v),
            torch.zeros_like(_batch(do)),
            (lse / _LOG_2).transpose(0, 1)[None],
            _batch(do),
            (-delta * _LOG_2).transpose(0, 1)[None],
            score_mod,
            joint,
            _block_mask(call).as_tuple(),
            params.scale,
            {},
            (),
            (),
        )
        dq, dk, dv = (part[0].transpose(0, 1) for part in found[:3])
        return dq, dk, dv


def _batch(rows: Tensor) -> Tensor:
    """[rows, heads, dim] -> [1, heads, rows, dim]."""
    return rows.transpose(0, 1).unsqueeze(0)
