"""Errors of calls in compiled code."""

from __future__ import annotations

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._execute.dtensor import has_dtensors

# TorchDynamo wraps what is raised while it traces a function in an error and a text of its own.
# This operator raises when the code runs, so that the caller gets the error itself.


@torch.library.custom_op("contextile::refuse", mutates_args=())
def _refuse(anything: Tensor, message: str) -> Tensor:
    raise _core.InvalidArgument(message)


@_refuse.register_fake
def _(anything: Tensor, message: str) -> Tensor:
    return anything.new_empty(())


def refused(error: _core.InvalidArgument, q: Tensor, v: Tensor) -> Tensor:
    """Returns a stand-in for the output of a call that compiled code makes and that is refused.

    It has the shape of scaled_dot_product_attention's output, [..., tokens, value_dim]. The code
    raises the error as it runs. If code is not compiled, this raises at once.
    """
    if not torch.compiler.is_compiling() or has_dtensors(q, v):
        raise error
    never = torch.ops.contextile.refuse(q.detach().sum(), str(error))
    out: Tensor = (q[..., :1] * never).expand(*q.shape[:-1], v.shape[-1])
    return out
