"""Pipelines in ticks of one phase, whose idle stages compute attention (DistCA, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from contextile import _core
from contextile.torch._ping_pong import PingPong
from contextile.torch._pool import Lengths, Pool, PooledBatch, Rows
from contextile.torch._pooled_calls import Calls, CallTimes, serve


class Tick(NamedTuple):
    """One tick of a pipeline, in which all stages run forward, or all run backward.

    Attributes
    ----------
    phase : str
        ``"forward"`` or ``"backward"``.
    number : int
        Number among the ticks of the phase.
    steps : tuple
        (micro-batch, chunk) of every stage. None: the stage is idle, and computes attention of others.
    """

    phase: str
    number: int
    steps: tuple[tuple[int, int] | None, ...]


def ticks(stages: int, micro_batches: int, chunks: int = 1) -> list[Tick]:
    """Returns the ticks of a same-phase pipeline, as ``contextile iterate`` predicts them.

    Backwards are deferred into the bubble at the end, so that there are as many ticks as 1F1B
    needs: 2 · (micro_batches · chunks + stages - 1).

    Parameters
    ----------
    stages : int
        Pipeline stages.
    micro_batches : int
        Micro-batches of a replica in one step. With several chunks at least ``stages``, or a
        multiple with a last group of at least ``stages``.
    chunks : int
        Chunks of layers of a stage: 1 as in 1F1B, more as in interleaved 1F1B.

    Raises
    ------
    InvalidArgument
        A number is below 1, or chunks do not fit.

    Examples
    --------
    >>> from contextile.torch import ticks
    >>> for tick in ticks(stages=2, micro_batches=2):
    ...     print(tick.phase, tick.steps)
    forward ((0, 0), None)
    forward ((1, 0), (0, 0))
    backward (None, (0, 0))
    forward (None, (1, 0))
    backward ((0, 0), (1, 0))
    backward ((1, 0), None)
    """
    made = _core.same_phase_ticks(stages=stages, micro_batches=micro_batches, chunks=chunks)
    return [Tick(phase, number, tuple(steps)) for phase, number, steps in made]


# Returns x of a micro-batch's rows; and the share of the loss of x.
Embed = Callable[[int, Rows], Tensor]
Loss = Callable[[int, Rows, Tensor], Tensor]


class _Kept(NamedTuple):
    """The tensors that a forward leaves for its backward."""

    x: Tensor  # a leaf, or what embed returned
    out: Tensor | None  # the loss on the last stage; None if backward computes forward again


class SamePhasePipeline:
    """Runs training steps of a pipeline whose stages compute each other's attention.

    In a tick all stages run forward, or all run backward, and one plan balances the attention of
    their micro-batches over the ranks of all stages and replicas. Stages that are idle while the
    pipeline fills and drains compute attention of the others. ``ticks`` lists the ticks.

    A forward and its backward run in ticks with other micro-batches on the other stages. So
    backward has plans of its own, and forward keeps nothing for it on other ranks.

    Ranks of the pool are in the order context parallelism, data parallelism, pipeline: the
    neighbourhoods of a pool are the replicas of stage 0, then those of stage 1, and so on. All
    chunks of all stages have equally many layers.

    Parameters
    ----------
    chunks : iterable of iterables of nn.Module
        This stage's chunks of layers, each as ``PingPong`` takes them; their only argument is
        ``positions``. Chunk c of stage r is number c · stages + r of the model.
    pool : Pool
        The pool of all ranks, with as many neighbourhoods as stages x replicas.
    stages : int
        Pipeline stages.
    hidden : int
        Size of a row between stages.
    hidden_dtype : torch.dtype
        Its dtype.
    nano_batches : int
        2: ping-pong; 1: transfers of attention hide under nothing.
    checkpoint : bool
        As for ``PingPong``.
    recompute : bool
        Whether backward runs the forward of a chunk again, with its attention, so that only the
        chunk's input is kept.

    Raises
    ------
    InvalidArgument
        Stages do not divide the pool, chunks have different numbers of layers, or the pool's strategy
        keeps other ranks' tokens from forward to backward.

    Examples
    --------
    Under torchrun, on every rank::

        pool = Pool(Executor(), neighbourhoods=stages * replicas, heads=(4, 2), head_dim=32)
        pipeline = SamePhasePipeline([my_layers], pool, stages=stages, hidden=128)
        loss = pipeline.step(lengths, embed=embed, loss=loss_of)     # lengths[micro-batch][replica]
    """

    def __init__(
        self,
        chunks: Iterable[Iterable[nn.Module]],
        pool: Pool,
        *,
        stages: int,
        hidden: int,
        hidden_dtype: torch.dtype = torch.float32,
        nano_batches: int = 2,
        checkpoint: bool = False,
        recompute: bool = False,
    ) -> None:
        import torch.distributed as dist

        if stages < 1 or pool.neighbourhoods % stages != 0:
            raise _core.InvalidArgument(
                f"pipeline: expected stages that divide the pool's {pool.neighbourhoods} neighbourhoods, found {stages}"
            )
        self.chunks = [PingPong(layers, pool, checkpoint=checkpoint) for layers in chunks]
        self._num_layers = len(self.chunks[0].layers) if self.chunks else 0
        if any(len(chunk.layers) != self._num_layers for chunk in self.chunks) or not self.chunks:
            raise _core.InvalidArgument(
                "pipeline: expected chunks of equally many layers, found "
                f"{[len(chunk.layers) for chunk in self.chunks]}"
            )
        self._calls = Calls(pool)
        for chunk in self.chunks:
            chunk.calls = self._calls
        self.pool = pool
        self.stages = stages
        self.replicas = pool.neighbourhoods // stages
        self.stage, self.replica = divmod(pool.neighbourhood, self.replicas)
        self._hidden = hidden
        self._hidden_dtype = hidden_dtype
        self._checked: set[str] = set()  # digests of plans
        self._nano_batches = nano_batches
        self._recompute = recompute
        group = pool.executor.group
        apart = self.replicas * pool.size  # ranks from a stage to the next
        ring = [(pool.executor.rank + step * apart) % pool.executor.size for step in (1, -1)]
        self._next, self._previous = (r if group is None else dist.get_global_rank(group, r) for r in ring)
        _check_layers(self._num_layers * len(self.chunks), pool)

    @property
    def times(self) -> dict[str, CallTimes]:
        """Times of this rank's calls so far: "forward", "backward", and "idle" in idle ticks."""
        return self._calls.times

    def micro_batches_of(self, tick: Tick, lengths: Sequence[Sequence[Lengths]]) -> list[Lengths | None]:
        """Returns the micro-batch of every neighbourhood of the pool in a tick; None: idle."""
        return [None if step is None else lengths[step[0]][d] for step in tick.steps for d in range(self.replicas)]

    def step(self, lengths: Sequence[Sequence[Lengths]], *, embed: Embed, loss: Loss) -> Tensor:
        """Runs forward and backward of all micro-batches of a step. Collective.

        Gradients are added to those of the parameters. They are complete over this rank's rows, and
        yet to be summed over the ranks that hold the same parameters.

        Parameters
        ----------
        lengths : sequence of sequences of (sequence of int)
            ``lengths[i][d]``: token counts of the documents of replica d's micro-batch i.
        embed : function of (i, rows)
            Returns x [rows, hidden] of this replica's micro-batch i, on the first stage.
        loss : function of (i, rows, x)
            Returns this rank's share of the loss, a scalar, on the last stage.

        Returns
        -------
        Tensor
            The sum of this rank's shares, without gradient; 0 on other stages.

        Raises
        ------
        InvalidArgument
            A micro-batch has not the lengths of all replicas; as for ``ticks`` and ``Pool.plan``.
        TransportError
            A peer died or stalled.
        """
        for i, of_replicas in enumerate(lengths):
            if len(of_replicas) != self.replicas:
                raise _core.InvalidArgument(
                    f"pipeline: expected lengths of {self.replicas} replicas in micro-batch {i}, found {len(of_replicas)}"
                )
        return _Step(self, lengths, embed, loss).run()


