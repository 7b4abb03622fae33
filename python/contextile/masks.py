"""Attention masks: rules for documents, and exact masks of whole batches.

Rules (``causal()``, ``sliding_window(4096)``, …) apply to every document on its own: tokens never
attend another document. Masks made from row ranges, dense arrays, slices or FlexAttention cover the
whole batch, in tokens of the batch.

>>> import contextile as ct
>>> plan = ct.plan([60, 40], mask=ct.masks.sliding_window(16), cluster="local:1x1", strategy="dcp")
>>> plan.mask_names
['sliding_window']
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from contextile import _checks, _core
from contextile._core import Mask, MaskSpec
from contextile._heads import HeadMasks, head_masks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "HeadMasks",
    "Mask",
    "MaskSpec",
    "TokenTree",
    "by_head",
    "causal",
    "causal_blockwise",
    "chunked",
    "encoder_decoder",
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
    "token_tree",
    "tree",
    "with_blocks",
    "within",
]


def parse(text: str) -> MaskSpec:
    """Returns the rule of a text, as the program's ``--mask`` takes it.

    Parameters
    ----------
    text : str
        ``"causal"``, ``"lambda:64,4096"``, and so on.

    Raises
    ------
    InvalidArgument
        The rule is unknown (the message lists all), or a parameter is out of its limits.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.parse("prefix_lm:100") == ct.masks.prefix_lm(100)
    True
    """
    return _core.parse_mask_spec(text)


# ------------------------------------------------------------------------------- rules of documents


def full() -> MaskSpec:
    """Every token attends all tokens of its document.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.full().text
    'full'
    """
    return parse("full")


def causal() -> MaskSpec:
    """Every token attends itself and those before it in its document.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.causal().text
    'causal'
    """
    return parse("causal")


def sliding_window(window: int) -> MaskSpec:
    """Every token attends the last ``window`` tokens, including itself.

    Raises InvalidArgument unless the window is at least 1.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.sliding_window(4096).text
    'sliding_window:4096'
    """
    return parse(f"sliding_window:{window}")


def lambda_(sink: int = 64, window: int = 4096) -> MaskSpec:
    """Every token attends the first ``sink`` tokens and the last ``window`` (StreamingLLM).

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.lambda_(64, 4096).text
    'lambda:64,4096'
    """
    return parse(f"lambda:{sink},{window}")


def causal_blockwise(block: int = 256, window: int = 2, sink: int = 1) -> MaskSpec:
    """Every token attends the first ``sink`` blocks and ``window`` blocks back, causally.

    Blocks have ``block`` tokens. The last block attends everything before it (DCP, section 7).

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.causal_blockwise(256, 2, 1).text
    'causal_blockwise:256,2,1'
    """
    return parse(f"causal_blockwise:{block},{window},{sink}")


def shared_question(
    fraction: float = 0.2, answers: int = 4, *, lengths: Sequence[int] | None = None
) -> MaskSpec:
    """Answers attend a shared question and themselves, causally (DCP, section 7).

    Parameters
    ----------
    fraction : float
        Share of the document that is the question.
    answers : int
        Number of answers that share the rest.
    lengths : sequence of int, optional
        Tokens of the question and of every answer, instead of the other two. They sum to the
        document's length.

    Examples
    --------
    >>> import contextile as ct
    >>> rule = ct.masks.shared_question(lengths=[30, 20, 10])      # for a document of 60 tokens
    """
    if lengths is not None:
        return parse(f"shared_question:[{','.join(str(int(length)) for length in lengths)}]")
    return parse(f"shared_question:{fraction},{answers}")


def prefix_lm(prefix: int) -> MaskSpec:
    """Every token attends the first ``prefix`` tokens, and the tokens up to itself.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.prefix_lm(100).text
    'prefix_lm:100'
    """
    return parse(f"prefix_lm:{prefix}")


def chunked(chunk: int) -> MaskSpec:
    """Every token attends the tokens up to itself in its chunk of ``chunk`` tokens.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.chunked(2048).text
    'chunked:2048'
    """
    return parse(f"chunked:{chunk}")


def tree(lengths: Sequence[int], parents: Sequence[int]) -> MaskSpec:
    """Tokens attend the segments above their own in a tree, and their own causally.

    Positions are depths: a segment continues at its parent's end.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of every segment, in the order in which they are stored. They sum to the document's
        length.
    parents : sequence of int
        The number of every segment's parent, which is stored before it; -1 for the first, the root.

    Raises
    ------
    InvalidArgument
        There are not as many parents as lengths, a length is below 1, or a parent is not earlier.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.tree([30, 20, 10, 5], [-1, 0, 0, 2]).text      # for a document of 65 tokens
    'tree:[30,20,10,5],[-1,0,0,2]'
    """
    texts = [
        ",".join(str(operator.index(number)) for number in numbers)
        for numbers in (lengths, parents)
    ]
    return parse(f"tree:[{texts[0]}],[{texts[1]}]")


class TokenTree(NamedTuple):
    """Token lists that share beginnings, as one document. Made by ``token_tree``.

    Attributes
    ----------
    tokens : int64 array [tokens of the document]
        Shared tokens once, depth first.
    mask : MaskSpec
        The rule of the document.
    branches : list of int64 arrays
        The index in the document of every token of every list.
    """

    tokens: npt.NDArray[np.int64]
    mask: MaskSpec
    branches: list[npt.NDArray[np.int64]]

    def loss_weights(self, weights: Sequence[float | npt.ArrayLike]) -> npt.NDArray[np.float32]:
        """Returns the loss weight of every token: the sum over the branches that have it.

        The loss and its gradients are then the sum over branches that run alone, each with its
        weight.

        Parameters
        ----------
        weights : sequence
            For every branch, the weight of predicting each of its tokens: a number for all, or one
            per token.

        Returns
        -------
        float32 array [tokens of the document]

        Raises
        ------
        InvalidArgument
            There are more or fewer weights than branches, or than tokens of a branch, or a weight
            is not finite.

        Examples
        --------
        >>> import contextile as ct
        >>> ct.masks.token_tree([[7, 8, 9], [7, 8, 5]]).loss_weights([0.5, 2]).tolist()
        [2.5, 2.5, 0.5, 2.0]
        """
        import numpy as np

        if len(weights) != len(self.branches):
            raise _core.InvalidArgument(
                f"token tree: expected weights of {len(self.branches)} branches, found "
                f"{len(weights)}"
            )
        total = np.zeros(len(self.tokens))
        for branch, (at, given) in enumerate(zip(self.branches, weights, strict=True)):
            own = np.asarray(given, dtype=np.float64)
            if own.shape not in ((), at.shape):
                raise _core.InvalidArgument(
                    f"token tree: expected a weight of branch {branch}, or {len(at)}, found "
                    f"{list(own.shape)}"
                )
            if not np.isfinite(own).all():
                raise _core.InvalidArgument(
                    f"token tree: expected finite weights of branch {branch}, found others"
                )
            total[at] += own
        return total.astype(np.float32)


def token_tree(branches: Sequence[Sequence[int]]) -> TokenTree:
    """Packs token lists that share beginnings into one document that has shared tokens once.

    Such lists are a prompt with each of its answers, or the ways from the root of a search tree to
    its leaves.

    Parameters
    ----------
    branches : sequence of sequences of int
        Lists of tokens that begin with the same token.

    Returns
    -------
    TokenTree

    Raises
    ------
    InvalidArgument
        A list is empty, has other values than whole numbers, or begins with another token: it is
        another document.

    Examples
    --------
    >>> import contextile as ct
    >>> tree = ct.masks.token_tree([[1, 2, 3], [1, 2, 4, 5], [1, 6]])
    >>> tree.tokens.tolist(), tree.mask.text
    ([1, 2, 3, 4, 5, 6], 'tree:[1,1,1,2,1],[-1,0,1,1,0]')
    >>> tree.branches[1].tolist()
    [0, 1, 3, 4]
    """
    import numpy as np

    lists = []
    for branch, tokens in enumerate(branches):
        own = np.asarray(tokens)
        if own.ndim != 1 or (own.size and own.dtype.kind not in "iu"):
            raise _core.InvalidArgument(
                f"token tree: branch {branch}: expected a list of whole numbers, found {own.dtype} "
                f"{list(own.shape)}"
            )
        lists.append(own.tolist())
    packed = _core.build_token_tree(lists)
    at = [
        np.concatenate([np.arange(begin, end) for begin, end in ranges])
        for ranges in packed.branches
    ]
    return TokenTree(packed.tokens, packed.mask, at)


# -------------------------------------------------------------------------------- masks of batches


def from_bands(
    bands: Sequence[tuple[int, int, int, int, int | None, int | None]], *, num_tokens: int
) -> Mask:
    """Makes a mask from bands.

    Parameters
    ----------
    bands : sequence of (q_begin, q_end, k_begin, k_end, lo, hi)
        Query q attends key k if both are in their half-open ranges and ``lo <= k - q <= hi``. None
        means no bound. No two bands share a pair.
    num_tokens : int
        Tokens of the batch.

    Raises
    ------
    InvalidArgument
        A band leaves the batch, or two bands share a pair.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.from_bands([(0, 4, 0, 4, None, 0)], num_tokens=4).num_pairs       # causal
    10
    """
    rows: Any = [tuple(band) for band in bands]
    return _core.mask_from_bands(rows, num_tokens)


def within(back: int, ahead: int) -> Callable[[Sequence[int]], Mask]:
    """Every token attends ``back`` tokens before it, itself, and ``ahead`` tokens after it.

    Parameters
    ----------
    back, ahead : int
        Numbers of tokens, at least 0.

    Returns
    -------
    function
        Makes the mask of documents from their lengths. ``plan`` takes it as a mask.

    Raises
    ------
    InvalidArgument
        A number is negative.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.within(1, 2)([3, 2]).num_pairs
    12
    """
    if back < 0 or ahead < 0:
        raise _core.InvalidArgument(
            f"within: expected numbers of at least 0, found {back} and {ahead}"
        )

    def mask_of(lengths: Sequence[int]) -> Mask:
        return from_bands(
            [(begin, end, begin, end, -back, ahead) for begin, end in _ranges(lengths)],
            num_tokens=sum(lengths),
        )

    return mask_of


def by_head(masks: Sequence[Any]) -> HeadMasks:
    """Gives every query head a mask of its own, such as to local and global heads.

    ``contextile.plans`` plans it, not ``plan``: heads with one mask form a group with a plan of its
    own. If the query heads of a KV head have several masks, its keys and values move once for each
    of these groups.

    Parameters
    ----------
    masks : sequence
        A rule, its text, a ``Mask`` or a function of lengths for every query head.

    Returns
    -------
    HeadMasks

    Raises
    ------
    InvalidArgument
        There is no mask, or something else.

    Examples
    --------
    >>> import contextile as ct
    >>> masks = ct.masks.by_head(["causal"] * 2 + ["sliding_window:16"] * 6)
    >>> plans = ct.plans([60, 40], mask=masks, heads=(8, 4), head_dim=32, cluster="local:1x2",
    ...                  strategy="dcp")
    >>> [group.q_heads for group in plans["by_head"].groups]
    [(0, 1), (2, 3, 4, 5, 6, 7)]
    """
    return head_masks(masks)


def _joined(masks: list[Mask]) -> Mask | HeadMasks:
    """Returns the mask of all heads, or masks by head if they differ."""
    return masks[0] if all(mask == masks[0] for mask in masks[1:]) else HeadMasks(tuple(masks))


def with_blocks(
    lengths: Sequence[int], block_ids: Any, *, window: int | None = None, whole_blocks: bool = False
) -> Mask:
    """Makes a causal mask in which tokens of a block, such as an image's, attend each other.

    It is the mask that Hugging Face makes of ``block_sequence_ids``.

    Parameters
    ----------
    lengths : sequence of int
        Number of tokens of every document.
    block_ids : int array or Tensor [tokens]
        Number of each token's block in its document; negative for tokens that are in none. The
        tokens of a block need not follow one another.
    window : int, optional
        Number of last tokens that a token attends, including itself, besides those after it in its
        block.
    whole_blocks : bool
        Whether a token also attends the tokens of its block before the window.

    Raises
    ------
    InvalidArgument
        There are more or fewer numbers than tokens.

    Examples
    --------
    Tokens 1 and 2 are an image:

    >>> import contextile as ct
    >>> ct.masks.with_blocks([4], [-1, 0, 0, -1]).dense().astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    import numpy as np

    ids = np.asarray(block_ids).reshape(-1)
    if len(ids) != sum(lengths):
        raise _core.InvalidArgument(f"block_ids: expected {sum(lengths)} numbers, found {len(ids)}")
    bands: list[tuple[int, int, int, int, int | None, int | None]] = []
    for begin, end in _ranges(lengths):
        bands.append((begin, end, begin, end, None if window is None else 1 - window, 0))
        # Runs of tokens of one block, by block.
        edges = [begin, *(np.flatnonzero(np.diff(ids[begin:end])) + begin + 1).tolist(), end]
        blocks: dict[int, list[tuple[int, int]]] = {}
        for run in itertools.pairwise(edges):
            if ids[run[0]] >= 0:
                blocks.setdefault(int(ids[run[0]]), []).append(run)
        for runs in blocks.values():
            for q in runs:
                bands.extend((*q, *k, 1, None) for k in runs)
                if window is not None and whole_blocks:
                    bands.extend((*q, *k, None, -window) for k in runs)
    return from_bands(bands, num_tokens=len(ids))


