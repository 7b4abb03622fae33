"""Rows of buffers: taken, overwritten, added to, and merged by their log-sum-exp.

On a GPU, Triton kernels do in one pass what takes several operators.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any

import torch
from torch import Tensor

from contextile.torch._kernels.stage_calls import Rows


@functools.cache
def has_triton() -> bool:
    """Returns whether the package triton is installed, which PyTorch's wheels for GPUs need."""
    return importlib.util.find_spec("triton") is not None


def reason_of(error: Exception) -> str:
    """Returns the kind of an error of Triton and the last line of its text, which says most."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]:.300}"


@functools.cache
def fused(device: torch.device) -> Any:
    """Returns the module of Triton kernels for rows, or None where operators do their work.

    The first call for a device checks the kernels there, so prepare makes it.
    """
    if device.type != "cuda" or not has_triton():
        return None
    try:
        from contextile.torch._kernels import triton_rows
        from contextile.torch._kernels.triton_row_check import wrong_rows

        wrong = wrong_rows(triton_rows, device)
        reason = f"wrong results of {wrong}" if wrong else ""
    except Exception as error:  # Triton needs a C compiler, a folder for its cache, a driver
        reason = reason_of(error)
    if reason:
        warnings.warn(
            f"contextile: expected Triton kernels for rows that work on {device}, found {reason}; "
            "PyTorch's operators do their work, more slowly",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return triton_rows


def take(part: Tensor, rows: Rows) -> Tensor:
    """Returns rows of a part: a view of one run, a copy of others."""
    return part[rows] if isinstance(rows, slice) else part.index_select(0, rows)


def take_as(part: Tensor, rows: Rows, dtype: torch.dtype) -> Tensor:
    """Returns rows of a part in a dtype, contiguous."""
    if part.dtype != dtype and not isinstance(rows, slice) and (kernels := fused(part.device)):
        taken: Tensor = kernels.take_rows(part, rows, dtype)
        return taken
    return take(part, rows).to(dtype).contiguous()


def put(part: Tensor, rows: Rows, values: Tensor) -> None:
    """Overwrites rows of a part, which do not repeat."""
    if isinstance(rows, slice):
        part[rows].copy_(values)
    elif part.dtype != values.dtype and (kernels := fused(part.device)):
        kernels.put_rows(part, rows, values)
    else:
        part.index_copy_(0, rows, values.to(part.dtype))


def add(part: Tensor, rows: Rows, values: Tensor) -> None:
    """Adds to rows of a part, which may repeat."""
    has_any_order = not torch.are_deterministic_algorithms_enabled()
    if isinstance(rows, slice):
        part[rows].add_(values)
    elif has_any_order and part.dtype != values.dtype and (kernels := fused(part.device)):
        kernels.add_rows(part, rows, values)
    else:
        part.index_add_(0, rows, values.to(part.dtype))


def fill(part: Tensor, rows: Rows, value: float) -> None:
    """Sets rows of a part to one value."""
    if isinstance(rows, slice):
        part[rows].fill_(value)
    else:
        part.index_fill_(0, rows, value)


def merged(o: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the merge of two partial results. Rows that saw nothing have lse -inf."""
    both = torch.logaddexp(lse, more_lse)
    weight = torch.exp(more_lse - both).nan_to_num_(0.0)  # 0 where both saw nothing
    return torch.lerp(o, more.to(o.dtype), weight.unsqueeze(-1)), both


def merge_rows(parts: list[Tensor], rows: Rows, out: Tensor, lse: Tensor, is_first: bool) -> None:
    """Merges a partial result into rows, or overwrites those that hold none."""
    if kernels := fused(out.device):
        kernels.merge_rows(*parts, rows, out, lse, overwrite=is_first)
        return
    if not is_first:
        out, lse = merged(take(parts[0], rows), take(parts[1], rows), out, lse)
    put(parts[0], rows, out)
    put(parts[1], rows, lse)


def reduced(parts: list[Tensor], sources: list[Rows], counts: list[int]) -> list[Tensor]:
    """Returns the merge of partial results with their log-sum-exps, or the sums of gradients.

    Source i belongs to the first ``counts[i]`` rows of what is returned.
    """
    is_merge = parts[-1].dim() == 2
    if kernels := fused(parts[0].device):
        if is_merge:
            return list(kernels.reduce_partials(*parts, sources, counts))
        return [kernels.sum_rows(part, sources, counts) for part in parts]
    total = [take(part, sources[0]).clone() for part in parts]
    for rows, count in zip(sources[1:], counts[1:], strict=True):
        more = [take(part, rows) for part in parts]
        if is_merge:
            o, lse = merged(total[0][:count], total[1][:count], *more)
            total[0][:count], total[1][:count] = o, lse
        else:
            for sum_, part in zip(total, more, strict=True):
                sum_[:count] += part
    return total


def output_with_delta(do: Tensor, delta: Tensor) -> Tensor:
    """Returns what to pass as the output to a backward that computes sum(dO * out) itself.

    It is the projection of the output on dO: their product is ``delta``, and it is no longer than
    the output. So a rank that got dO, lse and delta from another needs no output.
    """
    if kernels := fused(do.device):
        projected: Tensor = kernels.output_with_delta(do, delta)
        return projected
    # Squares of numbers up to 1 neither vanish nor overflow.
    largest: Tensor = torch.linalg.vector_norm(do, float("inf"), -1, dtype=torch.float32)
    largest = largest.clamp_min(torch.finfo(torch.float32).tiny)
    unit: Tensor = do / largest.unsqueeze(-1)
    factor = delta / largest / unit.square().sum(-1).clamp_min(0.5)
    return (unit * factor.unsqueeze(-1)).to(do.dtype)
