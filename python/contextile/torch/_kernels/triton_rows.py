"""Operations on rows of buffers by Triton: one kernel reads and writes every number once.

A part of a buffer is contiguous, [rows, heads, dim] or [rows, heads]. Its rows are a run (a slice)
or an index of int64. Values that go there may have any strides and any floating-point dtype.
Kernels see lines: the numbers of one row and one head, of a part of two dimensions those of one
row. Kernels run on the current stream of the tensors' device.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# Kernels have tensors of the device as arguments, for which Triton has no types.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Rows = slice | Tensor

_BLOCK_NUMBERS = 2048  # numbers per program, so that lines of short rows share one
_NUM_SOURCES = 4  # sources that one kernel merges or adds up; more take several kernels


def _jit(*unspecialized: str) -> Callable[[Callable[..., Any]], Any]:
    """``triton.jit`` with a type. Arguments that differ from call to call need no new kernel."""
    jit: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=list(unspecialized))
    return jit


# ---------------------------------------------------------------------------------------- kernels
# Kernels are formatted by hand: with one argument a line, they fill pages. SHAPE is that of lines
# (_line_shape), and strides are those of row, head and number.
# fmt: off
@_jit()
def _lines(n, SHAPE: tl.constexpr):
    """Returns row and head of this program's lines, which rows there are, and numbers of lines."""
    HEADS: tl.constexpr = SHAPE[0]
    begin = tl.program_id(0).to(tl.int64) * SHAPE[2]
    # Only one number per program is divided in 64 bits.
    step = (begin % HEADS).to(tl.int32) + tl.arange(0, SHAPE[2])
    row = begin // HEADS + step // HEADS
    return row, (step % HEADS).to(tl.int64), row < n, tl.arange(0, SHAPE[3])[None, :]


@_jit()
def _lines_of(rows, first, row, head, live, HEADS):
    """Returns the lines of a part. ``first`` begins a run, and is -1 where rows are an index."""
    is_index = row * 0 + first < 0
    listed = tl.load(rows + row, mask=live & is_index, other=0)
    return tl.where(is_index, listed, row + first) * HEADS + head


@_jit()
def _merged(o, lse, more, more_lse):
    """Returns the merge of two results. A side without weight leaves no trace, not even NaN."""
    d = more_lse - lse
    e = tl.exp(-tl.abs(d))
    is_empty = (lse == float("-inf")) & (more_lse == float("-inf"))
    weight = tl.where(is_empty, 0.0, tl.where(d < 0, e, 1.0) / (1.0 + e))[:, None]
    kept = tl.where(is_empty, 1.0, tl.where(d < 0, 1.0, e) / (1.0 + e))[:, None]
    # tl.maximum drops a NaN, the sum keeps it.
    both = tl.where(d == d, tl.maximum(lse, more_lse) + tl.log(1.0 + e), lse + more_lse)
    old = tl.where(kept == 0.0, 0.0, o * kept)
    return old + tl.where(weight == 0.0, 0.0, more * weight), both


@_jit("rows", "first", "n")
def merge_kernel(
    o, lse, rows, first, out, more_lse, n, out_strides, lse_strides, SHAPE: tl.constexpr,
    OVERWRITE: tl.constexpr,
):
    row, head, live, dim = _lines(n, SHAPE)
    is_in = live[:, None] & (dim < SHAPE[1])
    line = _lines_of(rows, first, row, head, live, SHAPE[0])
    at = line[:, None] * SHAPE[1] + dim
    from_ = (row * out_strides[0] + head * out_strides[1])[:, None] + dim * out_strides[2]
    value = tl.load(out + from_, mask=is_in, other=0.0).to(tl.float32)
    value_lse = tl.load(more_lse + row * lse_strides[0] + head * lse_strides[1], mask=live)
    if not OVERWRITE:
        old = tl.load(o + at, mask=is_in, other=0.0)
        old_lse = tl.load(lse + line, mask=live)
        value, value_lse = _merged(old, old_lse, value, value_lse)
        tl.debug_barrier()  # several warps may read the log-sum-exp that one of them overwrites
    tl.store(o + at, value, mask=is_in)
    tl.store(lse + line, value_lse, mask=live)


