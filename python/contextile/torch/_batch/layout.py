"""Tensors of a batch in the local order of a rank, and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contextile import _checks, _core


def _tokens_of(plan: _core.Plan, rank: int) -> Tensor:
    return torch.from_numpy(plan.local_tokens(rank))


def tensor_of(name: str, value: Any) -> Tensor:
    """Returns a Tensor. Raises InvalidArgument for anything else."""
    if not isinstance(value, Tensor):
        raise _core.InvalidArgument(f"{name}: expected a Tensor, found {type(value).__name__}")
    return value


def _converted(name: str, kind: str, given: Any) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise _core.InvalidArgument(f"{name}: expected {kind}, found {given!r:.80}") from None


def dim_of(call: str, tensor: Tensor, dim: int) -> int:
    """Returns a dimension's number from 0. Raises InvalidArgument if there is none."""
    tensor_of(call, tensor)
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise _core.InvalidArgument(f"{call}: expected a whole number as dim, found {dim!r:.80}")
    if not -tensor.dim() <= dim < tensor.dim():
        raise _core.InvalidArgument(
            f"{call}: expected a dimension of {list(tensor.shape)}, found dim={dim}"
        )
    return dim % tensor.dim()


def with_filler(rows: Tensor) -> Tensor:
    """Returns the rows of a rank, or one of zeros if it has none."""
    return rows if len(rows) > 0 else rows.new_zeros((1, *rows.shape[1:]))


def without_filler(rows: Tensor, plan: _core.Plan, rank: int) -> Tensor:
    """Returns the rows without the filler that a rank without tokens has."""
    return rows[:0] if plan.num_local_tokens(rank) == 0 and rows.shape[0] == 1 else rows


_MARK = "_contextile_plan"  # where a tensor keeps the digest


def mark(tensor: Tensor, digest: str | None) -> None:
    """Notes the digest of the plan that a tensor was made for, which attention knows again."""
    setattr(tensor, _MARK, digest)


def digest_behind(tensor: Tensor) -> str | None:
    """Returns the digest of the plan that ``local_batch`` made a tensor or its base for."""
    digest: str | None = getattr(tensor, _MARK, None)
    if digest is None:
        base = tensor._base  # noqa: SLF001  # torch documents it by this name
        digest = getattr(base, _MARK, None)
    return digest


def dispatch(tensor: Tensor, *, plan: _core.Plan, rank: int, dim: int = 0) -> Tensor:
    """Returns a rank's rows of a tensor of the whole batch, in local order.

    Not collective. Differentiable.

    Parameters
    ----------
    tensor : Tensor [..., tokens of the batch, ...]
        The tokens are in dimension ``dim``.
    plan : Plan
        The plan of the batch.
    rank : int
        The rank whose rows are taken.
    dim : int
        The dimension of the tokens.

    Returns
    -------
    Tensor [..., local tokens, ...]

    Raises
    ------
    InvalidArgument
        ``dim`` has another number of tokens than the plan, or is none of the tensor's.

    Examples
    --------
    >>> import contextile as ct
    >>> import torch
    >>> from contextile.torch import dispatch
    >>> plan = ct.plan([60, 40], cluster="local:1x2", strategy="zigzag", heads=(4, 2), head_dim=32)
    >>> rows = dispatch(torch.arange(100), plan=plan, rank=1)
    >>> len(rows) == plan.num_local_tokens(1)
    True
    """
    dim = dim_of("dispatch", tensor, dim)
    _checks.plan("dispatch, plan", plan)
    _checks.whole("dispatch, rank", rank)
    if tensor.shape[dim] != plan.num_tokens:
        raise _core.InvalidArgument(
            f"dispatch: expected {plan.num_tokens} tokens in dimension {dim}, found "
            f"{tensor.shape[dim]}"
        )
    local = tensor.index_select(dim, _tokens_of(plan, rank).to(tensor.device))
    if local.dtype is torch.int64:  # tokens and positions
        mark(local, plan.digest)
    return local


class Targets(NamedTuple):
    """Every label of a rank's tokens: several of a token behind which branches part.

    The loss is ``(loss_weights * cross_entropy(logits[rows], labels, reduction="none")).sum()``.

    Attributes
    ----------
    rows : int64 Tensor [targets]
        The local token that predicts, ascending.
    tokens : int64 Tensor [targets]
        The index in the batch of the token that is predicted; of the token that predicts, if labels
        were given as ``shift_labels``.
    labels : int64 Tensor [targets]
        Its label. Tokens without one are left out.
    loss_weights : float32 Tensor [targets]
        Its weight in the loss.
    """

    rows: Tensor
    tokens: Tensor
    labels: Tensor
    loss_weights: Tensor


