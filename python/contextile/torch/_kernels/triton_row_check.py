"""A check of the Triton kernels for rows on a device, against PyTorch's operators there."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_ROWS, _HEADS, _DIM = 300, 3, 40
_BOUND = 4e-2  # the spacing of bfloat16 between 4 and 8 is 2^-5


def _largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Returns the largest difference. Equal infinities have none, NaN is larger than any bound."""
    errors = [
        torch.where(one == want, 0.0, (one.float() - want.float()).abs()).max()
        for one, want in zip(found, expected, strict=True)
    ]
    return float(torch.stack(errors).nan_to_num(math.inf).max())


def wrong_rows(kernels: Any, device: torch.device) -> str:
    """Returns the names of kernels that are wrong on a device, which the host waits for."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> Tensor:
        values = torch.randn(*size, generator=generator, dtype=torch.float32, device="cpu")
        return values.to(device)

    o, lse = drawn(_ROWS, _HEADS, _DIM), drawn(_ROWS, _HEADS)
    lse[::7] = -math.inf
    more, more_lse = drawn(100, _HEADS, _DIM).bfloat16(), drawn(100, _HEADS)
    more_lse[::5] = -math.inf
    shuffled = [torch.randperm(_ROWS, generator=generator, device="cpu") for _ in range(2)]
    rows, other = shuffled[0][:100].to(device), shuffled[1][:60].to(device)
    wrong = []

    def check(name: str, found: list[Tensor], expected: list[Tensor]) -> None:
        if not _largest_error(found, expected) <= _BOUND:
            wrong.append(name)

    both = torch.logaddexp(lse[rows], more_lse)
    weight = torch.exp(more_lse - both).nan_to_num(0.0).unsqueeze(-1)
    result, result_lse = o.clone(), lse.clone()
    kernels.merge_rows(result, result_lse, rows, more, more_lse)
    check(
        "merge_rows", [result[rows], result_lse[rows]], [o[rows].lerp(more.float(), weight), both]
    )
    check("take_rows", [kernels.take_rows(o, rows, torch.bfloat16)], [o[rows].bfloat16()])
    # A run, overwritten, from a log-sum-exp that lies by head.
    run = slice(150, 250)
    result, result_lse = o.clone(), lse.clone()
    by_head = more_lse.t().contiguous().t()
    kernels.merge_rows(result, result_lse, run, more, by_head, overwrite=True)
    check("merge_rows", [result[run], result_lse[run]], [more.float(), more_lse])
    result = o.clone()
    kernels.put_rows(result, rows, more)
    check("put_rows", [result], [o.index_copy(0, rows, more.float())])
    twice = torch.cat([rows[:50], rows[:50]])
    result = o.clone()
    kernels.add_rows(result, twice, more)
    check("add_rows", [result], [o.index_add(0, twice, more.float())])
    both = torch.logaddexp(lse[rows[:60]], lse[other])
    weight = torch.exp(lse[other] - both).nan_to_num(0.0).unsqueeze(-1)
    expected = [o[rows].clone(), lse[rows].clone()]
    expected[0][:60], expected[1][:60] = o[rows[:60]].lerp(o[other], weight), both
    check(
        "reduce_partials", list(kernels.reduce_partials(o, lse, [rows, other], [100, 60])), expected
    )
    check(
        "sum_rows", [kernels.sum_rows(o, [rows, other], [100, 60])[:60]], [o[rows[:60]] + o[other]]
    )
    delta = (o * o).sum(-1)
    check("output_with_delta", [(kernels.output_with_delta(o, delta) * o).sum(-1)], [delta])
    return ", ".join(dict.fromkeys(wrong))
