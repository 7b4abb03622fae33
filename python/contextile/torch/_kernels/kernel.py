"""The interface of a kernel: attention of one call, or of one stage."""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile.torch._kernels.score_terms import ScoreTerms


class Params(NamedTuple):
    """The numbers of a call beyond its rows. Heads are those of one head group."""

    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    scale: float
    softcap: float  # 0: none
    terms: ScoreTerms | None = None
    has_terms: bool = False  # for the choice of a kernel, before there is a call


class Kernel(abc.ABC):
    """Attention by operators of PyTorch, on packed rows.

    Rows are [rows, heads of a group, dim]. Results may have the dtype of the rows or float32.
    """

    name = ""
    takes_intervals = False  # a stage as Intervals, not call by call

    @abc.abstractmethod
    def refusal(self, params: Params, device: torch.device) -> str:
        """Returns why it cannot run such calls, or nothing."""

    @abc.abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Any, params: Params
    ) -> tuple[Tensor, Tensor]:
        """Returns out [rows, query heads, value dim] and lse float32 [rows, query heads]."""

    @abc.abstractmethod
    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        lse: Tensor,
        delta: Tensor,
        call: Any,
        params: Params,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v from this call alone.

        ``lse`` is the final one, after all stages of all ranks, and ``delta`` the sum of dO * out
        over a row.
        """


def output_with_delta(do: Tensor, delta: Tensor) -> Tensor:
    """Returns what to pass as the output to a backward that computes sum(dO * out) itself.

    It is the projection of the output on dO: their product is ``delta``, and it is no longer than
    the output. So a rank that got dO, lse and delta from another needs no output.
    """
    # Squares of numbers up to 1 neither vanish nor overflow.
    largest: Tensor = torch.linalg.vector_norm(do, math.inf, -1, dtype=torch.float32)
    largest = largest.clamp_min(torch.finfo(torch.float32).tiny)
    unit: Tensor = do / largest.unsqueeze(-1)
    factor = delta / largest / unit.square().sum(-1).clamp_min(0.5)
    return (unit * factor.unsqueeze(-1)).to(do.dtype)


def merged(o: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the merge of two partial results. Rows that saw nothing have lse -inf."""
    both = torch.logaddexp(lse, more_lse)
    weight = torch.exp(more_lse - both).nan_to_num_(0.0)  # 0 where both saw nothing
    return torch.lerp(o, more.to(o.dtype), weight.unsqueeze(-1)), both


def no_terms(params: Params) -> str:
    """Returns why a kernel of plain scores cannot run such calls."""
    if params.scale <= 0.0:  # hidden scores of -inf would change their sign
        return f"it takes a scale above 0, found {params.scale:g}"
    if params.has_terms:
        return "it has no bias and no dropout"
    return "it has no softcap" if params.softcap else ""
