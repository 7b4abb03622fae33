"""Heads of Hugging Face models that pool documents: classifiers and reward models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from transformers.utils.generic import can_return_tuple

from contextile import _core
from contextile.torch import Executor
from contextile.torch._tokens.gather import gather_last

_running: list[Any] = []  # models whose forward is one of these, innermost last


def pools_by_plan(model: Any) -> bool:
    """Returns true if a model that is computing pools the documents of the plan."""
    return any(one is model for one in _running)


def _group_of(executor: Executor) -> Any:
    """Returns the group to gather over. Raises InvalidArgument if there is none."""
    if (
        executor.size > 1
        and executor.group is None
        and (not dist.is_initialized() or dist.get_world_size() != executor.size)
    ):
        raise _core.InvalidArgument(
            "executor: expected one of a torch.distributed group, to gather the last tokens "
            "of documents, found a transport"
        )
    return executor.group


def _check_labels(labels: Any, logits: Tensor) -> None:
    if labels is not None and labels.shape[0] != logits.shape[0]:
        raise _core.InvalidArgument(
            f"labels: expected those of the batch's {logits.shape[0]} documents, on every rank, "
            f"found {list(labels.shape)}"
        )


@contextlib.contextmanager
def pooling(executor: Executor) -> Iterator[None]:
    """Makes generic heads return a row for every document of the plan, on every rank."""

    def forward(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast:
        _running.append(self)
        try:
            outputs = getattr(self, self.base_model_prefix)(
                input_ids, attention_mask=attention_mask, position_ids=position_ids, **kwargs
            )
        finally:
            _running.pop()
        # The head comes before the gathering, so that its gradient is this rank's share.
        own = self.score(outputs.last_hidden_state)[0]
        plan = executor.prepared_of(None).plan
        logits = gather_last(own, plan=plan, group=_group_of(executor))
        _check_labels(labels, logits)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=own, labels=labels, pooled_logits=logits, config=self.config
            )
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    head: Any = GenericForSequenceClassification
    before = head.forward
    head.forward = can_return_tuple(forward)
    try:
        yield
    finally:
        head.forward = before
