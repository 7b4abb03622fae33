"""The executor of one rank for tensors of PyTorch."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from contextile import _checks, _core
from contextile._heads import HeadGroup, HeadPlans
from contextile._layer_plans import check_placement
from contextile.torch._batch.layout import joined_branch
from contextile.torch._engine.buffers import DTYPES
from contextile.torch._engine.engine_calls import Stats
from contextile.torch._engine.rank import Shared, TorchRank
from contextile.torch._execute.checkpoints import plan_again, remember, replace_plan
from contextile.torch._execute.devices import agree_on_engine, device_of, engine_of
from contextile.torch._execute.dtensor import register_if_loaded
from contextile.torch._kernels.choice import check_name
from contextile.torch._ranks.group import TIMEOUT_S, connect

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Operators name a prepared plan by number. Autograd, torch.compile and checkpointing pass integers
# on unchanged, and would copy or refuse an object.
#
# The integers of a call must not become constants of compiled code, or every batch would compile
# again. TorchDynamo treats the attributes and list items that it reads as constants, but sizes of a
# tensor as symbols (mark_dynamic is not needed: a size that changed once becomes dynamic). Prepared
# therefore keeps a call's integers as the shape of a tensor without elements. Sizes of 0 and 1 are
# always constants, so numbers start at 2.
_numbers = itertools.count(2)
_executors: weakref.WeakValueDictionary[int, Executor] = weakref.WeakValueDictionary()

Rank = _core.RankExecutor | TorchRank  # of an executor's engine


class Rules(NamedTuple):
    """Properties of a plan's mask that the calls of a model must agree with."""

    tokens: int  # of this rank
    heads: tuple[int, int]
    dims: tuple[int, int]  # of queries and keys, of values
    dtype: torch.dtype
    scale: float
    softcap: float
    has_sink: bool
    offsets: tuple[int, int]  # the least and the largest key - query
    attends_later: bool  # true if the largest is above 0


def _offsets_of(plan: _core.Plan, mask: int) -> tuple[tuple[int, int], bool]:
    offsets = plan.mask(mask).offsets or (0, 0)
    return offsets, offsets[1] > 0


