"""One rank of the engine torch without its peers: messages are noted, and nothing arrives."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import contextile as ct
from contextile import _core
from contextile.torch._attention.bias import Terms
from contextile.torch._attention.operators import _new_gradients, _new_output
from contextile.torch._engine.buffers import DTYPES
from contextile.torch._engine.launches import Messages
from contextile.torch._engine.rank import TorchRank
from contextile.torch._engine.rank_program import Attention
from contextile.torch._kernels import row_ops, stage_calls

LENGTHS = [300, 200, 124, 100, 200, 100]


class Note(NamedTuple):
    """A message that would leave or arrive."""

    is_sent: bool
    num_bytes: int
    device: str
    is_contiguous: bool


class NotedMessages(Messages):
    """Messages that go nowhere."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(None, device, timeout=60.0)
        self.batches: list[list[Note]] = []

    def _op(self, function: Any, peer: int, tensor: torch.Tensor) -> Any:
        # An operation keeps its tensor, as those of torch.distributed do.
        note = Note(
            function is dist.isend, tensor.nbytes, tensor.device.type, tensor.is_contiguous()
        )
        return note, tensor

    def start(self, ops: list[Any]) -> list[Any]:
        self.batches.append([note for note, _ in ops])
        return []


class Alone(NamedTuple):
    """A transport whose peers agree to everything."""

    rank: int
    size: int

    def abort(self, reason: str) -> None:
        pass

    def wait(self) -> None:
        pass


def agree_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets agreements pass without peers, and memory be pinned without a GPU."""
    monkeypatch.setattr(_core, "agree_on_plan", lambda transport, plan: False)
    monkeypatch.setattr(_core, "begin_agreement", lambda transport, *given: transport)
    monkeypatch.setattr(Terms, "native", lambda terms: None)
    # Triton's kernels cannot run on tensors of a GPU that is not there.
    monkeypatch.setattr(row_ops, "fused", lambda device: None)
    monkeypatch.setattr(stage_calls, "wait_for_copies", lambda device: None)
    monkeypatch.setattr(stage_calls, "mark_used", lambda *given: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    # FakeTensorMode has no pinned memory.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


def planned(strategy: str, lengths: list[int] = LENGTHS, **options: Any) -> ct.Plan:
    shape = {"heads": (4, 2), "head_dim": 32, "mask": "causal", "cluster": "local:1x4"}
    return ct.plan(lengths, strategy=strategy, **{**shape, **options})


class NotedRows:
    """The module of Triton kernels for rows, without their work: names of kernels are noted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def _note(self, name: str, *tensors: Any) -> None:
        assert all(x.device == torch.device("cuda:0") for x in tensors_of(list(tensors)))
        self.names.append(name)

    def merge_rows(self, o, lse, rows, out, more_lse, overwrite):
        self._note("merge_rows", o, lse, rows, out, more_lse)

    def take_rows(self, part, rows, dtype):
        self._note("take_rows", part, rows)
        return part.new_empty((len(rows), *part.shape[1:]), dtype=dtype)

    def put_rows(self, part, rows, values):
        self._note("put_rows", part, rows, values)

    def add_rows(self, part, rows, values):
        self._note("add_rows", part, rows, values)

    def reduce_partials(self, o, lse, sources, counts):
        self._note("reduce_partials", o, lse, sources)
        return tuple(part.new_empty((counts[0], *part.shape[1:])) for part in (o, lse))

    def sum_rows(self, part, sources, counts):
        self._note("sum_rows", part, sources)
        return part.new_empty((counts[0], *part.shape[1:]))

    def output_with_delta(self, do, delta):
        self._note("output_with_delta", do, delta)
        return torch.empty_like(do)


class LoneRank:
    """A rank with tensors on its device. Made and called under FakeTensorMode, it needs no GPU."""

    def __init__(self, plan: ct.Plan, rank: int, device: str, kernel: str = "") -> None:
        self.plan, self.device = plan, torch.device(device)
        self.rank = TorchRank(
            Alone(rank, plan.num_devices), None, kernel=kernel, device=self.device, timeout=60.0
        )
        self.rank._messages = self.messages = NotedMessages(self.device)
        self.rank.prepare(plan)
        shape, tokens = plan.shape, plan.num_local_tokens(rank)
        self.q, self.k, self.v, self.dout = (
            torch.zeros(tokens, heads, dim, dtype=DTYPES[shape.dtype], device=self.device)
            for heads, dim in (
                (shape.q_heads, shape.head_dim),
                (shape.kv_heads, shape.head_dim),
                (shape.kv_heads, shape.value_dim),
                (shape.q_heads, shape.value_dim),
            )
        )
        self.sink = torch.zeros(shape.q_heads, device=self.device) if shape.sink else None

    def jobs(self, direction: str) -> list[Any]:
        """Returns the calls of kernels of a direction, each with whether it is the first."""
        programs = self.rank._surroundings().lists.programs_of(0, direction, False)
        stages = [x for one in programs for x in one.instructions if isinstance(x, Attention)]
        return [job for stage in stages for job in stage.jobs]

    def forward(self, terms: Any = None) -> tuple[torch.Tensor, ...]:
        """Returns out, lse and what backward keeps, as the operator makes them."""
        out, lse, saved, _ = _new_output(self.q, self.v, self.rank.saved_bytes(0))
        self.rank.forward(
            mask=0,
            call=1,
            q=self.q,
            k=self.k,
            v=self.v,
            sink=self.sink,
            out=out,
            lse=lse,
            saved=saved,
            terms=terms,
        )
        return out, lse, saved

    def backward(
        self, out: torch.Tensor, lse: torch.Tensor, saved: torch.Tensor, terms: Any = None
    ) -> tuple[torch.Tensor, ...]:
        """Returns dq, dk, dv, dsink and dtable."""
        table = None if terms is None else terms.table
        grads = _new_gradients(self.q, self.k, self.v, self.sink, table)
        dq, dk, dv, dsink, dtable = grads
        self.rank.backward(
            mask=0,
            call=1,
            q=self.q,
            k=self.k,
            v=self.v,
            sink=self.sink,
            out=out,
            lse=lse,
            dout=self.dout,
            dq=dq,
            dk=dk,
            dv=dv,
            dsink=None if self.sink is None else dsink,
            saved=saved,
            terms=terms,
            dtable=None if table is None else dtable,
        )
        return grads


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors among the arguments or results of an operator."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    return (
        [x for one in values for x in tensors_of(one)] if isinstance(values, list | tuple) else []
    )


class Operators(TorchDispatchMode):
    """Shows every operator, with its arguments and results, to a function."""

    supports_higher_order_operators = True

    def __init__(self, show: Any) -> None:
        super().__init__()
        self._show = show

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self._show(function, args, kwargs or {}, results)
        return results
