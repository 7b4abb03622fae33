"""aten's variable-length FlashAttention as kernels of the CPU, from its documentation.

The calls that a GPU gets have values here. Row i of n sees key j of m if
``i + m - n - left <= j <= i + m - n + right``; -1 is no bound, and causal is right = 0.
Backward takes out and lse from outside, and computes delta as the sum of dO * out.
"""

from __future__ import annotations

import math

import torch

from contextile.torch._kernels.flash import Flash

_library = torch.library.Library("aten", "IMPL")


def _entries(q, k, cu_q, cu_k, bounds, scale):
    """The rows and keys of every entry, and scores [heads, rows, keys]."""
    left, right = bounds
    assert cu_q.dtype == cu_k.dtype == torch.int32
    group = q.shape[1] // k.shape[1]
    q_ends, k_ends = cu_q.tolist(), cu_k.tolist()
    for a, b, c, d in zip(q_ends, q_ends[1:], k_ends, k_ends[1:], strict=False):
        assert a < b and c < d, "an entry without rows or keys"
        keys = k[c:d].double().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[a:b].double(), keys) * scale
        row, key = torch.arange(b - a).unsqueeze(1), torch.arange(d - c)
        at = key - row - (d - c - (b - a))
        hidden = torch.zeros_like(at, dtype=torch.bool)
        if left >= 0:
            hidden |= at < -left
        if right >= 0:
            hidden |= at > right
        yield slice(a, b), slice(c, d), scores.masked_fill(hidden, -math.inf)


def _checked_bounds(cu_q, cu_k, max_q, max_k, is_causal, left, right):
    assert max_q == int(cu_q.diff().max())
    assert max_k == int(cu_k.diff().max())
    return (-1 if left is None else left), (0 if is_causal else -1 if right is None else right)


def _forward(
    q,
    k,
    v,
    cu_q,
    cu_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    return_debug_mask,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
    **_,
):
    assert q.shape[2] == v.shape[2] and dropout_p == 0.0
    bounds = _checked_bounds(
        cu_q, cu_k, max_q, max_k, is_causal, window_size_left, window_size_right
    )
    out = torch.full_like(q, math.nan)
    lse = torch.full((q.shape[1], q.shape[0]), math.nan)
    group = q.shape[1] // k.shape[1]
    for rows, keys, scores in _entries(q, k, cu_q, cu_k, bounds, scale):
        lse[:, rows] = scores.logsumexp(-1).float()
        values = v[keys].double().repeat_interleave(group, 1)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
    return out, lse, torch.zeros(2, dtype=torch.uint64), torch.empty(0), torch.empty(0)


def _backward(
    do,
    q,
    k,
    v,
    out,
    lse,
    cu_q,
    cu_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    seed,
    unused,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
):
    assert lse.is_contiguous() and out.dtype == q.dtype
    bounds = _checked_bounds(
        cu_q, cu_k, max_q, max_k, is_causal, window_size_left, window_size_right
    )
    dq, dk, dv = (torch.full_like(x, math.nan) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    delta = (do.double() * out.double()).sum(-1)
    for rows, keys, scores in _entries(q, k, cu_q, cu_k, bounds, scale):
        weights = torch.exp(scores - lse[:, rows].double().unsqueeze(-1))
        grads = do[rows].double()
        values = v[keys].double().repeat_interleave(group, 1)
        dweights = torch.einsum("qhd,khd->hqk", grads, values)
        dscores = weights * (dweights - delta[rows].transpose(0, 1).unsqueeze(-1)) * scale
        wide = k[keys].double().repeat_interleave(group, 1)
        dq[rows] = torch.einsum("hqk,khd->qhd", dscores, wide).to(q.dtype)
        for total, sums in (
            (dk, torch.einsum("hqk,qhd->khd", dscores, q[rows].double())),
            (dv, torch.einsum("hqk,qhd->khd", weights, grads)),
        ):
            total[keys] = sums.unflatten(1, (-1, group)).sum(2).to(q.dtype)
    return dq, dk, dv


def install() -> None:
    """Lets ``torch:flash`` run on the CPU in this process, also in float32."""
    if "cpu" in Flash.devices:
        return
    _library.impl("_flash_attention_forward", _forward, "CPU")
    _library.impl("_flash_attention_backward", _backward, "CPU")
    Flash.devices = (*Flash.devices, "cpu")
    Flash.dtypes = (*Flash.dtypes, torch.float32)