@dataclass(frozen=True, eq=False)
class LocalBatch:
    """A rank's share of a batch for training, in local order.

    Iterating yields tokens, positions, labels, loss weights and sequence ids.

    A rank without tokens has one filler token instead, because models cannot compute on nothing. It
    has no label and weighs nothing. Attention returns 0 for it, and ``collect`` leaves it out.

    Attributes
    ----------
    tokens : int64 Tensor [local tokens]
    positions : int64 Tensor [local tokens]
        Positions in documents, for RoPE. Branches of a tree, such as answers to a shared question,
        continue at the token that they follow.
    sequence_ids : int64 Tensor [local tokens]
        Numbers of the documents in the batch.
    targets : Targets
        All labels.
    """

    tokens: Tensor
    positions: Tensor
    sequence_ids: Tensor
    targets: Targets
    _ignore_index: int
    _parting: int | None  # a token of the batch that several tokens follow

    @property
    def labels(self) -> Tensor:
        """The next token of the document, ``ignore_index`` at its end: int64 [local tokens].

        Raises InvalidArgument on every rank if branches part in the batch, because a token would
        need several labels: ``targets`` has them.
        """
        return self._of_rows("labels", self.targets.labels, self._ignore_index)

    @property
    def loss_weights(self) -> Tensor:
        """The weights of ``labels``, 0 where there is none: float32 [local tokens].

        By default they are those of the mean over all labels of the batch. Raises as ``labels``.
        """
        return self._of_rows("loss_weights", self.targets.loss_weights, 0)

    def _of_rows(self, name: str, values: Tensor, without: int) -> Tensor:
        if self._parting is not None:
            raise _core.InvalidArgument(
                f"local batch: expected {name} of a batch in which one token follows another, "
                f"found several that follow token {self._parting}, where branches part; use "
                "targets: logits[targets.rows], targets.labels and targets.loss_weights"
            )
        whole = values.new_full(self.tokens.shape, without)
        whole[self.targets.rows] = values
        mark(whole, digest_behind(self.tokens))
        return whole

    def __iter__(self) -> Iterator[Tensor]:
        return iter(
            (self.tokens, self.positions, self.labels, self.loss_weights, self.sequence_ids)
        )


def _parting_token(plan: _core.Plan) -> int | None:
    """Returns the first token of a batch that several tokens follow, if there is one."""
    segments = np.array(plan.position_segments, dtype=np.int64).reshape(-1, 5)
    followed, counts = np.unique(segments[segments[:, 4] >= 0, 4], return_counts=True)
    counts = counts + ~np.isin(followed + 1, segments[:, 1])  # the token stored behind it, too
    several = followed[counts > 1]
    return int(several[0]) if len(several) else None


def joined_branch(plan: _core.Plan, mask: int) -> int | None:
    """Returns the first token of a branch that attends the token stored before it, if one does."""
    segments = np.array(plan.position_segments, dtype=np.int64).reshape(-1, 5)
    begins = segments[segments[:, 4] >= 0, 0]
    for q_begin, q_end, k_begin, k_end, lo, hi in plan.mask(mask).bands if len(begins) else []:
        if (lo is None or lo <= -1) and (hi is None or hi >= -1):
            at = np.searchsorted(begins, max(q_begin, k_begin + 1))
            if at < len(begins) and begins[at] < min(q_end, k_end + 1):
                return int(begins[at])
    return None


def whole_numbers(name: str, given: Any) -> Tensor:
    """Returns token ids as int64. Raises InvalidArgument for other dtypes instead of rounding."""
    tensor = _converted(name, "whole numbers", given)
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if not is_whole and tensor.numel() > 0:
        raise _core.InvalidArgument(f"{name}: expected whole numbers, found {tensor.dtype}")
    numbers = tensor.to(torch.int64)
    if tensor.dtype == torch.uint64 and bool((numbers < 0).any()):
        raise _core.InvalidArgument(
            f"{name}: expected whole numbers below 2**63, found a larger one"
        )
    return numbers


def truth_values(name: str, given: Any) -> Tensor:
    """Returns truth values as bool. Raises InvalidArgument for other numbers than 0 and 1."""
    tensor = _converted(name, "truth values, or 0 and 1", given)
    if tensor.dtype != torch.bool and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise _core.InvalidArgument(f"{name}: expected truth values, or 0 and 1, found others")
    return tensor.to(torch.bool)


def finite_numbers(name: str, given: Any) -> Tensor:
    """Returns weights as float32. Raises InvalidArgument for other dtypes, infinity and NaN."""
    tensor = _converted(name, "finite numbers", given)
    if tensor.is_complex() or tensor.dtype == torch.bool or not bool(tensor.isfinite().all()):
        raise _core.InvalidArgument(
            f"{name}: expected finite numbers, found others ({tensor.dtype})"
        )
    return tensor.to(torch.float32)


def _of_batch(name: str, tensor: Tensor, plan: _core.Plan) -> Tensor:
    if tensor.shape != (plan.num_tokens,):
        raise _core.InvalidArgument(
            f"{name}: expected [{plan.num_tokens}], found {list(tensor.shape)}"
        )
    return tensor


def _check_alone(**others: Any) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise _core.InvalidArgument(
            f"shift_labels: expected no {' and no '.join(others)}, which are by token and not by "
            f"what it predicts, found {given[0]}"
        )


