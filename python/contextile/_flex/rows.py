"""Converts FlexAttention's masks to ranges of keys per query, exactly, without a dense array.

A BlockMask says which blocks are full and which are partial; ``mask_mod`` is evaluated on the
partial ones. A mask_mod alone is first evaluated on whole blocks, by calling it on intervals of
queries and keys instead of numbers (intervals.py). If the result holds for all pairs of a block,
the block is done; otherwise it is cut in four. Only small blocks are evaluated pair by pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextile import _core
from contextile._flex.intervals import Interval, Unsupported, on_intervals

_LEAF = 128  # side of blocks that are evaluated pair by pair
_PAIRS_AT_ONCE = 1 << 24

# Rows (query, first key, end of keys) as columns.
Ranges = tuple[np.ndarray, np.ndarray, np.ndarray]


def _evaluate(mask_mod: Any, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Evaluates mask_mod on every pair of blocks.

    Takes q [blocks, rows] and k [blocks, columns]; returns bool [blocks, rows, columns].
    """
    of_pair = lambda q_index, k_index: mask_mod(batch, head, q_index, k_index)
    of_block = torch.vmap(torch.vmap(of_pair, (None, 0)), (0, None))
    found = torch.vmap(of_block)(q, k)
    pairs: Tensor = found.to(torch.bool).expand(q.shape[0], q.shape[1], k.shape[1])
    return pairs


