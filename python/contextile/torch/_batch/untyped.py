"""Functions of PyTorch that have no types, with types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def not_compiled(function: F) -> F:
    """Makes compiled code call a function as it is: ``torch.compiler.disable``."""
    disable: Any = torch.compiler.disable
    return cast(F, disable(function))
