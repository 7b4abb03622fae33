"""Stages of a pipeline of ``torch.distributed.pipelining``, whose micro-batches have plans."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from contextile import _checks, _core
from contextile._heads import HeadPlans
from contextile.torch._batch.layout import digest_behind, mark, with_filler
from contextile.torch._execute.agreement import agree, agree_among, give_up, telling_peers
from contextile.torch._execute.executor import Executor
from contextile.torch._ranks.peers import peers_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Plans = _core.Plan | Mapping[str, _core.Plan | HeadPlans]

# ------------------------------------------------------------------------------------------ tickets

# Older versions of torch's pipelining move tensors of floating point only: every buffer that
# they receive requires gradients. A ticket is therefore bytes, each as a number of the tensor's
# own dtype. Numbers up to 255 are exact in bf16, too. They lie behind the rows of the tokens.
_MARK = (67, 84)  # the first bytes of every ticket
_TICKET_BYTES = len(_MARK) + 1 + 3 * 4 + 8
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
)
# The text of a refusal that an earlier stage has reported.
_EARLIER = "expected hidden states, found that an earlier stage refused the micro-batch"


class _Ticket(NamedTuple):
    """Says which micro-batch the rows of a tensor belong to."""

    is_refused: bool
    number: int  # of the micro-batch in the step
    rank: int  # in the executor's group, of the rank whose tokens they are
    num_tokens: int  # rows of tokens, before the filler
    digest: str  # of the micro-batch's plan

    def bytes_(self) -> list[int]:
        numbers = (
            number.to_bytes(4, "little") for number in (self.number, self.rank, self.num_tokens)
        )
        return [*_MARK, int(self.is_refused), *b"".join(numbers), *bytes.fromhex(self.digest)]


def _ticket_of(values: list[Any]) -> _Ticket | None:
    """Returns the ticket that a tensor carries; None if it carries none."""
    values = values[:_TICKET_BYTES]
    if len(values) < _TICKET_BYTES or not all(
        0 <= value <= 255 and value == int(value) for value in values
    ):
        return None
    found = bytes(int(value) for value in values)
    if tuple(found[:2]) != _MARK or found[2] > 1:
        return None
    number, rank, num_tokens = (int.from_bytes(found[at : at + 4], "little") for at in (3, 7, 11))
    return _Ticket(bool(found[2]), number, rank, num_tokens, found[15:].hex())


def _num_ticket_rows(row: torch.Size) -> int:
    """Returns how many rows of a shape a ticket takes."""
    return -(-_TICKET_BYTES // max(row.numel(), 1))


def _write(ticket: _Ticket, rows: Tensor) -> None:
    """Writes a ticket to rows, which are contiguous and have room for it."""
    rows.view(-1)[:_TICKET_BYTES] = torch.tensor(
        ticket.bytes_(), dtype=rows.dtype, device=rows.device
    )


class _Sent(torch.autograd.Function):
    """Returns the rows of tokens with filler and a ticket behind them.

    [1, tokens, ...] becomes [1, most tokens + rows of the ticket, ...]. The gradient of the filler
    and of the ticket is dropped.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, most_tokens: int, ticket: _Ticket) -> Tensor:
        row = rows.shape[2:]
        ctx.num_tokens = rows.shape[1]
        sent = rows.new_zeros((1, most_tokens + _num_ticket_rows(row), *row))
        sent[:, : ctx.num_tokens] = rows
        _write(ticket, sent[0, most_tokens:])
        return sent

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[:, : ctx.num_tokens], None, None


def _sent(rows: Tensor, most_tokens: int, ticket: _Ticket) -> Tensor:
    sent: Tensor = _Sent.apply(rows, most_tokens, ticket)
    return sent


