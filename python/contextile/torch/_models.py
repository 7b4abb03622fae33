"""Looks at the model that is computing: its parts that depend on the order of tokens, its batch."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from contextile import _core
from contextile.torch._layout import digest_behind

# Modules that mix tokens in the order in which this rank holds them.
_ORDERED = re.compile(
    "Mamba|SSM|R[wW][kK][vV]|[xm]LSTM|Recurrent|RgLru|DeltaNet|ShortConv|LightningAttention|LinearAttention|Hyena|Retention"
)
# Modules that take one token of a document, by their place or their type.
_POOLING = re.compile(r"(^|\.)(pooler|sequence_summary)$")
_POOLING_TYPES = re.compile(r"^(\w*CLIP|Siglip2?|Tips\w*)Text(Model|Transformer)")
# They see patches or frames, not the tokens of the batch.
_TOWERS = ("vision", "visual", "audio", "speech", "image")


GATHERED = "_contextile_gathered"  # where gather_layers keeps what it needs, in a module


def is_gathered(module: nn.Module) -> bool:
    """Returns whether ``gather_layers`` took a module over."""
    return GATHERED in module.__dict__


def _is_call(frame: Any) -> bool:
    """Returns whether a frame is that of a module's call, which runs hooks and its forward."""
    return frame.f_code.co_name == "_call_impl" and frame.f_code.co_filename == nn.modules.module.__file__


def _forwards() -> Iterator[Mapping[str, Any]]:
    """Yields the variables of each forward and of each call that is computing, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward":
            yield frame.f_locals
        elif _is_call(frame):  # its forward may be a function of another name
            variables = frame.f_locals
            yield {f"argument {number}": value for number, value in enumerate(variables.get("args", ()))}
            yield variables.get("kwargs") or {}
        frame = frame.f_back  # type: ignore[assignment]


def _arguments_in(frame: Any, module: nn.Module) -> dict[str, Any]:
    """Returns the variables of a module's forward, or the arguments of its call, by name.

    Arguments that ``**kwargs`` takes have their own names, too.
    """
    variables, code = dict(frame.f_locals), frame.f_code
    if not _is_call(frame):
        if not code.co_flags & inspect.CO_VARKEYWORDS:
            return variables
        at = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        return {**(variables.get(code.co_varnames[at]) or {}), **variables}
    kwargs = variables.get("kwargs") or {}
    try:
        signature = inspect.signature(module.forward)
        given = signature.bind_partial(*variables.get("args", ()), **kwargs).arguments
    except (TypeError, ValueError):
        return dict(kwargs)
    return {**kwargs, **given}


def model_in_call(kind: type = nn.Module) -> tuple[Any, dict[str, Any]] | None:
    """Returns the outermost module of a kind that is computing, and its forward's arguments.

    A module is known by a frame of its ``forward``, or of its call: a forward may have been
    replaced by a function of another name.
    """
    module, its_frame = None, None
    frame = sys._getframe(1)
    while frame is not None:
        is_call = _is_call(frame)
        one = frame.f_locals.get("self") if is_call or frame.f_code.co_name == "forward" else None
        # The frame of a call is around that of the module's forward. Wrappers of torch call others.
        is_left_out = is_call and (one is module or type(one).__module__.startswith("torch."))
        if isinstance(one, kind) and not is_left_out:
            module, its_frame = one, frame
        frame = frame.f_back  # type: ignore[assignment]
    return None if its_frame is None else (module, _arguments_in(its_frame, module))


def check_batch(plans: tuple[_core.Plan, ...]) -> None:
    """Raises if a module that is computing has tensors of ``local_batch`` for another batch."""
    for variables in _forwards():
        for name, value in variables.items():
            if not isinstance(value, Tensor) or value.dtype is not torch.int64:
                continue
            digest = digest_behind(value)
            if digest is not None and all(digest != plan.digest for plan in plans):
                raise _core.InvalidArgument(
                    f"attention: expected {name} of the plan that the executor is prepared for ({plans[0].digest}), found those "
                    f"that local_batch made for another ({digest}); call prepare with the plan of each batch"
                )


@functools.lru_cache(maxsize=64)
def _ordered_part(model: weakref.ref[Any], covered: frozenset[type]) -> str | None:
    modules = list(model().named_modules())
    # Layers that run in order by themselves, with all that they contain.
    done = [f"{name}." for name, module in modules if type(module) in covered or is_gathered(module)]
    for name, module in modules:
        if f"{name}.".startswith(tuple(done)) or any(tower in name.lower() for tower in _TOWERS):
            continue
        kind = type(module).__name__
        is_convolution = isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1
        # MobileBERT's embeddings join each token's with its neighbors'.
        is_convolution = is_convolution or getattr(module, "trigram_input", False)
        is_named = _ORDERED.search(kind) and not any(place.startswith(f"{name}.") for place in done)
        if is_convolution or isinstance(module, nn.RNNBase) or is_named:
            return f"{name} ({kind})" if name else kind
    return None


def ordered_part(model: nn.Module, covered: frozenset[type] = frozenset()) -> str | None:
    """Returns the name of a part that depends on the order of tokens, if the model has one.

    The modules are those that the model has at the first call. Covered types are left out, as are
    layers that ``gather_layers`` took over.
    """
    return _ordered_part(weakref.ref(model), covered)


@functools.lru_cache(maxsize=64)
def _pooled_part(model: weakref.ref[Any]) -> str | None:
    for name, module in model().named_modules():
        kind = type(module).__name__
        is_pooling = _POOLING.search(name) or _POOLING_TYPES.search(kind)
        if is_pooling and not any(tower in name.lower() for tower in _TOWERS):
            return f"{name} ({kind})" if name else kind
    return None


def pooled_part(model: nn.Module) -> str | None:
    """Returns the name of a part that takes one token for a document, if the model has one."""
    return _pooled_part(weakref.ref(model))


@functools.lru_cache(maxsize=64)
def _dropping_part(model: weakref.ref[Any]) -> str | None:
    for name, module in model().named_modules():
        if hasattr(module, "expert_capacity"):
            return f"{name} ({type(module).__name__})"
    return None


def dropping_part(model: nn.Module) -> str | None:
    """Returns the name of a router that drops tokens beyond a capacity, if the model has one."""
    return _dropping_part(weakref.ref(model))


def forget_parts() -> None:
    """Forgets the parts that were found, because modules have changed."""
    _ordered_part.cache_clear()