@_jit("rows", "first", "n")
def take_kernel(part, rows, first, taken, n, SHAPE: tl.constexpr):
    row, head, live, dim = _lines(n, SHAPE)
    is_in = live[:, None] & (dim < SHAPE[1])
    line = _lines_of(rows, first, row, head, live, SHAPE[0])
    value = tl.load(part + line[:, None] * SHAPE[1] + dim, mask=is_in)
    to = taken + (row * SHAPE[0] + head)[:, None] * SHAPE[1] + dim
    tl.store(to, value.to(taken.dtype.element_ty), mask=is_in)


@_jit("rows", "first", "n")
def put_kernel(part, rows, first, values, n, strides, SHAPE: tl.constexpr, ADD: tl.constexpr):
    row, head, live, dim = _lines(n, SHAPE)
    is_in = live[:, None] & (dim < SHAPE[1])
    line = _lines_of(rows, first, row, head, live, SHAPE[0])
    to = part + line[:, None] * SHAPE[1] + dim
    from_ = (row * strides[0] + head * strides[1])[:, None] + dim * strides[2]
    value = tl.load(values + from_, mask=is_in, other=0.0).to(part.dtype.element_ty)
    if not ADD:
        tl.store(to, value, mask=is_in)
    elif first < 0:  # an index may repeat rows
        tl.atomic_add(to, value, mask=is_in, sem="relaxed")
    else:
        tl.store(to, tl.load(to, mask=is_in, other=0.0) + value, mask=is_in)


@_jit("n")
def project_kernel(do, delta, projected, n, strides, delta_strides, SHAPE: tl.constexpr):
    row, head, live, dim = _lines(n, SHAPE)
    is_in = live[:, None] & (dim < SHAPE[1])
    from_ = (row * strides[0] + head * strides[1])[:, None] + dim * strides[2]
    value = tl.load(do + from_, mask=is_in, other=0.0).to(tl.float32)
    of_line = tl.load(delta + row * delta_strides[0] + head * delta_strides[1], mask=live)
    # Squares of numbers up to 1 neither vanish nor overflow. The least is the smallest normal one.
    largest = tl.maximum(tl.max(tl.abs(value), 1), 1.1754943508222875e-38)
    unit = value / largest[:, None]
    factor = of_line / largest / tl.maximum(tl.sum(unit * unit, 1), 0.5)
    to = projected + (row * SHAPE[0] + head)[:, None] * SHAPE[1] + dim
    tl.store(to, (unit * factor[:, None]).to(projected.dtype.element_ty), mask=is_in)


@_jit()
def _read(parts, line, live, dim, DIM):
    """Returns lines and their log-sum-exp if there is one; 0 and -inf where there are no rows."""
    at = line[:, None] * DIM + dim
    value = tl.load(parts[0] + at, mask=live[:, None] & (dim < DIM), other=0.0)
    lse = live
    if len(parts) == 2:
        lse = tl.load(parts[1] + line, mask=live, other=float("-inf"))
    return value, lse


@_jit(*(f"{name}{number}" for name in ("rows", "first", "n") for number in range(_NUM_SOURCES)))
def reduce_kernel(
    base, parts, total, rows0, first0, n0, rows1, first1, n1, rows2, first2, n2, rows3, first3, n3,
    SHAPE: tl.constexpr, NUM: tl.constexpr,
):
    row, head, live, dim = _lines(n0, SHAPE)
    line = _lines_of(rows0, first0, row, head, live, SHAPE[0])
    sum_, lse = _read(base, line, live, dim, SHAPE[1])
    sources = ((rows1, first1, n1), (rows2, first2, n2), (rows3, first3, n3))
    for number in tl.static_range(NUM - 1):
        rows, first, n = sources[number]
        line = _lines_of(rows, first, row, head, row < n, SHAPE[0])
        more, more_lse = _read(parts, line, row < n, dim, SHAPE[1])
        if len(parts) == 2:
            sum_, lse = _merged(sum_, lse, more, more_lse)
        else:
            sum_ += more
    tl.debug_barrier()  # base may be total, see merge_kernel
    to = row * SHAPE[0] + head
    tl.store(total[0] + to[:, None] * SHAPE[1] + dim, sum_, mask=live[:, None] & (dim < SHAPE[1]))
    if len(parts) == 2:
        tl.store(total[1] + to, lse, mask=live)


# fmt: on
# -------------------------------------------------------------------------------------- launchers


