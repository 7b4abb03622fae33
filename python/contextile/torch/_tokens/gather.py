"""Rows and sums of the whole batch on every rank, with gradients."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from contextile import _checks, _core
from contextile.masks import TokenTree
from contextile.torch._batch.layout import Targets, dim_of, tensor_of, whole_numbers, without_filler
from contextile.torch._batch.untyped import not_compiled
from contextile.torch._ranks.peers import Peers, peers_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_LOSSES = ("same", "share")
_NUM_PARTS = 8  # parts of a gradient whose norms are compared between ranks
_FORWARD, _BACKWARD = 1, 2  # the first word of what ranks send each other as a call begins


class _Meeting(NamedTuple):
    """The ranks that are in one call with one plan."""

    call: str
    plan: _core.Plan
    peers: Peers
    counts: list[int]  # rows of every rank
    is_slice: bool
    loss: str

    @property
    def rank(self) -> int:
        return self.peers.rank


def _exchanged(
    call: str, direction: int, words: list[int], device: torch.device, peers: Peers
) -> list[list[int]]:
    """Returns four words of every rank. Collective.

    Raises InvalidArgument on all ranks if some are in forward and some in backward.
    """
    found = peers.numbers(call, [direction, *words], device)
    for rank, (first, *_) in enumerate(found):
        if first != direction:
            names = {_FORWARD: "forward", _BACKWARD: "backward"}
            raise _core.InvalidArgument(
                f"{call}: expected all ranks in the same call, found this rank in its "
                f"{names[direction]} and rank {rank} in {names.get(first, 'another call')} of a "
                "gathering function; every rank runs backward of each, in the same order"
            )
    return [its_words for _, *its_words in found]


def _meet(
    call: str,
    tensor: Tensor,
    dim: int,
    plan: _core.Plan,
    group: Any,
    loss: str,
    wanted: Tensor | None = None,
    count: int | None = None,
) -> tuple[_Meeting, Tensor]:
    """Returns the ranks and this rank's rows [local tokens, ...], or [count, ...]. Collective.

    If a rank's tensor, plan, call or wanted tokens do not fit, all ranks raise InvalidArgument.
    """
    if loss not in _LOSSES:
        raise _core.InvalidArgument(f"loss: expected {' or '.join(_LOSSES)}, found {loss!r:.80}")
    dim = dim_of(call, tensor, dim)
    _checks.plan(f"{call}, plan", plan)
    peers = peers_in(group)
    rank = peers.rank
    if peers.size != plan.num_devices:
        raise _core.InvalidArgument(
            f"{call}: expected a group of {plan.num_devices} ranks, found {peers.size}"
        )
    rows = tensor.movedim(dim, 0)
    rows = without_filler(rows, plan, rank) if count is None else rows
    expected = plan.num_local_tokens(rank) if count is None else count
    what = "tokens" if count is None else "targets"
    fits = rows.shape[0] == expected
    kind = zlib.crc32(f"{call} {tuple(rows.shape[1:])} {rows.dtype} {loss}".encode())
    kind = zlib.crc32(b"" if wanted is None else wanted.numpy().tobytes(), kind)
    words = [
        expected if fits else -1,
        int(plan.digest[:15], 16),
        kind,
        int(plan.slice_of is not None),
    ]
    found = _exchanged(call, _FORWARD, words, tensor.device, peers)
    if not fits:
        raise _core.InvalidArgument(
            f"{call}: expected {expected} {what} in dimension {dim}, found {rows.shape[0]}"
        )
    for other, its_words in enumerate(found):
        if its_words[0] < 0:
            raise _core.InvalidArgument(
                f"{call}: expected every rank's own {what}, found others on rank {other}"
            )
        if its_words[1:] != words[1:]:
            raise _core.InvalidArgument(
                f"{call}: expected one plan, shape, dtype, loss= and tokens on all ranks, found "
                f"others on rank {other} than on {rank}"
            )
    return _Meeting(
        call, plan, peers, [one[0] for one in found], plan.slice_of is not None, loss
    ), rows


def _check_same(gradient: Tensor, peers: Peers) -> None:
    """Raises InvalidArgument on all ranks unless their gradients are equal up to rounding."""
    of_rows = (
        torch.linalg.vector_norm(gradient.float().flatten(1), dim=1)
        if gradient.dim() > 1
        else gradient.float()
    )
    # Neighbours count differently, so that it shows which rows a rank used.
    weights = (
        1
        + torch.arange(len(of_rows), device=gradient.device, dtype=torch.float64)
        .mul(0.6180339887)
        .frac()
        .float()
    )
    norms = torch.stack(
        [torch.linalg.vector_norm(part) for part in (of_rows * weights).tensor_split(_NUM_PARTS)]
    )
    words = norms.cpu().view(torch.int64).tolist()  # two norms each
    all_words = _exchanged("loss", _BACKWARD, words, gradient.device, peers)
    parts = torch.tensor(all_words, dtype=torch.int64).view(torch.float32)
    finite = parts[torch.isfinite(parts)]
    slack = 1e-3 * float(finite.max()) if len(finite) > 0 else 0.0
    if not torch.allclose(parts, parts[:1].expand_as(parts), rtol=1e-2, atol=slack, equal_nan=True):
        raise _core.InvalidArgument(
            "loss: expected every rank to compute the same loss of what it gathered "
            "(loss='same'), found gradients that differ; give loss='share' if the loss of the "
            "batch is the sum over ranks"
        )


class _Sum(torch.autograd.Function):
    """The sum over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, meeting: _Meeting) -> Tensor:
        ctx.meeting = meeting
        return meeting.peers.sum(meeting.call, tensor)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.meeting.loss == "same":
            _check_same(gradient, ctx.meeting.peers)
            return gradient, None
        return ctx.meeting.peers.sum(f"{ctx.meeting.call}, backward", gradient), None


