"""Pipelines in ticks of one phase, whose idle stages compute attention (DistCA, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from contextile import _checks, _core
from contextile.torch._execute.agreement import agree, agreed, give_up, peers_of, telling_peers
from contextile.torch._pool.ping_pong import PingPong
from contextile.torch._pool.pool import Pool, PooledBatch
from contextile.torch._pool.pool_layout import Lengths, Rows, check_nano_batches, micro_batches_of
from contextile.torch._pool.pooled_calls import Calls, CallTimes, serve
from contextile.torch._ranks.peers import Peers, Pending


class Tick(NamedTuple):
    """One tick of a pipeline, in which all stages run forward, or all run backward.

    Attributes
    ----------
    phase : str
        ``"forward"`` or ``"backward"``.
    number : int
        Number among the ticks of the phase.
    steps : tuple
        (micro-batch, chunk) of every stage. None: the stage is idle, and computes attention of
        others.
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
        A number is below 1 or not whole, or chunks do not fit.

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
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
    made = _core.same_phase_ticks(
        **{name: _checks.count(f"ticks, {name}", size) for name, size in sizes.items()}
    )
    return [Tick(phase, number, tuple(steps)) for phase, number, steps in made]


# Returns x of a micro-batch's rows; and the share of the loss of x.
Embed = Callable[[int, Rows], Tensor]
Loss = Callable[[int, Rows, Tensor], Tensor]


