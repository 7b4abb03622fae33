"""A batch's tensors in the order of a rank, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from contextile import _core

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def _tokens_of(plan: _core.Plan, rank: int) -> Tensor:
    return torch.from_numpy(plan.local_tokens(rank))


def check_tokens_on_ranks(plan: _core.Plan) -> None:
    """Raises InvalidArgument where a rank owns no tokens, which models cannot reshape; of a slice, that rank alone is looked at."""
    for rank in range(plan.num_devices) if plan.slice_of is None else [plan.slice_of]:
        if plan.num_local_tokens(rank) == 0:
            raise _core.InvalidArgument(
                f"plan: expected tokens on every rank, found none on rank {rank}; a smaller block_size spreads them"
            )


def dispatch(tensor: Tensor, *, plan: _core.Plan, rank: int, dim: int = 0) -> Tensor:
    """This rank's tokens of a tensor of the whole batch, in local order. Differentiable.

    Shapes
    ------
    tensor : [..., tokens of the batch, ...], the tokens at ``dim``
    returns : [..., local tokens, ...]

    Raises
    ------
    InvalidArgument
        ``dim`` has another number of tokens than the plan.
    """
    if tensor.shape[dim] != plan.num_tokens:
        raise _core.InvalidArgument(
            f"dispatch: expected {plan.num_tokens} tokens in dimension {dim}, found {tensor.shape[dim]}"
        )
    return tensor.index_select(dim, _tokens_of(plan, rank).to(tensor.device))


def collect(
    tensor: Tensor, *, plan: _core.Plan, group: ProcessGroup | None = None, dim: int = 0
) -> Tensor:
    """The whole batch of every rank's local tokens, on every rank. Collective; without gradients.

    Shapes
    ------
    tensor : [..., local tokens, ...], the tokens at ``dim``
    returns : [..., tokens of the batch, ...]

    Raises
    ------
    InvalidArgument
        ``dim`` has another number of tokens than this rank owns, or the group another number of ranks than the plan.
    """
    import torch.distributed as dist

    size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    if size != plan.num_devices:
        raise _core.InvalidArgument(f"collect: expected a group of {plan.num_devices} ranks, found {size}")
    counts = [plan.num_local_tokens(r) for r in range(size)]
    rows = tensor.detach().movedim(dim, 0).contiguous()
    if rows.shape[0] != counts[rank]:
        raise _core.InvalidArgument(
            f"collect: expected {counts[rank]} tokens in dimension {dim}, found {rows.shape[0]}"
        )
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: counts[rank]] = rows
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded, group=group)
    whole = rows.new_empty((plan.num_tokens, *rows.shape[1:]))
    for r, part in enumerate(parts):
        whole[_tokens_of(plan, r).to(rows.device)] = part[: counts[r]]
    return whole.movedim(0, dim)


class LocalBatch(NamedTuple):
    """What a rank needs of a batch to train on it; all in local order."""

    tokens: Tensor  # int64 [local tokens]
    positions: Tensor  # int64 [local tokens]: in the document, for RoPE
    labels: Tensor  # int64 [local tokens]: the next token of the document, ignore_index at its end
    loss_weights: Tensor  # float32 [local tokens]: of the mean over all labels of the batch; 0 where there is none
    sequence_ids: Tensor  # int64 [local tokens]: number of the document


def whole_numbers(name: str, given: Any) -> Tensor:
    """Token ids as int64; what is none is refused rather than rounded."""
    tensor = torch.as_tensor(given)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        if tensor.numel() > 0:
            raise _core.InvalidArgument(f"{name}: expected whole numbers, found {tensor.dtype}")
    return tensor.to(torch.int64)


def local_batch(tokens: Any, *, plan: _core.Plan, rank: int, ignore_index: int = -100) -> LocalBatch:
    """A rank's tokens, positions, labels and loss weights of a batch.

    The sum over ranks of ``(loss_weights * cross_entropy(logits, labels, reduction="none")).sum()`` is the mean loss of
    the batch, however tokens are spread.

    Shapes
    ------
    tokens : int [tokens of the batch], documents end to end

    Raises
    ------
    InvalidArgument
        Another number of tokens than the plan's.
    """
    tokens = whole_numbers("tokens", tokens)
    if tokens.shape != (plan.num_tokens,):
        raise _core.InvalidArgument(f"tokens: expected [{plan.num_tokens}], found {list(tokens.shape)}")
    following = torch.from_numpy(plan.rolled_tokens(rank))
    has_label = following >= 0
    labels = torch.where(has_label, tokens[following.clamp(min=0)], ignore_index)
    num_labels = plan.num_tokens - len(plan.sequences)
    weights = has_label.to(torch.float32) / max(num_labels, 1)
    return LocalBatch(
        tokens[_tokens_of(plan, rank)],
        torch.from_numpy(plan.positions(rank)),
        labels,
        weights,
        torch.from_numpy(plan.sequence_ids(rank)),
    )
