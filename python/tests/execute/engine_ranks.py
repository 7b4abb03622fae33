"""Whole calls of the engine torch on real ranks, held against fp64 on one device."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
import torch.distributed as dist

import contextile as ct
from contextile.torch import Executor, attention


def oracle(
    plan: ct.Plan,
    tensors: Any,
    mask: str,
    sink: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """out, lse, dq, dk, dv and dsink of the whole batch in fp64. ``bias`` and the factors of
    dropout are [heads, tokens, tokens]."""
    shape = plan.shape
    q, k, v = (x.double().requires_grad_() for x in tensors[:3])
    logits = None if sink is None else sink.double().requires_grad_()
    seen = torch.from_numpy(plan.mask(plan.mask_names.index(mask)).dense(plan.num_tokens))
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * shape.effective_scale
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~seen, -math.inf)
    all_scores = scores
    if logits is not None:
        column = logits[:, None, None].expand(-1, plan.num_tokens, 1)
        all_scores = torch.cat([scores, column], -1)
    lse = torch.logsumexp(all_scores, -1)
    level = lse.masked_fill(lse.isinf(), 0.0)
    weights = torch.exp(scores - level.unsqueeze(-1))
    if factors is not None:
        weights = weights * factors
    out = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))
    (out * tensors[3].double()).sum().backward()
    found = [out, lse.transpose(0, 1), q.grad, k.grad, v.grad]
    return [x.detach() for x in [*found, *([] if logits is None else [logits.grad])]]


def inputs_of(plan: ct.Plan, seed: int) -> list[torch.Tensor]:
    shape, tokens = plan.shape, plan.num_tokens
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[shape.dtype]
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(tokens, heads, dim, generator=generator).to(dtype)
        for heads, dim in (
            (shape.q_heads, shape.head_dim),
            (shape.kv_heads, shape.head_dim),
            (shape.kv_heads, shape.value_dim),
            (shape.q_heads, shape.value_dim),
        )
    ]


def largest_errors(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[float]:
    """The largest differences, each relative to the largest number of what is expected."""
    errors = []
    for got, want in zip(found, expected, strict=True):
        finite = want[want.isfinite()]
        scale = max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
        same = got.double() == want
        gap = torch.where(same, torch.zeros_like(want), (got.double() - want).abs())
        errors.append((gap.max().item() if gap.numel() else 0.0) / scale)
    return errors


def attend_all(executor: Executor, plan: ct.Plan, mask: str, **terms: Any) -> list[float]:
    """Runs forward and backward of a mask on this rank. Returns the largest errors of all ranks."""
    shape = plan.shape
    whole = inputs_of(plan, seed=7)
    sink = torch.linspace(-1, 2, shape.q_heads) if shape.sink else None
    expected = oracle(plan, whole, mask, sink)
    own = torch.from_numpy(plan.local_tokens(executor.rank))
    q, k, v = (x[own].requires_grad_() for x in whole[:3])
    logits = None if sink is None else sink.clone().requires_grad_()
    out, lse = attention(
        q, k, v, executor=executor, mask=mask, sink=logits, return_lse=True, **terms
    )
    (out.double() * whole[3][own].double()).sum().backward()
    found = [out, lse, q.grad, k.grad, v.grad]
    errors = largest_errors(
        [x.detach() for x in found], [x[own] for x in expected[:5]]
    )
    if logits is not None:
        dist.all_reduce(logits.grad)
        errors += largest_errors([logits.grad], expected[5:])
    worst = torch.tensor(errors, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.tolist()


def run_plans(paths: str, kernels: str, bound: str) -> None:
    """Runs every plan of a JSON list with kernels, all masks, and prints what exceeds a bound."""
    torch.set_num_threads(1)
    worst = 0.0
    for path, kernel in zip(json.loads(paths), json.loads(kernels), strict=True):
        plan = ct.Plan.load(path)
        executor = Executor(engine="torch", kernel=kernel)
        executor.prepare(plan)
        for mask in plan.mask_names:
            errors = attend_all(executor, plan, mask)
            worst = max([worst, *errors])
            assert max(errors) <= float(bound), f"{path}, {kernel}, {mask}: {errors}"
    if dist.get_rank() == 0:
        print(f"worst {worst:.2e}")