def _tokens_of_ranks(meeting: _Meeting, device: torch.device) -> list[Tensor]:
    """Returns the tokens of every rank. Collective where the plan is a slice."""
    plan, counts = meeting.plan, meeting.counts
    if sum(counts) != plan.num_tokens or min(counts) < 0:
        raise _core.TransportError(
            f"{meeting.call}: expected {plan.num_tokens} tokens on all ranks together, found "
            f"{counts}"
        )
    if not meeting.is_slice:
        return [torch.from_numpy(plan.local_tokens(rank)).to(device) for rank in range(len(counts))]
    mine = torch.zeros(max(counts), dtype=torch.int64, device=device)
    mine[: counts[meeting.rank]] = torch.from_numpy(plan.local_tokens(meeting.rank)).to(device)
    parts = [
        part[:count]
        for part, count in zip(meeting.peers.everyones(meeting.call, mine), counts, strict=True)
    ]
    # They become indices: every token is of one rank.
    ascending = torch.cat(parts).sort().values
    if not torch.equal(ascending, torch.arange(plan.num_tokens, device=device)):
        raise _core.TransportError(
            f"{meeting.call}: expected tokens 0 to {plan.num_tokens - 1}, each of one rank, found "
            "others"
        )
    return parts


class _Collect(torch.autograd.Function):
    """The rows of all ranks, in the order of the batch."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, meeting: _Meeting) -> Tensor:
        counts = meeting.counts
        ctx.meeting, ctx.tokens = meeting, _tokens_of_ranks(meeting, rows.device)
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: counts[meeting.rank]] = rows
        whole = rows.new_empty((meeting.plan.num_tokens, *rows.shape[1:]))
        for tokens, part in zip(
            ctx.tokens, meeting.peers.everyones(meeting.call, padded), strict=True
        ):
            whole[tokens] = part[: len(tokens)]
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        meeting = ctx.meeting
        counts, rank = meeting.counts, meeting.rank
        if meeting.loss == "same" or len(counts) == 1:
            _check_same(gradient, meeting.peers)
            return gradient[ctx.tokens[rank]], None
        sent = torch.cat([gradient[tokens] for tokens in ctx.tokens])
        received = meeting.peers.exchange(
            f"{meeting.call}, backward", sent, counts, [counts[rank]] * len(counts)
        )
        parts = received.view(len(counts), counts[rank], *gradient.shape[1:])
        return parts.sum(0, dtype=torch.promote_types(parts.dtype, torch.float32)).to(
            gradient.dtype
        ), None


@not_compiled
def collect(
    tensor: Tensor,
    *,
    plan: _core.Plan,
    group: ProcessGroup | None = None,
    dim: int = 0,
    loss: str = "same",
) -> Tensor:
    """Puts the rows of all ranks together, on every rank. Collective; differentiable.

    It is the inverse of ``dispatch``.

    Parameters
    ----------
    tensor : Tensor [..., local tokens, ...]
        This rank's rows in local order; the tokens are in dimension ``dim``.
    plan : Plan
        The plan of the batch, on every rank, or on every rank its slice.
    group : ProcessGroup, optional
        The ranks of the plan. Default: the whole job.
    dim : int
        The dimension of the tokens.
    loss : str
        What ranks compute from the result. ``"same"``: every rank computes the same loss of the
        batch. A row's gradient is then that of one process, and backward moves no rows.
        ``"share"``: the loss of the batch is the sum of the ranks' losses. A row's gradient is then
        the sum of the gradients of all ranks, which backward sends to its owner.

    Returns
    -------
    Tensor [..., tokens of the batch, ...]

    Raises
    ------
    InvalidArgument
        ``dim`` has another number of tokens than this rank owns, the group has another number of
        ranks than the plan, or ranks differ in the plan, the shape, the dtype or ``loss``. In
        backward, if ``loss`` is ``"same"`` and the ranks' gradients differ.

    Notes
    -----
    Backward is collective, too: a rank that runs it alone waits for the timeout of the executor of
    that group (60 s if there is none), or until the others gather again.

    Parameters that a rank uses before ``collect`` get this rank's share of their gradient, to be
    summed over ranks as always. With ``"same"``, parameters used after it get their whole gradient
    on every rank, which must not be summed. Use them before ``collect``, or divide the loss by the
    number of ranks and give ``"share"``.

    Examples
    --------
    Needs ``torch.distributed``::

        out = attention(q, k, v, executor=executor)    # [local tokens, heads, dim]
        whole = collect(out, plan=plan)                # [tokens of the batch, heads, dim]
    """
    meeting, rows = _meet("collect", tensor, dim, plan, group, loss)
    whole: Tensor = _Collect.apply(rows, meeting)
    return whole.movedim(0, dim)


def _gathered_rows(
    call: str, tensor: Tensor, tokens: Tensor, plan: _core.Plan, group: Any, dim: int, loss: str
) -> Tensor:
    meeting, rows = _meet(call, tensor, dim, plan, group, loss, tokens)
    mine = torch.from_numpy(plan.local_tokens(meeting.rank))
    ascending, order = mine.sort()
    at = torch.searchsorted(ascending, tokens).clamp(max=max(len(mine) - 1, 0))
    (owned,) = (
        torch.nonzero(ascending[at] == tokens, as_tuple=True) if len(mine) > 0 else (tokens[:0],)
    )
    local = order[at[owned]] if len(mine) > 0 else owned
    zeros = rows.new_zeros((len(tokens), *rows.shape[1:]))
    placed = zeros.index_copy(0, owned.to(rows.device), rows.index_select(0, local.to(rows.device)))
    gathered: Tensor = _Sum.apply(placed, meeting)
    return gathered.movedim(0, dim)


@not_compiled
def gather_rows(
    tensor: Tensor,
    tokens: Any,
    *,
    plan: _core.Plan,
    group: ProcessGroup | None = None,
    dim: int = 0,
    loss: str = "same",
) -> Tensor:
    """Returns the rows of some tokens of the batch, on every rank. Collective; differentiable.

    Moves bytes for these rows only, whichever ranks own them.

    Parameters
    ----------
    tensor, plan, group, dim, loss
        As for ``collect``. The dtype is one that can be summed.
    tokens : int array or Tensor [rows]
        Their indices in the batch, the same on every rank.

    Returns
    -------
    Tensor [..., rows, ...]

    Raises
    ------
    InvalidArgument
        As for ``collect``; also if a token is not of the batch.

    Examples
    --------
    Needs ``torch.distributed``::

        firsts = gather_rows(x, [begin for begin, _ in plan.sequences], plan=plan)
    """
    wanted = whole_numbers("tokens", tokens).cpu()
    if wanted.dim() != 1:
        raise _core.InvalidArgument(f"tokens: expected a list of them, found {list(wanted.shape)}")
    _checks.plan("gather_rows, plan", plan)
    if len(wanted) > 0 and not 0 <= int(wanted.min()) <= int(wanted.max()) < plan.num_tokens:
        raise _core.InvalidArgument(
            f"tokens: expected 0 to {plan.num_tokens - 1}, found {int(wanted.min())} to "
            f"{int(wanted.max())}"
        )
    return _gathered_rows("gather_rows", tensor, wanted, plan, group, dim, loss)


# One tree for the only document, or for every document its tree; None: it has no branches.
Trees = TokenTree | Sequence[TokenTree | None]


def _branches_of(trees: Trees | None, plan: _core.Plan) -> list[Tensor]:
    """Returns every branch's tokens in the batch; a document without a tree is one branch."""
    documents = plan.sequences
    given = (
        [None] * len(documents)
        if trees is None
        else [trees]
        if isinstance(trees, TokenTree)
        else list(trees)
    )
    if len(given) != len(documents):
        raise _core.InvalidArgument(
            f"trees: expected one for each of {len(documents)} documents, or None, found "
            f"{len(given)}"
        )
    found = []
    for number, (tree, (begin, end)) in enumerate(zip(given, documents, strict=True)):
        if tree is None:
            found.append(torch.arange(begin, end))
            continue
        if not isinstance(tree, TokenTree):
            raise _core.InvalidArgument(
                f"trees: expected a TokenTree for document {number}, or None, found "
                f"{type(tree).__name__}"
            )
        if len(tree.tokens) != end - begin:
            raise _core.InvalidArgument(
                f"trees: expected one of {end - begin} tokens for document {number}, found "
                f"{len(tree.tokens)}"
            )
        found.extend(torch.from_numpy(branch) + begin for branch in tree.branches)
    return found


