"""Attention of a whole batch in fp64, forward and backward, and what low precision loses of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

NAMES = ("out", "dq", "dk", "dv", "dsink")


class Results(NamedTuple):
    """Output and gradients of a batch: [rows, heads, dim], and [q_heads] of the sink."""

    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None = None
    lse: Tensor | None = None  # [rows, q_heads]
    # [rows, heads] what an error of the whole dout * out in every row's sum adds to dq and dk
    dq_spread: Tensor | None = None
    dk_spread: Tensor | None = None


@dataclass(frozen=True)
class Inputs:
    """A batch: ``q``, ``k``, ``v``, the gradient of the output, and what changes the scores."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    scale: float
    softcap: float = 0.0
    sink: Tensor | None = None
    factors: Tensor | None = None  # [q_heads, rows, rows], of weights after dropout
    strides: bool = False  # true: give the implementation views that are not contiguous
    drops: bool = False  # true: ask the implementation for dropout
    seed: int = 0  # of dropout


Round = Callable[[Tensor], Tensor]


class _Head(NamedTuple):
    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None
    lse: Tensor
    dq_spread: Tensor
    dk_spread: Tensor


def _head(
    inputs: Inputs, head: int, kv_head: int, allowed: Tensor, backward: Tensor, rounded: Round
) -> _Head:
    wide = (
        torch.float64 if rounded is _exact else torch.promote_types(inputs.q.dtype, torch.float32)
    )
    q, dout = inputs.q[:, head].to(wide), inputs.dout[:, head].to(wide)
    k, v = inputs.k[:, kv_head].to(wide), inputs.v[:, kv_head].to(wide)
    scores = q @ k.T * inputs.scale
    slope = torch.ones((), dtype=wide)
    if inputs.softcap:
        bent = torch.tanh(scores / inputs.softcap)
        scores, slope = inputs.softcap * bent, 1 - bent * bent
    lse = torch.logsumexp(scores.masked_fill(~allowed, -torch.inf), dim=1)
    if inputs.sink is not None:
        lse = torch.logaddexp(lse, inputs.sink[head].to(wide))
    # Rows that attend nothing have no weights.
    base = lse.masked_fill(lse == -torch.inf, 0.0)[:, None]
    weights = torch.exp(scores.masked_fill(~allowed, -torch.inf) - base)
    factors = 1.0 if inputs.factors is None else inputs.factors[head].to(wide)
    out = rounded(weights * factors) @ v
    delta = (rounded(out) * dout).sum(1, keepdim=True)
    if backward is not allowed:
        weights = torch.exp(scores.masked_fill(~backward, -torch.inf) - base)
    dweights = (dout @ v.T) * factors
    dscores = rounded(weights * (dweights - delta) * slope)
    dsink = None
    if inputs.sink is not None:
        dsink = -(torch.exp(inputs.sink[head].to(wide) - base) * delta).sum()
    spread = weights * (out * dout).abs().sum(1, keepdim=True) * inputs.scale
    return _Head(
        out,
        dscores @ k * inputs.scale,
        dscores.T @ q * inputs.scale,
        rounded(weights * factors).T @ dout,
        dsink,
        lse,
        spread @ k.norm(dim=1),
        spread.T @ q.norm(dim=1),
    )


def _exact(values: Tensor) -> Tensor:
    return values


def grouped(head: int, q_heads: int, kv_heads: int) -> int:
    """Returns the KV head of a query head, as grouped-query attention has it."""
    return head // (q_heads // kv_heads)


def attend(
    inputs: Inputs,
    allowed: Tensor,
    *,
    backward: Tensor | None = None,
    kv_head_of: Callable[[int, int, int], int] = grouped,
    rounded: Round = _exact,
) -> Results:
    """Returns attention over the allowed pairs and its gradients, in fp64 unless ``rounded`` is
    given. ``backward`` is another set of pairs that the gradients are computed over, with the
    log-sum-exp of the forward pass."""
    heads, kv_heads = inputs.q.shape[1], inputs.k.shape[1]
    backward = allowed if backward is None else backward
    kv_of = [kv_head_of(head, heads, kv_heads) for head in range(heads)]
    each = [_head(inputs, h, kv_of[h], allowed, backward, rounded) for h in range(heads)]
    dk, dv, dk_spread = (
        torch.stack(
            [
                sum(
                    (getattr(each[h], name) for h in range(heads) if kv_of[h] == kv),
                    torch.zeros_like(getattr(each[0], name)),
                )
                for kv in range(kv_heads)
            ],
            1,
        )
        for name in ("dk", "dv", "dk_spread")
    )
    sinks = [one.dsink for one in each if one.dsink is not None]
    return Results(
        torch.stack([one.out for one in each], 1),
        torch.stack([one.dq for one in each], 1),
        dk,
        dv,
        torch.stack(sinks) if sinks else None,
        torch.stack([one.lse for one in each], 1),
        torch.stack([one.dq_spread for one in each], 1),
        dk_spread,
    )


def in_precision(inputs: Inputs, allowed: Tensor, dtype: torch.dtype) -> Results:
    """Returns what a sound implementation in ``dtype`` computes: sums in fp32, weights and results
    rounded once."""
    found = attend(inputs, allowed, rounded=lambda values: values.to(dtype).to(values.dtype))
    out, dq, dk, dv = (x.to(dtype).double() for x in found[:4])
    return Results(out, dq, dk, dv)


def changed(inputs: Inputs, **fields: object) -> Inputs:
    """Returns inputs with other fields."""
    return replace(inputs, **fields)  # type: ignore[arg-type]  # fields of their own types


# ---------------------------------------------------------------------------------------- errors


def row_errors(
    found: Tensor, expected: Tensor, rows: Tensor, least: Tensor | None = None
) -> Tensor:
    """Returns the relative error of every row and head; that of rows that do not count is 0.

    The norm of the difference is divided by that of the expected row, or by a tenth of the typical
    norm or by ``least`` [rows, heads] where the row is smaller.
    """
    found, expected = found.double(), expected.double()
    norms = expected.norm(dim=-1)
    typical = norms[rows].square().mean().sqrt() if bool(rows.any()) else norms.new_zeros(())
    floor = torch.clamp(0.1 * typical, min=1e-30)
    norms = torch.maximum(norms, floor if least is None else torch.maximum(least, floor))
    errors = (found - expected).norm(dim=-1) / norms
    errors = torch.where(torch.isnan(errors), torch.inf, errors)
    return torch.where(rows[:, None], errors, 0.0)


def sink_errors(found: Tensor, expected: Tensor) -> Tensor:
    """Returns the error of every head's sink gradient, relative to the typical one."""
    typical = torch.clamp(expected.square().mean().sqrt(), min=1e-30)
    errors = (found.double() - expected).abs() / typical
    return torch.where(torch.isnan(errors), torch.inf, errors)


def mean_error(found: Tensor, expected: Tensor, rows: Tensor) -> float:
    """Returns the norm of the difference over that of the expected tensor, over rows that count."""
    found, expected = found[rows].double(), expected[rows].double()
    return float((found - expected).norm() / torch.clamp(expected.norm(), min=1e-30))
