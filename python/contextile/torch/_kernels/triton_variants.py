"""The kernels of attention as models use them, to be compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contextile.torch._kernels.triton_attention import (
    BackwardBuffers,
    ForwardBuffers,
    Launch,
    Stage,
    Terms,
    backward_launches,
    default_tiling,
    forward_launch,
)

_ROWS, _HEADS, _KV_HEADS = 4096, 32, 8
# dtype, dim of keys, dim of values, with all terms of scores
_CASES = {
    "bf16_64": (torch.bfloat16, 64, 64, False),
    "bf16_128": (torch.bfloat16, 128, 128, False),
    "bf16_128_terms": (torch.bfloat16, 128, 128, True),
    "bf16_192_128": (torch.bfloat16, 192, 128, False),
    "bf16_256": (torch.bfloat16, 256, 256, False),
    "fp32_64": (torch.float32, 64, 64, False),
    "fp32_128": (torch.float32, 128, 128, False),
    "fp32_128_terms": (torch.float32, 128, 128, True),
}


def _meta(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _stage() -> Stage:
    kinds = ("q", "o", "do", "dq", "kv", "dkv")
    places = ("q_positions", "k_positions", "q_tokens", "k_tokens", "q_groups")
    return Stage(
        _ROWS,
        _ROWS,
        {kind: _meta(_ROWS, dtype=torch.int64) for kind in kinds},
        _meta(_ROWS, 1),
        _meta(_ROWS, 1),
        [(_meta(_ROWS // 128), _meta(_ROWS // 128, 8)) for _ in range(4)],
        {name: _meta(_ROWS) for name in places},
    )


def _terms(has_all: bool) -> Terms:
    if not has_all:
        return Terms(0.1)
    return Terms(
        scale=0.1,
        softcap=30.0,
        slopes=_meta(_HEADS, dtype=torch.float32),
        table=_meta(_HEADS, 32, dtype=torch.float32),
        buckets=_meta(9000, dtype=torch.int64),
        first_offset=-4000,
        dropout=0.1,
        seed=1 << 63,
        table_gradient=_meta(_HEADS, 32, dtype=torch.float64),
    )


def _launches(
    dtype: torch.dtype, dim: int, value_dim: int, has_terms: bool, is_amd: bool
) -> Iterator[tuple[str, Launch]]:
    stage, terms = _stage(), _terms(has_terms)
    tilings = {
        kernel: default_tiling(
            kernel, dtype, max(dim, value_dim), has_terms=has_terms, is_amd=is_amd
        )
        for kernel in ("forward", "dq", "dkv", "fused")
    }
    q, k = _meta(_ROWS, _HEADS, dim, dtype=dtype), _meta(_ROWS, _KV_HEADS, dim, dtype=dtype)
    v = _meta(_ROWS, _KV_HEADS, value_dim, dtype=dtype)
    do = _meta(_ROWS, _HEADS, value_dim, dtype=dtype)
    number = _meta(_ROWS, _HEADS, dtype=torch.float32)
    dq, dk, dv, o = (_meta(*x.shape, dtype=torch.float32) for x in (q, k, v, do))
    forward = ForwardBuffers(q, k, v, o, number)
    backward = BackwardBuffers(q, k, v, do, number, number, dq, dk, dv)
    yield "forward", forward_launch(forward, stage, terms, is_first=False, tilings=tilings)
    for names, deterministic in ((("dq", "dkv"), True), (("fused",), False)):
        launches = backward_launches(
            backward, stage, terms, is_first=False, deterministic=deterministic, tilings=tilings
        )
        yield from zip(names, launches, strict=True)


def variants(
    is_amd: bool,
) -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """Yields name, kernel, signature, constants and options, as ``scripts/triton-kernels`` says."""
    for case, (dtype, dim, value_dim, has_terms) in _CASES.items():
        for name, one in _launches(dtype, dim, value_dim, has_terms, is_amd):
            kinds, constants, attributes = one.source()
            signature = {
                argument: kind + ":16" * ((number,) in attributes)
                for number, (argument, kind) in enumerate(kinds.items())
            }
            options = {"num_warps": one.tiling.num_warps, "num_stages": one.tiling.num_stages}
            yield f"{name}_{case}", one.kernel, signature, constants, options