@not_compiled
def gather_last(
    tensor: Tensor,
    *,
    plan: _core.Plan,
    group: ProcessGroup | None = None,
    dim: int = 0,
    loss: str = "same",
    trees: Trees | None = None,
) -> Tensor:
    """Returns the row of every document's last token, on every rank. Collective; differentiable.

    For heads of whole documents, such as classifiers and reward models.

    Parameters
    ----------
    tensor, plan, group, dim, loss
        As for ``collect``. The dtype is one that can be summed.
    trees : TokenTree or sequence, optional
        The tree of the only document, or one for every document, None for those without. Every
        branch then counts as a document, in the order of documents and branches.

    Returns
    -------
    Tensor [..., documents, ...]

    Raises
    ------
    InvalidArgument
        As for ``collect``; also if trees do not fit the documents.

    Examples
    --------
    Needs ``torch.distributed``. The head comes first, so that its gradient is summed over ranks as
    that of other parameters is::

        rewards = gather_last(head(x), plan=plan)      # [documents, 1]
    """
    _checks.plan("gather_last, plan", plan)
    lasts = torch.tensor(
        [int(tokens[-1]) for tokens in _branches_of(trees, plan)], dtype=torch.int64
    )
    return _gathered_rows("gather_last", tensor, lasts, plan, group, dim, loss)


