"""The time of a token outside attention, as callers give it."""

from __future__ import annotations

import numbers
import os
from typing import Any

from contextile import _core

# Microseconds of a token, or a model: a preset's name or the path of a .json file.
LinearLayers = str | os.PathLike[str] | float

_MOST_US = 1e6


def linear_us_of(
    given: LinearLayers | None,
    q_heads: int,
    kv_heads: int,
    cluster: _core.Cluster,
    head_dim: int | None = None,
) -> float | None:
    """Returns the time of a token in the linear layers of one layer, forward, µs on its device.

    Parameters
    ----------
    given
        Microseconds, a model, or None.
    q_heads, kv_heads : int
        Heads of the attention on a rank. With those of a model they tell over how many
        tensor-parallel ranks its weights are divided.
    cluster : Cluster
        The cluster whose devices compute.
    head_dim : int, optional
        Elements of a query or key of one head, if all layers have the same.

    Returns
    -------
    float or None
        None where nothing was given.

    Raises
    ------
    InvalidArgument
        The value is no number from 0 to 1e6 and no model, or the heads do not fit the model.
    IoError
        The file of a model cannot be read.
    """
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        model = _model_of(given)
        tp = _tp_of(model, q_heads, kv_heads)
        if head_dim is not None and head_dim != model.head_dim:
            raise _core.InvalidArgument(
                f"linear_layers: expected heads of {model.head_dim}, which {model.name} has, found "
                f"{head_dim} in the batch"
            )
        return _core.linear_us_per_token(model, cluster) / tp
    is_number = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not is_number or not 0 <= given <= _MOST_US:
        raise _refused(given)
    return float(given)


def _refused(given: Any) -> _core.InvalidArgument:
    return _core.InvalidArgument(
        "linear_layers: expected 0 to 1e6 microseconds, the name of a model or a .json file, found "
        f"{given!r:.80}"
    )


def _model_of(given: str | os.PathLike[str]) -> _core.ModelSpec:
    text = os.fspath(given)
    if not isinstance(text, str):
        raise _refused(given)
    if not isinstance(given, str) and "/" not in text:
        text = f"./{text}"  # a path is a file, never a preset
    try:
        return _core.load_model(text)
    except _core.InvalidArgument as error:
        if "/" in text or text.endswith(".json"):
            raise  # the message has the file and the place in it
        raise _core.InvalidArgument(
            f"linear_layers: expected microseconds or a model; {error}"
        ) from None


def _tp_of(model: _core.ModelSpec, q_heads: int, kv_heads: int) -> int:
    """Returns the number of tensor-parallel ranks that divide a model's heads.

    A rank has at least one KV head: with more ranks than KV heads, ranks have copies.
    """
    tp, rest = divmod(model.q_heads, q_heads)
    if tp < 1 or rest != 0:
        raise _core.InvalidArgument(
            f"linear_layers: expected query heads that divide the {model.q_heads} of {model.name}, "
            f"found {q_heads} in the batch"
        )
    is_divided = kv_heads * tp == model.kv_heads
    is_copied = kv_heads == 1 and tp % model.kv_heads == 0
    if not is_divided and not is_copied:
        raise _core.InvalidArgument(
            f"linear_layers: expected the {model.kv_heads} KV heads of {model.name} divided over "
            f"{tp} tensor-parallel ranks (its {model.q_heads} query heads over {q_heads} of the "
            f"batch), found {kv_heads} in the batch"
        )
    return tp
