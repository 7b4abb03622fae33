"""What calls of ``scaled_dot_product_attention`` must agree with to attend by a plan, and the call itself."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import checkpoint

from contextile import _core
from contextile.torch._attention import attention
from contextile.torch._executor import Executor

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Rules(NamedTuple):
    """What calls must agree with; plain values, which compilation takes as constants."""

    tokens: int  # of this rank
    heads: tuple[int, int]
    dims: tuple[int, int]  # of queries and keys, of values
    dtype: torch.dtype
    scale: float
    attends_later: bool | None  # whether a tile has keys behind its queries alone; None: tiles do not tell


class Kept:
    """An executor as it was when it was looked at: calls go to that plan, whatever it is prepared for later."""

    def __init__(self, executor: Executor) -> None:
        if executor.plan is None:
            raise _core.InvalidArgument("executor: expected prepare before attention, found no plan")
        self.plan = executor.plan
        self.rank = executor.rank
        names = self.plan.mask_names
        self._calls = {name: executor.call_of(name) for name in [*names, *([""] if len(names) == 1 else [])]}

    def call_of(self, mask: str) -> tuple[int, int, int]:
        return self._calls[mask]


# Under way again in backward, innermost last: whose calls go to which plan. Backward computes on a thread of its own while
# the one that called it waits.
recomputed: list[tuple[Executor, Kept]] = []
_rules: dict[tuple[int, int], Rules] = {}  # by number of the plan and index of the mask
_RULES_KEPT = 256


def _attends_later(plan: _core.Plan, index: int) -> bool | None:
    """Whether some tile's keys all follow its queries; None where only tiles on the diagonal are there."""
    tiles = plan.placed_tiles(mask=index)
    if tiles is None:
        return None
    if np.any(tiles[:, 2] >= tiles[:, 1]):
        return True
    return False if np.any(tiles[:, 0] >= tiles[:, 3]) else None


@torch.compiler.disable
def _make_rules(executor: Executor | Kept, mask: str) -> Rules:
    number, index, _ = executor.call_of(mask)
    plan = executor.plan
    shape = plan.shape  # type: ignore[union-attr]
    if shape.softcap or shape.sink:
        raise _core.InvalidArgument(
            "plan: expected one without softcap and sinks, which scaled_dot_product_attention has not; found "
            + ("softcap" if shape.softcap else "sinks")
        )
    tokens = plan.num_local_tokens(executor.rank)  # type: ignore[union-attr]
    if tokens == 0:
        raise _core.InvalidArgument(
            f"plan: expected tokens on every rank, found none on rank {executor.rank}; a smaller block_size spreads them"
        )
    while len(_rules) >= _RULES_KEPT:
        del _rules[next(iter(_rules))]
    found = Rules(
        tokens,
        (shape.q_heads, shape.kv_heads),
        (shape.head_dim, shape.value_dim),
        _DTYPES[shape.dtype],
        shape.effective_scale,
        _attends_later(plan, index),  # type: ignore[arg-type]
    )
    _rules[number, index] = found
    return found


def rules_of(executor: Executor | Kept, mask: str) -> Rules:
    number, index, _ = executor.call_of(mask)
    rules = _rules.get((number, index))
    return rules if rules is not None else _make_rules(executor, mask)


def _current(executor: Executor) -> Executor | Kept:
    """The executor, or what is kept of it where forward is computed again."""
    for one, kept in reversed(recomputed):
        if one is executor:
            return kept
    return executor


# ------------------------------------------------------------------------------------------------- checks


