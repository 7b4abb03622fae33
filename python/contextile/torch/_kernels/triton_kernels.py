"""Kernels in Triton of one stage, on the buffers of the engine.

Rows are read and written through lists of rows, so that nothing is gathered, and partial results
are merged where they are stored. The recurrences are those of FlashAttention-2 (Dao 2023,
section 3): a running maximum and sum in forward, recomputed weights in backward.

A kernel's argument is None in variants without it, and its code is then not compiled. Scores have
base 2 inside: exp(x) = exp2(x * log2(e)).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# Kernels have tensors of the device as arguments, for which Triton has no types.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)

# Numbers that differ from stage to stage. Kernels are not compiled again for their values.
NUMBERS = (
    *("q_first", "o_first", "do_first", "dq_first", "kv_first", "dkv_first"),
    *("num_rows", "num_keys", "partial_width", "full_width", "q_heads", "kv_heads"),
    *("first_offset", "num_offsets", "num_buckets", "seed_low", "seed_high", "threshold"),
)
# Lists, which are parts of larger tensors and begin anywhere.
LISTS = (
    *("q_rows", "o_rows", "do_rows", "dq_rows", "kv_rows", "dkv_rows", "low", "high"),
    *("partial_counts", "partial_lists", "full_counts", "full_lists"),
    *("q_positions", "k_positions", "q_groups", "q_tokens", "k_tokens"),
    *("slopes", "table", "buckets", "table_gradient"),
)


def _kernel(function: Any) -> Any:
    """Returns a kernel that is compiled for the numbers and lists of all stages."""
    names = set(function.__code__.co_varnames[: function.__code__.co_argcount])
    return triton.jit(
        do_not_specialize=[name for name in NUMBERS if name in names],
        do_not_specialize_on_alignment=[name for name in LISTS if name in names],
    )(function)


# Kernels and their calls are formatted by hand: with one argument a line, they fill pages.
# fmt: off


@triton.jit
def _rows_of(rows, first, places):
    """Rows of a buffer, int64, for places in a stage. Without a list they are one run."""
    if rows is None:
        return (first + places).to(tl.int64)
    else:
        return tl.load(rows + places).to(tl.int64)


@triton.jit
def _part_of(blocks, part, SIZE: tl.constexpr):
    """Rows or keys of a part of a list of blocks, which have 128 each."""
    block = tl.load(blocks + part // (128 // SIZE))
    return block * 128 + part % (128 // SIZE) * SIZE + tl.arange(0, SIZE)


@triton.jit
def _tile(head, rows, stride, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a head, [rows, BLOCK], with zeros beyond DIM."""
    dims = tl.arange(0, BLOCK)[None, :]
    at = head + rows[:, None] * stride + dims
    if DIM == BLOCK:
        return tl.load(at)
    else:
        return tl.load(at, mask=dims < DIM, other=0.0)


@triton.jit
def _seen(low, high, rows, keys, width, WIDTH: tl.constexpr):
    """True where rows see keys. Their shapes are those of a column and a row, or of a row and a
    column. WIDTH is 0 if the width is known to the call alone."""
    first = rows * width
    seen = (tl.load(low + first) <= keys) & (keys < tl.load(high + first))
    if WIDTH > 0:
        for number in tl.static_range(1, WIDTH):
            at = first + number
            seen = seen | ((tl.load(low + at) <= keys) & (keys < tl.load(high + at)))
    else:
        for number in range(1, width):
            at = first + number
            seen = seen | ((tl.load(low + at) <= keys) & (keys < tl.load(high + at)))
    return seen