def local_batch(
    tokens: Any,
    *,
    plan: _core.Plan,
    rank: int,
    labels: Any = None,
    loss_mask: Any = None,
    loss_weights: Any = None,
    shift_labels: Any = None,
    ignore_index: int = -100,
) -> LocalBatch:
    """Returns a rank's tokens, positions, labels and loss weights of a batch.

    Not collective. The sum over ranks of
    ``(loss_weights * cross_entropy(logits, labels, reduction="none")).sum()`` is the mean loss of
    the batch, however its tokens are spread. A token behind which branches part has several labels,
    in ``targets``.

    Parameters
    ----------
    tokens : int array or Tensor [tokens of the batch]
        Token ids of the documents, end to end.
    plan : Plan
        The plan of the batch, or the rank's slice.
    rank : int
        The rank whose share is returned.
    labels : int array or Tensor [tokens of the batch], optional
        One label per token, as in Hugging Face's datasets: not shifted, and ``ignore_index`` where
        a token is not to be predicted. Default: the tokens.
    loss_mask : bool array or Tensor [tokens of the batch], optional
        False for tokens that are not to be predicted, such as those of a prompt.
    loss_weights : float array or Tensor [tokens of the batch], optional
        Weight in the loss of predicting each token, not shifted. A token that several branches
        share has the sum of theirs (``TokenTree.loss_weights``). Weights are used as they are.
        Default: 1 / the number of labels of the batch.
    shift_labels : int array or Tensor [tokens of the batch], optional
        What every token has to predict, as it is: for masks without a rule, such as block
        diffusion, which do not tell which token follows which. Instead of ``labels`` and
        ``loss_mask``; every token then has at most one label, and ``loss_weights`` are those of the
        tokens that predict.
    ignore_index : int
        Label of tokens that predict nothing.

    Returns
    -------
    LocalBatch

    Raises
    ------
    InvalidArgument
        There are more or fewer tokens, labels, weights or values of the loss mask than in the plan,
        or they are not whole numbers, finite numbers, or truth values. The mask has no rule and
        does not tell positions (``contextile.plan(positions=…)``), or which token follows which
        (``shift_labels``).

    Examples
    --------
    >>> import contextile as ct
    >>> from contextile.torch import local_batch
    >>> plan = ct.plan([4, 3], cluster="local:1x1", strategy="zigzag", heads=(4, 2), head_dim=32)
    >>> local = local_batch([10, 11, 12, 13, 20, 21, 22], plan=plan, rank=0)
    >>> local.positions.tolist()
    [0, 1, 2, 3, 0, 1, 2]
    >>> local.labels.tolist()
    [11, 12, 13, -100, 21, 22, -100]
    """
    return share_of_batch(
        tokens,
        plan,
        rank,
        labels=labels,
        loss_mask=loss_mask,
        loss_weights=loss_weights,
        shift_labels=shift_labels,
        ignore_index=ignore_index,
    )


def share_of_batch(
    tokens: Any,
    plan: _core.Plan,
    rank: int,
    *,
    labels: Any,
    loss_mask: Any,
    loss_weights: Any,
    shift_labels: Any,
    ignore_index: int,
    num_labels: int | None = None,
) -> LocalBatch:
    """Does what ``local_batch`` does. ``num_labels`` are those of all batches that share a loss."""
    _checks.plan("local batch, plan", plan)
    _checks.whole("local batch, rank", rank)
    _checks.whole("ignore_index", ignore_index)
    tokens = _of_batch("tokens", whole_numbers("tokens", tokens), plan)
    positions = torch.from_numpy(plan.positions(rank))
    if shift_labels is not None:
        _check_alone(labels=labels, loss_mask=loss_mask)
        wanted = _of_batch("shift_labels", whole_numbers("shift_labels", shift_labels), plan)
        following = _tokens_of(plan, rank)
        rows = torch.arange(len(following))
    else:
        wanted = (
            tokens if labels is None else _of_batch("labels", whole_numbers("labels", labels), plan)
        )
        if loss_mask is not None:
            mask = _of_batch("loss_mask", truth_values("loss_mask", loss_mask), plan)
            wanted = torch.where(mask, wanted, ignore_index)
        rows, following = (torch.from_numpy(array) for array in plan.next_tokens(rank))
    is_target = wanted[following] != ignore_index
    rows, following = rows[is_target], following[is_target]
    if loss_weights is not None:
        weights = _of_batch("loss_weights", finite_numbers("loss_weights", loss_weights), plan)[
            following
        ]
    else:
        if num_labels is None:
            is_predicted = wanted != ignore_index
            if shift_labels is None:
                is_predicted[
                    torch.tensor(
                        [row[0] for row in plan.position_segments if row[4] < 0], dtype=torch.int64
                    )
                ] = False
            num_labels = int(is_predicted.sum())
        weights = torch.ones(len(rows)) / max(num_labels, 1)
    targets = Targets(rows, following, wanted[following], weights)
    local = LocalBatch(
        with_filler(tokens[_tokens_of(plan, rank)]),
        with_filler(positions),
        with_filler(torch.from_numpy(plan.sequence_ids(rank))),
        targets,
        ignore_index,
        _parting_token(plan) if shift_labels is None else None,
    )
    for tensor in (local.tokens, local.positions, local.sequence_ids, *targets):
        mark(tensor, plan.digest)
    return local
