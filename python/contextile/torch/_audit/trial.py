"""Calls of an implementation on a dealt batch, whose results come back whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._audit import watch
from contextile.torch._audit.deals import Deal, bounds
from contextile.torch._audit.exact import NAMES, Inputs, Results

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Arguments that an implementation may declare after q, k and v. They keep the implementation's
# defaults where the audit has nothing to say.
KNOWN = (
    "cu_seqlens",
    "cu_seqlens_padded",
    "positions",
    "rows",
    "mask",
    "scale",
    "softcap",
    "sink",
    "dropout_p",
    "dropout_seed",
)


def declared_by(attention: Any, known: Sequence[str], given: int) -> frozenset[str]:
    """Returns the known keyword arguments that a callable takes.

    ``given`` is the number of positional arguments. Raises InvalidArgument if it is no callable, or
    needs arguments that are not known.
    """
    if not callable(attention):
        raise _core.InvalidArgument(f"audit: expected a callable, found {attention!r:.80}")
    parameters = list(inspect.signature(attention).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        if sum(p.kind in positional for p in parameters) < given:
            raise _core.InvalidArgument(
                f"audit: expected a callable with {given} positional arguments, found "
                f"{inspect.signature(attention)}"
            )
        parameters = parameters[given:]
    unknown = [
        p.name
        for p in parameters
        if p.name not in known and p.default is p.empty and p.kind in (*positional, p.KEYWORD_ONLY)
    ]
    if unknown:
        raise _core.InvalidArgument(
            f"audit: expected a callable that takes {', '.join(known)}, found an argument "
            f"{unknown[0]} without a default"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(known)
    return frozenset(p.name for p in parameters) & frozenset(known)


@dataclass(frozen=True)
class Found:
    """Results of a call by rows of the batch, and what else was seen."""

    results: Results
    dsinks: Tensor | None = None  # [ranks, q_heads]
    missing: tuple[str, ...] = ()  # gradients that a rank did not get
    are_changed: bool = False  # inputs, by the call


@dataclass(frozen=True)
class Case:
    """One call: a batch, how it is dealt, and the mask."""

    inputs: Inputs
    deal: Deal
    mask: str


class Failed(Exception):
    """The implementation raised an error, which all ranks know."""


@dataclass
class Trial:
    """An implementation in a group."""

    attention: Callable[..., Any]
    declared: frozenset[str]
    group: ProcessGroup | None
    rank: int
    device: torch.device
    dtype: torch.dtype
    dropout_p: float = 0.0
    passes_scale: bool = False
    is_broken: bool = False  # true once some ranks have failed and others have not

    def run(self, cases: Sequence[Case], *, backward: bool = True) -> list[Found]:
        """Returns the results of calls: all forward, then all backward in the same order.

        Collective. Raises Failed if a rank raised an error and all ended, Stopped if some wait.
        """
        local, problems = watch.watched(
            self.group, self.device, lambda: self._call(cases, backward)
        )
        if problems:
            # The ranks that did not fail may be behind, or ahead of, those that did.
            self.is_broken = len(problems) < cases[0].deal.size
            raise Failed(watch.describe(problems))
        return [self._whole(case, *one) for case, one in zip(cases, local, strict=True)]

    def _call(
        self, cases: Sequence[Case], backward: bool
    ) -> list[tuple[list[Tensor | None], bool]]:
        leaves = [self._leaves(case) for case in cases]
        copies = [[x.detach().clone() for x in one[:3]] for one in leaves]
        outs = []
        for case, (q, k, v, sink) in zip(cases, leaves, strict=True):
            out = self.attention(q, k, v, **self._keywords(case, sink))
            if not isinstance(out, Tensor) or out.shape != q.shape or out.dtype != q.dtype:
                found = (
                    f"{list(out.shape)} of {out.dtype}" if isinstance(out, Tensor) else repr(out)
                )
                raise _core.InvalidArgument(
                    f"output: expected {list(q.shape)} of {q.dtype}, found {found:.80}"
                )
            outs.append(out)
        if backward:
            for case, out in zip(cases, outs, strict=True):
                if out.requires_grad:
                    out.backward(self._dout(case))
        every: list[tuple[list[Tensor | None], bool]] = []
        for out, one, copy in zip(outs, leaves, copies, strict=True):
            q, k, v, sink = one
            grads = [x.grad for x in (q, k, v)] + [None if sink is None else sink.grad]
            same = all(torch.equal(x.detach(), c) for x, c in zip((q, k, v), copy, strict=True))
            every.append(([out.detach(), *grads] if backward else [out.detach()], not same))
        return every

    def _mine(self, case: Case, tensor: Tensor) -> Tensor:
        return tensor[case.deal.parts[self.rank]].to(self.device)

    def _leaves(self, case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        parts = [self._mine(case, x) for x in (case.inputs.q, case.inputs.k, case.inputs.v)]
        if case.inputs.strides:  # as views of a fused projection are
            parts = list(torch.cat(parts, 1).split([x.shape[1] for x in parts], dim=1))
        q, k, v = (x.detach().requires_grad_() for x in parts)
        sink = case.inputs.sink
        if sink is not None:
            sink = sink.clone().to(self.device).requires_grad_()
        return q, k, v, sink

    def _dout(self, case: Case) -> Tensor:
        dout = self._mine(case, case.inputs.dout)
        if case.inputs.strides:
            dout = dout.transpose(0, 1).contiguous().transpose(0, 1)
        return dout

    def _keywords(self, case: Case, sink: Tensor | None) -> dict[str, Any]:
        deal, part = case.deal, case.deal.parts[self.rank]

        def sums(counts: Sequence[int]) -> Tensor:
            return torch.tensor(bounds(counts), dtype=torch.int32, device=self.device)

        needed = _needed(self.attention)
        values = {
            "cu_seqlens": sums(deal.lengths),
            "cu_seqlens_padded": sums(deal.rows),
            "positions": deal.positions[part].to(self.device),
            "rows": part.to(self.device),
            "mask": case.mask,
            "scale": case.inputs.scale if self.passes_scale or "scale" in needed else None,
            "softcap": case.inputs.softcap,
            "sink": sink,
            "dropout_p": self.dropout_p if case.inputs.drops else 0.0,
            "dropout_seed": case.inputs.seed if case.inputs.drops else None,
        }
        # Defaults of the implementation stay where nothing is asked.
        optional = {"scale": None, "softcap": 0.0, "sink": None, "dropout_p": 0.0}
        return {
            name: value
            for name, value in values.items()
            if name in self.declared
            and (name in needed or value is not None)
            and (name in needed or name not in optional or value != optional[name])
        }

    def _whole(self, case: Case, local: list[Tensor | None], is_changed: bool) -> Found:
        inputs, deal = case.inputs, case.deal
        heads, kv_heads, dim = inputs.q.shape[1], inputs.k.shape[1], inputs.q.shape[2]
        widths = [heads * dim, heads * dim, kv_heads * dim, kv_heads * dim][: len(local)]
        sink_width = heads if inputs.sink is not None and len(local) > 1 else 0
        wide = torch.float64 if self.dtype is torch.float64 else torch.float32
        sizes = [len(part) for part in deal.parts]
        rows = sizes[self.rank]
        # A rank without rows owes no gradients.
        gone = [float(x is None and rows > 0) for x in local[: len(widths)]]
        flags = torch.tensor([*gone, float(is_changed)], dtype=wide)
        tensors = list(local[: len(widths)]) + ([local[4]] if sink_width else [])
        shapes = [rows * width for width in widths] + ([sink_width] if sink_width else [])
        flat = [
            torch.zeros(count, dtype=wide) if x is None else x.to(wide).cpu().reshape(-1)
            for x, count in zip(tensors, shapes, strict=True)
        ]
        counts = [size * sum(widths) + sink_width + len(flags) for size in sizes]
        parts = watch.gathered(self.group, counts, torch.cat([*flat, flags]))
        whole = [torch.zeros(deal.num_rows, width, dtype=wide) for width in widths]
        for part, ids in zip(parts, deal.parts, strict=True):
            begin = 0
            for tensor, width in zip(whole, widths, strict=True):
                tensor[ids] = part[begin : begin + len(ids) * width].reshape(len(ids), width)
                begin += len(ids) * width
        shaped = [x.reshape(deal.num_rows, -1, dim) for x in whole]
        seen = torch.stack([part[-len(flags) :] for part in parts]).amax(0)
        dsinks = None
        if sink_width:
            dsinks = torch.stack([p[-len(flags) - sink_width : -len(flags)] for p in parts])
        missing = tuple(NAMES[n] for n in range(len(widths)) if seen[n] > 0)
        empty = torch.empty(0)
        results = Results(*(shaped + [empty] * (4 - len(shaped))))
        return Found(results, dsinks, missing, bool(seen[-1] > 0))


def _needed(attention: Callable[..., Any]) -> set[str]:
    """Returns the names of arguments without a default."""
    parameters = inspect.signature(attention).parameters.values()
    return {p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
