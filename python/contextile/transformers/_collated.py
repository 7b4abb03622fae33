"""A rank's share of a batch that a Hugging Face data collator made."""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile._planning import plan as make_plan
from contextile.torch import Executor, local_batch
from contextile.torch._execute.agreement import peers_of
from contextile.torch._ranks.group import cluster_of
from contextile.transformers._batch_of import batch_of

IGNORED = -100  # the label of tokens that predict nothing
_TAKEN = ("input_ids", "labels", "attention_mask", "position_ids")
# They repeat what position_ids say of packed rows, for kernels that take them.
_REPEATED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
_PLANS_KEPT = 16


class Share(dict[str, Any]):
    """The inputs of a model for this rank's tokens of a batch, and the plan of the batch.

    ``row_tokens`` is the number of tokens of a row of the batch, padding included.
    """

    plan: _core.Plan
    row_tokens: int


def documents_of(inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, list[int]]:
    """Takes a batch of rows apart.

    Returns token ids and labels of all documents, end to end, int64 [tokens] each, and the number
    of tokens of each document. Raises InvalidArgument if the batch cannot be shared out by
    tokens.
    """
    _check_names(inputs)
    ids, labels = inputs["input_ids"].cpu(), inputs["labels"].cpu()
    if ids.dim() != 2 or labels.shape != ids.shape:
        raise _core.InvalidArgument(
            f"batch: expected input_ids and labels [rows, tokens], found {list(ids.shape)} and "
            f"{list(labels.shape)}"
        )
    given = inputs.get("attention_mask")
    is_token = torch.ones_like(ids, dtype=torch.bool) if given is None else given.cpu() != 0
    if is_token.shape != ids.shape or bool(
        (is_token[:, 1:] & ~is_token[:, :-1]).sum(1).add(is_token[:, 0]).gt(1).any()
    ):
        raise _core.InvalidArgument(
            f"attention_mask: expected {list(ids.shape)} with the tokens of a row side by side, "
            f"found {list(is_token.shape)}" + (" with a gap" if is_token.shape == ids.shape else "")
        )
    if not bool(is_token.any()):
        raise _core.InvalidArgument("batch: expected tokens, found padding alone")
    begins = (is_token & (is_token.cumsum(1) == 1))[is_token]
    if inputs.get("position_ids") is not None:
        begins = _begins(inputs["position_ids"].cpu(), is_token, begins)
    edges = [*begins.nonzero().flatten().tolist(), len(begins)]
    lengths = [end - begin for begin, end in itertools.pairwise(edges)]
    _check_repeated(inputs, lengths)
    return ids[is_token], labels[is_token], lengths


def _check_names(inputs: Mapping[str, Any]) -> None:
    odd = [
        name
        for name, value in inputs.items()
        if value is not None and name not in (*_TAKEN, *_REPEATED)
    ]
    if odd:
        raise _core.InvalidArgument(
            f"batch: expected {', '.join(_TAKEN)}, found {', '.join(odd)}, which no rank would get "
            "its part of; leave it out in the collator"
        )
    missing = [name for name in ("input_ids", "labels") if inputs.get(name) is None]
    if missing:
        raise _core.InvalidArgument(f"batch: expected input_ids and labels, found no {missing[0]}")


def _begins(positions: Tensor, is_token: Tensor, rows_begin: Tensor) -> Tensor:
    """Returns true at the first token of every document, [tokens]."""
    if positions.shape != is_token.shape:
        raise _core.InvalidArgument(
            f"position_ids: expected {list(is_token.shape)}, found {list(positions.shape)}"
        )
    found = positions[is_token]
    begins = found == 0
    index = torch.arange(len(found))
    counted = index - torch.where(begins, index, 0).cummax(0).values
    if not bool(begins[rows_begin].all()) or not torch.equal(found, counted):
        wrong = int(((found != counted) | (rows_begin & ~begins)).nonzero()[0])
        raise _core.InvalidArgument(
            f"position_ids: expected 0, 1, 2, … in every document of a row, found {found[wrong]} "
            f"at token {wrong} of the batch"
        )
    return begins


def _check_repeated(inputs: Mapping[str, Any], lengths: list[int]) -> None:
    """Raises unless other descriptions of the documents agree with those found."""
    sizes = torch.tensor(lengths)
    expected = {
        "cu_seq_lens": torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        "max_length": sizes.max(),
        "seq_idx": torch.repeat_interleave(torch.arange(len(lengths)), sizes),
    }
    for name in _REPEATED:
        if inputs.get(name) is None:
            continue
        found = torch.as_tensor(inputs[name]).cpu().to(torch.int64).flatten()
        if not torch.equal(found, expected[name.removesuffix("_q").removesuffix("_k")].flatten()):
            raise _core.InvalidArgument(
                f"{name}: expected documents of {lengths[:8]} tokens, as position_ids have them, "
                f"found {found[:8].tolist()}"
            )


class Shares:
    """Plans batches and makes this rank's shares of them."""

    def __init__(self, executor: Executor, options: Mapping[str, Any]) -> None:
        self._executor = executor
        self._options = dict(options)
        self._plans: OrderedDict[tuple[int, ...], _core.Plan] = OrderedDict()

    def of(self, inputs: Mapping[str, Any], model: Any) -> Share:
        """Returns this rank's share of a batch. Collective over the group."""
        tokens, labels, lengths = documents_of(inputs)
        self._check_same(tokens, labels, lengths)
        plan = self._plan_of(tuple(lengths), model)
        local = local_batch(
            tokens, plan=plan, rank=self._executor.rank, labels=labels, ignore_index=IGNORED
        )
        share = Share(
            input_ids=local.tokens[None],
            position_ids=local.positions[None],
            # The model computes a loss if there are labels, and takes those that are shifted.
            labels=local.labels[None],
            shift_labels=local.labels[None],
            use_cache=False,
        )
        share.plan, share.row_tokens = plan, inputs["input_ids"].shape[1]
        return share

    def _plan_of(self, lengths: tuple[int, ...], model: Any) -> _core.Plan:
        if "cluster" not in self._options:
            self._options["cluster"] = (
                cluster_of(self._executor.group) if self._executor.size > 1 else "local:1x1"
            )
        if lengths not in self._plans:
            self._plans[lengths] = make_plan(list(lengths), **batch_of(model, **self._options))
            if len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        self._plans.move_to_end(lengths)
        return self._plans[lengths]

    def _check_same(self, tokens: Tensor, labels: Tensor, lengths: list[int]) -> None:
        """Raises, on every rank of the group, unless all have the same batch."""
        if self._executor.size == 1:
            return
        values = torch.cat([tokens.to(torch.int64), labels.to(torch.int64), torch.tensor(lengths)])
        digits = hashlib.blake2b(values.numpy().tobytes(), digest_size=8).digest()
        digest = int.from_bytes(digits, "little", signed=True)
        digests = peers_of(self._executor).numbers("batch", [digest])
        odd = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if odd:
            raise _core.InvalidArgument(
                "batch: expected the same batch on every rank of the context-parallel group, "
                f"found another than rank 0's on rank {odd[0]} of {len(digests)}; the data loader "
                "must deal to groups (TrainerMixin before the trainer in the list of bases, the "
                "same seed and dataset on all ranks)"
            )
