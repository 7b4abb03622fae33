"""Masks: a rule for every document, a rule for each, or any set of (query, key) pairs as bands.

Rules (``causal()``, ``sliding_window(4096)``, …) are applied to every document on its own: tokens never attend
another document. What comes from row ranges, dense arrays, slices or FlexAttention is a mask of the whole batch, in
tokens of the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from contextile import _core
from contextile._core import Mask, MaskSpec

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "Mask",
    "MaskSpec",
    "causal",
    "causal_blockwise",
    "chunked",
    "from_bands",
    "from_block_mask",
    "from_cu_seqlens",
    "from_dense",
    "from_mask_mod",
    "from_row_ranges",
    "from_slices",
    "full",
    "lambda_",
    "parse",
    "prefix_lm",
    "shared_question",
    "sliding_window",
]


def parse(text: str) -> MaskSpec:
    """The rule of a text as the program's ``--mask`` takes it: ``"causal"``, ``"lambda:64,4096"``, …

    Raises
    ------
    InvalidArgument
        An unknown rule, with the list of rules; a parameter out of its limits.
    """
    return _core.parse_mask_spec(text)


# ------------------------------------------------------------------------------- rules of documents


def full() -> MaskSpec:
    """Every token attends every token of its document."""
    return parse("full")


def causal() -> MaskSpec:
    """Every token attends itself and those before it in its document."""
    return parse("causal")


def sliding_window(window: int) -> MaskSpec:
    """Causal, the last ``window`` tokens, the token itself included."""
    return parse(f"sliding_window:{window}")


def lambda_(sink: int = 64, window: int = 4096) -> MaskSpec:
    """The first ``sink`` tokens and the last ``window`` (Lambda-shaped: StreamingLLM)."""
    return parse(f"lambda:{sink},{window}")


def causal_blockwise(block: int = 256, window: int = 2, sink: int = 1) -> MaskSpec:
    """Causal: the first ``sink`` blocks of ``block`` tokens and ``window`` blocks back from the token; the last block sees
    all before it (DCP, section 7)."""
    return parse(f"causal_blockwise:{block},{window},{sink}")


def shared_question(
    fraction: float = 0.2, answers: int = 4, *, lengths: Sequence[int] | None = None
) -> MaskSpec:
    """A question that all answers see; an answer sees itself causally (DCP, section 7).

    Parameters
    ----------
    fraction
        Share of the document that is the question.
    answers
        How many answers share the rest.
    lengths
        Instead of both: tokens of the question, then of every answer; they sum to the document's length.
    """
    if lengths is not None:
        return parse(f"shared_question:[{','.join(str(int(length)) for length in lengths)}]")
    return parse(f"shared_question:{fraction},{answers}")


def prefix_lm(prefix: int) -> MaskSpec:
    """Every token sees the first ``prefix`` tokens of its document, then causal."""
    return parse(f"prefix_lm:{prefix}")


def chunked(chunk: int) -> MaskSpec:
    """Causal inside chunks of ``chunk`` tokens."""
    return parse(f"chunked:{chunk}")


# -------------------------------------------------------------------------------- masks of batches


def from_bands(bands: Sequence[tuple[int, int, int, int, int | None, int | None]], *, num_tokens: int) -> Mask:
    """Rows (q_begin, q_end, k_begin, k_end, lo, hi), pairwise disjoint.

    Query q attends key k iff both are in their ranges and ``lo <= k - q <= hi``; None is no bound.

    Raises
    ------
    InvalidArgument
        A band outside of the batch, two bands that share a pair.
    """
    return _core.mask_from_bands([tuple(band) for band in bands], num_tokens)


def from_row_ranges(rows: Sequence[Sequence[tuple[int, int]]]) -> Mask:
    """``rows[q]``: disjoint ranges (begin, end) of the keys that query q attends.

    Raises
    ------
    InvalidArgument
        Naming the row of an empty range, of one out of bounds, of two that overlap.
    """
    return _core.mask_from_row_ranges([[(int(begin), int(end)) for begin, end in row] for row in rows])


def from_dense(dense: npt.ArrayLike) -> Mask:
    """A square array [tokens, tokens]; query q attends key k iff ``dense[q, k]``. O(tokens²).

    Raises
    ------
    InvalidArgument
        The array is not square.
    """
    import numpy as np

    given = np.asarray(dense)
    array = np.ascontiguousarray(given != 0)
    if given.dtype.kind != "b" and not np.array_equal(given, array):
        raise _core.InvalidArgument("dense mask: expected truth values, or numbers 0 and 1, found others")
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise _core.InvalidArgument(f"dense mask: expected [tokens, tokens], found {list(array.shape)}")
    return _core.mask_from_dense(array.view(np.uint8))


def from_slices(
    q_ranges: Sequence[tuple[int, int]],
    k_ranges: Sequence[tuple[int, int]],
    types: Sequence[str],
    *,
    num_tokens: int | None = None,
) -> Mask:
    """MagiAttention's form: pairs of ranges whose pairs are disjoint, each with a type.

    Types: ``"full"``; ``"causal"``, aligned bottom right; ``"inverse_causal"``, aligned top left; ``"bi_causal"``, both.
    ``num_tokens`` of the batch, where given, is compared with that of the batch the mask is used for.

    Raises
    ------
    InvalidArgument
        Naming two slices that share a pair, or one out of bounds.
    """
    return _core.mask_from_slices(
        [(int(begin), int(end)) for begin, end in q_ranges],
        [(int(begin), int(end)) for begin, end in k_ranges],
        list(types),
        num_tokens,
    )


def from_cu_seqlens(cu_seqlens: Any, *, causal: bool = True, window: int | None = None) -> Mask:
    """Packed documents as FlashAttention's varlen functions have them: cumulative lengths from 0.

    Parameters
    ----------
    cu_seqlens : int [documents + 1]
    causal
        Tokens attend those before them; False: all of their document.
    window
        With ``causal``: the last so many tokens, the token itself included. None: all.
    """
    ends = [operator.index(end) for end in cu_seqlens]
    if len(ends) < 2 or ends[0] != 0 or any(a >= b for a, b in zip(ends, ends[1:])):
        raise _core.InvalidArgument(
            f"cu_seqlens: expected ascending numbers from 0, at least two, found {ends[:8]}{'…' if len(ends) > 8 else ''}"
        )
    if window is not None and not causal:
        raise _core.InvalidArgument("cu_seqlens: expected a window with causal attention only, found it without")
    rule = full() if not causal else parse("causal") if window is None else sliding_window(window)
    return _core.build_mask(rule, list(zip(ends, ends[1:])))


def from_block_mask(block_mask: Any, *, batch: int = 0, head: int = 0) -> Mask:
    """FlexAttention's BlockMask, exactly. ``mask_mod`` is evaluated on partial blocks only.

    Parameters
    ----------
    block_mask : torch.nn.attention.flex_attention.BlockMask
    batch, head
        Which of its masks; one plan has one mask for all heads.

    Raises
    ------
    InvalidArgument
        Queries and keys of different numbers, a batch or head that the mask has not.
    """
    from contextile.torch._flex import rows_of_block_mask

    return _core.mask_from_ragged_rows(*rows_of_block_mask(block_mask, batch, head))


def from_mask_mod(mask_mod: Any, *, num_tokens: int, batch: int = 0, head: int = 0) -> Mask:
    """FlexAttention's ``mask_mod(batch, head, q, k)``, exactly, without a tokens x tokens array.

    It is evaluated on intervals of queries and keys, which are cut where that leaves a question open; pair by pair only
    in blocks of 128 x 128 that are neither full nor empty. Comparisons, integer arithmetic, logic, ``torch.where`` and
    look-ups in tensors of integers (documents' numbers) have such a form; with anything else every pair is evaluated.

    Parameters
    ----------
    mask_mod
        Works under ``torch.vmap``, as FlexAttention wants it.
    num_tokens
        Of the batch.
    batch, head
        What it is asked for; one plan has one mask for all heads.
    """
    from contextile.torch._flex import rows_of_mask_mod

    return _core.mask_from_ragged_rows(*rows_of_mask_mod(mask_mod, num_tokens, batch, head))