@triton.jit
def _scores(
    products, rows, keys, head, q_heads, scale, softcap, q_positions, k_positions, q_groups,
    slopes, table, buckets, first_offset, num_offsets, num_buckets,
):
    """Scores of base 2, the tanh of the softcap, and places in the table of bias."""
    tanh = products
    places = rows
    if softcap is None:
        scores = products * (scale * _LOG2_E)
    else:
        # Not every target has tanh. This one is within 2^-23, and exact at infinity.
        tanh = 2.0 / (1.0 + tl.exp2(products * (-2.0 * _LOG2_E * scale / softcap))) - 1.0
        scores = tanh * (softcap * _LOG2_E)
    if q_positions is not None:
        layer_head = tl.load(q_groups + rows) * q_heads + head
        offsets = tl.load(k_positions + keys) - tl.load(q_positions + rows)
        if slopes is not None:
            scores += tl.load(slopes + layer_head) * _LOG2_E * offsets.to(tl.float32)
        if table is not None:
            at = tl.minimum(tl.maximum(offsets.to(tl.int64) - first_offset, 0), num_offsets - 1)
            places = layer_head * num_buckets + tl.load(buckets + at)
            scores += tl.load(table + places) * _LOG2_E
    return scores, tanh, places


@triton.jit
def _factors(
    rows, keys, head, q_heads, q_tokens, k_tokens, q_groups, seed_low, seed_high, threshold,
    keep_scale,
):
    """Factors of weights, 0 for dropped ones, by Philox4x32-10 as in ``score_terms``."""
    key = tl.load(k_tokens + keys)
    query = tl.load(q_tokens + rows).to(tl.uint32)
    layer_head = (tl.load(q_groups + rows) * q_heads + head).to(tl.uint32)
    a, b, c, d = tl.philox_impl(
        (key // 4).to(tl.uint32), query, layer_head, tl.zeros_like(query),
        seed_low.to(tl.uint32), seed_high.to(tl.uint32),
    )
    lane = key % 4
    word = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))
    return tl.where(word < threshold.to(tl.uint32), 0.0, keep_scale)


@triton.jit
def _row_part(num_rows, q_heads, kv_heads, BLOCK_M: tl.constexpr):
    """Number of the rows' part and head of a program, over all parts and heads.

    The query heads of a key head follow each other, and all parts of a key head, so that its keys
    stay in the cache. The last rows come first: under causal masks they see most keys.
    """
    group = q_heads // kv_heads
    parts = tl.cdiv(num_rows, BLOCK_M)
    at = tl.program_id(0) // group
    head = at // parts * group + tl.program_id(0) % group
    return parts - 1 - at % parts, head


# ----------------------------------------------------------------------------------- kernels