def merge_rows(
    o: Tensor, lse: Tensor, rows: Rows, out: Tensor, more_lse: Tensor, overwrite: bool = False
) -> None:
    """Merges a partial result into rows of float32 parts, which do not repeat."""
    index, first, n = _listed(o, rows)
    grid, shape = _grid(n, o, lse)
    _check(lse, n, more_lse)
    strides = _check(o, n, out), more_lse.stride()
    if n:
        with torch.cuda.device_of(o):
            merge_kernel[grid](o, lse, index, first, out, more_lse, n, *strides, shape, overwrite)


def put_partial(o: Tensor, lse: Tensor, rows: Rows, out: Tensor, more_lse: Tensor) -> None:
    """Overwrites rows of float32 parts, which do not repeat, with a partial result."""
    merge_rows(o, lse, rows, out, more_lse, overwrite=True)


def take_rows(part: Tensor, rows: Rows, dtype: torch.dtype) -> Tensor:
    """Returns a contiguous copy of rows in a dtype."""
    index, first, n = _listed(part, rows)
    taken = part.new_empty((n, *part.shape[1:]), dtype=dtype)
    grid, shape = _grid(n, part)
    if n:
        with torch.cuda.device_of(part):
            take_kernel[grid](part, index, first, taken, n, shape)
    return taken


def put_rows(part: Tensor, rows: Rows, values: Tensor, add: bool = False) -> None:
    """Overwrites rows of a part, which do not repeat."""
    index, first, n = _listed(part, rows)
    grid, shape = _grid(n, part)
    strides = _check(part, n, values)
    if n:
        with torch.cuda.device_of(part):
            put_kernel[grid](part, index, first, values, n, strides, shape, add)


def add_rows(part: Tensor, rows: Rows, values: Tensor) -> None:
    """Adds to rows of a float32 part. An index may repeat rows, in an order that is not fixed."""
    if part.dtype != torch.float32:
        raise ValueError(f"expected a float32 part, found {part.dtype}")
    put_rows(part, rows, values, add=True)


def output_with_delta(do: Tensor, delta: Tensor) -> Tensor:
    """Returns the projection on do of an output with sum(do * output) = delta, as in ``row_ops``.

    ``do`` is [n, heads, dim], ``delta`` float32 [n, heads].
    """
    projected = torch.empty_like(do, memory_format=torch.contiguous_format)
    n = len(do)
    grid, shape = _grid(n, projected)
    if n:
        with torch.cuda.device_of(do):
            project_kernel[grid](do, delta, projected, n, do.stride(), delta.stride(), shape)
    return projected