@dataclass
class _Setup:
    """The place of this rank in a pipeline, and all that its steps share."""

    pool: Pool
    chunks: list[PingPong]
    stages: int
    stage: int  # of this rank
    replicas: int
    replica: int  # of this rank
    hidden: int
    hidden_dtype: torch.dtype
    nano_batches: int
    recompute: bool
    calls: Calls
    peers: Peers
    following: int  # the rank of this place in the next stage
    previous: int
    checked: set[str] = field(default_factory=set)  # digests of plans
    has_run: bool = False  # a whole step, on all ranks

    def micro_batches_of(
        self, tick: Tick, lengths: Sequence[Sequence[Lengths]]
    ) -> list[Lengths | None]:
        """Returns the micro-batch of every neighbourhood of the pool in a tick; None: idle."""
        return [
            None if step is None else lengths[step[0]][d]
            for step in tick.steps
            for d in range(self.replicas)
        ]

    @property
    def num_layers(self) -> int:
        """Number of layers of each chunk."""
        return len(self.chunks[0].layers)

    def is_first(self, chunk: int) -> bool:
        """Returns whether a chunk of this rank is the first of the model."""
        return self.stage == 0 and chunk == 0

    def is_last(self, chunk: int) -> bool:
        """Returns whether a chunk of this rank is the last of the model."""
        return self.stage == self.stages - 1 and chunk == len(self.chunks) - 1


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
        Stages do not divide the pool, chunks have different numbers of layers, or ranks have
        different settings. All ranks raise it, and it names the rank.

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
        if not isinstance(pool, Pool):
            raise _core.InvalidArgument(f"pipeline: expected a Pool, found {pool!r:.80}")
        ours: list[PingPong] = []
        problem: Exception | None = None
        try:
            _check_options(pool, stages, hidden, hidden_dtype, nano_batches)
            _checks.flag("recompute", recompute)
            ours = _chunks_of(chunks, pool, checkpoint)
        except Exception as error:  # other ranks wait to hear of it
            problem = error
        agree(
            pool.executor,
            "pipeline",
            problem,
            stages=stages,
            chunks=len(ours),
            layers=len(ours[0].layers) if ours else 0,
            hidden=hidden,
            hidden_dtype=hidden_dtype,
            nano_batches=nano_batches,
            recompute=recompute,
        )
        calls = Calls(pool)
        for chunk in ours:
            chunk.calls = calls
        replicas = pool.neighbourhoods // stages
        stage, replica = divmod(pool.neighbourhood, replicas)
        apart = replicas * pool.size  # ranks from a stage to the next
        following, previous = (
            (pool.executor.rank + step * apart) % pool.executor.size for step in (1, -1)
        )
        self._setup = _Setup(
            pool=pool,
            chunks=ours,
            stages=stages,
            stage=stage,
            replicas=replicas,
            replica=replica,
            hidden=hidden,
            hidden_dtype=hidden_dtype,
            nano_batches=nano_batches,
            recompute=recompute,
            calls=calls,
            peers=peers_of(pool.executor),
            following=following,
            previous=previous,
        )

    @property
    def chunks(self) -> list[PingPong]:
        """The chunks of the model that this rank has."""
        return self._setup.chunks

    @property
    def pool(self) -> Pool:
        """The pool whose devices compute attention."""
        return self._setup.pool

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self._setup.stages

    @property
    def stage(self) -> int:
        """Number of this rank's stage."""
        return self._setup.stage

    @property
    def replicas(self) -> int:
        """Number of replicas of the model."""
        return self._setup.replicas

    @property
    def replica(self) -> int:
        """Number of the replica of this rank."""
        return self._setup.replica

    @property
    def times(self) -> dict[str, CallTimes]:
        """Times of this rank's calls so far: "forward", "backward", and "idle" in idle ticks."""
        return self._setup.calls.times

    def micro_batches_of(
        self, tick: Tick, lengths: Sequence[Sequence[Lengths]]
    ) -> list[Lengths | None]:
        """Returns the micro-batch of every neighbourhood of the pool in a tick; None: idle."""
        return self._setup.micro_batches_of(tick, lengths)

    def step(self, lengths: Sequence[Sequence[Lengths]], *, embed: Embed, loss: Loss) -> Tensor:
        """Runs forward and backward of all micro-batches of a step. Collective.

        Gradients are added to those of the parameters. They are complete over this rank's rows, and
        yet to be summed over the ranks that hold the same parameters.

        Parameters
        ----------
        lengths : sequence of sequences of (sequence of int)
            ``lengths[i][d]``: token counts of the documents of replica d's micro-batch i.
        embed : function of (i, rows)
            Returns x [rows, hidden] of this replica's micro-batch i, of ``hidden_dtype``, on the
            first stage.
        loss : function of (i, rows, x)
            Returns this rank's share of the loss, a scalar tensor, on the last stage.

        Returns
        -------
        Tensor
            The sum of this rank's shares, without gradient; 0 on other stages.

        Raises
        ------
        InvalidArgument
            Lengths are not those of every replica, or differ between ranks; ``embed``, layers or
            ``loss`` return something else; the pool's strategy keeps other ranks' tokens from
            forward to backward; as for ``ticks`` and ``Pool.plan``. All ranks raise the same error,
            which names the rank with the problem. But if a function returns something else later
            than in the first step, the other ranks raise TransportError, which names the rank, too.
        TransportError
            A peer died or stalled, or one of its functions or layers raised. The error names that
            rank; the group has ended.
        """
        return _Step(self._setup, lengths, embed, loss).run()


def _check_options(
    pool: Pool, stages: Any, hidden: Any, hidden_dtype: Any, nano_batches: Any
) -> None:
    _checks.count("hidden", hidden, least=1)
    if _checks.count("stages", stages) < 1 or pool.neighbourhoods % stages != 0:
        raise _core.InvalidArgument(
            f"expected stages that divide the pool's {pool.neighbourhoods} neighbourhoods, found "
            f"{stages}"
        )
    if not isinstance(hidden_dtype, torch.dtype) or not hidden_dtype.is_floating_point:
        raise _core.InvalidArgument(
            f"hidden_dtype: expected a floating-point dtype, found {hidden_dtype!r:.80}"
        )
    check_nano_batches(nano_batches)


