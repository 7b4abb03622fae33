"""Whole calls of the engine torch on real ranks, held against fp64 on one device."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
import torch.distributed as dist

import contextile as ct
import flash_stand_in
from contextile.torch import Executor, alibi, attention, t5_bias


def oracle(
    plan: ct.Plan,
    tensors: Any,
    mask: str,
    sink: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """out, lse, dq, dk, dv and dsink of the whole batch in fp64."""
    shape = plan.shape
    q, k, v = (x.double().requires_grad_() for x in tensors[:3])
    logits = None if sink is None else sink.detach().double().requires_grad_()
    seen = torch.from_numpy(plan.mask(plan.mask_names.index(mask)).dense(plan.num_tokens))
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * shape.effective_scale
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores.masked_fill(~seen, -math.inf)
    all_scores = scores
    if logits is not None:
        column = logits[:, None, None].expand(-1, plan.num_tokens, 1)
        all_scores = torch.cat([scores, column], -1)
    lse = torch.logsumexp(all_scores, -1)
    level = lse.masked_fill(lse.isinf(), 0.0)
    weights = torch.exp(scores - level.unsqueeze(-1))
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


def attend_all(
    executor: Executor, plan: ct.Plan, mask: str, whole: list[torch.Tensor], **terms: Any
) -> list[torch.Tensor]:
    """Returns this rank's out, lse, dq, dk, dv, and dsink of all ranks, of one call."""
    sink = sink_of(plan)
    own = torch.from_numpy(plan.local_tokens(executor.rank))
    q, k, v = (x[own].requires_grad_() for x in whole[:3])
    out, lse = attention(q, k, v, executor=executor, mask=mask, sink=sink, return_lse=True, **terms)
    (out.double() * whole[3][own].double()).sum().backward()
    found = [out.detach(), lse, *(x.grad for x in (q, k, v))]
    if sink is not None:
        dist.all_reduce(sink.grad)
        found.append(sink.grad)
    return found


def sink_of(plan: ct.Plan) -> torch.Tensor | None:
    shape = plan.shape
    return torch.linspace(-1, 2, shape.q_heads).requires_grad_() if shape.sink else None


def worst_of_all(errors: list[float]) -> list[float]:
    worst = torch.tensor(errors, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.tolist()


def _let_triton_run(cases: str) -> None:
    """Lets the kernel of some cases run on this process's CPU."""
    if any(kernel == "torch:triton" for _, kernel, _ in json.loads(cases)):
        import triton_on_cpu

        triton_on_cpu.install()


def run_cases_by_triton_rows(cases: str) -> None:
    """Does the same with Triton kernels for rows, as on a GPU."""
    from contextile.torch._kernels import row_ops, triton_rows

    row_ops.fused = lambda device: triton_rows
    run_cases(cases)


def run_cases(cases: str) -> None:
    """Runs (file of a plan, kernel, bound) and prints the worst error. All masks, against fp64."""
    torch.set_num_threads(1)
    flash_stand_in.install()
    _let_triton_run(cases)
    worst = 0.0
    for path, kernel, bound in json.loads(cases):
        plan = ct.Plan.load(path)
        executor = Executor(engine="torch", kernel=kernel)
        executor.prepare(plan)
        whole = inputs_of(plan, seed=7)
        own = torch.from_numpy(plan.local_tokens(executor.rank))
        for mask in plan.mask_names:
            expected = oracle(plan, whole, mask, sink_of(plan))
            expected[:5] = [x[own] for x in expected[:5]]
            errors = worst_of_all(largest_errors(attend_all(executor, plan, mask, whole), expected))
            worst = max([worst, *errors])
            assert max(errors) <= bound, f"{path}, {kernel}, {mask}: {errors}"
    if dist.get_rank() == 0:
        print(f"{len(json.loads(cases))} cases, worst error {worst:.1e}")


def run_beside_native(cases: str) -> None:
    """Runs (file of a plan, kernel, terms) by both engines, whose results are equal to 1e-5."""
    torch.set_num_threads(1)
    _let_triton_run(cases)
    for path, kernel, name in json.loads(cases):
        plan = ct.Plan.load(path)
        whole = inputs_of(plan, seed=8)
        results, tables = [], []
        for engine in ("native", "torch"):
            executor = Executor(engine=engine, kernel=kernel if engine == "torch" else "")
            executor.prepare(plan)
            bias, terms = terms_of(name, plan.shape.q_heads)
            results.append(attend_all(executor, plan, "", whole, bias=bias, **terms))
            tables.append([] if bias is None or name == "alibi" else [bias.table.grad])
        errors = largest_errors(
            results[1] + tables[1], [x.double() for x in results[0] + tables[0]]
        )
        errors = worst_of_all(errors)
        assert max(errors) <= 1e-5, f"{path}, {kernel}, {name}: {errors}"


def terms_of(name: str, heads: int) -> tuple[Any, dict[str, Any]]:
    """Returns the bias and the other terms of a call by name."""
    terms: dict[str, Any] = {}
    if "dropout" in name:
        terms = {"dropout_p": 0.2, "dropout_seed": 0x1234567890}
    if "alibi" in name:
        return alibi(heads), terms
    if "t5" in name:
        generator = torch.Generator().manual_seed(3)
        table = torch.randn(heads, 32, generator=generator).requires_grad_()
        return t5_bias(table, bidirectional=False), terms
    return None, terms