def reduce_partials(
    o: Tensor, lse: Tensor, sources: Sequence[Rows], counts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Returns the merge of several sources of float32 parts.

    Source i belongs to the first ``counts[i]`` rows of the result, and source 0 to all of them.
    """
    total, total_lse = _reduce((o, lse), sources, counts)
    return total, total_lse


def sum_rows(part: Tensor, sources: Sequence[Rows], counts: Sequence[int]) -> Tensor:
    """Returns the sum of several sources of a float32 part, in their order."""
    return _reduce((part,), sources, counts)[0]


def _reduce(
    parts: tuple[Tensor, ...], sources: Sequence[Rows], counts: Sequence[int]
) -> tuple[Tensor, ...]:
    n = counts[0]
    total = tuple(part.new_empty((n, *part.shape[1:])) for part in parts)
    grid, shape = _grid(n, *parts)
    listed = [_listed(parts[0], rows) for rows in sources]
    found = [count for _, _, count in listed]
    if found != list(counts) or n < max(counts):
        raise ValueError(f"expected {counts} rows of sources, the first with most, found {found}")
    nothing = _listed(parts[0], slice(0, 0))
    base, base_rows = parts, listed[0]
    # Sources that a kernel has no room for are added to its result, in place.
    for begin in range(1, max(len(listed), 2) if n else 0, _NUM_SOURCES - 1):
        more = listed[begin : begin + _NUM_SOURCES - 1]
        missing = [nothing] * (_NUM_SOURCES - 1 - len(more))
        arguments = [value for source in (base_rows, *more, *missing) for value in source]
        with torch.cuda.device_of(total[0]):
            reduce_kernel[grid](base, parts, total, *arguments, shape, 1 + len(more))
        base, base_rows = total, (nothing[0], 0, n)
    return total


def _listed(part: Tensor, rows: Rows) -> tuple[Tensor, int, int]:
    """Returns an index, the first row of a run or -1 for an index, and the number of rows."""
    if isinstance(rows, slice):
        first, end, _ = rows.indices(len(part))
        return part.new_empty(0, dtype=torch.int64), first, max(end - first, 0)
    return rows, -1, len(rows)


def _grid(n: int, part: Tensor, *more: Tensor) -> tuple[tuple[int], tuple[int, int, int, int]]:
    """Returns the number of programs for ``n`` rows of a part, and the shape of lines."""
    for one in (part, *more):
        if one.dim() not in (2, 3) or not one.is_contiguous():
            found = f"found shape {tuple(one.shape)} with strides {one.stride()}"
            raise ValueError(f"expected a contiguous part of 2 or 3 dimensions, {found}")
    shape = _line_shape(part.shape[1] if part.dim() == 3 else 1, part.shape[-1])
    return (triton.cdiv(n * shape[0], shape[2]),), shape


def _line_shape(heads: int, dim: int) -> tuple[int, int, int, int]:
    """Returns SHAPE: heads, numbers per line, lines per program, and numbers as a power of 2."""
    block_dim: int = triton.next_power_of_2(dim)
    return heads, dim, max(1, _BLOCK_NUMBERS // block_dim), block_dim


def _check(part: Tensor, n: int, values: Tensor) -> tuple[int, ...]:
    """Returns the strides of values that go to rows of a part: of row, head and number."""
    shape = (n, *part.shape[1:])
    if values.shape != shape:
        raise ValueError(f"expected values of shape {shape}, found {tuple(values.shape)}")
    row, *head, dim = values.stride()
    return row, *(head or [0]), dim


# ------------------------------------------------------------------------- compiled ahead of time


def variants(
    is_amd: bool,
) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, int]]]:
    """Yields kernels as a model uses them: name, kernel, signature, constants, options.

    They are the same for all GPUs.
    A signature has types by argument, or tuples of types: ``*fp32:16`` is an aligned pointer,
    ``i32:16`` a multiple of 16, and ``1`` a constant.
    """
    shape, strides = _line_shape(8, 128), ("i32:16", "i32:16", "1")
    index = {"rows": "*i64", "first": "i32", "n": "i32"}
    for dtype, name in itertools.product(("fp32", "bf16", "fp16"), ("merge_rows", "put_partial")):
        signature: dict[str, Any] = {"o": "*fp32:16", "lse": "*fp32:16", "out": f"*{dtype}:16"}
        signature |= {"more_lse": "*fp32:16", "out_strides": strides, "lse_strides": ("i32", "1")}
        constants = {"SHAPE": shape, "OVERWRITE": name == "put_partial"}
        yield f"{name}_{dtype}", merge_kernel, signature | index, constants, {}
    for source, to in (("fp32", "bf16"), ("bf16", "bf16"), ("fp32", "fp32")):
        signature = {"part": f"*{source}:16", **index, "taken": f"*{to}:16"}
        yield f"take_rows_{source}_{to}", take_kernel, signature, {"SHAPE": shape}, {}
    for name in ("put_rows_bf16_fp32", "put_rows_bf16_bf16", "add_rows_bf16_fp32"):
        source, to = name.split("_")[2:]
        signature = {"part": f"*{to}:16", "values": f"*{source}:16", "strides": strides, **index}
        constants = {"SHAPE": shape, "ADD": name.startswith("add")}
        yield name, put_kernel, signature, constants, {}
    signature = {"do": "*bf16:16", "delta": "*fp32:16", "projected": "*bf16:16", "n": "i32"}
    signature |= {"strides": strides, "delta_strides": ("i32", "1")}
    yield "output_with_delta_bf16", project_kernel, signature, {"SHAPE": shape}, {}
    for name, num in itertools.product(("reduce_partials", "sum_rows"), (2, _NUM_SOURCES)):
        parts = ("*fp32:16",) * (2 if name == "reduce_partials" else 1)
        signature = {"base": parts, "parts": parts, "total": parts}
        for number in range(_NUM_SOURCES):
            signature |= {f"{argument}{number}": kind for argument, kind in index.items()}
        yield f"{name}_{num}", reduce_kernel, signature, {"SHAPE": shape, "NUM": num}, {}
