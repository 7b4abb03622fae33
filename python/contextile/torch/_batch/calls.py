"""Looks at the model that is computing, and at the batch that it was given."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from contextile import _core
from contextile.torch._batch.layout import digest_behind


def _is_call(frame: Any) -> bool:
    """Returns whether a frame is that of a module's call, which runs hooks and its forward."""
    code: CodeType = frame.f_code
    return code.co_name == "_call_impl" and code.co_filename == nn.modules.module.__file__


def _forwards() -> Iterator[Mapping[str, Any]]:
    """Yields the variables of each forward and of each call that is computing, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe may be None
    while frame is not None:
        if frame.f_code.co_name == "forward":
            yield frame.f_locals
        elif _is_call(frame):  # its forward may be a function of another name
            variables = frame.f_locals
            yield {
                f"argument {number}": value
                for number, value in enumerate(variables.get("args", ()))
            }
            yield variables.get("kwargs") or {}
        frame = frame.f_back


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


def model_in_call(kind: type[nn.Module] = nn.Module) -> tuple[Any, dict[str, Any]] | None:
    """Returns the outermost module of a kind that is computing, and its forward's arguments.

    A module is known by a frame of its ``forward``, or of its call: a forward may have been
    replaced by a function of another name.
    """
    module, its_frame = None, None
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe may be None
    while frame is not None:
        is_call = _is_call(frame)
        one = frame.f_locals.get("self") if is_call or frame.f_code.co_name == "forward" else None
        # The frame of a call is around that of the module's forward. Wrappers of torch call others.
        is_left_out = is_call and (one is module or type(one).__module__.startswith("torch."))
        if isinstance(one, kind) and not is_left_out:
            module, its_frame = one, frame
        frame = frame.f_back
    if module is None:
        return None
    return module, _arguments_in(its_frame, module)


def check_batch(plans: tuple[_core.Plan, ...]) -> None:
    """Raises if a module that is computing has tensors of ``local_batch`` for another batch."""
    for variables in _forwards():
        for name, value in variables.items():
            if not isinstance(value, Tensor) or value.dtype is not torch.int64:
                continue
            digest = digest_behind(value)
            if digest is not None and all(digest != plan.digest for plan in plans):
                raise _core.InvalidArgument(
                    f"attention: expected {name} of the plan that the executor is prepared for "
                    f"({plans[0].digest}), found those that local_batch made for another "
                    f"({digest}); call prepare with the plan of each batch"
                )
