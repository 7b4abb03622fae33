"""Batches of vision-language models: masks of images, and a rank's features of images."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextile import _core, masks
from contextile.torch._batch.layout import dispatch
from contextile.transformers._layer_kinds import layers_of, rule_of

# Fields of a tower's output that have a row for each token of an image.
_FIELDS = ("pooler_output", "deepstack_features")


def _blocks_of(model: Any, document: Tensor) -> Tensor:
    """Returns the numbers of blocks of a document's tokens, as the model makes them."""
    kind = model.config.model_type
    # The function of the model's own file says which tokens are an image.
    make = next(
        (
            found
            for base in type(model).__mro__
            if (
                found := getattr(
                    sys.modules.get(base.__module__), "get_block_sequence_ids_for_mask", None
                )
            )
            is not None
        ),
        None,
    )
    if make is not None:
        blocks: Tensor = make(document[None], device=document.device)[0]
        return blocks
    if kind == "paligemma":
        return torch.where(document == 0, 0, -1)
    raise _core.InvalidArgument(
        "model: expected one in which the tokens of an image or of a prefix attend both ways, "
        f"found {kind}; give block_ids"
    )


def image_masks(
    model: Any, lengths: Sequence[int], token_type_ids: Any = None, *, block_ids: Any = None
) -> dict[str, tuple[Any, int]]:
    """Returns the masks of a batch for a model in which tokens of an image attend both ways.

    Pass them to ``batch_of(model, mask=…)``. They are what the model makes of ``token_type_ids``
    (Gemma 4: ``mm_token_type_ids``): images in Gemma 3, and in the sliding layers of Gemma 4; the
    image and the prompt before the answer in PaliGemma.

    Parameters
    ----------
    model
        A model of ``transformers``.
    lengths : sequence of int
        Number of tokens of every document.
    token_type_ids : int array or Tensor [tokens], optional
        The model's token types of all documents, end to end.
    block_ids : int array or Tensor [tokens], optional
        Instead: the number of each token's block in its document, negative for none.

    Returns
    -------
    dict
        Masks by name, each with its number of layers.

    Raises
    ------
    InvalidArgument
        Not one of the two is given or it has another length, images of the model are causal, or its
        layers cannot be found out.

    Examples
    --------
    ::

        masks = image_masks(model, lengths, token_type_ids)
        plan = ct.plan(lengths, cluster=cluster, **batch_of(model, mask=masks))
    """
    if (token_type_ids is None) == (block_ids is None):
        raise _core.InvalidArgument(
            "image_masks: expected token_type_ids or block_ids, found both or none"
        )
    given = torch.as_tensor(token_type_ids if block_ids is None else block_ids).reshape(-1).cpu()
    name = "token_type_ids" if block_ids is None else "block_ids"
    if len(given) != sum(lengths):
        raise _core.InvalidArgument(f"{name}: expected {sum(lengths)} numbers, found {len(given)}")
    if block_ids is None:
        given = torch.cat([_blocks_of(model, document) for document in given.split(list(lengths))])
    layers = layers_of(model, with_types=True)
    if layers is None:
        raise _core.InvalidArgument(
            f"model: expected one whose layers can be found out, found {type(model).__name__}; "
            "masks.with_blocks makes their masks"
        )
    asks = any(layer.has_blocks for layer in layers)
    if block_ids is None and not asks:
        raise _core.InvalidArgument(
            "model: expected one in which the tokens of an image attend both ways, found causal "
            "layers"
        )
    found: dict[str, tuple[Any, int]] = {}
    for kind in sorted({layer.kind for layer in layers}):
        same = [layer for layer in layers if layer.kind == kind]
        form, has_blocks = same[0].form, same[0].has_blocks if asks else same[0].form.is_causal
        if any((layer.form, layer.has_blocks) != (form, same[0].has_blocks) for layer in same):
            raise _core.InvalidArgument(
                f"model: expected {kind} layers of one mask, found several; masks.with_blocks "
                "makes their masks"
            )
        mask = rule_of(form)
        if has_blocks:
            mask = masks.with_blocks(
                lengths, given.numpy(), window=form.window, whole_blocks=form.whole_blocks
            )
        found[kind] = mask, len(same)
    return found


def local_images(outputs: Any, image_mask: Any, *, plan: _core.Plan, rank: int) -> Any:
    """Returns the features of a rank's image tokens, from those of all images of the batch.

    Not collective. Every rank runs the vision tower on all images. The model merges the result,
    ``mm_encoder_outputs={"image": local_images(…)}``. The gradients of the tower's weights are this
    rank's share, like those of all weights.

    Parameters
    ----------
    outputs
        What ``model.get_image_features`` (or ``get_video_features``) returned for all images, in
        the order of their tokens.
    image_mask : bool array or Tensor [tokens of the batch]
        True for the tokens that the features replace.
    plan : Plan
        The plan of the batch.
    rank : int
        The rank whose features are returned.

    Returns
    -------
    outputs
        A copy with the rows of this rank's tokens, in local order.

    Raises
    ------
    InvalidArgument
        There are more or fewer features than tokens, or the outputs have none.

    Examples
    --------
    ::

        features = model.get_image_features(pixel_values)
        images = local_images(features, tokens == model.config.image_token_id, plan=plan, rank=rank)
    """
    is_image = torch.as_tensor(image_mask).reshape(-1).to(torch.bool)
    if len(is_image) != plan.num_tokens:
        raise _core.InvalidArgument(
            f"image_mask: expected {plan.num_tokens} truth values, found {len(is_image)}"
        )
    rows = dispatch(torch.where(is_image, is_image.cumsum(0) - 1, -1), plan=plan, rank=rank)
    rows = rows[rows >= 0]
    if getattr(outputs, "pooler_output", None) is None:
        raise _core.InvalidArgument(
            f"outputs: expected some with pooler_output, found {type(outputs).__name__}"
        )
    local = copy.copy(outputs)
    for name in _FIELDS:
        given = getattr(outputs, name, None)
        if given is None:
            continue
        if name == "pooler_output":
            local[name] = _rows_of(given, rows, int(is_image.sum()))
        else:
            local[name] = [_rows_of(one, rows, int(is_image.sum())) for one in given]
    return local


def _rows_of(features: Any, rows: Tensor, count: int) -> Any:
    """Returns rows of features of [images, tokens, width], or of a list of [tokens, width]."""
    whole = features.flatten(0, -2) if isinstance(features, Tensor) else torch.cat(list(features))
    if len(whole) != count:
        raise _core.InvalidArgument(
            f"outputs: expected the features of {count} tokens, found {len(whole)}"
        )
    found = whole[rows.to(whole.device)]
    return found if isinstance(features, Tensor) else (found,)
