"""A forward or a backward of one rank, from its tensors to its results."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._engine.launches import Messages
from contextile.torch._engine.prepared import PreparedLists
from contextile.torch._engine.running import RunningCall
from contextile.torch._kernels.score_terms import ScoreTerms


class Stats(NamedTuple):
    """Bytes and seconds of one call on this rank.

    On another device than the CPU, seconds inside of kernels and of waits are NaN: the host does
    not wait for them.
    """

    sent_bytes: int
    received_bytes: int
    total_s: float
    attention_s: float
    exposed_s: float


class Surroundings(NamedTuple):
    """The parts that calls of a rank share."""

    lists: PreparedLists
    messages: Messages
    transport: _core.Transport  # for agreements
    captured: set[PreparedLists]  # those that CUDA graphs read


class EngineCall:
    """The parts that forward and backward share."""

    direction = ""

    def __init__(
        self, around: Surroundings, mask: int, call: int, terms: Any, sink: Tensor | None
    ) -> None:
        self.lists, self.messages, self.sink = around.lists, around.messages, sink
        self.mask = mask
        self.began = time.perf_counter()
        self.bytes_before = self.messages.sent_bytes, self.messages.received_bytes
        self.terms = terms if terms is not None and terms.has_any else None
        seed = None if self.terms is None else self.terms.seed
        if seed is not None and seed.device.type != "cpu":
            raise _core.InvalidArgument(
                f"dropout_seed: expected a number on the CPU, found one on {seed.device}, for "
                "which every call would wait"
            )
        if self.lists.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._check_capture()
            around.captured.add(self.lists)
        # Sinks and biases on another device are not compared: reading them would wait for it.
        compared: Any = None
        if sink is not None and sink.device.type == "cpu":
            compared = sink.contiguous()
        self.agreement = _core.begin_agreement(
            around.transport,
            self.lists.plan,
            mask,
            self.direction,
            call,
            None if self.terms is None else self.terms.on_host().native(),
            compared,
        )
        self.programs = self.lists.programs_of(mask, self.direction, self.terms is not None)
        self.lists.mark_used()
        self.score_terms: ScoreTerms | None = None

    def _kind(self) -> Any:
        """Returns what calls that run the same kernels have in common."""
        order = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        return self.mask, self.direction, self._kinds_of_terms(), order

    def _kinds_of_terms(self) -> Any:
        """Returns which terms there are, each of which makes another variant of a kernel."""
        terms = self.terms
        if terms is None:
            return None
        return terms.slopes is not None, terms.table is not None, bool(terms.dropout)

    def _check_capture(self) -> None:
        """Raises InvalidArgument if a replay of the graph would not do what this call does."""
        where = f"rank {self.lists.rank}, {self.direction}: torch.cuda.graph:"
        self._check_captured_terms(where)
        if self._kind() not in self.lists.finished:
            raise _core.InvalidArgument(
                f"{where} expected one such call before, which compiles kernels and uploads lists, "
                "found none"
            )

    def _check_captured_terms(self, where: str) -> None:
        if self.terms is None:
            return
        if self.terms.dropout:
            raise _core.InvalidArgument(
                f"{where} expected no dropout, found dropout_p={self.terms.dropout:g}, whose seed "
                "every replay would repeat"
            )
        for name in ("slopes", "table", "buckets"):
            tensor = getattr(self.terms, name)
            if tensor is not None and tensor.device != self.lists.device:
                raise _core.InvalidArgument(
                    f"{where} expected {name} of the bias on {self.lists.device}, found them on "
                    f"{tensor.device}"
                )

    def start(self, own: dict[str, list[Tensor]], saved: list[Tensor]) -> None:
        lists = self.lists
        params = [
            lists.params(program.head_groups, self.score_terms, self.terms is not None)
            for program in self.programs
        ]
        self.run = RunningCall(
            self.programs,
            self.direction,
            lists.plan.shape,
            params,
            self.messages,
            lists.device,
            own,
            saved,
        )

    def finish(self) -> Stats:
        self.agreement.wait()
        self.lists.mark_used()  # by the stream that ends the call
        self.run.run_to_end()
        with torch.no_grad():
            self.write()
        self.lists.finished.add(self._kind())
        sent, received = self.bytes_before
        nothing = math.nan
        on_host = self.lists.device.type == "cpu"
        return Stats(
            self.messages.sent_bytes - sent,
            self.messages.received_bytes - received,
            time.perf_counter() - self.began,
            self.run.attention_s if on_host else nothing,
            self.run.exposed_s if on_host else nothing,
        )

    def write(self) -> None:
        raise NotImplementedError

    def complete(self, part: int) -> Tensor:
        """Returns a part of the results of all rounds, by local token."""
        found = [results[part] for results in self.run.results]
        return found[0] if len(found) == 1 else torch.cat(found)


class Forward(EngineCall):
    direction = "forward"

    def __init__(
        self,
        around: Surroundings,
        *,
        mask: int,
        call: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        saved: Tensor | None,
        sink: Tensor | None = None,
        terms: Any = None,
        stream: int = 0,  # PyTorch's current one anyway
    ) -> None:
        lists = around.lists
        lists.check_inputs("forward", q, k, v, sink)
        super().__init__(around, mask, call, terms, sink)
        self.out, self.lse = out, lse
        if self.terms is not None:
            self.score_terms = ScoreTerms(self.terms, lists.device)
        self.start({"q": [q], "kv": [k, v]}, lists.views_of(saved, self.programs))

    def write(self) -> None:
        if not self.programs:
            return
        out, lse = self.complete(0), self.complete(1)
        if self.sink is not None:
            both = torch.logaddexp(lse, self.sink)
            out = out * torch.exp(lse - both).unsqueeze(-1)
            lse = both
        self.out.copy_(out)
        self.lse.copy_(lse)


class Backward(EngineCall):
    direction = "backward"

    def __init__(
        self,
        around: Surroundings,
        *,
        mask: int,
        call: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        dout: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        saved: Tensor | None,
        sink: Tensor | None = None,
        dsink: Tensor | None = None,
        terms: Any = None,
        dtable: Tensor | None = None,
        stream: int = 0,  # PyTorch's current one anyway
    ) -> None:
        lists = around.lists
        lists.check_inputs("backward", q, k, v, sink)
        shape = lists.plan.shape
        result = (shape.q_heads, shape.value_dim)
        lists.check("backward", out=(out, *result), dout=(dout, *result))
        super().__init__(around, mask, call, terms, sink)
        self.grads, self.dsink, self.dtable = (dq, dk, dv), dsink, dtable
        if self.terms is not None:
            sums = None
            if dtable is not None:
                is_exact = lists.device.type != "mps"  # which has no float64
                dtype = torch.float64 if is_exact else torch.float32
                sums = torch.zeros_like(dtable, dtype=dtype, device=lists.device)
            self.score_terms = ScoreTerms(self.terms, lists.device, sums)
        # Rows that attend nothing are in no entry; -inf would spread from them where they travel.
        self.level = torch.where(lse.isinf(), torch.zeros_like(lse), lse)
        self.has_keys = ~lse.isinf()
        self.delta = (out.float() * dout.float()).sum(-1)
        self.start(
            {"q": [q], "kv": [k, v], "do": [dout, self.level, self.delta]},
            lists.views_of(saved, self.programs),
        )

    def write(self) -> None:
        if self.programs:
            for part, grad in enumerate(self.grads):
                grad.copy_(self.complete(part))
        if self.dsink is not None and self.sink is not None:
            share = torch.exp(self.sink - self.level) * self.delta
            self.dsink.copy_(-share.masked_fill(~self.has_keys, 0.0).double().sum(0))
        if self.dtable is not None and self.score_terms is not None:
            assert self.score_terms.table_gradient is not None
            self.dtable.copy_(self.score_terms.table_gradient)
