"""A plan prepared for calls: its programs on the device, and the checks of tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from contextile import _core
from contextile.torch._engine.buffers import DTYPES, part_dtype, part_shapes
from contextile.torch._engine.rank_program import Program
from contextile.torch._kernels import row_ops, stage_calls
from contextile.torch._kernels.choice import checked_kernel_for
from contextile.torch._kernels.kernel import Params
from contextile.torch._kernels.score_terms import ScoreTerms
from contextile.torch._kernels.stage_calls import Upload

# Bytes of the rows that one call of a kernel gathers, with its results.
_MAX_CALL_BYTES = 1 << 30


class PreparedLists:
    """One rank's programs of a plan, made when they are first needed."""

    def __init__(self, plan: _core.Plan, rank: int, kernel: str, device: torch.device) -> None:
        self.plan, self.rank, self.device = plan, rank, device
        self.index_bytes = 0  # of the lists on the device
        self.kernels: dict[str, None] = {}  # names of those that programs run, in order
        self.finished: set[Any] = set()  # kinds of calls that have run
        self._kernel = kernel
        self._tensors: list[Tensor] = []  # all lists on the device
        self._marked: dict[Any, int] = {}  # numbers of tensors, by stream
        self._programs: dict[Any, list[Program]] = {}

    def make(self) -> None:
        """Makes the programs of all masks and directions without terms."""
        row_ops.fused(self.device)  # compiles and checks what calls will use
        for mask in range(len(self.plan.mask_names)):
            self.programs_of(mask, "forward", False)
            if self.plan.has_backward:
                self.programs_of(mask, "backward", False)

    def params(self, groups: int, terms: ScoreTerms | None, has_terms: bool) -> Params:
        shape = self.plan.shape
        return Params(
            shape.q_heads // groups,
            shape.kv_heads // groups,
            shape.head_dim,
            shape.value_dim,
            DTYPES[shape.dtype],
            shape.effective_scale,
            shape.softcap,
            terms,
            has_terms,
        )

    def programs_of(self, mask: int, direction: str, has_terms: bool) -> list[Program]:
        key = mask, direction, has_terms
        if key not in self._programs:
            self._programs[key] = self._make_programs(mask, direction, has_terms)
        return self._programs[key]

    def _make_programs(self, mask: int, direction: str, has_terms: bool) -> list[Program]:
        plan = self.plan
        params = self.params(1, None, has_terms)
        kernel = checked_kernel_for(self._kernel, params, self.device)
        self.kernels[kernel.name] = None
        shape = plan.shape
        row_bytes = 4 * (shape.head_dim + 2 * shape.value_dim) * shape.q_heads  # of all groups
        lists = plan.stages(
            self.rank,
            plan.mask_names[mask],
            direction,
            intervals=kernel.takes_intervals,
            tokens=has_terms,
            max_rows=max(1, _MAX_CALL_BYTES // row_bytes),
        )
        upload = Upload()
        programs = [Program(one, upload, kernel) for one in lists]
        self.index_bytes += upload.finish(self.device)
        self._tensors += upload.tensors
        if direction == "backward":
            forward = self.programs_of(mask, "forward", has_terms)
            for program, before in zip(programs, forward, strict=True):
                program.retain = before.retain
        return programs

    def mark_used(self) -> None:
        """Lets the current stream read the lists of all programs, also of other streams."""
        stage_calls.mark_used(self._tensors, self.device, self._marked)

    def saved_bytes(self, mask: int) -> int:
        """Returns the bytes that forward under a mask keeps for backward."""
        return sum(
            math.prod(size) * dtype.itemsize
            for size, dtype in self._retained(self.programs_of(mask, "forward", False))
        )

    def _retained(self, programs: list[Program]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Returns the shape and dtype of every part of the units that backward keeps."""
        shape = self.plan.shape
        return [
            (
                (end - begin, heads // program.head_groups, *dim),
                part_dtype(kind, (heads, *dim), shape),
            )
            for program in programs
            for kind, (begin, end), _ in program.retain
            for heads, *dim in part_shapes(kind, shape)
        ]

    def views_of(self, saved: Tensor | None, programs: list[Program]) -> list[Tensor]:
        """Returns the parts of retained units as views of the bytes that are saved."""
        views, at = [], 0
        for size, dtype in self._retained(programs):
            num_bytes = math.prod(size) * dtype.itemsize
            if saved is None:
                views.append(torch.empty(size, dtype=dtype, device=self.device))
            else:
                views.append(saved[at : at + num_bytes].view(dtype).view(size))
            at += num_bytes
        return views

    def check(self, where: str, **tensors: tuple[Tensor, int, int]) -> None:
        """Raises InvalidArgument unless tensors have the shapes and dtypes of the plan."""
        plan, rank = self.plan, self.rank
        tokens = plan.num_local_tokens(rank)
        for name, (tensor, heads, dim) in tensors.items():
            expected = [tokens, heads, dim]
            if list(tensor.shape) != expected:
                raise _core.InvalidArgument(
                    f"rank {rank}, {where}: expected {name} of shape {expected}, found "
                    f"{list(tensor.shape)}"
                )
            if tensor.dtype != DTYPES[plan.shape.dtype]:
                raise _core.InvalidArgument(
                    f"rank {rank}, {where}: expected {name} as {plan.shape.dtype}, found "
                    f"{tensor.dtype}"
                )

    def check_inputs(self, where: str, q: Tensor, k: Tensor, v: Tensor, sink: Any) -> None:
        shape = self.plan.shape
        self.check(
            where,
            q=(q, shape.q_heads, shape.head_dim),
            k=(k, shape.kv_heads, shape.head_dim),
            v=(v, shape.kv_heads, shape.value_dim),
        )
        expected, found = shape.q_heads if shape.sink else 0, 0 if sink is None else len(sink)
        if found != expected:
            raise _core.InvalidArgument(
                f"rank {self.rank}, {where}: expected {expected} values of sink, found {found}"
            )