def encoder_decoder(
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *,
    layers: tuple[int, int] = (1, 1),
    window: int | None = None,
) -> dict[str, Any]:
    """Describes a batch of pairs, whose targets attend themselves and their whole source.

    A document of the batch is a source with its target after it. ``contextile.torch.Sides`` says
    which of a rank's tokens are which.

    Parameters
    ----------
    source_lengths, target_lengths : sequence of int
        Number of tokens of every source, and of its target.
    layers : (int, int)
        Numbers of layers of the encoder and of the decoder.
    window : int, optional
        Number of tokens to either side that a source attends in the encoder, such as LongT5's
        ``local_radius``. Default: the whole source.

    Returns
    -------
    dict
        ``lengths`` and ``mask`` for ``plan``. The masks are ``encoder`` (sources, both ways),
        ``decoder`` (targets, causal) and ``cross`` (targets attend sources).

    Raises
    ------
    InvalidArgument
        There are not as many targets as sources, or a length or the window is not positive.

    Examples
    --------
    >>> import contextile as ct
    >>> batch = ct.masks.encoder_decoder([60, 30], [20, 10])
    >>> batch["lengths"], list(batch["mask"])
    ([80, 40], ['encoder', 'decoder', 'cross'])
    >>> plan = ct.plan(**batch, cluster="local:1x2", strategy="dcp", heads=4, head_dim=32)
    """
    source_lengths = _checks.lengths("encoder_decoder, source_lengths", source_lengths)
    target_lengths = _checks.lengths("encoder_decoder, target_lengths", target_lengths)
    if len(source_lengths) != len(target_lengths):
        raise _core.InvalidArgument(
            f"encoder_decoder: expected as many targets as sources, found {source_lengths[:8]} and "
            f"{target_lengths[:8]}"
        )
    if len(_checks.lengths("encoder_decoder, layers", layers)) != 2:
        raise _core.InvalidArgument(
            f"encoder_decoder: expected numbers of layers of two sides, found {layers!r:.80}"
        )
    if window is not None and _checks.count("encoder_decoder, window", window) < 1:
        raise _core.InvalidArgument(
            f"encoder_decoder: expected a window of at least 1 token, found {window}"
        )
    reach = (None, None) if window is None else (-window, window)
    lengths = [
        source + target for source, target in zip(source_lengths, target_lengths, strict=True)
    ]
    sides = [
        (begin, begin + source, end)
        for (begin, end), source in zip(_ranges(lengths), source_lengths, strict=True)
    ]

    def of(bands: Any) -> Mask:
        return from_bands(bands, num_tokens=sum(lengths))

    return {
        "lengths": lengths,
        "mask": {
            "encoder": (of([(a, b, a, b, *reach) for a, b, _ in sides]), layers[0]),
            "decoder": (of([(b, c, b, c, None, 0) for _, b, c in sides]), layers[1]),
            "cross": (of([(b, c, a, b, None, None) for a, b, c in sides]), layers[1]),
        },
    }