class Prepared:
    """A plan, or several of one placement, that an executor is ready for.

    ``Executor.prepare`` returns it.

    Pass it to ``attention(plan=…)`` to say which batch a call belongs to.
    """

    def __init__(
        self, number: int, plan: _core.Plan, executor: Rank, rank: int, owner: int
    ) -> None:
        shape = plan.shape
        self.number = number
        self.owner = owner  # number of the executor
        self.plan = plan
        self.rank = rank
        self.dtype = DTYPES[shape.dtype]
        self.mask_names = plan.mask_names
        self.plans: tuple[_core.Plan, ...] = (plan,)
        # The last position_ids that were found correct.
        self.positions_checked: weakref.ref[torch.Tensor] | None = None
        self.layouts: dict[str, Any] = {}  # of layers that need tokens in order, by name
        self.rules = {
            name: Rules(
                plan.num_local_tokens(rank),
                (shape.q_heads, shape.kv_heads),
                (shape.head_dim, shape.value_dim),
                self.dtype,
                shape.effective_scale,
                shape.softcap,
                shape.sink,
                *_offsets_of(plan, index),
            )
            for index, name in enumerate(self.mask_names)
        }
        # The shape holds the plan's number, the mask's index, the bytes that forward saves, and 0.
        # See _numbers.
        self.calls = {
            name: torch.empty((number, index, executor.saved_bytes(index), 0))
            for index, name in enumerate(self.mask_names)
        }
        self.masks = {name: (plan, index) for index, name in enumerate(self.mask_names)}
        self.head_groups: dict[str, tuple[HeadGroup, ...]] = {}  # of masks that differ by head
        self.name_the_only()

    def name_the_only(self) -> None:
        """Lets an empty name stand for the only mask."""
        tables: tuple[dict[str, Any], ...] = (self.rules, self.calls, self.masks, self.head_groups)
        if len(self.mask_names) == 1:
            for table in tables:
                if self.mask_names[0] in table:
                    table[""] = table[self.mask_names[0]]

    @staticmethod
    def together(named: Mapping[str, Prepared], names: Mapping[str, Any]) -> Prepared:
        """Returns one handle for several plans of a batch, which have one placement of tokens.

        Its masks are ``names``. Each stands for the mask of that name of its plan, or the only one;
        for HeadPlans, for the masks of its groups of heads.
        """
        parts = {
            name: (part, name if name in part.rules or len(part.mask_names) > 1 else "")
            for name, part in named.items()
        }
        for part, mask in parts.values():
            part.call_of(mask)
        both = copy.copy(next(iter(named.values())))
        both.mask_names = list(names)
        both.plans = tuple({part.number: part.plan for part in named.values()}.values())
        both.positions_checked = None
        both.rules = {name: part.rules[mask] for name, (part, mask) in parts.items()}
        both.calls = {name: part.calls[mask] for name, (part, mask) in parts.items()}
        both.masks = {name: part.masks[mask] for name, (part, mask) in parts.items()}
        both.head_groups = {
            name: one.groups for name, one in names.items() if isinstance(one, HeadPlans)
        }
        for name in both.head_groups:
            own = [both.rules[part] for part in both.parts_of(name)]
            low, high = zip(*(rules.offsets for rules in own), strict=True)
            both.rules[name] = own[0]._replace(
                heads=names[name].heads,
                offsets=(min(low), max(high)),
                attends_later=any(rules.attends_later for rules in own),
            )
        both.name_the_only()
        return both

    def parts_of(self, mask: str) -> list[str]:
        """Returns the masks that a mask stands for: those of its groups of heads, or itself."""
        return (
            [group.mask for group in self.head_groups[mask]] if mask in self.head_groups else [mask]
        )

    def mask_of(self, mask: str) -> tuple[_core.Plan, int]:
        """Returns the plan that has a mask, and the mask's index in it."""
        self._check_whole(mask)
        return self.masks[mask]

    def rules_of(self, mask: str) -> Rules:
        """Returns the rules of a mask. Raises InvalidArgument if there is no such mask."""
        if mask not in self.rules:
            known = ", ".join(self.mask_names)
            raise _core.InvalidArgument(
                f"mask: expected one of the plan's ({known}), found '{mask}'"
            )
        return self.rules[mask]

    def _check_whole(self, mask: str) -> None:
        if mask in self.head_groups:
            raise _core.InvalidArgument(
                f"mask '{mask}': expected one of all heads, found one that differs by head "
                "(masks.by_head)"
            )

    @functools.cached_property
    def longest_document(self) -> int:
        """Number of tokens of the longest document or piece."""
        return max(end - begin for begin, end in self.plan.sequences)

    @functools.cached_property
    def longest_position(self) -> int:
        """The largest position of a token of the batch in its document."""
        _ = self.positions  # raises if they are not known
        return max(
            (first + end - begin - 1 for begin, end, _, first, _ in self.plan.position_segments),
            default=0,
        )

    @functools.cached_property
    def joined_branches(self) -> dict[str, int | None]:
        """Tokens at which masks join branches, by the name of the mask."""
        found = {name: joined_branch(*self.mask_of(name)) for name in self.masks}
        return {"": found[self.parts_of(self.mask_names[0])[0]], **found}

    @functools.cached_property
    def positions(self) -> torch.Tensor:
        """Positions of this rank's tokens in their documents, int64 [local tokens]."""
        return torch.from_numpy(self.plan.positions(self.rank))

    @functools.cached_property
    def counts_from_zero(self) -> bool:
        """True if this rank's positions are 0, 1, 2, …, as models count where none are given."""
        return bool(torch.equal(self.positions, torch.arange(len(self.positions))))

    def call_of(self, mask: str) -> tuple[int, int, int]:
        """Returns the integers that the operators carry for a call under a mask.

        They are the plan's number, the mask's index, and the bytes that forward saves.
        """
        self.rules_of(mask)
        self._check_whole(mask)
        shape = self.calls[mask].shape
        return shape[0], shape[1], shape[2]

    def has_call_of(self, number: int) -> bool:
        """Returns whether calls under one of the masks carry this number of a plan."""
        return any(call.shape[0] == number for call in self.calls.values())


