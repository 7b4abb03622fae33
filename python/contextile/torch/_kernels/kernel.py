"""The interface of a kernel: attention of one call, or of one stage."""

from __future__ import annotations

import abc
import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile.torch._kernels.row_ops import add, merge_rows, put, take
from contextile.torch._kernels.score_terms import ScoreTerms

# The parts of every kind, [rows, heads of a group, dim] or [rows, heads of a group].
Buffers = dict[str, list[Tensor]]


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
    """Attention of calls, or of whole stages, on rows of buffers."""

    name = ""
    takes_intervals = False  # a stage as Intervals, not call by call
    devices: tuple[str, ...] = ()  # types; empty: any

    def runs_on(self, device: torch.device) -> bool:
        return not self.devices or device.type in self.devices

    @abc.abstractmethod
    def refusal(self, params: Params) -> str:
        """Returns why it cannot run such calls on any device, or nothing."""

    def check_on(self, params: Params, device: torch.device) -> None:  # noqa: B027
        """Raises DeviceError if it is wrong on a device. Called before calls, on every rank."""

    @abc.abstractmethod
    def run_forward(self, buffers: Buffers, call: Any, is_first: bool, params: Params) -> None:
        """Merges the partial result of a call into its rows of ``o``, or overwrites them."""

    @abc.abstractmethod
    def run_backward(self, buffers: Buffers, call: Any, is_first: bool, params: Params) -> None:
        """Adds a call's gradients to its rows of ``dkv``, and of ``dq`` unless these are new."""


class RowKernel(Kernel):
    """Attention by operators of PyTorch, on rows that are gathered.

    Rows are [rows, heads of a group, dim]. Results may have the dtype of the rows or float32.
    """

    def run_forward(self, buffers: Buffers, call: Any, is_first: bool, params: Params) -> None:
        rows = call.rows
        q = take(buffers["q"][0], rows["q"])
        k, v = (take(part, rows["kv"]) for part in buffers["kv"])
        out, lse = self.forward(q, k, v, call, params)
        merge_rows(buffers["o"], rows["o"], out, lse, is_first)

    def run_backward(self, buffers: Buffers, call: Any, is_first: bool, params: Params) -> None:
        rows = call.rows
        q = take(buffers["q"][0], rows["q"])
        k, v = (take(part, rows["kv"]) for part in buffers["kv"])
        do, lse, delta = (take(part, rows["do"]) for part in buffers["do"])
        dq, dk, dv = self.backward(q, k, v, do, lse, delta, call, params)
        (put if is_first else add)(buffers["dq"][0], rows["dq"], dq)
        for part, more in zip(buffers["dkv"], (dk, dv), strict=True):
            add(part, rows["dkv"], more)

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


def no_terms(params: Params) -> str:
    """Returns why a kernel of plain scores cannot run such calls."""
    if params.scale <= 0.0:  # hidden scores of -inf would change their sign
        return f"it takes a scale above 0, found {params.scale:g}"
    if params.has_terms:
        return "it has no bias and no dropout"
    return "it has no softcap" if params.softcap else ""


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Keeps autocast from products inside, which are float32 where kernels say so."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind):
        return contextlib.nullcontext()
    off: contextlib.AbstractContextManager[Any] = torch.autocast(kind, enabled=False)
    return off
