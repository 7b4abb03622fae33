"""Tensors of a batch in the local order of a rank, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _core


def _tokens_of(plan: _core.Plan, rank: int) -> Tensor:
    return torch.from_numpy(plan.local_tokens(rank))


def dim_of(call: str, tensor: Tensor, dim: int) -> int:
    """Returns a dimension's number from 0. Raises InvalidArgument if there is none."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise _core.InvalidArgument(f"{call}: expected a dimension of {list(tensor.shape)}, found dim={dim}")
    return dim % tensor.dim()


def with_filler(rows: Tensor) -> Tensor:
    """Returns the rows of a rank, or one of zeros if it has none."""
    return rows if len(rows) > 0 else rows.new_zeros((1, *rows.shape[1:]))


def without_filler(rows: Tensor, plan: _core.Plan, rank: int) -> Tensor:
    """Returns the rows without the filler that a rank without tokens has."""
    return rows[:0] if plan.num_local_tokens(rank) == 0 and rows.shape[0] == 1 else rows


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
    if tensor.shape[dim] != plan.num_tokens:
        raise _core.InvalidArgument(
            f"dispatch: expected {plan.num_tokens} tokens in dimension {dim}, found {tensor.shape[dim]}"
        )
    local = tensor.index_select(dim, _tokens_of(plan, rank).to(tensor.device))
    if local.dtype is torch.int64:  # tokens and positions, which attention knows again
        local._contextile_plan = plan.digest  # type: ignore[attr-defined]
    return local


class LocalBatch(NamedTuple):
    """A rank's share of a batch for training, in local order.

    A rank without tokens has one filler token instead, because models cannot compute on nothing. It
    has no label and weighs nothing. Attention returns 0 for it, and ``collect`` leaves it out.

    Attributes
    ----------
    tokens : int64 Tensor [local tokens]
        Token ids.
    positions : int64 Tensor [local tokens]
        Positions in the documents, for RoPE. Answers to a shared question, and other branches of a
        tree, continue at the token that they follow.
    labels : int64 Tensor [local tokens]
        The next token of the document; ``ignore_index`` at its end and at the end of a branch.
    loss_weights : float32 Tensor [local tokens]
        Weights of the mean over all labels of the batch; 0 for tokens without a label.
    sequence_ids : int64 Tensor [local tokens]
        Numbers of the documents in the batch.
    """

    tokens: Tensor
    positions: Tensor
    labels: Tensor
    loss_weights: Tensor
    sequence_ids: Tensor


def whole_numbers(name: str, given: Any) -> Tensor:
    """Returns token ids as int64. Raises InvalidArgument for other dtypes instead of rounding."""
    tensor = torch.as_tensor(given)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        if tensor.numel() > 0:
            raise _core.InvalidArgument(f"{name}: expected whole numbers, found {tensor.dtype}")
    numbers = tensor.to(torch.int64)
    if tensor.dtype == torch.uint64 and bool((numbers < 0).any()):
        raise _core.InvalidArgument(f"{name}: expected whole numbers below 2**63, found a larger one")
    return numbers


def truth_values(name: str, given: Any) -> Tensor:
    """Returns truth values as bool. Raises InvalidArgument for other numbers than 0 and 1."""
    tensor = torch.as_tensor(given)
    if tensor.dtype != torch.bool and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise _core.InvalidArgument(f"{name}: expected truth values, or 0 and 1, found others")
    return tensor.to(torch.bool)


def _of_batch(name: str, tensor: Tensor, plan: _core.Plan) -> Tensor:
    if tensor.shape != (plan.num_tokens,):
        raise _core.InvalidArgument(f"{name}: expected [{plan.num_tokens}], found {list(tensor.shape)}")
    return tensor


def local_batch(
    tokens: Any,
    *,
    plan: _core.Plan,
    rank: int,
    labels: Any = None,
    loss_mask: Any = None,
    ignore_index: int = -100,
) -> LocalBatch:
    """Returns a rank's tokens, positions, labels and loss weights of a batch.

    Not collective. The sum over ranks of
    ``(loss_weights * cross_entropy(logits, labels, reduction="none")).sum()`` is the mean loss of
    the batch, however its tokens are spread.

    Parameters
    ----------
    tokens : int array or Tensor [tokens of the batch]
        Token ids of the documents, end to end.
    plan : Plan
        The plan of the batch, or the rank's slice.
    rank : int
        The rank whose share is returned.
    labels : int array or Tensor [tokens of the batch], optional
        One label per token, as in Hugging Face's datasets: not shifted, and ``ignore_index`` where a
        token is not to be predicted. Default: the tokens.
    loss_mask : bool array or Tensor [tokens of the batch], optional
        False for tokens that are not to be predicted, such as those of a prompt.
    ignore_index : int
        Label of tokens that predict nothing.

    Returns
    -------
    LocalBatch

    Raises
    ------
    InvalidArgument
        There are more or fewer tokens, labels or values of the loss mask than in the plan, or they
        are not whole numbers, or truth values.

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
    tokens = whole_numbers("tokens", tokens)
    if tokens.shape != (plan.num_tokens,):
        raise _core.InvalidArgument(f"tokens: expected [{plan.num_tokens}], found {list(tokens.shape)}")
    targets = tokens if labels is None else _of_batch("labels", whole_numbers("labels", labels), plan)
    if loss_mask is not None:
        wanted = _of_batch("loss_mask", truth_values("loss_mask", loss_mask), plan)
        targets = torch.where(wanted, targets, ignore_index)
    following = torch.from_numpy(plan.rolled_tokens(rank))
    local_labels = torch.where(following >= 0, targets[following.clamp(min=0)], ignore_index)
    # The first token of a document, or of a branch such as another answer, is no token's next one.
    is_predicted = targets != ignore_index
    is_predicted[torch.tensor([row[0] for row in plan.position_segments], dtype=torch.int64)] = False
    weights = (local_labels != ignore_index).to(torch.float32) / max(int(is_predicted.sum()), 1)
    local = LocalBatch(
        tokens[_tokens_of(plan, rank)],
        torch.from_numpy(plan.positions(rank)),
        local_labels,
        weights,
        torch.from_numpy(plan.sequence_ids(rank)),
    )
    if len(local_labels) == 0:
        local = LocalBatch(*(with_filler(tensor) for tensor in local))
        local.labels.fill_(ignore_index)
    for tensor in local:
        tensor._contextile_plan = plan.digest  # type: ignore[attr-defined]
    return local


def digest_behind(tensor: Tensor) -> str | None:
    """Returns the digest of the plan that ``local_batch`` made a tensor or its base for."""
    digest = getattr(tensor, "_contextile_plan", None)
    if digest is None and tensor._base is not None:
        digest = getattr(tensor._base, "_contextile_plan", None)
    return digest
