"""Checks calls of ``scaled_dot_product_attention`` against a plan, and attends by the plan."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._attention.operators import attention
from contextile.torch._batch.calls import model_in_call
from contextile.torch._execute.dtensor import (
    check_dtensors,
    check_heads_of_rank,
    has_dtensors,
    num_sharers,
)
from contextile.torch._execute.executor import Executor, Prepared, Rules
from contextile.torch._models.adapters import run_checks
from contextile.torch._models.parts import ordered_part
from contextile.torch._models.refusals import refused


def rules_of(prepared: Prepared, mask: str) -> Rules:
    """Returns the rules that calls under a mask must follow.

    Raises InvalidArgument if the plan has softcap or sinks.
    """
    rules = prepared.rules_of(mask)
    if rules.softcap or rules.has_sink:
        raise _core.InvalidArgument(
            "plan: expected one without softcap and sinks, which scaled_dot_product_attention has "
            "not; found " + ("softcap" if rules.softcap else "sinks")
        )
    return rules


# -------------------------------------------------------------------------------------------------
# checks


def _check_model(prepared: Prepared) -> None:
    """Raises if the model that is computing mixes tokens outside attention."""
    found = model_in_call()
    if found is None:
        return
    ordered = ordered_part(found[0])
    if ordered is not None:
        raise _core.InvalidArgument(
            "model: expected one in which attention alone mixes tokens, found "
            f"{type(found[0]).__name__} with {ordered}, which would run over this rank's tokens in "
            "the order in which it holds them (check_model=False allows it)"
        )
    run_checks(prepared)


def _check_causal(rules: Rules, expected: bool | None, found: bool | None) -> None:
    if expected is None:
        return
    if found is not None and found is not expected:
        raise _core.InvalidArgument(
            f"attention: expected is_causal={expected}, found is_causal={found}; use(executor, "
            f"is_causal={found}) is for plans whose mask is such"
        )
    if rules.attends_later is expected:
        kind = "later tokens, too" if expected else "no later tokens"
        raise _core.InvalidArgument(
            f"attention: expected a plan whose mask agrees with is_causal={expected}, found one "
            f"that attends {kind}; is_causal=None leaves it to the plan"
        )


def _is_of(rules: Rules, tokens: int) -> bool:
    # A rank without tokens may have a filler.
    return tokens == rules.tokens or (tokens, rules.tokens) == (1, 0)


def _check_shapes(rules: Rules, q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """Checks q, k and v of [1, tokens, heads, dim]. DTensors have the heads of all ranks."""
    if q.shape[0] != 1 or k.shape[0] != 1 or v.shape[0] != 1:
        raise _core.InvalidArgument(
            f"attention: expected a batch of 1, documents packed; found {q.shape[0]}"
        )
    # Compiled code leaves numbers that change with every batch to the operator, which checks them,
    # too.
    if not torch.compiler.is_compiling() and not (
        q.shape[1] == k.shape[1] == v.shape[1] and _is_of(rules, q.shape[1])
    ):
        raise _core.InvalidArgument(
            f"attention: expected this rank's {rules.tokens} tokens as queries, keys and values, "
            f"found {q.shape[1]}, {k.shape[1]} and {v.shape[1]}"
        )
    heads, sharers = (q.shape[2], k.shape[2]), num_sharers(q)
    if v.shape[2] == k.shape[2] and sharers > 1:
        check_heads_of_rank(heads, rules.heads, sharers)
    elif heads != rules.heads or v.shape[2] != k.shape[2]:
        raise _core.InvalidArgument(
            f"attention: expected the plan's heads {rules.heads}, found {q.shape[2]} of queries, "
            f"{k.shape[2]} of keys and {v.shape[2]} of values; a plan has the heads that a rank's "
            "model attends with: one rank's under tensor parallelism, and repeated KV heads if "
            "the model repeats them itself"
        )
    if (q.shape[3], v.shape[3]) != rules.dims or k.shape[3] != q.shape[3]:
        raise _core.InvalidArgument(
            f"attention: expected the plan's dims {rules.dims} of keys and values, found "
            f"{q.shape[3]} of queries, {k.shape[3]} of keys and {v.shape[3]} of values"
        )
    if not enable_gqa and q.shape[2] != k.shape[2]:
        raise _core.InvalidArgument(
            f"attention: expected enable_gqa=True with {q.shape[2]} heads of queries and "
            f"{k.shape[2]} of keys, found False"
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


def attend(
    executor: Executor,
    expected: Expected,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    call: Call,
    *,
    layout: str = "BHTD",
) -> Tensor:
    """Checks a call and attends by the plan. Collective.

    Takes q, k and v in a layout, [1, q_heads, tokens, dim] or [1, tokens, q_heads, dim], and
    returns a tensor of the same layout with value_dim.
    """
    if not torch.compiler.is_compiling():
        return _attend(executor, expected, q, k, v, call, layout)
    try:
        return _attend(executor, expected, q, k, v, call, layout)
    except _core.InvalidArgument as error:
        return refused(error, q, v)


def _attend(
    executor: Executor, expected: Expected, q: Tensor, k: Tensor, v: Tensor, call: Call, layout: str
) -> Tensor:
    prepared = executor.prepared_of(None)
    if expected.check_model and not torch.compiler.is_compiling():
        _check_model(prepared)
    if call.attn_mask is not None:
        raise _core.InvalidArgument(
            "attention: expected no attn_mask, for the plan has the batch's masks; found one"
        )
    if call.dropout_p != 0.0:
        raise _core.InvalidArgument(f"attention: expected dropout 0, found {call.dropout_p}")
    rules = rules_of(prepared, expected.mask)
    _check_causal(rules, expected.is_causal, call.is_causal)
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise _core.InvalidArgument(
            f"attention: expected tensors of 4 dimensions, found {q.dim()}, {k.dim()}, {v.dim()}"
        )
    if not torch.compiler.is_compiling() and has_dtensors(q, k, v):
        check_dtensors(q, k, v, None, dim=layout.index("H"))
    if layout == "BHTD":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    _check_shapes(rules, q, k, v, call.enable_gqa)
    scale = 1.0 / math.sqrt(q.shape[-1]) if call.scale is None else call.scale
    if not math.isclose(scale, rules.scale, rel_tol=1e-6):
        raise _core.InvalidArgument(
            f"attention: expected the plan's scale {rules.scale:.6g}, found the call's {scale:.6g}"
        )
    if (
        not torch.is_autocast_enabled(q.device.type)
        and not q.dtype == k.dtype == v.dtype == rules.dtype
    ):
        raise _core.InvalidArgument(
            f"attention: expected the plan's {rules.dtype}, found {q.dtype}, {k.dtype} and "
            f"{v.dtype}"
        )
    out = attention(q, k, v, executor=executor, plan=prepared, mask=expected.mask)
    return out.transpose(1, 2) if layout == "BHTD" else out
