"""A rank's share of a micro-batch: its tokens, labels, loss weights and fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from contextile import _core
from contextile.torch._batch.layout import LocalBatch, mark, share_of_batch, with_filler
from contextile.torch._loader.documents import DocumentReader, Piece


class Step(NamedTuple):
    """A rank's share of a micro-batch of a training step.

    ``local.loss_weights`` are those of the mean over the labels of the whole step: of all its
    micro-batches, replicas and ranks. If documents have ``loss_weights``, they are those.
    """

    local: LocalBatch
    plan: _core.Plan  # this rank's slice of the micro-batch's plan; the first whole one of several
    step: int
    pieces: list[Piece]  # the documents of the micro-batch, in order
    micro_batch: int  # its number in the step
    num_micro_batches: int  # of this replica in the step
    num_labels: int  # labels of the whole step
    fields: dict[str, Tensor]  # further fields, [local tokens, ...] each
    sequence_fields: dict[str, Tensor]  # fields of whole documents, [pieces, ...] each
    ranks: tuple[int, ...]  # the ranks of the cluster that share the micro-batch
    # The plans by mask, for ``prepare``; layers of unlike shapes have several.
    plans: dict[str, _core.Plan]

    @property
    def is_last(self) -> bool:
        """True for the last micro-batch of the step, after which the optimizer's step follows."""
        return self.micro_batch + 1 == self.num_micro_batches


class Round(NamedTuple):
    """A rank's micro-batches between two barriers of a scheduled step.

    Their ``micro_batch`` and ``num_micro_batches`` count those of this rank in all rounds.
    """

    step: int
    round: int  # its number in the step
    num_rounds: int  # of the step, equal on all ranks
    micro_batches: list[Step]  # in the order in which the rank runs them; none if it waits

    @property
    def is_last(self) -> bool:
        """True for the last round of the step, after which the optimizer's step follows."""
        return self.round + 1 == self.num_rounds


class Shares:
    """Makes a rank's shares of micro-batches."""

    def __init__(self, reader: DocumentReader, ignore_index: int) -> None:
        self._reader = reader
        self._ignore_index = ignore_index
        self._reads_all = False
        self._are_shifted = False

    def begin_step(self, mine: Sequence[Piece], first: Piece) -> None:
        """Begins a step in which this rank has shares of the pieces ``mine``. If no document was
        read yet, it reads that of ``first``."""
        names = self._reader.names(first.document)
        self._are_shifted = "shift_labels" in names
        # If a token may have the number that marks tokens without labels, only reading tells.
        self._reads_all = (
            self._are_shifted
            or "labels" in names
            or "loss_mask" in names
            or self._ignore_index >= 0
        )
        self._reader.keep({piece.document for piece in mine})

    def num_labels(self, pieces: Sequence[Piece], begins: Sequence[int]) -> int:
        """Returns the number of labels of a micro-batch; no token predicts those at ``begins``.

        If documents have labels or a loss mask, this reads all of them.
        """
        if not self._reads_all:
            return sum(piece.num_tokens for piece in pieces) - len(begins)
        is_label = self._reader.targets(pieces, self._ignore_index) != self._ignore_index
        if self._are_shifted:
            return int(is_label.sum())
        is_label[torch.tensor(begins, dtype=torch.int64)] = False
        return int(is_label.sum())

    def first_local(self, pieces: Sequence[Piece], plan: _core.Plan, rank: int) -> Piece:
        """Returns the first piece of which a rank holds tokens, or the first if there is none."""
        is_local = _is_local(plan, rank)
        return pieces[is_local.index(True) if any(is_local) else 0]

    def of(
        self,
        pieces: list[Piece],
        plan: _core.Plan,
        rank: int,
        *,
        step: int,
        micro_batch: int,
        num_micro_batches: int,
        num_labels: int,
        ranks: tuple[int, ...],
        plans: dict[str, _core.Plan] | None = None,
    ) -> Step:
        """Returns the share of a rank; ``rank`` is that in the plan.

        Reads only documents that the rank holds tokens of, unless there are fields of whole ones.
        """
        rows = self._reader.rows(pieces, _is_local(plan, rank))
        local = share_of_batch(
            rows.pop("tokens"),
            plan,
            rank,
            labels=rows.pop("labels", None),
            loss_mask=rows.pop("loss_mask", None),
            loss_weights=rows.pop("loss_weights", None),
            shift_labels=rows.pop("shift_labels", None),
            ignore_index=self._ignore_index,
            num_labels=num_labels,
        )
        local_tokens = torch.from_numpy(plan.local_tokens(rank))
        fields = {name: with_filler(field[local_tokens]) for name, field in rows.items()}
        for tensor in fields.values():
            mark(tensor, plan.digest)
        return Step(
            local,
            plan,
            step,
            pieces,
            micro_batch,
            num_micro_batches,
            num_labels,
            fields,
            self._reader.values(pieces),
            ranks,
            plans or dict.fromkeys(plan.mask_names, plan),
        )


def _is_local(plan: _core.Plan, rank: int) -> list[bool]:
    """Returns true for documents of which a rank holds tokens."""
    ranges = np.array(plan.local_ranges(rank), dtype=np.int64).reshape(-1, 2)
    return [
        bool(((ranges[:, 0] < end) & (begin < ranges[:, 1])).any()) for begin, end in plan.sequences
    ]