def _chunks_of(
    chunks: Iterable[Iterable[nn.Module]], pool: Pool, checkpoint: bool
) -> list[PingPong]:
    if not hasattr(chunks, "__iter__"):
        raise _core.InvalidArgument(
            f"expected a list of chunks, each a list of layers, found {type(chunks).__name__}"
        )
    found = [PingPong(layers, pool, checkpoint=checkpoint) for layers in chunks]
    sizes = [len(chunk.layers) for chunk in found]
    if len(set(sizes)) != 1:
        raise _core.InvalidArgument(f"expected chunks of equally many layers, found {sizes}")
    return found


class _Step:
    """One training step of a pipeline on this rank."""

    def __init__(
        self,
        setup: _Setup,
        lengths: Sequence[Sequence[Lengths]],
        embed: Embed,
        loss: Loss,
    ) -> None:
        self.setup = setup
        self.pool = setup.pool
        self.given = lengths
        self.lengths: list[list[list[int]]] = []
        self.embed = embed
        self.loss = loss
        self.total = torch.zeros(())
        self.ticks: list[Tick] = []
        self.embedded: dict[int, Tensor] = {}  # by micro-batch, made ahead of its tick
        self.rows: dict[int, Rows] = {}  # by micro-batch
        self.kept: dict[tuple[int, int], _Kept] = {}  # by micro-batch and chunk
        # Rows and gradients on their way here, and their transfers; by phase, micro-batch, chunk.
        self.inbox: dict[tuple[str, int, int], tuple[Tensor, Pending]] = {}
        self.sends: list[tuple[Tensor, Pending]] = []

    def run(self) -> Tensor:
        executor = self.pool.executor
        problem: Exception | None = None
        try:
            self._check()
        except Exception as error:  # other ranks wait to hear of it
            problem = error
        agree(executor, "pipeline", problem, lengths=self.lengths)
        for tick in self.ticks:
            mine = tick.steps[self.setup.stage]
            batch = self._batch_of(tick, mine)
            where = f"pipeline, {tick.phase} tick {tick.number}"
            with telling_peers(executor, where):
                result = self._compute(tick, mine, batch)
            problem = None if mine is None else self._problem_of(tick.phase, mine, result)
            self._settle(where, problem)
            if tick.phase == "forward" and mine is not None and self.setup.is_last(mine[1]):
                assert result is not None
                self.total = self.total + result.detach()
            with telling_peers(executor, where):
                self._exchange(tick, mine, result)
        self._await_transfers()
        # So that no rank ends the step while another has failed in it.
        agreed(executor, "pipeline", None)
        self.setup.has_run = True
        return self.total

    def _check(self) -> None:
        """Finds all that can be wrong before anything moves."""
        setup = self.setup
        if isinstance(self.given, (str, bytes)) or not hasattr(self.given, "__iter__"):
            raise _core.InvalidArgument(
                f"expected lengths of every micro-batch and replica, found {self.given!r:.80}"
            )
        lengths = []
        for i, given in enumerate(self.given):
            try:
                of_replicas = micro_batches_of(given)
            except _core.InvalidArgument as error:
                raise _core.InvalidArgument(f"micro-batch {i}: {error}") from None
            if len(of_replicas) != setup.replicas:
                raise _core.InvalidArgument(
                    f"expected lengths of {setup.replicas} replicas in micro-batch {i}, found "
                    f"{len(of_replicas)}"
                )
            for d, of_replica in enumerate(of_replicas):
                if of_replica is None:
                    raise _core.InvalidArgument(
                        f"expected document lengths of replica {d} in micro-batch {i}, found none"
                    )
                try:
                    self.pool.check_lengths(of_replica, setup.nano_batches)
                except _core.InvalidArgument as error:
                    raise _core.InvalidArgument(f"micro-batch {i}, replica {d}: {error}") from None
            lengths.append([of_replica for of_replica in of_replicas if of_replica is not None])
        self.lengths = lengths
        self.ticks = ticks(setup.stages, len(lengths), len(setup.chunks))
        for name, function, stage in (
            ("embed", self.embed, 0),
            ("loss", self.loss, setup.stages - 1),
        ):
            if setup.stage == stage and not callable(function):
                raise _core.InvalidArgument(f"{name}: expected a function, found {function!r:.80}")
        first = setup.micro_batches_of(self.ticks[0], lengths)
        self._check_kept(self.pool.plan(first, nano_batches=setup.nano_batches))
        if setup.stage == 0:
            self.embedded[0] = self._embed(0)

    def _check_kept(self, plans: Sequence[_core.Plan]) -> None:
        """Refuses plans that keep tokens of other ranks. They are the same on all ranks."""
        checked = self.setup.checked
        new = {plan.digest: plan for plan in plans if plan.digest not in checked}
        directions = [plan.stats().forward for plan in new.values()]
        kept = max((one.retained_bytes for one in directions if one is not None), default=0)
        if kept > 0:
            raise _core.InvalidArgument(
                "strategy: expected one that keeps nothing from forward to backward "
                f"(distca:resend=on), found {kept} bytes kept"
            )
        checked.update(new)

    def _embed(self, micro_batch: int) -> Tensor:
        rows = self._rows_of(micro_batch)
        x = self.embed(micro_batch, rows)
        if problem := self._difference(x, len(rows.tokens)):
            raise _core.InvalidArgument(f"embed of micro-batch {micro_batch}: {problem}")
        return x

    def _difference(self, x: Any, num_rows: int) -> str:
        """Says how x differs from rows between stages; empty if it does not."""
        wanted = [num_rows, self.setup.hidden]
        if not isinstance(x, Tensor):
            found = f"{x!r:.80}"
        elif (list(x.shape), x.dtype) == (wanted, self.setup.hidden_dtype):
            return ""
        else:
            found = f"{list(x.shape)} of {x.dtype}"
        return (
            f"expected rows {wanted} of {self.setup.hidden_dtype} (hidden, hidden_dtype), "
            f"found {found}"
        )

    def _problem_of(self, phase: str, mine: tuple[int, int], result: Any) -> Exception | None:
        """Says what is wrong with the result of a chunk or of the loss."""
        micro_batch, chunk = mine
        if phase != "forward":
            return None
        if not self.setup.is_last(chunk):
            problem = self._difference(result, len(self._rows_of(micro_batch).tokens))
            return _core.InvalidArgument(f"layers of chunk {chunk}: {problem}") if problem else None
        if isinstance(result, Tensor) and result.dim() == 0 and result.is_floating_point():
            return None
        found = (
            f"a tensor {list(result.shape)} of {result.dtype}"
            if isinstance(result, Tensor)
            else f"{result!r:.80}"
        )
        return _core.InvalidArgument(
            f"loss of micro-batch {micro_batch}: expected a scalar tensor of floating point, found "
            f"{found}"
        )

    def _settle(self, where: str, problem: Exception | None) -> None:
        """Raises a problem on all ranks. In the first step they agree, and the group goes on."""
        executor = self.pool.executor
        if self.setup.has_run:
            if problem is not None:
                give_up(executor, where, problem)
                raise problem
            return
        try:
            agree(executor, where, problem)
        except _core.InvalidArgument:
            self._await_transfers()
            raise

    def _await_transfers(self) -> None:
        for _, pending in [*self.sends, *self.inbox.values()]:
            pending.wait()

    def _compute(
        self, tick: Tick, mine: tuple[int, int] | None, batch: PooledBatch
    ) -> Tensor | None:
        if mine is None:
            self._serve(tick, batch)
            return None
        return (
            self._forward(*mine, batch) if tick.phase == "forward" else self._backward(*mine, batch)
        )

    def _rows_of(self, micro_batch: int) -> Rows:
        if micro_batch not in self.rows:
            lengths = self.lengths[micro_batch][self.setup.replica]
            self.rows[micro_batch] = self.pool.rows_of(
                lengths, nano_batches=self.setup.nano_batches
            )
        return self.rows[micro_batch]

    def _batch_of(self, tick: Tick, mine: tuple[int, int] | None) -> PooledBatch:
        batch = self.pool.prepare(
            self.setup.micro_batches_of(tick, self.lengths),
            nano_batches=self.setup.nano_batches,
            rows=None if mine is None else self._rows_of(mine[0]),
        )
        self._check_kept(batch.plans)
        return batch

    def _serve(self, tick: Tick, batch: PooledBatch) -> None:
        if tick.phase == "backward" and self.setup.recompute:
            serve(self.setup.calls, batch, self.setup.num_layers, "forward")
        serve(self.setup.calls, batch, self.setup.num_layers, tick.phase)

    def _received(self, phase: str, micro_batch: int, chunk: int) -> Tensor:
        tensor, pending = self.inbox.pop((phase, micro_batch, chunk))
        pending.wait()
        return tensor

    def _run(self, micro_batch: int, chunk: int, x: Tensor, batch: PooledBatch) -> Tensor:
        """Returns the chunk's output, or the loss on the last stage."""
        rows = self._rows_of(micro_batch)
        out = self.setup.chunks[chunk](x, rows.positions, batch=batch)
        return self.loss(micro_batch, rows, out) if self.setup.is_last(chunk) else out

    def _forward(self, micro_batch: int, chunk: int, batch: PooledBatch) -> Tensor:
        if self.setup.is_first(chunk):
            x = (
                self.embedded.pop(micro_batch)
                if micro_batch in self.embedded
                else self._embed(micro_batch)
            )
        else:
            x = self._received("forward", micro_batch, chunk).requires_grad_()
        with torch.set_grad_enabled(not self.setup.recompute):
            out = self._run(micro_batch, chunk, x, batch)
        self.kept[micro_batch, chunk] = _Kept(x, None if self.setup.recompute else out)
        return out.detach() if isinstance(out, Tensor) else out

    def _backward(self, micro_batch: int, chunk: int, batch: PooledBatch) -> Tensor | None:
        """Returns the gradient of the chunk's input; nothing on the first stage."""
        x, out = self.kept.pop((micro_batch, chunk))
        if out is None:
            # The leaf ends the graph of the chunk; what embed returned has another graph.
            leaf = x.detach().requires_grad_()
            out = self._run(micro_batch, chunk, leaf, batch)
        else:
            leaf = x
        gradient = (
            None if self.setup.is_last(chunk) else self._received("backward", micro_batch, chunk)
        )
        with self.setup.calls.backward_by(batch):
            torch.autograd.backward(out, gradient)
        if not self.setup.is_first(chunk):
            return leaf.grad
        if leaf is not x:
            torch.autograd.backward(x, leaf.grad)
        return None

    def _exchange(self, tick: Tick, mine: tuple[int, int] | None, result: Tensor | None) -> None:
        """Sends a step's result to the neighbour stage, and begins to receive what comes here."""
        forward = tick.phase == "forward"
        setup = self.setup
        first, last = 0, setup.stages - 1
        source = setup.stage - 1 if forward else setup.stage + 1
        theirs = tick.steps[source % setup.stages]
        where = f"pipeline, {tick.phase} tick {tick.number}"
        if (
            mine is not None
            and result is not None
            and not (self.setup.is_last(mine[1]) if forward else self.setup.is_first(mine[1]))
        ):
            to = setup.following if forward else setup.previous
            sent = result.contiguous()
            self.sends.append((sent, setup.peers.begin(where, [(to, sent)], [])))
        if theirs is not None:
            micro_batch, chunk = theirs
            # Past the end of the stages, a chunk's neighbour is the next chunk on the first stage.
            if forward and setup.stage == first:
                chunk += 1
            elif not forward and setup.stage == last:
                chunk -= 1
            if 0 <= chunk < len(setup.chunks):
                rows = len(self._rows_of(micro_batch).tokens)
                received = torch.empty((rows, setup.hidden), dtype=setup.hidden_dtype)
                origin = setup.previous if forward else setup.following
                pending = setup.peers.begin(where, [], [(origin, received)])
                self.inbox[tick.phase, micro_batch, chunk] = (received, pending)
