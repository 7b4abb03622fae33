"""Programs under way on a rank: instructions on buffers, round by round."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._engine.buffers import make_buffers, tokens_of_rows
from contextile.torch._engine.launches import Messages
from contextile.torch._engine.merge import copy_rows, reduce_rows
from contextile.torch._engine.rank_program import (
    OUTPUTS,
    Attention,
    Copy,
    Launch,
    Program,
    Reduce,
    Wait,
)
from contextile.torch._kernels.kernel import Buffers, Params
from contextile.torch._kernels.row_ops import fill


class RunningCall:
    """The programs of one call, round by round, which may stop between instructions.

    ``own`` has this rank's inputs by kind, of all rounds; ``saved`` the units that backward keeps.
    """

    def __init__(
        self,
        programs: list[Program],
        direction: str,
        shape: _core.AttentionShape,
        params: list[Params],
        messages: Messages,
        device: torch.device,
        own: dict[str, list[Tensor]],
        saved: list[Tensor],
    ) -> None:
        self._programs, self._direction, self._shape = programs, direction, shape
        self._params, self._messages, self._device = params, messages, device
        self._own, self._saved = own, saved
        self._round = -1
        self._next = 0
        self._launched: dict[int, Any] = {}
        self._buffers: Buffers = {}
        self._retained = 0
        self.results: list[list[Tensor]] = []  # by round: own rows of the results, by token
        self.attention_s = self.exposed_s = 0.0
        self._next_round()

    # ------------------------------------------------------------------------------------ control

    def run_to_begin_cut(self) -> None:
        """Issues what may be under way while an earlier call has not finished."""
        if self._programs:
            self._run_until(self._programs[0].begin_cut)

    def run_to_last_launch(self) -> None:
        """Runs up to the last launch of the last round."""
        while self._round + 1 < len(self._programs):
            self._finish_round()
        if self._programs:
            self._run_until(self._programs[-1].launches_end)

    def run_to_end(self) -> None:
        """Runs the rest."""
        while self._round < len(self._programs):
            self._finish_round()

    def _next_round(self) -> None:
        self._round += 1
        self._next = 0
        if self._round == len(self._programs):
            self._buffers = {}
            return
        program = self._programs[self._round]
        first = sum(one.own_tokens for one in self._programs[: self._round])
        tokens = slice(first, first + program.own_tokens)
        own = {kind: [part[tokens] for part in parts] for kind, parts in self._own.items()}
        self._buffers = make_buffers(program, self._direction, self._shape, own, self._device)
        if self._direction == "backward":
            self._restore()

    def _finish_round(self) -> None:
        program = self._programs[self._round]
        self._run_until(len(program.instructions))
        if self._direction == "forward":
            self._save()
        self.results.append(
            [
                tokens_of_rows(part[: program.own_rows], program.head_groups)
                for kind in OUTPUTS[self._direction]
                for part in self._buffers[kind]
            ]
        )
        self._next_round()

    def _run_until(self, end: int) -> None:
        instructions = self._programs[self._round].instructions
        while self._next < end:
            one = instructions[self._next]
            if isinstance(one, Attention):
                began = time.perf_counter()
                if self._direction == "forward":
                    self._forward(one)
                else:
                    self._backward(one)
                self.attention_s += time.perf_counter() - began
            elif isinstance(one, Launch):
                self._launched[one.id] = self._messages.launch(one, self._buffers)
            elif isinstance(one, Wait):
                began = time.perf_counter()
                self._messages.wait(self._launched.pop(one.id))
                self.exposed_s += time.perf_counter() - began
            elif isinstance(one, Reduce):
                reduce_rows(self._buffers, one)
            else:
                assert isinstance(one, Copy)
                copy_rows(self._buffers, one)
            self._next += 1

    # ------------------------------------------------------------------------------------- stages

    def _forward(self, stage: Attention) -> None:
        for kind, rows in stage.resets.items():
            fill(self._buffers[kind][1], rows, float("-inf"))
        for call, is_first in stage.jobs:
            stage.kernel.run_forward(self._buffers, call, is_first, self._params[self._round])

    def _backward(self, stage: Attention) -> None:
        for kind, rows in stage.resets.items():
            for part in self._buffers[kind]:
                fill(part, rows, 0.0)
        for call, is_first in stage.jobs:
            stage.kernel.run_backward(self._buffers, call, is_first, self._params[self._round])

    # ----------------------------------------------------------------------------------- retained

    def _save(self) -> None:
        for kind, (begin, end), _ in self._programs[self._round].retain:
            for part in self._buffers[kind]:
                self._saved[self._retained].copy_(part[begin:end])
                self._retained += 1

    def _restore(self) -> None:
        for kind, _, (begin, end) in self._programs[self._round].retain:
            for part in self._buffers[kind]:
                part[begin:end].copy_(self._saved[self._retained])
                self._retained += 1