@torch.compiler.disable
def _refuse_reentrant() -> None:
    """Reentrant checkpoints call forward without gradients, and again in backward, when the plan may be another."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is checkpoint.CheckpointFunction.forward.__code__:
            raise _core.InvalidArgument("checkpoint: expected use_reentrant=False, found a reentrant one")
        frame = frame.f_back


def _check_causal(rules: Rules, expected: bool | None, found: bool | None) -> None:
    if expected is None:
        return
    if found is not None and found is not expected:
        raise _core.InvalidArgument(
            f"attention: expected is_causal={expected}, found is_causal={found}; use(executor, is_causal={found}) is for "
            "plans whose mask is such"
        )
    if rules.attends_later is not None and rules.attends_later is expected:
        kind = "later tokens, too" if rules.attends_later else "no later tokens"
        raise _core.InvalidArgument(
            f"attention: expected a plan whose mask agrees with is_causal={expected}, found one that attends {kind}; "
            "is_causal=None leaves it to the plan"
        )


def _check_shapes(rules: Rules, q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """q, k, v [1, heads, tokens, dim]."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise _core.InvalidArgument(f"attention: expected tensors of 4 dimensions, found {q.dim()}, {k.dim()}, {v.dim()}")
    if q.shape[0] != 1 or k.shape[0] != 1 or v.shape[0] != 1:
        raise _core.InvalidArgument(f"attention: expected a batch of 1, documents packed; found {q.shape[0]}")
    if q.shape[2] != rules.tokens or k.shape[2] != rules.tokens or v.shape[2] != rules.tokens:
        raise _core.InvalidArgument(
            f"attention: expected this rank's {rules.tokens} tokens as queries, keys and values, found {q.shape[2]}, "
            f"{k.shape[2]} and {v.shape[2]}"
        )
    if (q.shape[1], k.shape[1]) != rules.heads or v.shape[1] != k.shape[1]:
        raise _core.InvalidArgument(
            f"attention: expected the plan's heads {rules.heads}, found {q.shape[1]} of queries, {k.shape[1]} of keys and "
            f"{v.shape[1]} of values; a model that repeats KV heads itself needs a plan with as many"
        )
    if (q.shape[3], v.shape[3]) != rules.dims or k.shape[3] != q.shape[3]:
        raise _core.InvalidArgument(
            f"attention: expected the plan's dims {rules.dims} of keys and values, found {q.shape[3]} of queries, {k.shape[3]} of "
            f"keys and {v.shape[3]} of values"
        )
    if not enable_gqa and q.shape[1] != k.shape[1]:
        raise _core.InvalidArgument(
            f"attention: expected enable_gqa=True with {q.shape[1]} heads of queries and {k.shape[1]} of keys, found False"
        )


def _as_autocast(tensor: Tensor) -> Tensor:
    """What scaled_dot_product_attention would compute with under autocast."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(kind))
    return tensor


class _SamePlan(torch.autograd.Function):
    """Passes its input on, and refuses backward of a forward that was computed again under another plan.

    The plan's number is saved as the length of an empty tensor, so nothing is read from a device; checkpoints compare it, too.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, number: int) -> Tensor:
        ctx.number = number
        ctx.save_for_backward(out.new_empty((number, 0)))
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        (stamp,) = ctx.saved_tensors
        if stamp.shape[0] != ctx.number:
            raise _core.InvalidArgument(
                "checkpoint: expected forward computed again under its plan, found another plan "
                "(context_fn=lambda: contextile.torch.checkpoint_contexts(executor) keeps it)"
            )
        return gradients[0], None


class Call(NamedTuple):
    """Arguments of scaled_dot_product_attention behind q, k, v."""

    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool | None = False  # None: nothing is said
    scale: float | None = None
    enable_gqa: bool = False


def attend(
    executor: Executor, mask: str, is_causal: bool | None, q: Tensor, k: Tensor, v: Tensor, call: Call
) -> Tensor:
    """q [1, q_heads, tokens, dim], k and v [1, kv_heads, tokens, …] → [1, q_heads, tokens, value_dim]."""
    if call.attn_mask is not None:
        raise _core.InvalidArgument("attention: expected no attn_mask, for the plan has the batch's masks; found one")
    if call.dropout_p != 0.0:
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {call.dropout_p}")
    if not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        _refuse_reentrant()
    one = _current(executor)
    rules = rules_of(one, mask)
    _check_causal(rules, is_causal, call.is_causal)
    _check_shapes(rules, q, k, v, call.enable_gqa)
    scale = 1.0 / math.sqrt(q.shape[-1]) if call.scale is None else call.scale
    if not math.isclose(scale, rules.scale, rel_tol=1e-6):
        raise _core.InvalidArgument(f"attention: expected the plan's scale {rules.scale:.6g}, found the call's {scale:.6g}")
    q, k, v = (_as_autocast(x).transpose(1, 2) for x in (q, k, v))
    if q.dtype != rules.dtype or k.dtype != rules.dtype or v.dtype != rules.dtype:
        raise _core.InvalidArgument(
            f"attention: expected the plan's {rules.dtype}, found {q.dtype}, {k.dtype} and {v.dtype}"
        )
    out = attention(q, k, v, executor=one, mask=mask)  # type: ignore[arg-type]
    if torch.is_grad_enabled():
        out = _SamePlan.apply(out, one.call_of(mask)[0])
    return out.transpose(1, 2)  # type: ignore[union-attr]