def _ranges_of_leaves(
    mask_mod: Any,
    batch: int,
    head: int,
    q0: np.ndarray,
    k0: np.ndarray,
    rows: int,
    columns: int,
    num_q: int,
    num_k: int,
) -> Ranges:
    """Returns ranges inside blocks of rows x columns that begin at (q0, k0).

    Rows and columns beyond the batch have none.
    """
    parts: list[Ranges] = []
    at_once = max(1, _PAIRS_AT_ONCE // (rows * columns))
    b, h = torch.tensor(batch), torch.tensor(head)
    for first in range(0, len(q0), at_once):
        q_begin = torch.from_numpy(q0[first : first + at_once])[:, None]
        k_begin = torch.from_numpy(k0[first : first + at_once])[:, None]
        q = q_begin + torch.arange(rows)
        k = k_begin + torch.arange(columns)
        inside = (q < num_q)[:, :, None] & (k < num_k)[:, None, :]
        found = _evaluate(mask_mod, b, h, q.clamp(max=num_q - 1), k.clamp(max=num_k - 1)) & inside
        edge = torch.zeros((*found.shape[:2], 1), dtype=torch.int8)
        change = torch.diff(found.to(torch.int8), dim=2, prepend=edge, append=edge)
        block, row, column = torch.nonzero(change == 1, as_tuple=True)
        end = torch.nonzero(change == -1, as_tuple=True)[2]
        parts.append(
            (
                q[block, row].numpy(),
                (k_begin[block, 0] + column).numpy(),
                (k_begin[block, 0] + end).numpy(),
            )
        )
    return _concatenated(parts)


def _concatenated(parts: list[Ranges]) -> Ranges:
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    rows, begins, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, begins, ends


def _merged(rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> Ranges:
    """Sorts ranges and merges those of a row that touch."""
    order = np.lexsort((begins, rows))
    rows, begins, ends = rows[order], begins[order], ends[order]
    if not len(rows):
        return rows, begins, ends
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (begins[1:] != ends[:-1])
    is_last = np.roll(is_first, -1)
    is_last[-1] = True
    return rows[is_first], begins[is_first], ends[is_last]


def _of_full_blocks(q0: np.ndarray, q1: np.ndarray, k0: np.ndarray, k1: np.ndarray) -> Ranges:
    """Returns the ranges of every row of the blocks [q0, q1) x [k0, k1)."""
    heights = q1 - q0
    first = np.repeat(q0, heights)
    at = np.arange(len(first)) - np.repeat(np.cumsum(heights) - heights, heights)
    return first + at, np.repeat(k0, heights), np.repeat(k1, heights)


def _ragged(parts: list[Ranges], num_rows: int) -> Ranges:
    rows, begins, ends = _merged(*_concatenated(parts))
    splits = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=splits[1:])
    return splits, np.ascontiguousarray(begins), np.ascontiguousarray(ends)


# -----------------------------------------------------------------------------------------
# BlockMask


def _blocks(
    counts: Tensor | None, indices: Tensor | None, batch: int, head: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns row and column of every listed block."""
    if counts is None or indices is None:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty
    of_row = counts[min(batch, counts.shape[0] - 1), min(head, counts.shape[1] - 1)].cpu()
    listed = indices[min(batch, indices.shape[0] - 1), min(head, indices.shape[1] - 1)].cpu()
    is_listed = torch.arange(listed.shape[1])[None, :] < of_row[:, None]
    row, at = torch.nonzero(is_listed, as_tuple=True)
    return row.to(torch.int64).numpy(), listed[row, at].to(torch.int64).numpy()


def rows_of_block_mask(block_mask: Any, batch: int | None, head: int) -> Ranges:
    """Returns row_splits [queries + 1], begins and ends of the ranges of a BlockMask.

    If batch is None, the masks of all batches must be equal.
    """
    batches = range(int(block_mask.kv_num_blocks.shape[0])) if batch is None else [batch]
    first = _rows_of_block_mask(block_mask, batches[0], head)
    for b in batches[1:]:
        if not all(
            np.array_equal(x, y)
            for x, y in zip(first, _rows_of_block_mask(block_mask, b, head), strict=True)
        ):
            raise _core.InvalidArgument(
                f"BlockMask: expected one mask for all batches, found another for batch {b}, head "
                f"{head}; batch= chooses one"
            )
    return first


def _rows_of_block_mask(block_mask: Any, batch: int, head: int) -> Ranges:
    num_q, num_k = (int(length) for length in block_mask.seq_lengths)
    if num_q != num_k:
        raise _core.InvalidArgument(
            f"BlockMask: expected as many keys as queries, found {num_k} and {num_q}"
        )
    q_size, k_size = (int(size) for size in block_mask.BLOCK_SIZE)
    for name, index, count in (
        ("batch", batch, block_mask.kv_num_blocks.shape[0]),
        ("head", head, block_mask.kv_num_blocks.shape[1]),
    ):
        # A mask that is shared by all takes any index, like broadcasting.
        if index < 0 or (count > 1 and index >= count):
            raise _core.InvalidArgument(
                f"BlockMask: expected a {name} of 0 to {count - 1}, found {index}"
            )
    row, column = _blocks(block_mask.kv_num_blocks, block_mask.kv_indices, batch, head)
    parts = [
        _ranges_of_leaves(
            block_mask.mask_mod,
            batch,
            head,
            row * q_size,
            column * k_size,
            q_size,
            k_size,
            num_q,
            num_k,
        )
    ]
    row, column = _blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, batch, head)
    # Merge adjacent full blocks before expanding them to rows: there may be millions.
    row, begins, ends = _merged(row, column, column + 1)
    q0 = row * q_size
    parts.append(
        _of_full_blocks(
            q0, np.minimum(q0 + q_size, num_q), begins * k_size, np.minimum(ends * k_size, num_k)
        )
    )
    return _ragged(parts, num_q)


# ------------------------------------------------------------------------------------------
# mask_mod


class _LookedAt(Exception):
    """A function has looked at an argument that it was not given."""


class _Untouchable:
    """Stands for an argument that a function must not look at."""


def _look(self: Any, /, *_: Any, **__: Any) -> Any:
    raise _LookedAt


for _name in (
    *(
        f"__{name}__"
        for name in (
            "lt",
            "le",
            "eq",
            "ne",
            "gt",
            "ge",
            "index",
            "int",
            "float",
            "bool",
            "getitem",
            "neg",
        )
    ),
    *(
        f"__{name}__"
        for name in ("invert", "abs", "len", "iter", "torch_function", "hash", "getattr")
    ),
    *(
        f"__{side}{name}__"
        for side in ("", "r")
        for name in (
            "add",
            "sub",
            "mul",
            "mod",
            "floordiv",
            "truediv",
            "and",
            "or",
            "xor",
            "lshift",
            "rshift",
            "pow",
        )
    ),
):
    setattr(_Untouchable, _name, classmethod(_look) if _name == "__torch_function__" else _look)


def looks_at_it(call: Any) -> bool:
    """Returns whether a function looks at its argument."""
    try:
        call(_Untouchable())
    except Exception as error:
        # Not for another reason; evaluation says what is wrong then.
        return isinstance(error, _LookedAt) or isinstance(error.__context__, _LookedAt)
    return False


def check_untouched(call: Any, message: str) -> None:
    """Raises with a message if a function looks at its argument."""
    if looks_at_it(call):
        raise _core.InvalidArgument(message)


def heads_of_mask_mod(mask_mod: Any, batch: int, head: int | None, heads: int) -> list[int | None]:
    """Returns the heads to call a mask_mod with: all, or none if it does not look at them."""
    if head is not None or heads < 1:
        found = f"head={head}, too" if head is not None else f"heads={heads}"
        raise _core.InvalidArgument(f"mask_mod: expected heads= of at least 1 alone, found {found}")
    zero = torch.tensor(0)
    looks = looks_at_it(lambda untouchable: mask_mod(torch.tensor(batch), untouchable, zero, zero))
    return list(range(heads)) if looks else [None]


def rows_of_mask_mod(mask_mod: Any, num_tokens: int, batch: int, head: int | None) -> Ranges:
    """Returns the same for a mask_mod(batch, head, q, k)."""
    if head is None:
        zero = torch.tensor(0)
        check_untouched(
            lambda untouchable: mask_mod(torch.tensor(batch), untouchable, zero, zero),
            "mask_mod: expected heads=, or head= for one of them, for the function looks at the "
            "head; found neither",
        )
        head = 0
    if num_tokens < 1:
        raise _core.InvalidArgument(f"mask_mod: expected at least 1 token, found {num_tokens}")
    if batch < 0 or head < 0:
        raise _core.InvalidArgument(
            f"mask_mod: expected a batch and a head of at least 0, found {batch} and {head}"
        )
    size = _LEAF
    while size < num_tokens:
        size *= 2
    q0 = torch.zeros(1, dtype=torch.int64)
    k0 = torch.zeros(1, dtype=torch.int64)
    parts: list[Ranges] = []
    while len(q0):
        all_of, any_of = _extremes(mask_mod, batch, head, q0, k0, size, num_tokens)
        q_full, k_full = q0[all_of].numpy(), k0[all_of].numpy()
        q_end, k_end = (np.minimum(begin + size, num_tokens) for begin in (q_full, k_full))
        parts.append(_of_full_blocks(q_full, q_end, k_full, k_end))
        open_blocks = any_of & ~all_of
        q0, k0 = q0[open_blocks], k0[open_blocks]
        if size == _LEAF:
            parts.append(
                _ranges_of_leaves(
                    mask_mod,
                    batch,
                    head,
                    q0.numpy(),
                    k0.numpy(),
                    size,
                    size,
                    num_tokens,
                    num_tokens,
                )
            )
            break
        size //= 2
        q0 = (q0[:, None] + torch.tensor([0, 0, size, size])).reshape(-1)
        k0 = (k0[:, None] + torch.tensor([0, size, 0, size])).reshape(-1)
        inside = (q0 < num_tokens) & (k0 < num_tokens)
        q0, k0 = q0[inside], k0[inside]
    return _ragged(parts, num_tokens)


def _extremes(
    mask_mod: Any, batch: int, head: int, q0: Tensor, k0: Tensor, size: int, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Returns per block whether all its pairs are certainly attended, and whether any may be."""
    q = Interval(q0, (q0 + size - 1).clamp(max=num_tokens - 1))
    k = Interval(k0, (k0 + size - 1).clamp(max=num_tokens - 1))
    try:
        found = on_intervals(mask_mod, torch.tensor(batch), torch.tensor(head), q, k)
    except Unsupported:
        return torch.zeros(len(q0), dtype=torch.bool), torch.ones(len(q0), dtype=torch.bool)
    return found.low != 0, found.high != 0