def _ranges(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    for length in lengths:
        yield begin, begin + length
        begin += length


def from_row_ranges(rows: Sequence[Sequence[tuple[int, int]]]) -> Mask:
    """Makes a mask from the ranges of keys that each query attends.

    Parameters
    ----------
    rows : sequence
        ``rows[q]`` has the disjoint, half-open ranges (begin, end) of query q.

    Raises
    ------
    InvalidArgument
        A range is empty or out of bounds, or two overlap. The message names the row.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.from_row_ranges([[(0, 1)], [(0, 2)], [(0, 1), (2, 3)]]).num_pairs
    5
    """
    return _core.mask_from_row_ranges(
        [[(int(begin), int(end)) for begin, end in row] for row in rows]
    )


def from_dense(dense: npt.ArrayLike) -> Mask:
    """Makes a mask from a dense array, in time O(tokens²).

    Parameters
    ----------
    dense : array [tokens, tokens]
        Query q attends key k if ``dense[q, k]``. Booleans, or the numbers 0 and 1.

    Raises
    ------
    InvalidArgument
        The array is not square, or has other numbers.

    Examples
    --------
    >>> import contextile as ct
    >>> import numpy as np
    >>> ct.masks.from_dense(np.tril(np.ones((64, 64), dtype=bool))).num_pairs
    2080
    """
    import numpy as np

    given = np.asarray(dense)
    array = np.ascontiguousarray(given != 0)
    if given.dtype.kind != "b" and not np.array_equal(given, array):
        raise _core.InvalidArgument(
            "dense mask: expected truth values, or numbers 0 and 1, found others"
        )
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise _core.InvalidArgument(
            f"dense mask: expected [tokens, tokens], found {list(array.shape)}"
        )
    return _core.mask_from_dense(array.view(np.uint8))


def from_slices(
    q_ranges: Sequence[tuple[int, int]],
    k_ranges: Sequence[tuple[int, int]],
    types: Sequence[str],
    *,
    num_tokens: int | None = None,
) -> Mask:
    """Makes a mask from slices as MagiAttention has them.

    Parameters
    ----------
    q_ranges, k_ranges : sequence of (begin, end)
        Ranges of queries and of keys, one of each per slice. No two slices share a pair.
    types : sequence of str
        ``"full"``; ``"causal"``, aligned bottom right; ``"inverse_causal"``, aligned top left; or
        ``"bi_causal"``, which is both.
    num_tokens : int, optional
        Tokens of the batch. If given, a batch of another length is refused.

    Raises
    ------
    InvalidArgument
        Two slices share a pair, or one is out of bounds. The message names them.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.from_slices([(0, 4), (4, 6)], [(0, 4), (0, 6)], ["causal", "full"]).num_pairs
    22
    """
    return _core.mask_from_slices(
        [(int(begin), int(end)) for begin, end in q_ranges],
        [(int(begin), int(end)) for begin, end in k_ranges],
        list(types),
        num_tokens,
    )


def from_cu_seqlens(cu_seqlens: Any, *, causal: bool = True, window: int | None = None) -> Mask:
    """Makes a mask of packed documents, as FlashAttention's varlen functions have them.

    Parameters
    ----------
    cu_seqlens : int array or Tensor [documents + 1]
        Cumulative lengths, ascending from 0.
    causal : bool
        Whether tokens attend only themselves and those before them.
    window : int, optional
        Number of last tokens that a token attends, including itself. Only with ``causal``.

    Raises
    ------
    InvalidArgument
        The lengths do not ascend from 0, or there is a window without ``causal``.

    Examples
    --------
    >>> import contextile as ct
    >>> ct.masks.from_cu_seqlens([0, 3, 5]).num_pairs
    9
    """
    try:
        ends = [_checks.whole("cu_seqlens", end) for end in cu_seqlens]
    except TypeError:
        raise _core.InvalidArgument(
            f"cu_seqlens: expected ascending numbers from 0, found {cu_seqlens!r:.80}"
        ) from None
    if len(ends) < 2 or ends[0] != 0 or any(a >= b for a, b in itertools.pairwise(ends)):
        raise _core.InvalidArgument(
            "cu_seqlens: expected ascending numbers from 0, at least two, found "
            f"{ends[:8]}{'…' if len(ends) > 8 else ''}"
        )
    if window is not None and not causal:
        raise _core.InvalidArgument(
            "cu_seqlens: expected a window with causal attention only, found it without"
        )
    rule = full() if not causal else parse("causal") if window is None else sliding_window(window)
    return _core.build_mask(rule, list(itertools.pairwise(ends)))


def from_block_mask(
    block_mask: Any, *, batch: int | None = None, head: int | None = None
) -> Mask | HeadMasks:
    """Converts FlexAttention's BlockMask, exactly.

    Its ``mask_mod`` is evaluated only on partial blocks.

    Parameters
    ----------
    block_mask : torch.nn.attention.flex_attention.BlockMask
        The mask, with as many keys as queries.
    batch, head : int, optional
        Index of the mask to take. Default: the only mask, or the common one where all are equal. If
        masks of heads differ and none is chosen, all are taken.

    Returns
    -------
    Mask or HeadMasks
        As ``by_head`` returns them, if masks of heads differ.

    Raises
    ------
    InvalidArgument
        The numbers of queries and keys differ, the mask has no such batch or head, or masks of
        batches differ and none is chosen.

    Examples
    --------
    ::

        block_mask = create_block_mask(mask_mod, None, None, 8192, 8192, device="cpu")
        plan = ct.plan([8192], mask=ct.masks.from_block_mask(block_mask), cluster=cluster)
    """
    from contextile._flex.rows import rows_of_block_mask

    heads = range(int(block_mask.kv_num_blocks.shape[1])) if head is None else [head]
    return _joined(
        [_core.mask_from_ragged_rows(*rows_of_block_mask(block_mask, batch, h)) for h in heads]
    )


def from_mask_mod(
    mask_mod: Any,
    *,
    num_tokens: int,
    batch: int = 0,
    head: int | None = None,
    heads: int | None = None,
) -> Mask | HeadMasks:
    """Converts FlexAttention's ``mask_mod(batch, head, q, k)``, exactly, without a dense array.

    The function is evaluated on whole blocks, by calling it on intervals of queries and keys.
    Blocks that are neither full nor empty are cut, and evaluated pair by pair once they have 128 x
    128 tokens. That works for comparisons, integer arithmetic, logic, ``torch.where`` and look-ups
    in integer tensors. For other functions every pair is evaluated, which is slow for long
    batches.

    Parameters
    ----------
    mask_mod : function
        It works under ``torch.vmap``, as FlexAttention requires.
    num_tokens : int
        Tokens of the batch.
    batch : int
        The batch index that the function is called with. Documents are packed in a batch of 1.
    head : int, optional
        The head that the function is called with, for the mask of this head alone.
    heads : int, optional
        Number of query heads. A function that looks at the head is called with each of them. It
        needs this or ``head``.

    Returns
    -------
    Mask or HeadMasks
        As ``by_head`` returns them, if ``heads`` is given and their masks differ.

    Raises
    ------
    InvalidArgument
        There is no token, a negative batch or head, no head, ``head`` and ``heads``, or the
        function looks at the head and neither is given.

    Examples
    --------
    >>> import contextile as ct
    >>> def causal(batch, head, q, k):
    ...     return k <= q
    >>> ct.masks.from_mask_mod(causal, num_tokens=1000).num_pairs
    500500
    """
    from contextile._flex.rows import heads_of_mask_mod, rows_of_mask_mod

    numbers = [head] if heads is None else heads_of_mask_mod(mask_mod, batch, head, heads)
    return _joined(
        [
            _core.mask_from_ragged_rows(*rows_of_mask_mod(mask_mod, num_tokens, batch, h))
            for h in numbers
        ]
    )