def _opened_gpu(
    device: torch.device, gpu: _core.Gpu | None, emulated: bool, engine: str, timeout: float
) -> _core.Gpu | None:
    """Returns the GPU of the engine native, real or emulated; None on the CPU and with torch."""
    if gpu is not None or engine == "torch":
        return gpu
    if emulated:
        return _core.open_gpu("emulated", timeout=timeout)
    if device.type == "cpu":
        return None
    assert device.index is not None
    with torch.cuda.device(device):
        return _core.open_gpu(device.index, timeout=timeout)


def _transport_of(
    control: _core.Transport, gpu: _core.Gpu | None, timeout: float
) -> _core.Transport:
    """Returns this rank's end of the group; for a GPU, the end that moves the GPU's memory."""
    if gpu is None or control.on_gpu:
        return control
    return gpu.group(1)[0] if control.size == 1 else gpu.join(control, timeout=timeout)


class Executor:
    """The executor of one rank. Making one is collective.

    Prepared for the plan of a batch, it serves all layers, masks and micro-batches of that batch.
    Several batches may be in flight: backward of an earlier one works while its plan is among the
    last ``plans_kept``. All ranks use it in the same order. Threads use it one after the other, as
    autograd's do: a call while another thread is in one raises ``InvalidArgument``.

    Parameters
    ----------
    group : ProcessGroup or Transport, optional
        A ``torch.distributed`` group, whose ranks then connect over gloo, or this rank's end of a
        transport (``contextile.inproc_group``, ``contextile.gloo_transport``). Default: the whole
        job.
    kernel : str
        Name of the kernel: one of ``contextile.kernels()``, or of the engine torch: ``torch:flash``
        (variable-length FlashAttention), ``torch:triton`` (Triton kernels, with bias and dropout),
        ``torch:flex`` (FlexAttention), ``torch:cpu`` (PyTorch's fused attention for CPUs) or
        ``torch:tiles`` (products and a softmax; runs anywhere, with bias and dropout). Default:
        the preferred one for the plan's dtype and the device; the engine torch chooses by dtype,
        dims, softcap and terms.
    device : str or torch.device
        Where the tensors of all calls lie: any of PyTorch's, ``"cpu"``, ``"cuda"`` (the current
        GPU), ``"cuda:1"``, ``"xpu"``, ``"mps"``. Calls are ordered by PyTorch's current stream.
        ``"emulated"``: tensors lie on the CPU, and a machine that interprets their PTX runs the
        engine native's kernels for GPUs, slowly. One process has all ranks then (``Gpu.group``).
    gpu : Gpu, optional
        A GPU that is already open (``contextile.open_gpu``), for the engine native. The transport
        is then one that ``Gpu.group`` or ``Gpu.join`` made, or becomes one by ``Gpu.join``.
    engine : str
        ``"torch"``: plans are run by PyTorch's operators, on any device, and move over the group of
        ``torch.distributed``. ``"native"``: by Contextile's own kernels and transports.
        ``"auto"``: native on the CPU, for a Gpu, an emulated one, several ranks of a Transport or a
        kernel of its own; torch on other devices, unless ``bench/gpu_check`` has passed for this
        GPU, driver and version. The same on every rank.
    plans_kept : int
        Number of recent plans that may still be used, at least 1.
    plans_prepared : int
        Number of plans that keep their buffers, at least 1. Others are prepared again when needed.
    timeout : float
        Seconds without a byte moving after which peers count as lost. It applies to a transport
        that is made here, and then also to calls that take the group alone, such as ``collect``.
        With the engine torch, a wait for tensors on the CPU may take as long; on other devices the
        group's own timeout applies.
    flight_folder : str
        Folder for a record of the last instructions if a call fails. Default: no record. Only with
        the engine native.

    Raises
    ------
    InvalidArgument
        There is no such kernel, device, engine or GPU, or they do not go together; ranks have
        different engines, or share a GPU; this build has no gloo, or a number is below 1.
    TransportError
        Not all ranks connected in time.
    DeviceError
        The GPU's driver or NCCL failed.

    Examples
    --------
    >>> import contextile as ct
    >>> from contextile.torch import Executor
    >>> executor = Executor(ct.inproc_group(1)[0])          # Executor() under torchrun
    >>> plan = ct.plan([60, 40], cluster="local:1x1", strategy="zigzag", heads=(4, 2), head_dim=32)
    >>> prepared = executor.prepare(plan)
    >>> executor.rank, executor.size, executor.plan == plan
    (0, 1, True)
    """

    def __init__(
        self,
        group: ProcessGroup | _core.Transport | None = None,
        *,
        kernel: str = "",
        device: str | torch.device = "cpu",
        gpu: _core.Gpu | None = None,
        engine: str = "auto",
        plans_kept: int = 16,
        plans_prepared: int = 2,
        timeout: float = TIMEOUT_S,
        flight_folder: str = "",
    ) -> None:
        if not _checks.number("executor, timeout", timeout) > 0.0:
            raise _core.InvalidArgument(f"timeout: expected seconds above 0, found {timeout}")
        _checks.text("executor, kernel", kernel)
        _checks.text("executor, flight_folder", flight_folder)
        _checks.text("executor, engine", engine)
        if (
            _checks.count("executor, plans_kept", plans_kept) < 1
            or _checks.count("executor, plans_prepared", plans_prepared) < 1
        ):
            raise _core.InvalidArgument(
                "executor: expected plans_kept and plans_prepared of at least 1, found "
                f"{plans_kept} and {plans_prepared}"
            )
        self.has_transport = isinstance(group, _core.Transport)  # made from one, without a group
        self._group = None if isinstance(group, _core.Transport) else group
        emulated = isinstance(device, str) and device == "emulated"
        self._device = device_of(device, gpu)
        self._engine = engine_of(engine, group, kernel, self._device, gpu, emulated)
        if self._engine == "torch" and flight_folder:
            raise _core.InvalidArgument(
                "flight_folder: expected none with engine torch, whose messages are in PyTorch's "
                f"flight recorder, found {flight_folder!r:.80}"
            )
        if self._engine == "torch":
            check_name(kernel, self._device)
        control = (
            group
            if isinstance(group, _core.Transport)
            else connect(group, timeout=timeout, flight_folder=flight_folder)
        )
        if not isinstance(group, _core.Transport):
            agree_on_engine(control, self._engine, self._device)
        self._gpu = _opened_gpu(self._device, gpu, emulated, self._engine, timeout)
        with self._guard():
            self._transport = _transport_of(control, self._gpu, timeout)
        self._timeout = timeout
        self._kernel = kernel
        self._flight_folder = flight_folder
        self._plans_kept = plans_kept
        self._plans_prepared = plans_prepared
        # Kept plans by number, the one prepared last at the end.
        self._plans: OrderedDict[int, _core.Plan] = OrderedDict()
        # Executors by number of their plan, the one used last at the end.
        self._ranks: OrderedDict[int, Rank] = OrderedDict()
        self._prepared: dict[int, Prepared] = {}  # by number
        self._current: Prepared | None = None  # the one prepared last
        self._withheld = ""  # why calls must name their plan
        self._number = next(_numbers)  # of this executor
        self._shared = Shared()
        self._num_calls = 0  # number of forward calls; the same on all ranks
        # Most plans of a batch so far. plans_kept and plans_prepared count batches.
        self._plans_at_once = 1

    @property
    def transport(self) -> _core.Transport:
        """This rank's end of the group."""
        return self._transport

    @property
    def group(self) -> ProcessGroup | None:
        """The ``torch.distributed`` group; None for the whole job or a transport."""
        return self._group

    @property
    def flight_folder(self) -> str:
        """The folder for a record if a call fails; empty: no record."""
        return self._flight_folder

    @property
    def timeout(self) -> float:
        """Seconds without a byte moving after which peers count as lost."""
        return self._timeout

    @property
    def plans_kept(self) -> int:
        """Number of recent plans that may still be used."""
        return self._plans_kept

    @property
    def plans_prepared(self) -> int:
        """Number of plans that keep their buffers."""
        return self._plans_prepared

    @property
    def is_prepared(self) -> bool:
        """True if a plan was prepared, so that calls need not name one."""
        return self._current is not None

    @property
    def gpu(self) -> _core.Gpu | None:
        """The GPU of the engine native, real or emulated; None on the CPU and with torch."""
        return self._gpu

    @property
    def engine(self) -> str:
        """The engine that runs calls: native or torch."""
        return self._engine

    def describe(self) -> str:
        """Returns the engine, the device, and the kernels of every plan that is prepared.

        Examples
        --------
        >>> import contextile as ct
        >>> from contextile.torch import Executor
        >>> executor = Executor(ct.inproc_group(1)[0], engine="torch")
        >>> prepared = executor.prepare(ct.plan([60, 40], cluster="local:1x1", strategy="zigzag",
        ...                                     heads=(4, 2), head_dim=32, dtype="f32"))
        >>> print(executor.describe())
        engine torch on cpu, rank 0 of 1
        plan zigzag of 100 tokens (f039b2ceafe7501b): torch:cpu
        """
        lines = [f"engine {self._engine} on {self._device}, rank {self.rank} of {self.size}"]
        for number, rank in self._ranks.items():
            plan = self._plans[number]
            lines.append(
                f"plan {plan.strategy} of {plan.num_tokens} tokens ({plan.digest}): {rank.kernel}"
            )
        return "\n".join(lines)

    @property
    def rank(self) -> int:
        """Number of this rank in the group."""
        return self._transport.rank

    @property
    def size(self) -> int:
        """Number of ranks of the group."""
        return self._transport.size

    @property
    def device(self) -> torch.device:
        """The device that the tensors of calls lie on."""
        return self._device

    @property
    def plan(self) -> _core.Plan | None:
        """The plan that was prepared last; None before the first."""
        return None if self._current is None else self._plans[self._current.number]

    @property
    def last_stats(self) -> _core.ExecutionStats | Stats:
        """Bytes and seconds of this rank's last call by the plan prepared last."""
        last = self._last()
        own = {
            number for number, plan in self._plans.items() if any(plan is one for one in last.plans)
        }
        # Not by preparing again, which is collective.
        for number in reversed(self._ranks):
            if number in own:
                return self._ranks[number].last_stats
        raise _core.InvalidArgument(
            "executor, last_stats: expected the plan prepared last to be ready, found that others "
            "took over its buffers (plans_prepared)"
        )

    def prepare(self, plan: _core.Plan | Mapping[str, _core.Plan | HeadPlans]) -> Prepared:
        """Prepares for the plan of a batch. Collective.

        Allocates buffers and checks that every rank holds the same plan. A new plan takes over the
        buffers of the one that was used least recently.

        Parameters
        ----------
        plan : Plan or dict of Plan
            A whole plan, or this rank's slice. Layers of unlike shapes, and masks that differ by
            head, need several plans of one placement, by the names of masks (``contextile.plans``).

        Returns
        -------
        Prepared
            A handle for ``attention(plan=…)``, for calls of several batches in flight.

        Raises
        ------
        InvalidPlan
            Ranks hold different plans or versions, or the plan is for another number of ranks.
        InvalidArgument
            Several plans hold tokens in different places, or have different dtypes.
        TransportError
            A peer died or stalled.
        """
        if isinstance(plan, Mapping):
            self._current = self._prepare_together(plan)
        else:
            self._current = self._prepare_one(plan)
        self._withheld = ""
        replace_plan(self, self._current)
        return self._current

    def _prepare_together(self, names: Mapping[str, _core.Plan | HeadPlans]) -> Prepared:
        if not names:
            raise _core.InvalidArgument("plan: expected at least one, found none")
        plans: dict[str, _core.Plan] = {}
        for name, given in names.items():
            plans |= (
                {group.mask: group.plan for group in given.groups}
                if isinstance(given, HeadPlans)
                else {name: given}
            )
        first = next(iter(plans.values()))
        for name, one in plans.items():
            if not isinstance(one, _core.Plan):
                raise _core.InvalidArgument(
                    f"executor, prepare: expected a Plan for {name!r}, found {one!r:.80}"
                )
            check_placement(first, one, name)
            if one.shape.dtype != first.shape.dtype:
                raise _core.InvalidArgument(
                    f"plan '{name}': expected dtype {first.shape.dtype}, as the first plan, found "
                    f"{one.shape.dtype}"
                )
        self._plans_at_once = max(self._plans_at_once, len({one.digest for one in plans.values()}))
        return Prepared.together(
            {name: self._prepare_one(one) for name, one in plans.items()}, names
        )

    def _prepare_one(self, plan: _core.Plan) -> Prepared:
        if not isinstance(plan, _core.Plan):
            raise _core.InvalidArgument(f"executor, prepare: expected a Plan, found {plan!r:.80}")
        register_if_loaded()
        number = self._number_of(plan)
        if number is None:
            number = next(_numbers)
            self._prepare(number, plan)
            _executors[number] = self
            self._plans[number] = plan
            while len(self._plans) > self._plans_kept * self._plans_at_once:
                self._forget(next(iter(self._plans)))
        else:
            self._prepare(number, plan)
            self._plans.move_to_end(number)
        return self._prepared[number]

    def withhold(self, reason: str) -> None:
        """Makes calls that do not name their plan fail with a reason, until the next prepare."""
        self._withheld = reason

    def for_group(self, group: ProcessGroup | _core.Transport | None) -> Executor:
        """Returns an executor of another group with the options of this one, on the same device.

        Collective over that group.
        """
        return Executor(
            group,
            kernel=self._kernel,
            device=self._device,
            gpu=self._gpu,
            engine=self._engine,
            plans_kept=self._plans_kept,
            plans_prepared=self._plans_prepared,
            timeout=self._timeout,
            flight_folder=self._flight_folder,
        )

    def close(self) -> None:
        """Forgets all plans. Their backward can no longer be called, nor CUDA graphs replayed."""
        for number in list(self._plans):
            self._forget(number)
        self._current = None
        self._shared.captured.clear()

    def _last(self) -> Prepared:
        if self._current is None:
            raise _core.InvalidArgument(
                "executor: expected prepare before attention, found no plan"
            )
        return self._current

    def prepared_of(self, plan: _core.Plan | Prepared | None) -> Prepared:
        """Returns the handle of a plan that is kept; for None, of the one prepared last.

        In a checkpoint that computes forward again, None stands for the plan of the first time.
        """
        if isinstance(plan, Prepared):
            if plan.owner != self._number:
                raise _core.InvalidArgument(
                    "plan: expected one that this executor prepared, found another executor's"
                )
            return plan
        if plan is None:
            found: Prepared | None = plan_again(self)
            if found is None:
                if self._withheld:
                    raise _core.InvalidArgument(self._withheld)
                found = self._last()
            if not torch.compiler.is_compiling():
                remember(self, found)
            return found
        if not isinstance(plan, _core.Plan):
            raise _core.InvalidArgument(
                f"plan: expected a Plan, or what prepare returned for one, found {plan!r:.80}"
            )
        number = self._number_of(plan)
        if number is None:
            raise _core.InvalidArgument(
                f"plan: expected one of the last {self._plans_kept} that the executor was prepared "
                f"for, found {plan.digest}"
            )
        return self._prepared[number]

    def note_call(self, number: int) -> None:
        """Lets checkpoints around a call, compiled or not, compute again under its plan.

        That is the plan with this number, if it is the one of calls that name none.
        """
        prepared = plan_again(self) or self._current
        if prepared is not None and prepared.has_call_of(number):
            remember(self, prepared)

    def has_no_tokens(self, number: int) -> bool:
        """Returns true if this rank owns no tokens of the plan with this number."""
        return number in self._plans and self._plans[number].num_local_tokens(self.rank) == 0

    def _number_of(self, plan: _core.Plan) -> int | None:
        return next((number for number, kept in self._plans.items() if kept == plan), None)

    def _forget(self, number: int) -> None:
        for table in (self._plans, self._ranks, self._prepared, _executors):
            table.pop(number, None)

    def _guard(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the device PyTorch's current one inside, and restores the previous one after."""
        kind = self._device.type
        return (
            contextlib.nullcontext()
            if kind in ("cpu", "mps")
            else torch.get_device_module(kind).device(self._device)
        )

    def _has_cuda(self) -> bool:
        """Returns true if the engine native runs on a real GPU."""
        return self._gpu is not None and not self._gpu.is_emulated

    def _new_rank(self) -> Rank:
        if self._engine == "torch":
            return TorchRank(
                self._transport,
                self._group,
                kernel=self._kernel,
                device=self._device,
                timeout=self._timeout,
                shared=self._shared,
            )
        return _core.RankExecutor(
            self._transport,
            kernel=self._kernel,
            flight_folder=self._flight_folder,
            gpu=self._gpu,
        )

    def _prepare(self, number: int, plan: _core.Plan) -> Rank:
        ranks = self._ranks
        rank = ranks.pop(number, None)
        if rank is None:
            # Reuse the buffers of the plan that was used least recently.
            is_full = len(ranks) >= self._plans_prepared * self._plans_at_once
            rank = ranks.popitem(last=False)[1] if is_full else None
        if rank is None:
            rank = self._new_rank()
        with self._guard():
            rank.prepare(plan)
        ranks[number] = rank
        if number not in self._prepared:
            self._prepared[number] = Prepared(number, plan, rank, self.rank, self._number)
        return rank

    def rank_executor_of(self, number: int) -> Rank:
        """Returns what is ready for a call of the plan with this number, to the operators.

        Prepares the plan again, which is collective, if others took over its buffers.
        """
        if number not in self._plans:
            raise _core.InvalidArgument(
                "executor: expected a plan among the last "
                f"{self._plans_kept} that it was prepared for (plans_kept), found an earlier one"
            )
        if number in self._ranks:
            self._ranks.move_to_end(number)
            return self._ranks[number]
        return self._prepare(number, self._plans[number])

    @contextlib.contextmanager
    def on_device(self) -> Iterator[int]:
        """Surrounds a call. Yields the handle of PyTorch's current stream; 0 on the CPU."""
        if not self._has_cuda():
            with self._guard():
                yield 0
            return
        with self._guard():
            if self._engine == "native" and torch.cuda.is_current_stream_capturing():
                raise _core.InvalidArgument(
                    "attention: expected a stream that runs, found one whose work is being "
                    "captured (torch.cuda.graph); capture what is around attention"
                )
            yield torch.cuda.current_stream(self._device).cuda_stream

    def check_tensor(self, name: str, tensor: torch.Tensor) -> Any:
        """Returns a detached tensor that the library can read, a copy if necessary.

        The elements of a head lie side by side, on a GPU at multiples of 16 bytes. Raises
        InvalidArgument if the tensor is on another device than the executor's.
        """
        if tensor.device != self._device:
            raise _core.InvalidArgument(
                f"{name}: expected a tensor on {self._device}, as the executor's (device=), found "
                f"one on {tensor.device}"
            )
        tensor = tensor.detach()
        if self._engine == "torch":
            return tensor
        has_gaps = tensor.stride(-1) != 1 and tensor.shape[-1] > 1
        if self._gpu is not None and tensor.dim() == 3:
            at = (
                tensor.data_ptr(),
                *(stride * tensor.element_size() for stride in tensor.stride()[:-1]),
            )
            has_gaps = has_gaps or any(bytes_ % 16 != 0 for bytes_ in at)
        return tensor.clone(memory_format=torch.contiguous_format) if has_gaps else tensor

    def __deepcopy__(self, memo: Any) -> Executor:
        """Returns the same executor, so that a copy of a model attends with it, too."""
        return self

    def __reduce__(self) -> Any:
        raise _core.InvalidArgument(
            "executor: expected to stay in its process, found it pickled; save the model's "
            "state_dict"
        )

    def begin_call(self) -> int:
        """Returns the number of the next forward, the same on every rank."""
        self._num_calls += 1
        return self._num_calls


def executor_of(number: int) -> Executor:
    """Returns the executor that keeps the plan with this number."""
    executor = _executors.get(number)
    if executor is None:
        raise _core.InvalidArgument(
            "attention: expected a plan that a living executor still keeps (plans_kept, close), "
            "found one that is gone"
        )
    return executor


def rank_executor_of(number: int) -> Rank:
    """Returns the executor that is ready for a call of that plan.

    Prepares the plan again, which is collective, if others took over its buffers.
    """
    return executor_of(number).rank_executor_of(number)
