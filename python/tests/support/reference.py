"""Attention on one device, and a plan run by threads of this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import contextile as ct
from contextile.torch import Executor, attention, dispatch


def dense_mask(plan_or_workload: Any, name: int = 0) -> np.ndarray:
    return plan_or_workload.mask(name).dense(plan_or_workload.num_tokens)


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: np.ndarray,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """[tokens, heads, dim] in fp64; rows that attend nothing are 0."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * (scale if scale is not None else q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~torch.from_numpy(mask), float("-inf"))
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return (weights @ v).transpose(0, 1)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    if found.numel() == 0:
        return 0.0
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def inputs(
    num_tokens: int, heads: tuple[int, int], dim: int, *, seed: int = 0, dtype: Any = torch.float32
) -> Any:
    """q, k, v and a gradient of the output."""
    generator = torch.Generator().manual_seed(seed)

    def random(count: int) -> torch.Tensor:
        return torch.randn(num_tokens, count, dim, generator=generator).to(dtype)

    return random(heads[0]), random(heads[1]), random(heads[1]), random(heads[0])


def run_plan(
    plan: ct.Plan,
    tensors: Any,
    *,
    mask: str = "",
    sink: torch.Tensor | None = None,
    make: Any = Executor,
) -> Any:
    """out, dq, dk, dv (and dsink) of the whole batch by a thread for every rank, with the executor
    that ``make`` gives it."""
    q, k, v, dout = tensors

    def body(transport: ct.Transport) -> Any:
        executor = make(transport)
        executor.prepare(plan)
        rank = transport.rank
        local = [dispatch(x, plan=plan, rank=rank).requires_grad_() for x in (q, k, v)]
        logits = None if sink is None else sink.clone().requires_grad_()
        out = attention(*local, executor=executor, mask=mask, sink=logits)
        out.backward(dispatch(dout, plan=plan, rank=rank))
        return [out.detach(), *(x.grad for x in local)], None if logits is None else logits.grad

    results = ct.run_inproc(plan.num_devices, body)
    whole = [q.new_empty(dout.shape), torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)]
    for rank, (parts, _) in enumerate(results):
        tokens = torch.from_numpy(plan.local_tokens(rank))
        for array, part in zip(whole, parts, strict=True):
            array[tokens] = part
    if sink is not None:
        whole.append(sum(share for _, share in results))
    return whole


def run_dense(tensors: Any, mask: np.ndarray, *, scale: float | None = None) -> Any:
    """The same results on one device in fp64."""
    q, k, v, dout = tensors
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out = dense_attention(*leaves, mask, scale=scale)
    out.backward(dout.double())
    return [out.detach(), *(x.grad for x in leaves)]