@not_compiled
def document_sums(
    values: Tensor,
    *,
    plan: _core.Plan,
    group: ProcessGroup | None = None,
    dim: int = 0,
    loss: str = "same",
    trees: Trees | None = None,
    targets: Targets | None = None,
) -> Tensor:
    """Returns the sum of the values of every document, on every rank. Collective; differentiable.

    For log-probabilities of responses (DPO, GRPO) and losses of whole documents.

    Parameters
    ----------
    values : Tensor [..., local tokens, ...]
        A value, or more, of each of this rank's tokens in local order; 0 where a token does not
        count.
    plan, group, dim, loss
        As for ``collect``.
    trees : TokenTree or sequence, optional
        As for ``gather_last``. A token counts in all of its branches.
    targets : Targets, optional
        ``local.targets``, if the values are of these, [..., targets, ...]: a target counts in the
        branches that have the token that is predicted.

    Returns
    -------
    Tensor [..., documents, ...]
        In float32 if the values have half precision.

    Raises
    ------
    InvalidArgument
        As for ``collect``; also if trees do not fit the documents.

    Examples
    --------
    Needs ``torch.distributed``::

        log_probs = document_sums(token_log_probs(logits, local.labels), plan=plan)

    The sums of the branches of a tree, whose tokens may have several labels::

        rows, _, labels, _ = local.targets
        log_probs = token_log_probs(logits[rows], labels)
        of_branches = document_sums(log_probs, plan=plan, trees=tree, targets=local.targets)
    """
    _checks.plan("document_sums, plan", plan)
    branches = _branches_of(trees, plan)
    wanted = (
        None
        if trees is None
        else torch.cat([torch.tensor([len(one) for one in branches]), *branches])
    )
    count = None if targets is None else len(targets.tokens)
    meeting, rows = _meet("document_sums", values, dim, plan, group, loss, wanted, count)
    if rows.dtype == torch.bool:
        raise _core.InvalidArgument("document_sums: expected numbers, found torch.bool")
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    tokens = (
        torch.from_numpy(plan.local_tokens(meeting.rank))
        if targets is None
        else targets.tokens.cpu()
    )
    # The row of every token of the batch, -1 for those of other ranks. No token has two.
    row_of = torch.full((plan.num_tokens,), -1, dtype=torch.int64).index_copy(
        0, tokens, torch.arange(len(tokens))
    )
    ids = torch.repeat_interleave(
        torch.arange(len(branches)), torch.tensor([len(one) for one in branches])
    )
    at = row_of[torch.cat(branches)]
    ids, at = ids[at >= 0].to(rows.device), at[at >= 0].to(rows.device)
    rows, zeros = rows.index_select(0, at), rows.new_zeros((len(branches), *rows.shape[1:]))
    sums: Tensor = _Sum.apply(zeros.index_add(0, ids, rows), meeting)
    return sums.movedim(0, dim)


