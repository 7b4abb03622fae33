"""Losses of a bigram model, the sound one and those that known faults give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from contextile.torch._audit.deals import Deal

NONE = -100  # the label of a token that predicts nothing


@dataclass(frozen=True)
class Batch:
    """Tokens [replicas, rows] of a bigram model's batch, all dealt in the same way.

    The logits of a token are its row of ``table`` [vocabulary, vocabulary].
    """

    deal: Deal
    tokens: Tensor
    table: Tensor

    @cached_property
    def labels(self) -> Tensor:
        """[replicas, rows] the next token of the document."""
        deal = self.deal
        labels = torch.full_like(self.tokens, NONE)
        labels[:, :-1] = self.tokens[:, 1:]
        lengths = torch.tensor(deal.lengths)[deal.documents]
        labels[:, deal.positions >= lengths - 1] = NONE
        return labels

    @cached_property
    def next_rows(self) -> Tensor:
        """[replicas, rows] the token of the next row of the batch, in whatever document."""
        labels = torch.full_like(self.tokens, NONE)
        labels[:, :-1] = self.tokens[:, 1:]
        return labels


@dataclass(frozen=True)
class Loss:
    """A loss: labels and weights [replicas, rows] of tokens, and the fault that gives them."""

    labels: Tensor
    weights: Tensor
    cause: str = ""
    form: str = ""

    def value_and_gradient(self, batch: Batch) -> tuple[float, Tensor]:
        """Returns the loss and the gradient of the table, in fp64."""
        table = batch.table.double()
        counted = self.weights != 0
        tokens, labels = batch.tokens[counted], self.labels[counted]
        weights = self.weights[counted]
        logs = torch.log_softmax(table[tokens], 1)
        value = -(weights * logs.gather(1, labels[:, None])[:, 0]).sum()
        each = logs.exp() * weights[:, None]
        each.scatter_add_(1, labels[:, None], -weights[:, None])
        gradient = torch.zeros_like(table).index_add_(0, tokens, each)
        return float(value), gradient


def sound(batch: Batch) -> Loss:
    """Returns the mean over all tokens that have a label, of all replicas."""
    return _mean(batch.labels)


def _mean(labels: Tensor) -> Loss:
    counted = (labels != NONE).double()
    return Loss(labels, counted / counted.sum().clamp(min=1))


def _means_of_ranks(batch: Batch, labels: Tensor) -> Loss:
    counted = (labels != NONE).double()
    weights = torch.zeros_like(counted)
    num_ranks = batch.deal.size * len(labels)
    for part in batch.deal.parts:
        count = counted[:, part].sum(1, keepdim=True).clamp(min=1)
        weights[:, part] = counted[:, part] / count / num_ranks
    return Loss(labels, weights)


def _in_shards(batch: Batch, wraps: bool, crosses: bool) -> Tensor:
    """Returns labels that every rank has shifted by itself."""
    labels = torch.full_like(batch.tokens, NONE)
    for part in batch.deal.parts:
        local = batch.tokens[:, part].roll(-1, 1)
        if not wraps and len(part) > 0:
            local[:, -1] = NONE
        labels[:, part] = local
    if not crosses:
        labels = torch.where(batch.labels == NONE, NONE, labels)
    return labels


def _label_faults(batch: Batch) -> Iterator[tuple[str, str, Tensor]]:
    deal = batch.deal
    yield "", "", batch.labels
    if deal.size > 1:
        for crosses in (False, True):
            yield (
                "label_shifted_at_border",
                "its last is ignored",
                _in_shards(batch, False, crosses),
            )
            yield (
                "label_shifted_at_border",
                "its last is its first",
                _in_shards(batch, True, crosses),
            )
    no_padding = torch.where(deal.is_token, batch.next_rows, NONE)
    following = no_padding.clone()
    following[:, :-1] = torch.where(deal.is_token[1:], no_padding[:, :-1], NONE)
    yield "labels_cross_documents", "", following
    yield "labels_cross_documents", "or the padding behind it", no_padding
    yield "labels_not_shifted", "", torch.where(deal.is_token, batch.tokens, NONE)
    yield "padding_counted", "", batch.next_rows


def faults(batch: Batch) -> Iterator[Loss]:
    """Yields the losses of known faults, the likelier ones first."""
    right = batch.labels != NONE
    for cause, form, labels in _label_faults(batch):
        if cause and torch.equal(labels, batch.labels):
            continue
        mean = _mean(labels)
        if cause:
            yield replace(mean, cause=cause, form=form)
            # Divided by the number of labels that there should be.
            counted = (labels != NONE).double() / right.double().sum().clamp(min=1)
            yield Loss(labels, counted, cause, form)
        if batch.deal.size * len(labels) > 1:
            averaged = _means_of_ranks(batch, labels)
            if not torch.allclose(averaged.weights, mean.weights, rtol=1e-9, atol=0):
                yield replace(averaged, cause=cause or "mean_of_means", form=form)


def first_wrong_label(batch: Batch, labels: Tensor) -> int | None:
    """Returns the first row of the first replica with another label than the sound one."""
    wrong = (labels[0] != batch.labels[0]).nonzero()
    return int(wrong[0]) if len(wrong) else None
