"""Checks the losses that models of Hugging Face compute of their own labels."""

from __future__ import annotations

import inspect
from typing import Any

from contextile import _core

# Losses that are no sum over tokens: a softmax over the tokens of a document, one label for each.
_OF_DOCUMENTS = ("start_positions", "end_positions", "next_sentence_label", "sentence_order_label")


def shifts_labels(model: Any) -> bool:
    """Returns whether a model computes the loss of next tokens, and takes labels that are shifted.

    Others, such as masked language models, have labels of the tokens themselves; those that compute
    a loss by code of their own take the mean over the tokens of a call.
    """
    from transformers.loss.loss_utils import ForCausalLMLoss

    names = inspect.unwrap(type(model).forward).__code__.co_names
    if any(name.startswith("Liger") for name in names):
        return True
    return "loss_function" in names and model.loss_function is ForCausalLMLoss


def check_loss(model: Any, arguments: dict[str, Any], pools: bool) -> None:
    """Raises if a model would compute a loss of this rank's tokens that is no part of the batch's.

    ``arguments`` are those of its forward. ``pools`` is true if its loss is one of documents.
    """
    more = arguments.get("kwargs")
    arguments = {**more, **arguments} if isinstance(more, dict) else arguments
    for name in _OF_DOCUMENTS:
        if arguments.get(name) is not None:
            raise _core.InvalidArgument(
                f"{name}: expected none inside use, for {type(model).__name__} would compute its "
                "loss over this rank's tokens alone; compute it from the logits of the batch "
                "(contextile.torch.collect)"
            )
    if arguments.get("labels") is None or pools:
        return
    is_shifted = arguments.get("shift_labels") is not None
    if is_shifted and arguments.get("fused_lm_head") is True:
        return  # TRL's head, which returns log-probabilities of tokens and no loss
    if not is_shifted or arguments.get("num_items_in_batch") is None:
        raise _core.InvalidArgument(
            "labels: expected none inside use, for the model would shift them by this rank's "
            "tokens and average over them; found some. Compute the loss from local.labels and "
            "local.loss_weights, or give shift_labels=local.labels and num_items_in_batch= (of "
            "the whole batch), too, and sum the losses of the ranks"
        )
    if not shifts_labels(model):
        raise _core.InvalidArgument(
            f"labels: expected none inside use, for {type(model).__name__} does not compute the "
            "loss of next tokens by shift_labels and num_items_in_batch; compute its loss from "
            "the logits, with labels of dispatch(…)"
        )