class _Blank(torch.autograd.Function):
    """Returns zeros of a shape, with a ticket if there is one. The gradient of ``x`` is 0.

    ``anchor`` is a leaf, so that what is returned requires gradients even if ``x`` is token ids.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        most_tokens: int,
        ticket: _Ticket | None,
    ) -> Tensor:
        ctx.like = x.shape, x.dtype, x.device
        blank = x.new_zeros(shape, dtype=dtype)
        if ticket is not None and len(shape) > 1:
            _write(ticket, blank[0, most_tokens:])
        return blank

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shape, dtype, device = ctx.like
        of_x = torch.zeros(shape, dtype=dtype, device=device) if ctx.needs_input_grad[0] else None
        return of_x, gradient.new_zeros(()), None, None, None, None


def _infers_shapes() -> bool:
    """Returns true if torch's pipelining calls forward for the shapes of its tensors alone.

    Such a call has no micro-batch: a later stage may get memory that nothing has written. It comes
    from ``_shape_inference``, in newer versions from ``_forward_metadata_inference``, and from the
    constructor if that was given ``input_args`` without ``output_args``.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe may be None
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.pipelining.stage":
            name = frame.f_code.co_name
            if name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                return False
            if "inference" in name or name == "__init__":
                return True
        frame = frame.f_back
    return False


# ------------------------------------------------------------------------------------ micro-batches


class _MicroBatch(NamedTuple):
    """A micro-batch of the step, as a stage of this rank runs it."""

    plan: Plans
    digest: str  # of the plan, or of several
    first: _core.Plan  # the one that says where tokens are
    num_tokens: int  # rows of this rank, with the filler of a rank without tokens
    arguments: dict[str, Any]


class _Refused(_core.InvalidArgument):
    """An error that all ranks of the pipeline raise together, so that none waits for another."""


_Refused.__module__, _Refused.__qualname__ = "contextile", "InvalidArgument"  # in tracebacks


class _Step:
    """The micro-batches of a training step, and the stage's progress in it."""

    def __init__(self, micro_batches: list[_MicroBatch]) -> None:
        self.micro_batches = micro_batches
        self.has_run: set[int] = set()  # numbers of micro-batches that ran forward
        self.wrong_inputs: _core.InvalidArgument | None = None  # of this rank
        # The first refusals that the stage's ranks agreed on: their own, and an earlier stage's.
        self.refusal: _core.InvalidArgument | None = None
        self.earlier: _core.InvalidArgument | None = None


def _plans_of(plan: Any, where: str) -> dict[str, _core.Plan]:
    """Returns the plans of a micro-batch by the names of masks; of one plan, by an empty name."""
    found: dict[str, Any] = {}
    for name, given in plan.items() if isinstance(plan, Mapping) else [("", plan)]:
        found |= (
            {group.mask: group.plan for group in given.groups}
            if isinstance(given, HeadPlans)
            else {name: given}
        )
    for name, one in found.items():
        _checks.plan(f"{where}, plan '{name}'" if name else f"{where}, plan", one)
    if not found:
        raise _core.InvalidArgument(f"{where}, plan: expected at least one, found none")
    return found


def _rows_in(rows: Any) -> list[Tensor]:
    return (
        [row for row in rows if isinstance(row, Tensor)] if isinstance(rows, (list, tuple)) else []
    )


def _check_plan_of(where: str, value: Any, plan: _core.Plan) -> None:
    """Raises if a tensor is one that ``local_batch`` made for another plan."""
    digest = digest_behind(value) if isinstance(value, Tensor) else None
    if digest is not None and digest != plan.digest:
        raise _core.InvalidArgument(
            f"{where}: expected tensors of plan {plan.digest}, found one that local_batch made for "
            f"{digest}"
        )


def _digest_of(plans: dict[str, _core.Plan]) -> str:
    """Returns a digest of 16 hexadecimal digits: the plan's own, or of several one of theirs."""
    digests = [one.digest for one in plans.values()]
    if len(set(digests)) == 1:
        return digests[0]
    named = "".join(f"{name}:{digest};" for name, digest in zip(plans, digests, strict=True))
    return hashlib.blake2b(named.encode(), digest_size=8).hexdigest()


