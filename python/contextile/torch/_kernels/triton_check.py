"""A check of the Triton kernels on a device, before the first call there.

Triton compiles them for the device at hand, which may be one where they have never run. A small
stage shows that they are right there, and compiles them while no peer waits.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._kernels.kernel import Buffers, Kernel, Params

_ROWS, _KEYS, _BLOCK = 200, 160, 128
_HEADS = (4, 2)
# Largest difference from float64, relative to the largest number.
_BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


class _Stage:
    """A causal stage whose rows lie in reverse order. It has a block of all pairs."""

    def __init__(self, device: torch.device) -> None:
        self.num_rows, self.num_keys, self.block = _ROWS, _KEYS, _BLOCK
        rows = torch.arange(_ROWS - 1, -1, -1, device=device)
        keys = torch.arange(_KEYS - 1, -1, -1, device=device)
        self.rows = dict.fromkeys(("q", "o", "do", "dq"), rows) | dict.fromkeys(("kv", "dkv"), keys)
        at = torch.arange(_ROWS, dtype=torch.int32, device=device).unsqueeze(1)
        self.low, self.high = torch.zeros_like(at), (at + 1).clamp_max(_KEYS)
        self.blocks = [
            # Rows 0 to 127 see some of keys 0 to 127; the others all of them, and some of the rest.
            [_list(device, [1, 1]), _list(device, [[0], [1]])],
            [_list(device, [0, 1]), _list(device, [[0], [0]])],
            [_list(device, [1, 1]), _list(device, [[0], [1]])],
            [_list(device, [1, 0]), _list(device, [[1], [0]])],
        ]
        self.places: dict[str, Tensor] = {}


def _list(device: torch.device, numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _buffers(params: Params, device: torch.device) -> Buffers:
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int, heads: int, dim: int) -> Tensor:
        values = torch.randn(rows, heads, dim, generator=generator)
        return values.to(device, params.dtype)

    def zeros(rows: int, *size: int) -> Tensor:
        return torch.zeros(rows, *size, device=device)

    (q_heads, kv_heads), dim, value_dim = _HEADS, params.head_dim, params.value_dim
    return {
        "q": [drawn(_ROWS, q_heads, dim)],
        "kv": [drawn(_KEYS, kv_heads, dim), drawn(_KEYS, kv_heads, value_dim)],
        "do": [drawn(_ROWS, q_heads, value_dim), zeros(_ROWS, q_heads), zeros(_ROWS, q_heads)],
        "o": [zeros(_ROWS, q_heads, value_dim), zeros(_ROWS, q_heads) - math.inf],
        "dq": [zeros(_ROWS, q_heads, dim)],
        "dkv": [zeros(_KEYS, kv_heads, dim), zeros(_KEYS, kv_heads, value_dim)],
    }


def _expected(buffers: Buffers, params: Params) -> list[Tensor]:
    """Returns out, lse, dq, dk, dv in float64, in the order of the stage."""
    q, k, v, do = (x.double().flip(0) for x in (*buffers["q"], *buffers["kv"], buffers["do"][0]))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    group = _HEADS[0] // _HEADS[1]
    with torch.enable_grad():
        keys, values = (x.repeat_interleave(group, 1) for x in inputs[1:])
        scores = torch.einsum("qhd,khd->hqk", inputs[0], keys) * params.scale
        if params.softcap:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        seen = torch.ones(_ROWS, _KEYS, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        grads = torch.autograd.grad((out * do).sum(), inputs)
    return [out.detach(), scores.detach().logsumexp(-1).transpose(0, 1), *grads]


@functools.cache
def _checked(
    kernel: Kernel, params: Params, device: torch.device, _deterministic: bool
) -> dict[str, float]:
    """Returns the largest error of every result, over its largest number."""
    stage, buffers = _Stage(device), _buffers(params, device)
    expected = _expected(buffers, params)
    kernel.run_forward(buffers, stage, True, params)
    out, lse = buffers["o"]
    buffers["do"][1:] = [lse.clone(), (out * buffers["do"][0].float()).sum(-1)]
    kernel.run_backward(buffers, stage, True, params)
    found = [out, lse, *buffers["dq"], *buffers["dkv"]]
    return {
        name: ((one.flip(0).double() - want).abs().max() / want.abs().max()).item()
        for name, one, want in zip(("out", "lse", "dq", "dk", "dv"), found, expected, strict=True)
    }


def check_on(kernel: Kernel, params: Params, device: torch.device) -> None:
    """Raises DeviceError unless the kernel is right on a device. The host waits for the first."""
    plain = params._replace(
        q_heads=_HEADS[0], kv_heads=_HEADS[1], terms=None, has_terms=False, scale=abs(params.scale)
    )
    errors = _checked(kernel, plain, device, torch.are_deterministic_algorithms_enabled())
    bound = _BOUNDS[params.dtype]
    wrong = {name: error for name, error in errors.items() if not error <= bound}
    if wrong:
        text = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items())
        raise _core.DeviceError(
            f"kernel {kernel.name}, {device}: expected errors up to {bound:g} in a check against "
            f"float64, found {text}; kernel='torch:tiles' runs on every device"
        )