def _check_layers(num_layers: int, pool: Pool) -> None:
    """Raises InvalidArgument unless all ranks have equally many layers. Collective."""
    import torch.distributed as dist

    counts: list[Any] = [None] * pool.executor.size
    dist.all_gather_object(counts, num_layers, group=pool.executor.group)
    if len(set(counts)) != 1:
        raise _core.InvalidArgument(f"pipeline: expected equally many layers on all ranks, found {counts}")


class _Step:
    """One training step of a pipeline on this rank."""

    def __init__(self, pipeline: SamePhasePipeline, lengths: Sequence[Sequence[Lengths]], embed: Embed, loss: Loss) -> None:
        self.pipeline = pipeline
        self.pool = pipeline.pool
        self.lengths = lengths
        self.embed = embed
        self.loss = loss
        self.total = torch.zeros(())
        self.ticks = ticks(pipeline.stages, len(lengths), len(pipeline.chunks))
        self.rows: dict[int, Rows] = {}  # by micro-batch
        self.kept: dict[tuple[int, int], _Kept] = {}  # by micro-batch and chunk
        # Rows and gradients on their way here, and their transfers; by phase, micro-batch, chunk.
        self.inbox: dict[tuple[str, int, int], tuple[Tensor, Any]] = {}
        self.sends: list[tuple[Tensor, Any]] = []

    def run(self) -> Tensor:
        for tick in self.ticks:
            mine = tick.steps[self.pipeline.stage]
            batch = self._batch_of(tick, mine)
            result = None
            if mine is None:
                self._serve(tick, batch)
            elif tick.phase == "forward":
                result = self._forward(*mine, batch)
            else:
                result = self._backward(*mine, batch)
            self._exchange(tick, mine, result)
        for _, work in self.sends:
            work.wait()
        return self.total

    def _rows_of(self, micro_batch: int) -> Rows:
        if micro_batch not in self.rows:
            lengths = self.lengths[micro_batch][self.pipeline.replica]
            self.rows[micro_batch] = self.pool.rows_of(lengths, nano_batches=self.pipeline._nano_batches)
        return self.rows[micro_batch]

    def _batch_of(self, tick: Tick, mine: tuple[int, int] | None) -> PooledBatch:
        batch = self.pool.prepare(
            self.pipeline.micro_batches_of(tick, self.lengths),
            nano_batches=self.pipeline._nano_batches,
            rows=None if mine is None else self._rows_of(mine[0]),
        )
        new = [plan for plan in batch.plans if plan.digest not in self.pipeline._checked]
        kept = max((plan.stats().forward.retained_bytes for plan in new), default=0)
        self.pipeline._checked.update(plan.digest for plan in new)
        if kept > 0:
            raise _core.InvalidArgument(
                f"pipeline: expected a strategy that keeps nothing from forward to backward (distca:resend=on), found "
                f"{kept} bytes kept"
            )
        return batch

    def _serve(self, tick: Tick, batch: PooledBatch) -> None:
        if tick.phase == "backward" and self.pipeline._recompute:
            serve(self.pipeline._calls, batch, self.pipeline._num_layers, "forward")
        serve(self.pipeline._calls, batch, self.pipeline._num_layers, tick.phase)

    def _is_first(self, chunk: int) -> bool:
        return self.pipeline.stage == 0 and chunk == 0

    def _is_last(self, chunk: int) -> bool:
        return self.pipeline.stage == self.pipeline.stages - 1 and chunk == len(self.pipeline.chunks) - 1

    def _received(self, phase: str, micro_batch: int, chunk: int) -> Tensor:
        tensor, work = self.inbox.pop((phase, micro_batch, chunk))
        work.wait()
        return tensor

    def _run(self, micro_batch: int, chunk: int, x: Tensor, batch: PooledBatch) -> Tensor:
        """Returns the chunk's output, or the loss on the last stage."""
        rows = self._rows_of(micro_batch)
        out = self.pipeline.chunks[chunk](x, rows.positions, batch=batch)
        return self.loss(micro_batch, rows, out) if self._is_last(chunk) else out

    def _forward(self, micro_batch: int, chunk: int, batch: PooledBatch) -> Tensor:
        if self._is_first(chunk):
            x = self.embed(micro_batch, self._rows_of(micro_batch))
        else:
            x = self._received("forward", micro_batch, chunk).requires_grad_()
        with torch.set_grad_enabled(not self.pipeline._recompute):
            out = self._run(micro_batch, chunk, x, batch)
        self.kept[micro_batch, chunk] = _Kept(x, None if self.pipeline._recompute else out)
        if self._is_last(chunk):
            self.total = self.total + out.detach()
        return out.detach()

    def _backward(self, micro_batch: int, chunk: int, batch: PooledBatch) -> Tensor | None:
        """Returns the gradient of the chunk's input; nothing on the first stage."""
        x, out = self.kept.pop((micro_batch, chunk))
        if out is None:
            # The leaf ends the graph of the chunk; what embed returned has another graph.
            leaf = x.detach().requires_grad_()
            out = self._run(micro_batch, chunk, leaf, batch)
        else:
            leaf = x
        gradient = None if self._is_last(chunk) else self._received("backward", micro_batch, chunk)
        with self.pipeline._calls.backward_by(batch):
            torch.autograd.backward(out, gradient)
        if not self._is_first(chunk):
            return leaf.grad
        if leaf is not x:
            torch.autograd.backward(x, leaf.grad)
        return None

    def _exchange(self, tick: Tick, mine: tuple[int, int] | None, result: Tensor | None) -> None:
        """Sends a step's result to the neighbour stage, and begins to receive what comes here."""
        import torch.distributed as dist

        forward = tick.phase == "forward"
        pipeline = self.pipeline
        first, last = 0, pipeline.stages - 1
        source = pipeline.stage - 1 if forward else pipeline.stage + 1
        theirs = tick.steps[source % pipeline.stages]
        operations, received = [], None
        group = self.pool.executor.group
        if mine is not None and result is not None and not (self._is_last(mine[1]) if forward else self._is_first(mine[1])):
            to = pipeline._next if forward else pipeline._previous
            self._check_rows(result, len(self._rows_of(mine[0]).tokens))
            operations.append(dist.P2POp(dist.isend, result.contiguous(), to, group))
        if theirs is not None:
            micro_batch, chunk = theirs
            # Past the end of the stages, a chunk's neighbour is the next chunk on the first stage.
            if forward and pipeline.stage == first:
                chunk += 1
            elif not forward and pipeline.stage == last:
                chunk -= 1
            if 0 <= chunk < len(pipeline.chunks):
                rows = len(self._rows_of(micro_batch).tokens)
                received = torch.empty((rows, pipeline._hidden), dtype=pipeline._hidden_dtype)
                origin = pipeline._previous if forward else pipeline._next
                operations.append(dist.P2POp(dist.irecv, received, origin, group))
        if not operations:
            return
        works = dist.batch_isend_irecv(operations)
        for operation, work in zip(operations, works, strict=True):
            if operation.tensor is received:
                self.inbox[tick.phase, micro_batch, chunk] = (received, work)
            else:
                self.sends.append((operation.tensor, work))

    def _check_rows(self, result: Tensor, num_rows: int) -> None:
        wanted = ((num_rows, self.pipeline._hidden), self.pipeline._hidden_dtype)
        if (tuple(result.shape), result.dtype) != wanted:
            raise _core.InvalidArgument(
                f"pipeline: expected rows {list(wanted[0])} of {wanted[1]} between stages, found {list(result.shape)} of "
                f"{result.dtype}"
            )
