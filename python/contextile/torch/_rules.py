"""Checks calls of ``scaled_dot_product_attention`` against a plan, and attends by the plan."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._attention import attention, refuse_reentrant
from contextile.torch._executor import Executor, Prepared, Rules
from contextile.torch._models import model_in_call, ordered_part

# The plans of forwards that are being recomputed, innermost last. Not thread-local: backward runs
# on a thread of its own while the thread that called it waits.
recomputed: list[tuple[Executor, Prepared]] = []


def rules_of(prepared: Prepared, mask: str) -> Rules:
    """Returns the rules that calls under a mask must follow.

    Raises InvalidArgument if the plan has softcap or sinks.
    """
    rules = prepared.rules_of(mask)
    if rules.softcap or rules.has_sink:
        raise _core.InvalidArgument(
            "plan: expected one without softcap and sinks, which scaled_dot_product_attention has not; found "
            + ("softcap" if rules.softcap else "sinks")
        )
    return rules


def _current(executor: Executor) -> Prepared:
    """Returns the plan prepared last, or the original plan while forward is being recomputed."""
    for one, kept in reversed(recomputed):
        if one is executor:
            return kept
    return executor.prepared_of(None)


# ------------------------------------------------------------------------------------------------- checks


def _check_model(prepared: Prepared) -> None:
    """Raises if the model that is computing mixes tokens outside attention."""
    found = model_in_call()
    if found is None:
        return
    ordered = ordered_part(found[0])
    if ordered is not None:
        raise _core.InvalidArgument(
            f"model: expected one in which attention alone mixes tokens, found {type(found[0]).__name__} with {ordered}, which "
            "would run over this rank's tokens in the order in which it holds them (check_model=False allows it)"
        )
    if "transformers" in sys.modules:
        from contextile.transformers._attention import check_model

        check_model(prepared)


def _check_causal(rules: Rules, expected: bool | None, found: bool | None) -> None:
    if expected is None:
        return
    if found is not None and found is not expected:
        raise _core.InvalidArgument(
            f"attention: expected is_causal={expected}, found is_causal={found}; use(executor, is_causal={found}) is for "
            "plans whose mask is such"
        )
    if rules.attends_later is expected:
        kind = "later tokens, too" if expected else "no later tokens"
        raise _core.InvalidArgument(
            f"attention: expected a plan whose mask agrees with is_causal={expected}, found one that attends {kind}; "
            "is_causal=None leaves it to the plan"
        )


def _is_of(rules: Rules, tokens: int) -> bool:
    # A rank without tokens may have a filler.
    return tokens == rules.tokens or (tokens, rules.tokens) == (1, 0)


def _check_shapes(rules: Rules, q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """Checks q, k and v of [1, heads, tokens, dim]."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise _core.InvalidArgument(f"attention: expected tensors of 4 dimensions, found {q.dim()}, {k.dim()}, {v.dim()}")
    if q.shape[0] != 1 or k.shape[0] != 1 or v.shape[0] != 1:
        raise _core.InvalidArgument(f"attention: expected a batch of 1, documents packed; found {q.shape[0]}")
    # Compiled code leaves numbers that change with every batch to the operator, which checks them,
    # too.
    if not torch.compiler.is_compiling() and not (q.shape[2] == k.shape[2] == v.shape[2] and _is_of(rules, q.shape[2])):
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


class Call(NamedTuple):
    """Arguments of scaled_dot_product_attention after q, k and v."""

    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool | None = False  # None: not given
    scale: float | None = None
    enable_gqa: bool = False


class Expected(NamedTuple):
    """The mask of a model's calls, and the checks that they have to pass."""

    mask: str
    is_causal: bool | None
    check_model: bool


def attend(executor: Executor, expected: Expected, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """Checks a call and attends by the plan. Collective.

    Takes q [1, q_heads, tokens, dim], k and v [1, kv_heads, tokens, …] and returns
    [1, q_heads, tokens, value_dim].
    """
    prepared = _current(executor)
    if expected.check_model and not torch.compiler.is_compiling():
        _check_model(prepared)
    if call.attn_mask is not None:
        raise _core.InvalidArgument("attention: expected no attn_mask, for the plan has the batch's masks; found one")
    if call.dropout_p != 0.0:
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {call.dropout_p}")
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        refuse_reentrant()
    rules = rules_of(prepared, expected.mask)
    _check_causal(rules, expected.is_causal, call.is_causal)
    _check_shapes(rules, q, k, v, call.enable_gqa)
    scale = 1.0 / math.sqrt(q.shape[-1]) if call.scale is None else call.scale
    if not math.isclose(scale, rules.scale, rel_tol=1e-6):
        raise _core.InvalidArgument(f"attention: expected the plan's scale {rules.scale:.6g}, found the call's {scale:.6g}")
    if not torch.is_autocast_enabled(q.device.type) and not q.dtype == k.dtype == v.dtype == rules.dtype:
        raise _core.InvalidArgument(
            f"attention: expected the plan's {rules.dtype}, found {q.dtype}, {k.dtype} and {v.dtype}"
        )
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attention(  # type: ignore[union-attr]
        q, k, v, executor=executor, plan=prepared, mask=expected.mask
    ).transpose(1, 2)
