"""Gives positions to models that would count them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


@functools.lru_cache(maxsize=256)
def _takes_positions(kind: type) -> bool:
    """Returns whether a module is an embedding that counts positions unless it is given some."""
    is_embedding = issubclass(kind, nn.Embedding) and "Position" in kind.__name__
    return is_embedding and "position_ids" in inspect.signature(kind.forward).parameters


def _is_in_encoder() -> bool:
    """Returns whether the innermost encoder or decoder that is computing is an encoder."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = type(frame.f_locals.get("self")).__name__ if frame.f_code.co_name == "forward" else ""
        if "Encoder" in owner or "Decoder" in owner:
            return "Encoder" in owner
        frame = frame.f_back  # type: ignore[assignment]
    return False


@functools.lru_cache(maxsize=64)
def _counting_part(model: weakref.ref[Any]) -> str | None:
    for name, module in model().named_modules():
        kind = type(module)
        if "Position" in kind.__name__ and "input_ids" in inspect.signature(kind.forward).parameters:
            if "position_ids" not in inspect.signature(kind.forward).parameters:
                return f"{name} ({kind.__name__})"
    return None


def counting_part(model: nn.Module) -> str | None:
    """Returns the name of a part that counts positions from token ids, if the model has one."""
    return _counting_part(weakref.ref(model))


@contextlib.contextmanager
def counted(positions: Tensor | None, of_encoder: Tensor | None = None) -> Iterator[None]:
    """Makes embeddings that count positions use these, inside ``with``."""
    if positions is None:
        yield
        return

    def hook(module: nn.Module, arguments: Any, others: dict[str, Any], output: Any) -> Any:
        if not _takes_positions(type(module)) or module.padding_idx is not None:
            return output
        chosen = of_encoder if of_encoder is not None and _is_in_encoder() else positions
        given = inspect.signature(type(module).forward).bind(module, *arguments, **others).arguments
        given["position_ids"] = chosen.to(next(module.parameters()).device)
        return type(module).forward(**given)

    handle: torch.utils.hooks.RemovableHandle = register_module_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