def _least_and_most(labels: Tensor, ignore_index: int) -> tuple[int, int] | None:
    """Returns the least and the largest label. On a GPU each call waits for the device."""
    wanted = labels[labels != ignore_index]
    if wanted.numel() == 0:
        return None
    least, most = torch.stack(wanted.aminmax()).tolist()
    return least, most


def token_log_probs(
    x: Tensor,
    labels: Tensor,
    *,
    head: Callable[[Tensor], Tensor] | None = None,
    chunks: int = 8,
    ignore_index: int = -100,
) -> Tensor:
    """Returns the log-probability of every token's label. Not collective; differentiable.

    The tokens are taken in chunks that backward computes again, so that only one chunk's logits in
    float32 are in memory at a time; with ``head``, only one chunk's logits at all.

    Parameters
    ----------
    x : Tensor [..., tokens, vocabulary], or [..., tokens, hidden] with ``head``
        Logits, or what ``head`` makes logits of.
    labels : int64 Tensor [..., tokens]
        As ``local_batch`` returns them.
    head : function, optional
        Returns the logits of some tokens [rows, hidden]. Every rank calls it ``chunks`` times,
        perhaps without rows, as modules that FSDP shards need.
    chunks : int
        Number of chunks, at least 1.
    ignore_index : int
        Label of tokens that predict nothing.

    Returns
    -------
    float32 Tensor [..., tokens]
        0 for tokens without a label.

    Raises
    ------
    InvalidArgument
        ``x`` and ``labels`` have different tokens, a label is neither of the vocabulary nor
        ``ignore_index``, or ``chunks`` is below 1.

    Examples
    --------
    >>> import torch
    >>> from contextile.torch import token_log_probs
    >>> token_log_probs(torch.zeros(3, 4), torch.tensor([2, 0, -100]))
    tensor([-1.3863, -1.3863,  0.0000])
    """
    _checks.count("chunks", chunks, 1)
    _checks.whole("ignore_index", ignore_index)
    if not tensor_of("x", x).is_floating_point() or x.dim() < 2 or x.shape[-1] < 1:
        raise _core.InvalidArgument(
            f"x: expected floating-point [..., tokens, vocabulary], found {x.dtype} {list(x.shape)}"
        )
    if head is not None and not callable(head):
        raise _core.InvalidArgument(f"head: expected a function, found {head!r:.80}")
    labels = whole_numbers("labels", tensor_of("labels", labels))
    if x.shape[:-1] != labels.shape:
        raise _core.InvalidArgument(
            f"labels: expected {list(x.shape[:-1])}, as the tokens, found {list(labels.shape)}"
        )
    ends = None if torch.compiler.is_compiling() else _least_and_most(labels, ignore_index)

    def log_probs(rows: Tensor, of_rows: Tensor) -> Tensor:
        logits = rows if head is None else tensor_of("head", head(rows))
        if logits.shape[:-1] != rows.shape[:-1]:
            raise _core.InvalidArgument(
                f"head: expected logits of {rows.shape[0]} rows, found {list(logits.shape)}"
            )
        if ends is not None and not 0 <= ends[0] <= ends[1] < logits.shape[-1]:
            raise _core.InvalidArgument(
                f"labels: expected 0 to {logits.shape[-1] - 1}, or ignore_index {ignore_index}, "
                f"found {ends[0]} to {ends[1]}"
            )
        return -cross_entropy(logits.float(), of_rows, ignore_index=ignore_index, reduction="none")

    parts = zip(
        x.reshape(-1, x.shape[-1]).tensor_split(chunks),
        labels.reshape(-1).tensor_split(chunks),
        strict=True,
    )
    found = [checkpoint(log_probs, rows, of_rows, use_reentrant=False) for rows, of_rows in parts]
    return torch.cat(found).reshape(labels.shape)