@_kernel
def forward_kernel(
    q, k, v, o, lse, q_rows, o_rows, kv_rows, q_first, o_first, kv_first,
    low, high, width,
    partial_counts, partial_lists, full_counts, full_lists, partial_width, full_width,
    q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head, lse_row,
    num_rows, num_keys, q_heads, kv_heads, scale, softcap,
    q_positions, k_positions, q_groups, slopes, table, buckets,
    first_offset, num_offsets, num_buckets,
    q_tokens, k_tokens, seed_low, seed_high, threshold, keep_scale,
    WIDTH: tl.constexpr, IS_FIRST: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Attention of BLOCK_M rows of a head to all keys of a stage, merged into o and lse."""
    row_part, head = _row_part(num_rows, q_heads, kv_heads, BLOCK_M)
    kv_head = head // (q_heads // kv_heads)
    row_block = row_part // (128 // BLOCK_M)
    rows = row_part * BLOCK_M + tl.arange(0, BLOCK_M)
    # Rows and keys beyond the end stand for the last one. They see nothing or are not stored.
    row_at = tl.minimum(rows, num_rows - 1)
    q_tile = _tile(q + head * q_head, _rows_of(q_rows, q_first, row_at), q_row, HEAD_DIM, BLOCK_D)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for is_partial in tl.static_range(2):
        if is_partial == 1:
            count = tl.load(partial_counts + row_block)
            blocks = partial_lists + row_block * partial_width
        else:
            count = tl.load(full_counts + row_block)
            blocks = full_lists + row_block * full_width
        for part in range(count * (128 // BLOCK_N)):
            keys = _part_of(blocks, part, BLOCK_N)
            key_at = tl.minimum(keys, num_keys - 1)
            kv_at = _rows_of(kv_rows, kv_first, key_at)
            k_tile = _tile(k + kv_head * k_head, kv_at, k_row, HEAD_DIM, BLOCK_D)
            products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
            scores, _, _ = _scores(
                products, row_at[:, None], key_at[None, :], head, q_heads, scale, softcap,
                q_positions, k_positions, q_groups, slopes, table, buckets,
                first_offset, num_offsets, num_buckets,
            )
            if is_partial == 1:
                seen = _seen(low, high, row_at[:, None], keys[None, :], width, WIDTH)
                scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(scores - shift[:, None])
            rescale = tl.exp2(top - shift)
            total = total * rescale + tl.sum(weights, 1)
            if threshold is not None:
                factors = _factors(
                    row_at[:, None], key_at[None, :], head, q_heads, q_tokens, k_tokens, q_groups,
                    seed_low, seed_high, threshold, keep_scale,
                )
                weights *= factors
            v_tile = _tile(v + kv_head * v_head, kv_at, v_row, VALUE_DIM, BLOCK_DV)
            out = out * rescale[:, None]
            out = tl.dot(weights.to(v_tile.dtype), v_tile, out, input_precision="ieee")
            top = new_top
    # A row that saw nothing has the total 0, the output 0 and the log-sum-exp -inf.
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    out = out / total[:, None]
    sums = tl.where(is_empty, float("-inf"), (top + tl.log2(total)) * _LN_2)
    o_at = _rows_of(o_rows, o_first, row_at)
    dims = tl.arange(0, BLOCK_DV)[None, :]
    stored = (rows < num_rows)[:, None] & (dims < VALUE_DIM)
    o_to = o + head * o_head + o_at[:, None] * o_row + dims
    lse_to = lse + o_at * lse_row + head
    if not IS_FIRST:
        old = tl.load(lse_to)
        peak = tl.maximum(old, sums)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        old_weight = tl.exp2((old - peak) * _LOG2_E)
        weight = tl.exp2((sums - peak) * _LOG2_E)
        both = old_weight + weight
        is_empty = both == 0.0
        both = tl.where(is_empty, 1.0, both)
        sums = tl.where(is_empty, float("-inf"), peak + tl.log2(both) * _LN_2)
        # A row without a result is not read: anything may be there.
        old_out = tl.load(o_to, mask=stored & (old_weight > 0.0)[:, None], other=0.0)
        out = old_out * (old_weight / both)[:, None] + out * (weight / both)[:, None]
        tl.debug_barrier()  # several warps may read what one of them overwrites
    tl.store(o_to, out, mask=stored)
    tl.store(lse_to, sums, mask=rows < num_rows)


@_kernel
def dkv_kernel(
    q, k, v, do, lse, delta, dq, dk, dv, q_rows, do_rows, dq_rows, kv_rows, dkv_rows,
    q_first, do_first, dq_first, kv_first, dkv_first,
    low, high, width,
    partial_counts, partial_lists, full_counts, full_lists, partial_width, full_width,
    q_row, q_head, k_row, k_head, v_row, v_head, do_row, do_head, lse_row, delta_row,
    dq_row, dq_head, dk_row, dk_head, dv_row, dv_head,
    num_rows, num_keys, q_heads, kv_heads, scale, softcap,
    q_positions, k_positions, q_groups, slopes, table, buckets, table_gradient,
    first_offset, num_offsets, num_buckets,
    q_tokens, k_tokens, seed_low, seed_high, threshold, keep_scale,
    WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Gradients of BLOCK_N keys of a head, added to dk and dv; with ``dq``, also that of the rows
    that see them, added by atomics. Products are [keys, rows]: so dk and dv need no transpose."""
    key_parts = tl.cdiv(num_keys, BLOCK_N)
    key_part = tl.program_id(0) % key_parts
    kv_head = tl.program_id(0) // key_parts
    key_block = key_part // (128 // BLOCK_N)
    keys = key_part * BLOCK_N + tl.arange(0, BLOCK_N)
    key_at = tl.minimum(keys, num_keys - 1)
    kv_at = _rows_of(kv_rows, kv_first, key_at)
    k_tile = _tile(k + kv_head * k_head, kv_at, k_row, HEAD_DIM, BLOCK_D)
    v_tile = _tile(v + kv_head * v_head, kv_at, v_row, VALUE_DIM, BLOCK_DV)
    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    group = q_heads // kv_heads
    for head in range(kv_head * group, kv_head * group + group):
        for is_partial in tl.static_range(2):
            if is_partial == 1:
                count = tl.load(partial_counts + key_block)
                blocks = partial_lists + key_block * partial_width
            else:
                count = tl.load(full_counts + key_block)
                blocks = full_lists + key_block * full_width
            for part in range(count * (128 // BLOCK_M)):
                rows = _part_of(blocks, part, BLOCK_M)
                row_at = tl.minimum(rows, num_rows - 1)
                q_at = _rows_of(q_rows, q_first, row_at)
                do_at = _rows_of(do_rows, do_first, row_at)
                q_tile = _tile(q + head * q_head, q_at, q_row, HEAD_DIM, BLOCK_D)
                do_tile = _tile(do + head * do_head, do_at, do_row, VALUE_DIM, BLOCK_DV)
                # With a log-sum-exp of infinity, rows beyond the end have weights of 0.
                sums = tl.load(lse + do_at * lse_row + head)
                is_there = (rows < num_rows) & (sums != float("-inf"))
                sums = tl.where(is_there, sums * _LOG2_E, float("inf"))[None, :]
                deltas = tl.load(delta + do_at * delta_row + head)[None, :]
                products = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
                scores, tanh, places = _scores(
                    products, row_at[None, :], key_at[:, None], head, q_heads, scale, softcap,
                    q_positions, k_positions, q_groups, slopes, table, buckets,
                    first_offset, num_offsets, num_buckets,
                )
                weights = tl.exp2(scores - sums)
                if is_partial == 1:
                    seen = _seen(low, high, row_at[None, :], keys[:, None], width, WIDTH)
                    weights = tl.where(seen, weights, 0.0)
                dropped = weights
                dweights = tl.dot(v_tile, tl.trans(do_tile), input_precision="ieee")
                if threshold is not None:
                    factors = _factors(
                        row_at[None, :], key_at[:, None], head, q_heads, q_tokens, k_tokens,
                        q_groups, seed_low, seed_high, threshold, keep_scale,
                    )
                    dropped = weights * factors
                    dweights *= factors
                dv_tile = tl.dot(
                    dropped.to(do_tile.dtype), do_tile, dv_tile, input_precision="ieee"
                )
                dscores = weights * (dweights - deltas)
                if table_gradient is not None:
                    more = dscores.to(table_gradient.dtype.element_ty)
                    tl.atomic_add(table_gradient + places, more, mask=weights > 0.0, sem="relaxed")
                if softcap is not None:
                    dscores *= 1.0 - tanh * tanh
                narrow = dscores.to(q_tile.dtype)
                dk_tile = tl.dot(narrow, q_tile, dk_tile, input_precision="ieee")
                if dq is not None:
                    dims = tl.arange(0, BLOCK_D)[None, :]
                    dq_at = _rows_of(dq_rows, dq_first, row_at)[:, None] * dq_row
                    dq_tile = tl.dot(tl.trans(narrow), k_tile, input_precision="ieee")
                    tl.atomic_add(
                        dq + head * dq_head + dq_at + dims, dq_tile * scale,
                        mask=is_there[:, None] & (dims < HEAD_DIM), sem="relaxed",
                    )
    dkv_at = _rows_of(dkv_rows, dkv_first, key_at)[:, None]
    is_key = (keys < num_keys)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    to = dk + kv_head * dk_head + dkv_at * dk_row + dims
    stored = is_key & (dims < HEAD_DIM)
    dk_tile = dk_tile * scale + tl.load(to, mask=stored)
    tl.debug_barrier()  # several warps may read what one of them overwrites
    tl.store(to, dk_tile, mask=stored)
    dims = tl.arange(0, BLOCK_DV)[None, :]
    to = dv + kv_head * dv_head + dkv_at * dv_row + dims
    stored = is_key & (dims < VALUE_DIM)
    dv_tile += tl.load(to, mask=stored)
    tl.debug_barrier()
    tl.store(to, dv_tile, mask=stored)


@_kernel
def dq_kernel(
    q, k, v, do, lse, delta, dq, q_rows, do_rows, dq_rows, kv_rows,
    q_first, do_first, dq_first, kv_first,
    low, high, width,
    partial_counts, partial_lists, full_counts, full_lists, partial_width, full_width,
    q_row, q_head, k_row, k_head, v_row, v_head, do_row, do_head, lse_row, delta_row,
    dq_row, dq_head, num_rows, num_keys, q_heads, kv_heads, scale, softcap,
    q_positions, k_positions, q_groups, slopes, table, buckets,
    first_offset, num_offsets, num_buckets,
    q_tokens, k_tokens, seed_low, seed_high, threshold, keep_scale,
    WIDTH: tl.constexpr, IS_FIRST: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Gradient of BLOCK_M rows of a head, stored in or added to dq."""
    row_part, head = _row_part(num_rows, q_heads, kv_heads, BLOCK_M)
    kv_head = head // (q_heads // kv_heads)
    row_block = row_part // (128 // BLOCK_M)
    rows = row_part * BLOCK_M + tl.arange(0, BLOCK_M)
    row_at = tl.minimum(rows, num_rows - 1)
    do_at = _rows_of(do_rows, do_first, row_at)
    q_tile = _tile(q + head * q_head, _rows_of(q_rows, q_first, row_at), q_row, HEAD_DIM, BLOCK_D)
    do_tile = _tile(do + head * do_head, do_at, do_row, VALUE_DIM, BLOCK_DV)
    sums = tl.load(lse + do_at * lse_row + head)
    sums = tl.where(sums == float("-inf"), float("inf"), sums * _LOG2_E)[:, None]
    deltas = tl.load(delta + do_at * delta_row + head)[:, None]
    dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for is_partial in tl.static_range(2):
        if is_partial == 1:
            count = tl.load(partial_counts + row_block)
            blocks = partial_lists + row_block * partial_width
        else:
            count = tl.load(full_counts + row_block)
            blocks = full_lists + row_block * full_width
        for part in range(count * (128 // BLOCK_N)):
            keys = _part_of(blocks, part, BLOCK_N)
            key_at = tl.minimum(keys, num_keys - 1)
            kv_at = _rows_of(kv_rows, kv_first, key_at)
            k_tile = _tile(k + kv_head * k_head, kv_at, k_row, HEAD_DIM, BLOCK_D)
            v_tile = _tile(v + kv_head * v_head, kv_at, v_row, VALUE_DIM, BLOCK_DV)
            products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
            scores, tanh, _ = _scores(
                products, row_at[:, None], key_at[None, :], head, q_heads, scale, softcap,
                q_positions, k_positions, q_groups, slopes, table, buckets,
                first_offset, num_offsets, num_buckets,
            )
            weights = tl.exp2(scores - sums)
            if is_partial == 1:
                seen = _seen(low, high, row_at[:, None], keys[None, :], width, WIDTH)
                weights = tl.where(seen, weights, 0.0)
            dweights = tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee")
            if threshold is not None:
                factors = _factors(
                    row_at[:, None], key_at[None, :], head, q_heads, q_tokens, k_tokens, q_groups,
                    seed_low, seed_high, threshold, keep_scale,
                )
                dweights *= factors
            dscores = weights * (dweights - deltas)
            if softcap is not None:
                dscores *= 1.0 - tanh * tanh
            dq_tile = tl.dot(dscores.to(k_tile.dtype), k_tile, dq_tile, input_precision="ieee")
    dims = tl.arange(0, BLOCK_D)[None, :]
    to = dq + head * dq_head + _rows_of(dq_rows, dq_first, row_at)[:, None] * dq_row + dims
    stored = (rows < num_rows)[:, None] & (dims < HEAD_DIM)
    dq_tile *= scale
    if not IS_FIRST:
        dq_tile += tl.load(to, mask=stored, other=0.0)
        tl.debug_barrier()  # several warps may read what one of them overwrites
    tl.store(to, dq_tile, mask=stored)
# fmt: on
