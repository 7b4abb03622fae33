"""Gives positions to models that would count them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from contextile import _core


@functools.lru_cache(maxsize=256)
def _takes_positions(kind: type) -> bool:
    """Returns whether a module is an embedding that counts positions unless it is given some."""
    return (
        issubclass(kind, nn.Embedding)
        and "Position" in kind.__name__
        and "position_ids" in inspect.signature(kind.forward).parameters
    )


def _is_in_encoder() -> bool:
    """Returns whether the innermost encoder or decoder that is computing is an encoder."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # Python's only way to callers
    while frame is not None:
        owner = (
            type(frame.f_locals.get("self")).__name__ if frame.f_code.co_name == "forward" else ""
        )
        if "Encoder" in owner or "Decoder" in owner:
            return "Encoder" in owner
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _counts_ids(kind: type) -> bool:
    """Returns whether a module counts positions from token ids and takes none."""
    if not issubclass(kind, nn.Module) or "Position" not in kind.__name__:
        return False
    accepted = inspect.signature(kind.forward).parameters
    return "input_ids" in accepted and "position_ids" not in accepted


def _is_table(module: nn.Module) -> bool:
    """Returns whether a module takes rows of a table by the places of tokens that are no padding.

    M2M100's sinusoidal embeddings do.
    """
    has_table = isinstance(getattr(module, "weights", None), Tensor) and isinstance(
        getattr(module, "padding_idx", None), int
    )
    kind: type = type(module)
    return _counts_ids(kind) and has_table and hasattr(module, "make_weights")


@functools.lru_cache(maxsize=64)
def _counting_part(model: weakref.ref[Any], are_given: bool) -> str | None:
    for name, module in cast(nn.Module, model()).named_modules():
        kind: type = type(module)
        if _counts_ids(kind) and not (are_given and _is_table(module)):
            return f"{name} ({kind.__name__})"
    return None


def counting_part(model: nn.Module, are_given: bool) -> str | None:
    """Returns the name of a part that counts positions from token ids, if the model has one.

    Parts that use the positions which are given (``counted``) are left out.
    """
    return _counting_part(weakref.ref(model), are_given)


@functools.lru_cache(maxsize=64)
def _first_position(model: weakref.ref[Any]) -> int:
    for name, module in cast(nn.Module, model()).named_modules():
        if (
            isinstance(module, nn.Embedding)
            and module.padding_idx is not None
            and "position" in name.rsplit(".", 1)[-1].lower()
        ):
            return module.padding_idx + 1
    return 0


def first_position(model: nn.Module) -> int:
    """Returns the position of the first token of a document: behind that of padding, or 0."""
    return _first_position(weakref.ref(model))


def _rows_at(module: Any, given: dict[str, Any], counted_rows: Tensor, positions: Tensor) -> Tensor:
    """Returns the rows of a table at positions, in place of those that the module counted."""
    name = type(module).__name__
    first, count = module.padding_idx + 1, counted_rows.shape[1]
    ids = given.get("input_ids")
    if ids is not None and bool((ids == module.padding_idx).any()):
        raise _core.InvalidArgument(
            f"input_ids: expected no padding (token {module.padding_idx}), for {name} does not "
            "count it and documents are packed without, found "
            f"{int((ids == module.padding_idx).sum())} tokens"
        )
    by_rule = module.weights[first : first + count]
    if counted_rows.shape[0] != 1 or not torch.equal(counted_rows[0], by_rule.to(counted_rows)):
        raise _core.InvalidArgument(
            f"positions: expected an embedding of tokens {first}, {first + 1}, … of its table, in "
            f"a batch of 1, found another rule in {name}"
        )
    if len(positions) != count:
        raise _core.InvalidArgument(
            f"positions: expected those of {count} tokens, as {name} got, found {len(positions)}"
        )
    needed = first + (int(positions.max()) + 1 if count else 0)
    if needed > module.weights.shape[0]:
        module.make_weights(needed, module.weights.shape[1], module.padding_idx)
    rows: Tensor = module.weights[positions + first].to(counted_rows)[None]
    return rows


@contextlib.contextmanager
def counted(positions: Tensor | None, of_encoder: Tensor | None = None) -> Iterator[None]:
    """Makes embeddings that count positions use these, inside ``with``."""
    if positions is None:
        yield
        return

    def hook(module: nn.Module, arguments: Any, others: dict[str, Any], output: Any) -> Any:
        is_table = _is_table(module)
        kind: type = type(module)
        if not is_table and (not _takes_positions(kind) or module.padding_idx is not None):
            return output
        chosen = of_encoder if of_encoder is not None and _is_in_encoder() else positions
        given = inspect.signature(type(module).forward).bind(module, *arguments, **others).arguments
        if is_table:
            return _rows_at(module, given, output, chosen.to(output.device))
        given["position_ids"] = chosen.to(next(module.parameters()).device)
        return type(module).forward(**given)

    handle: torch.utils.hooks.RemovableHandle = register_module_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
