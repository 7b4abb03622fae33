"""Buffers of rows, group after group: own tokens first, then room for what arrives."""

from __future__ import annotations

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._engine.rank_program import INPUTS, OUTPUTS, Program
from contextile.torch._kernels.kernel import Buffers

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def part_shapes(kind: str, shape: _core.AttentionShape) -> list[tuple[int, ...]]:
    """Returns heads and dim of the parts of a kind, of all head groups together."""
    hq, hk, d, dv = shape.q_heads, shape.kv_heads, shape.head_dim, shape.value_dim
    shapes: dict[str, list[tuple[int, ...]]] = {
        "q": [(hq, d)],
        "kv": [(hk, d), (hk, dv)],
        "o": [(hq, dv), (hq,)],  # partial output, log-sum-exp
        "do": [(hq, dv), (hq,), (hq,)],  # gradient of the output, final log-sum-exp, delta
        "dq": [(hq, d)],
        "dkv": [(hk, d), (hk, dv)],
    }
    return shapes[kind]


def part_dtype(kind: str, part: tuple[int, ...], shape: _core.AttentionShape) -> torch.dtype:
    """Results are float32 until they are complete, and so are numbers of rows."""
    is_wide = kind in ("o", "dq", "dkv") or len(part) == 1
    return torch.float32 if is_wide else DTYPES[shape.dtype]


def tokens_of_rows(rows: Tensor, groups: int) -> Tensor:
    """[groups * tokens, heads / groups, …], group after group -> [tokens, heads, …]."""
    by_group: Tensor = rows.unflatten(0, (groups, -1))
    return by_group.transpose(0, 1).flatten(1, 2)


def make_buffers(
    program: Program,
    direction: str,
    shape: _core.AttentionShape,
    own: dict[str, list[Tensor]],
    device: torch.device,
) -> Buffers:
    """Returns the buffers of one program. ``own`` has this rank's inputs by kind."""
    groups = program.head_groups
    buffers: Buffers = {}
    for kind in (*INPUTS[direction], *OUTPUTS[direction]):
        rows = program.rows.get(kind, 0)
        parts = []
        for number, (heads, *dim) in enumerate(part_shapes(kind, shape)):
            dtype = part_dtype(kind, (heads, *dim), shape)
            part = torch.empty(rows, heads // groups, *dim, dtype=dtype, device=device)
            if kind in own:
                part[: program.own_rows].unflatten(0, (groups, program.own_tokens)).copy_(
                    own[kind][number].unflatten(1, (groups, -1)).transpose(0, 1)
                )
            elif kind in OUTPUTS[direction]:
                part.fill_(float("-inf") if kind == "o" and not dim else 0.0)
            parts.append(part)
        buffers[kind] = parts
    return buffers