class Stage(nn.Module):
    """Runs the layers of a pipeline stage by the plan of each micro-batch.

    Give it to ``torch.distributed.pipelining.PipelineStage`` in place of the layers. A ticket rides
    along with the hidden states from stage to stage: the digest of the micro-batch's plan, and its
    number in the step. By it every stage prepares its executor for the right plan, in whatever
    order a schedule calls. Calls for the shapes of tensors, which torch makes first, do not count.

    Schedules move tensors of one shape. Hidden states between stages therefore have ``max_tokens``
    rows, and some behind them for the ticket. Layers get and return their own tokens only.

    Making one is collective over the executor's group and over ``group``. All stages of a rank may
    share an executor.

    Parameters
    ----------
    module : nn.Module
        The layers. They are called as ``module(x, **arguments)``, where ``x`` is [1, tokens] or
        [1, tokens, features] of this rank's tokens, and the arguments are those of ``step``. They
        attend by ``attention(..., executor=executor)``, ``use``, ``replace_attention`` or
        ``contextile.transformers.use``.
    executor : Executor
        The executor of the ranks that share the stage's micro-batches. Its ``plans_kept`` is at
        least the number of micro-batches in a step.
    group : ProcessGroup, optional
        The ranks of the pipeline, one of each stage, as ``PipelineStage`` has it. Default: the
        whole job, for groups of one rank.
    max_tokens : int
        Most tokens that a rank may hold of a micro-batch. The same on all ranks.
    out_features : int or None
        Features of a row that the module returns, [1, tokens, out_features]. None: the module
        returns this rank's share of the loss, a scalar, as the last stage should. The schedule gets
        it as [1], the loss of each micro-batch.
    out_dtype : torch.dtype
        The dtype that the module returns: float32, bfloat16, float16 or float64.

    Raises
    ------
    InvalidArgument
        An argument is none of these, or ranks have different ones. All ranks raise it.
    TransportError
        Not all ranks came.

    Examples
    --------
    On every rank of a mesh ``(pp, cp)``; ``docs/python/pipelines.md`` has the whole program::

        executor = Executor(mesh["cp"].get_group())
        pp = mesh["pp"].get_group()
        stage = Stage(layers, executor, group=pp, max_tokens=600, out_features=128)
        schedule = Schedule1F1B(PipelineStage(stage, pp.rank(), pp.size(), device, group=pp), 4)
        with stage.step(plans, positions=[local.positions[None] for local in locals]):
            schedule.step(stage.inputs([local.tokens for local in locals]))     # the first stage
    """

    def __init__(
        self,
        module: nn.Module,
        executor: Executor,
        *,
        group: ProcessGroup | None = None,
        max_tokens: int,
        out_features: int | None,
        out_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not isinstance(executor, Executor):
            raise _core.InvalidArgument(f"stage: expected an Executor, found {executor!r:.80}")
        self.executor = executor
        self._pipeline = peers_in(group)
        problem: Exception | None = None
        try:
            if not isinstance(module, nn.Module):
                raise _core.InvalidArgument(f"module: expected an nn.Module, found {module!r:.80}")
            max_tokens = _checks.count("max_tokens", max_tokens, least=1)
            if out_features is not None:
                out_features = _checks.count("out_features", out_features, least=1)
            if out_dtype not in _DTYPES or not out_dtype.is_floating_point:
                raise _core.InvalidArgument(
                    "out_dtype: expected float32, bfloat16, float16 or float64, found "
                    f"{out_dtype!r:.80}"
                )
            self.module = module
        except Exception as error:  # other ranks wait to hear of it
            problem = error
        self._settle(
            problem, {"out_features": out_features, "out_dtype": out_dtype}, max_tokens=max_tokens
        )
        self.max_tokens, self.out_features, self.out_dtype = max_tokens, out_features, out_dtype
        self._step: _Step | None = None
        self._input_form: tuple[torch.Size, torch.dtype] | None = None  # of the last good inputs

    def extra_repr(self) -> str:
        return (
            f"max_tokens={self.max_tokens}, out_features={self.out_features}, "
            f"out_dtype={self.out_dtype}"
        )

    # ------------------------------------------------------------------------------------------
    # steps

    @contextlib.contextmanager
    def step(self, plans: Sequence[Plans], **arguments: Sequence[Any]) -> Iterator[Stage]:
        """Surrounds a step of the schedule. Collective over all stages, also on leaving.

        Parameters
        ----------
        plans : sequence of Plan, or of dict of Plan
            The plan of every micro-batch of the step, in order, or this rank's slice. All stages
            plan the same; several plans of a micro-batch are as for ``Executor.prepare``.
        **arguments : sequence
            Arguments of the module, each with one value per micro-batch, such as positions, and
            labels on the last stage.

        Yields
        ------
        Stage

        Raises
        ------
        InvalidArgument
            On entering: an argument has more or fewer values than there are plans, a plan is for
            another number of ranks, a rank holds more than ``max_tokens`` of a micro-batch, the
            executor keeps fewer plans, or stages have different plans. On leaving: a stage got
            hidden states without a ticket, or of another micro-batch, plan, number of tokens or
            rank than it expected; or a micro-batch did not run forward. All ranks of the pipeline
            raise the same error, which names the rank in the pipeline and in the executor's group,
            and the groups go on. Gradients of the step are to be dropped.
        TransportError
            A peer died or stalled, or raised another error in the step. The group has ended. Ranks
            of other stages that wait in torch's own transfers learn of it when that rank ends.
        """
        problem: Exception | None = None
        micro_batches: list[_MicroBatch] = []
        try:
            if self._step is not None:
                raise _core.InvalidArgument(
                    "step: expected one at a time, found one inside another"
                )
            micro_batches = self._micro_batches_of(plans, arguments)
        except Exception as error:  # other ranks wait to hear of it
            problem = error
        self._settle(problem, {}, plans=[one.digest for one in micro_batches])
        self._step = _Step(micro_batches)
        try:
            yield self
        except BaseException as error:
            if not isinstance(error, _Refused):
                give_up(self.executor, "stage", error)
                self._pipeline.give_up(f"pipeline: {type(error).__name__}: {error}")
            raise
        else:
            self._end(self._step)
        finally:
            self._step = None

    def inputs(self, rows: Sequence[Tensor]) -> Tensor:
        """Returns the input of the first stage for the schedule's ``step``. Not collective.

        Wrong rows are refused on all ranks when the step ends.

        Parameters
        ----------
        rows : sequence of Tensor [local tokens, ...]
            Token ids of every micro-batch of the step in the plan's local order, as ``local_batch``
            returns them, or rows of another kind. All have one dtype: int64, int32, int16, or one
            of floating point.

        Returns
        -------
        Tensor [micro-batches, rows, ...]
            On the executor's device, with filler and tickets. The schedule cuts it in dimension 0.

        Raises
        ------
        InvalidArgument
            The call is outside of ``step``.
        """
        step = self._current()
        try:
            return self._inputs_of(step, rows)
        except _core.InvalidArgument as error:
            # The schedule runs all the same: other ranks wait in it, and hear of this in forward.
            step.wrong_inputs = error
            first = next(
                (row for row in _rows_in(rows) if row.dtype in _DTYPES and row.dim() > 0),
                torch.zeros(1, dtype=torch.int64),
            )
            shape, dtype = self._input_form or (first.shape[1:], first.dtype)
            blank = torch.zeros(
                (len(step.micro_batches), self.max_tokens + _num_ticket_rows(shape), *shape),
                dtype=dtype,
            )
            for number in range(len(blank)):
                _write(
                    self._ticket(step, number, is_refused=True), blank[number, self.max_tokens :]
                )
            return blank.to(self.executor.device)

    def forward(self, x: Tensor) -> Tensor:
        """Runs the module on the tokens of a micro-batch. Collective over the executor's group.

        Parameters
        ----------
        x : Tensor [1, rows] or [1, rows, ...]
            From ``inputs``, or what the stage before returned.

        Returns
        -------
        Tensor [1, rows, out_features], or [1]
            With filler and the ticket; or this rank's share of the loss.

        Raises
        ------
        InvalidArgument
            The call is outside of ``step``, or the module returns something else than it should.
            The latter ends the executor's group, like any error of the module.
        TransportError
            A peer died or stalled.
        """
        if _infers_shapes():
            return self._blank(x, None)
        step = self._current()
        ticket = self._read(x)
        number = -1 if ticket is None else ticket.number
        try:
            # The ranks of the stage run the module together, or none does.
            agree(self.executor, "stage", self._problem_of(step, x, ticket), micro_batch=number)
        except _core.InvalidArgument as error:
            if _EARLIER in str(error):
                step.earlier = step.earlier or error
            else:
                step.refusal = step.refusal or error
            step.has_run.add(number)
            return self._blank(x, self._ticket(step, max(number, 0), is_refused=True))
        step.has_run.add(number)
        with telling_peers(self.executor, f"stage, micro-batch {number}"):
            out = self._run(step.micro_batches[number], x)
        if self.out_features is None:
            return out.reshape(1)
        return _sent(out, self.max_tokens, self._ticket(step, number))

    # ----------------------------------------------------------------------------------------
    # helpers

    def _current(self) -> _Step:
        if self._step is None:
            raise _core.InvalidArgument("stage: expected a call inside of step, found one outside")
        return self._step

    def _settle(self, problem: Exception | None, of_stage: dict[str, Any], **settings: Any) -> None:
        """Raises one error on all ranks if one has found a problem, or settings differ."""
        try:
            agree(self.executor, "stage", problem, **of_stage, **settings)
        except _core.TransportError as error:
            self._pipeline.give_up(f"pipeline: {error}")
            raise
        except Exception as error:  # those of other stages wait to hear of it
            self._agree_on(error, **settings)
        else:
            self._agree_on(None, **settings)

    def _agree_on(self, found: Exception | None, **settings: Any) -> None:
        """Raises one error on all stages if the ranks of one have found it together."""
        try:
            agree_among(self._pipeline, "pipeline", found, **settings)
        except _core.InvalidArgument as error:
            raise _Refused(str(error)) from None

    def _end(self, step: _Step) -> None:
        """Raises what was refused in a step, or what did not run, on all ranks."""
        self._agree_on(step.refusal)
        missing = [
            str(number) for number in range(len(step.micro_batches)) if number not in step.has_run
        ]
        problem = step.earlier
        if problem is None and missing:
            problem = _core.InvalidArgument(
                f"expected the schedule to run all {len(step.micro_batches)} micro-batches of the "
                f"step, found no forward of {', '.join(missing)}"
            )
        self._settle(problem, {})

    def _micro_batches_of(self, plans: Any, arguments: dict[str, Any]) -> list[_MicroBatch]:
        if isinstance(plans, (_core.Plan, Mapping, str)) or not hasattr(plans, "__iter__"):
            raise _core.InvalidArgument(
                f"plans: expected one of every micro-batch, found {plans!r:.80}"
            )
        plans = list(plans)
        if not plans:
            raise _core.InvalidArgument("plans: expected one of every micro-batch, found none")
        values = {}
        for name, given in arguments.items():
            values[name] = (
                list(given)
                if hasattr(given, "__iter__") and not isinstance(given, (str, Mapping))
                else []
            )
            if len(values[name]) != len(plans):
                raise _core.InvalidArgument(
                    f"{name}: expected a value for each of {len(plans)} micro-batches, found "
                    f"{len(values[name])}"
                )
        found = [
            self._micro_batch_of(i, plan, {name: of_name[i] for name, of_name in values.items()})
            for i, plan in enumerate(plans)
        ]
        num_plans = len({one.digest for one in found})
        if num_plans > self.executor.plans_kept:
            raise _core.InvalidArgument(
                f"executor: expected plans_kept of at least {num_plans}, as a step has plans, "
                f"found {self.executor.plans_kept}"
            )
        self._check_names(values)
        return found

    def _check_names(self, given: Mapping[str, Any]) -> None:
        """Raises unless the module can be called with these arguments."""
        signature = inspect.signature(self.module.forward)
        try:
            signature.bind(None, **given)
        except TypeError as error:
            raise _core.InvalidArgument(
                f"arguments: expected those of {type(self.module).__name__}.forward{signature}, "
                f"found {', '.join(given) or 'none'} ({error})"
            ) from None

    def _micro_batch_of(self, number: int, plan: Any, arguments: dict[str, Any]) -> _MicroBatch:
        where = f"micro-batch {number}"
        plans = _plans_of(plan, where)
        first = next(iter(plans.values()))
        for one in plans.values():
            if one.num_devices != self.executor.size:
                raise _core.InvalidArgument(
                    f"{where}: expected a plan for the {self.executor.size} ranks of the executor, "
                    f"found one for {one.num_devices}"
                )
        num_tokens = first.num_local_tokens(self.executor.rank)
        if num_tokens > self.max_tokens:
            raise _core.InvalidArgument(
                f"{where}: expected at most {self.max_tokens} tokens of a rank (max_tokens), found "
                f"{num_tokens}"
            )
        for name, value in arguments.items():
            _check_plan_of(f"{where}, {name}", value, first)
        return _MicroBatch(plan, _digest_of(plans), first, max(num_tokens, 1), arguments)

    def _ticket(self, step: _Step, number: int, is_refused: bool = False) -> _Ticket:
        if number >= len(step.micro_batches):
            number = 0
        one = step.micro_batches[number]
        return _Ticket(is_refused, number, self.executor.rank, one.num_tokens, one.digest)

    def _inputs_of(self, step: _Step, rows: Any) -> Tensor:
        if isinstance(rows, Tensor) or not hasattr(rows, "__iter__"):
            raise _core.InvalidArgument(
                "inputs: expected a list of Tensors, one per micro-batch, found "
                f"{type(rows).__name__}"
            )
        rows = list(rows)
        if len(rows) != len(step.micro_batches):
            raise _core.InvalidArgument(
                f"inputs: expected rows of {len(step.micro_batches)} micro-batches, found "
                f"{len(rows)}"
            )
        made = []
        for number, (given, one) in enumerate(zip(rows, step.micro_batches, strict=True)):
            where = f"inputs, micro-batch {number}"
            if not isinstance(given, Tensor) or given.dim() == 0 or given.dtype not in _DTYPES:
                found = (
                    f"{given.dtype} {list(given.shape)}"
                    if isinstance(given, Tensor)
                    else f"{given!r:.80}"
                )
                raise _core.InvalidArgument(f"{where}: expected a Tensor of tokens, found {found}")
            _check_plan_of(where, given, one.first)
            filled = with_filler(given)
            if len(filled) != one.num_tokens:
                raise _core.InvalidArgument(
                    f"{where}: expected the {one.num_tokens} rows of this rank by its plan, found "
                    f"{len(given)}"
                )
            if filled.dtype != rows[0].dtype or filled.shape[1:] != rows[0].shape[1:]:
                raise _core.InvalidArgument(
                    f"{where}: expected rows {list(rows[0].shape[1:])} of {rows[0].dtype}, as the "
                    f"first micro-batch, found {list(filled.shape[1:])} of {filled.dtype}"
                )
            filled = filled.to(self.executor.device)[None]
            made.append(_sent(filled, self.max_tokens, self._ticket(step, number)))
        self._input_form = rows[0].shape[1:], rows[0].dtype
        return torch.cat(made)

    def _read(self, x: Any) -> _Ticket | None:
        """Returns the ticket of an input. Waits for the device that it lies on."""
        if not isinstance(x, Tensor) or x.dim() < 2 or x.shape[0] != 1 or x.dtype not in _DTYPES:
            return None
        if x.shape[1] != self.max_tokens + _num_ticket_rows(x.shape[2:]):
            return None
        return _ticket_of(x.detach()[0, self.max_tokens :].reshape(-1)[:_TICKET_BYTES].tolist())

    def _problem_of(
        self, step: _Step, x: Any, ticket: _Ticket | None
    ) -> _core.InvalidArgument | None:
        """Says why a stage cannot run its module on an input."""
        if ticket is None:
            found = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else f"{x!r:.80}"
            return _core.InvalidArgument(
                "expected one micro-batch of inputs(…) or of the stage before, with "
                f"{self.max_tokens} rows and a ticket, found {found} without one"
            )
        if ticket.is_refused:
            return step.wrong_inputs or _core.InvalidArgument(_EARLIER)
        where = f"micro-batch {ticket.number}"
        if ticket.number >= len(step.micro_batches):
            return _core.InvalidArgument(
                f"{where}: expected one of the {len(step.micro_batches)} of the step, found another"
            )
        expected = self._ticket(step, ticket.number)
        if ticket.digest != expected.digest:
            others = [
                str(i) for i, one in enumerate(step.micro_batches) if one.digest == ticket.digest
            ]
            of = f"that of micro-batch {', '.join(others)}" if others else "no plan of the step"
            return _core.InvalidArgument(
                f"{where}: expected hidden states of plan {expected.digest}, found those of "
                f"{ticket.digest}, {of}"
            )
        if ticket.rank != expected.rank:
            return _core.InvalidArgument(
                f"{where}: expected hidden states of rank {expected.rank} of the executor's group, "
                f"found those of rank {ticket.rank}; the ranks of a pipeline (group) have one "
                "number in their executors' groups"
            )
        if ticket.num_tokens != expected.num_tokens:
            return _core.InvalidArgument(
                f"{where}: expected {expected.num_tokens} tokens of this rank, as its plan has, "
                f"found {ticket.num_tokens}"
            )
        return None

    def _blank(self, x: Tensor, ticket: _Ticket | None) -> Tensor:
        """Returns zeros in the place of what the module would return."""
        shape: tuple[int, ...] = (1,)
        if self.out_features is not None:
            row = torch.Size([self.out_features])
            shape = (1, self.max_tokens + _num_ticket_rows(row), self.out_features)
        anchor = torch.zeros((), requires_grad=True)
        blank: Tensor = _Blank.apply(x, anchor, shape, self.out_dtype, self.max_tokens, ticket)
        return blank

    def _run(self, one: _MicroBatch, x: Tensor) -> Tensor:
        """Runs the module by the plan of a micro-batch."""
        self.executor.prepare(one.plan)
        rows = x[:, : one.num_tokens]
        if rows.dtype is torch.int64:  # tokens
            mark(rows, one.first.digest)
        out = self.module(rows, **one.arguments)
        expected: list[int] = (
            [] if self.out_features is None else [1, one.num_tokens, self.out_features]
        )
        if not isinstance(out, Tensor):
            found = f"{out!r:.80}"
        elif list(out.shape) == expected and out.dtype == self.out_dtype:
            return out
        else:
            found = f"{list(out.shape)} of {out.dtype}"
        kind = f"{expected} of {self.out_dtype} (out_features, out_dtype)"
        if self.out_features is None:
            kind = (
                f"a scalar of {self.out_dtype}, this rank's share of the loss (out_features=None, "
                "out_dtype)"
            )
        raise _core.InvalidArgument(f"{type(self.module).__name__}: expected {kind}, found {found}")
