"""A data loader that packs documents into batches, plans ahead, and shares batches out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from contextile import _checks, _core
from contextile._display import error_text
from contextile._planning import AnyMask, choice_of, cluster_of
from contextile.torch._loader.ahead import (
    Ahead,
    Batches,
    LocalStatistics,
    PlanSource,
    ScheduleSource,
    ShapesSource,
)
from contextile.torch._loader.dealing import NONE_WAITING, Dealer, waiting_of
from contextile.torch._loader.documents import DocumentReader, Documents, Piece
from contextile.torch._loader.shares import Round, Shares, Step


def _check_scheduled(**given: Any) -> None:
    """Raises if options were given that a schedule replaces."""
    without = {
        "store": None,
        "data_parallel": 1,
        "replica": 0,
        "micro_batches": 1,
        "packing": "sequential",
    }
    found = [f"{name}={value}" for name, value in given.items() if value != without[name]]
    if found:
        raise _core.InvalidArgument(
            f"schedule: expected no {', '.join(without)}, because it deals over all ranks of the "
            f"cluster and plans in this process, found {', '.join(found)}"
        )


# About 0.7 s of one core on up to 32 devices, and in proportion above.
_QUICK_SEARCH = "auto:steps=600000,steps_per_device=18750"
# The options of plans among the arguments of a batch.
_PLAN_OPTIONS = (
    "block_size",
    "wire",
    "backward",
    "linear_layers",
    "tokens_multiple",
    "equal_tokens",
)
# The least value of every number.
_LEAST = {
    "rank": None,
    "data_parallel": 1,
    "replica": None,
    "micro_batches": 1,
    "tokens": None,
    "max_document_tokens": 1,
    "seed": 0,
    "lookahead": 0,
    "threads": 0,
    "first_step": 0,
    "end_step": 0,
    "ignore_index": None,
}


def _check_kinds(given: dict[str, Any]) -> None:
    """Raises InvalidArgument on values of other kinds than the parameters of DataLoader take."""
    for name, least in _LEAST.items():
        if given[name] is not None or name not in ("max_document_tokens", "end_step"):
            _checks.whole(name, given[name], least)
    for name in ("packing", "long_documents", "run_id"):
        _checks.text(name, given[name])
    _checks.number("timeout", given["timeout"])


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """The replicas of a run and their micro-batches, and this rank among them."""

    rank: int
    replica: int
    replicas: int
    micro_batches: int  # of every replica in a step


@dataclasses.dataclass(frozen=True)
class _Order:
    """The settings that decide which documents a batch has."""

    tokens: int
    max_document_tokens: int | None
    long_documents: str
    seed: int

    def sampler(self, lengths: list[int]) -> _core.BatchSampler:
        return _core.BatchSampler(
            lengths,
            tokens=self.tokens,
            max_document_tokens=self.max_document_tokens,
            long_documents=self.long_documents,
            seed=self.seed,
        )

    def state(self, lengths: list[int], ranks: _Ranks) -> dict[str, Any]:
        """Returns what a run must not change, or it would repeat or skip documents."""
        return {
            "documents": hashlib.blake2b(repr(lengths).encode(), digest_size=8).hexdigest(),
            **dataclasses.asdict(self),
            "data_parallel * micro_batches": ranks.replicas * ranks.micro_batches,
        }


@dataclasses.dataclass(frozen=True)
class _Pace:
    """The steps of a run, and how far ahead of them plans are made."""

    lookahead: int
    threads: int
    first_step: int
    end_step: int | None
    timeout: float

    @property
    def kept_steps(self) -> int:
        """Number of steps between the planners' next and this rank's."""
        return max(self.lookahead, 1) + 4

    def ahead(self, ranks: _Ranks) -> Ahead:
        """Returns the same in units, which are micro-batches."""
        return Ahead(
            rank=ranks.rank,
            units_ahead=self.lookahead * ranks.micro_batches,
            end_unit=None if self.end_step is None else self.end_step * ranks.micro_batches,
            threads=self.threads,
            timeout=self.timeout,
        )


@dataclasses.dataclass(frozen=True)
class _Planning:
    """How plans are made, and where they are kept."""

    cluster: _core.Cluster
    strategy: _core.StrategyChoice | str | None
    schedule: _core.StrategyChoice | str | None
    store: _core.Store | str | None
    run_id: str
    options: dict[str, Any]

    def source(
        self, batches: Batches, sampler: _core.BatchSampler, ranks: _Ranks, pace: _Pace
    ) -> PlanSource | ScheduleSource | ShapesSource:
        """Returns the source of plans of a rank."""
        ahead = pace.ahead(ranks)
        first = batches.workload(pace.first_step * ranks.micro_batches, ranks.replica)
        if self.schedule is not None:
            inside = None if self.strategy is None else choice_of(self.strategy)
            return ScheduleSource(
                batches, self.cluster, choice_of(self.schedule), inside, self.options, ahead
            )
        if batches.has_unlike_shapes:
            choice = choice_of("auto:steps=4000000" if self.strategy is None else self.strategy)
            return ShapesSource(batches, self.cluster, choice, self.options, ranks.replica, ahead)
        choice = choice_of(_QUICK_SEARCH if self.strategy is None else self.strategy)
        return PlanSource(
            batches,
            sampler,
            self.cluster,
            choice,
            self.options,
            first.shape,
            store=self.store,
            run_id=self.run_id,
            replicas=ranks.replicas,
            replica=ranks.replica,
            ahead=ahead,
        )


class DataLoader:
    """Packs documents into batches, plans them ahead, and gives every rank its share.

    Iterating yields a ``Step`` for every micro-batch: this rank's tokens, positions, labels and
    loss weights, and its slice of the plan. Requesting the next one releases the current one. The
    batch of a step depends only on the dataset, the seed and the step, so all ranks see the same
    batches in the same order. A run can continue from any step (``state_dict``).

    Parameters
    ----------
    dataset
        ``dataset[i]`` has the tokens of a document, or a dict with ``"tokens"`` and, if wanted,
        ``"labels"``, ``"loss_mask"``, ``"loss_weights"`` and ``"shift_labels"`` as for
        ``local_batch``, and further fields with a row per token. ``dataset.lengths`` is optional
        and saves reading all documents once.
    cluster, strategy
        As for ``contextile.plan``; the cluster is that of one replica. Strategies with a time
        budget are refused, because plans must not depend on the machine. Default:
        ``auto:steps=600000,steps_per_device=18750``.
    schedule : StrategyChoice or str, optional
        ``"megatron_dynamic"``, ``"megatron_packed"`` or ``"bytescale"``, as for
        ``contextile.schedule``: groups of ranks share micro-batches. Iterating then yields a
        ``Round`` for each round of a step. The cluster has all ranks of data and context
        parallelism, ``rank`` is one of them, and ``tokens`` counts the whole step. ``strategy`` is
        the one inside the groups, a zigzag ring by default.
    rank : int
        This rank in the context-parallel group. The group has as many ranks as the cluster devices.
    data_parallel, replica : int
        Number of replicas, each a context-parallel group, and the number of this one.
    micro_batches : int
        Number of micro-batches of every replica in a step.
    packing : str
        ``"sequential"`` deals batches in order. ``"dp_balanced"`` and ``"wlb:..."`` pack all
        batches of a step as Megatron-LM and WLB-LLM do, and deal them so that replicas get equal
        work.
    mask
        As for ``contextile.plan``, or a function from the pieces of a batch (``list[Piece]``) to
        such a mask. The function is called where plans are made.
    tokens : int
        Tokens per micro-batch.
    max_document_tokens : int, optional
        Limit on the tokens of one document in a batch. Default: ``tokens``.
    long_documents : str
        ``"split"`` cuts longer documents into pieces, so that every batch is full. ``"drop"``
        leaves them out, so that no document is cut.
    seed : int
        Seed of the order of documents, which differs between epochs.
    lookahead : int
        Number of steps that are planned ahead of the slowest rank.
    threads : int
        Number of planning threads of this process, each with a step of its own. 0: other processes
        plan (``serve``).
    store : Store or str, optional
        The store in which processes share plans, or its address (``contextile.open_store``).
        Default: this process plans only for itself.
    run_id : str
        1 to 24 letters, digits, - and _ that distinguish runs in one store.
    first_step : int
        The first step.
    end_step : int, optional
        The step after the last. Default: no end.
    timeout : float
        Seconds to wait for the plan of a step.
    ignore_index : int
        Label of tokens that predict nothing.
    ignore_fields : iterable of str
        Names of fields of documents that are left out.
    sequence_fields : iterable of str
        Names of fields that have a value per document instead of one per token.
    **batch
        ``heads``, ``head_dim``, ``dtype`` and the rest as for ``contextile.make_workload``; also
        ``block_size``, ``wire``, ``backward``, ``linear_layers``, ``tokens_multiple`` and
        ``equal_tokens``, as for ``contextile.plan``.
        Layers of unlike shapes have dicts by mask, as for ``contextile.plans``; this process then
        makes all plans (no store), and ``Step.plans`` has those of a micro-batch.

    Raises
    ------
    InvalidArgument
        Options are bad, or lengths or masks fit no batch.
    PlanningFailed
        While iterating, if a step could not be planned. Iterating again continues after it.
    TransportError
        While iterating, if a plan did not arrive within the timeout.
    IoError
        The store is gone.

    Examples
    --------
    >>> from contextile.torch import DataLoader
    >>> class Text:
    ...     lengths = [30, 50, 20]
    ...     def __len__(self): return 3
    ...     def __getitem__(self, index): return [index] * self.lengths[index]
    >>> loader = DataLoader(Text(), cluster="local:1x1", rank=0, strategy="zigzag", tokens=100,
    ...                     end_step=2, heads=(4, 2), head_dim=32)
    >>> for step in loader:
    ...     print(step.step, len(step.local.tokens), "tokens")
    0 100 tokens
    1 100 tokens
    >>> loader.state_dict()["step"]
    2
    """

    def __init__(
        self,
        dataset: Documents,
        *,
        cluster: _core.Cluster | str,
        rank: int,
        mask: AnyMask | Callable[[list[Piece]], AnyMask] = "causal",
        strategy: _core.StrategyChoice | str | None = None,
        schedule: _core.StrategyChoice | str | None = None,
        data_parallel: int = 1,
        replica: int = 0,
        micro_batches: int = 1,
        packing: str = "sequential",
        tokens: int = 131072,
        max_document_tokens: int | None = None,
        long_documents: str = "split",
        seed: int = 0,
        lookahead: int = 4,
        threads: int = 1,
        store: _core.Store | str | None = None,
        run_id: str = "run",
        first_step: int = 0,
        end_step: int | None = None,
        timeout: float = 600.0,
        ignore_index: int = -100,
        ignore_fields: Iterable[str] = (),
        sequence_fields: Iterable[str] = (),
        **batch: Any,
    ) -> None:
        _check_kinds(locals())
        self._is_scheduled = schedule is not None
        if schedule is not None:
            _check_scheduled(
                store=store,
                data_parallel=data_parallel,
                replica=replica,
                micro_batches=micro_batches,
                packing=packing,
            )
        if store is None and threads < 1:
            raise _core.InvalidArgument(
                "data loader: expected a store where no thread plans (threads=0), found none"
            )
        if not 0 <= replica < data_parallel:
            raise _core.InvalidArgument(
                f"replica: expected 0 to {data_parallel - 1}, found {replica}"
            )
        the_cluster = cluster_of(cluster)
        if not 0 <= rank < the_cluster.num_devices:
            raise _core.InvalidArgument(
                f"rank: expected 0 to {the_cluster.num_devices - 1}, found {rank}"
            )
        reader = DocumentReader(
            dataset, ignore_fields=ignore_fields, sequence_fields=sequence_fields
        )
        lengths = reader.lengths()
        if not lengths:
            raise _core.InvalidArgument("dataset: expected at least one document, found none")
        self._shares = Shares(reader, ignore_index)
        ranks = _Ranks(rank, replica, data_parallel, micro_batches)
        order = _Order(tokens, max_document_tokens, long_documents, seed)
        pace = _Pace(lookahead, threads, first_step, end_step, timeout)
        sampler = order.sampler(lengths)
        dealer = Dealer(
            sampler,
            tokens=tokens,
            replicas=data_parallel,
            micro_batches=micro_batches,
            packing=packing,
            kept_steps=pace.kept_steps,
        )
        self._order = order.state(lengths, ranks)
        options: dict[str, Any] = {key: batch.pop(key) for key in _PLAN_OPTIONS if key in batch}
        self._batches = Batches(
            dealer,
            mask,
            the_cluster.num_devices,
            batch,
            replicas=data_parallel,
            micro_batches=micro_batches,
            kept_steps=pace.kept_steps,
        )
        if self._batches.has_unlike_shapes and (schedule is not None or store is not None):
            raise _core.InvalidArgument(
                "data loader: expected layers of one shape with a schedule or a store, found a "
                "dict of shapes; its plans are made in this process, one for each shape"
            )
        self._ranks, self._pace = ranks, pace
        self._next_step = first_step
        planning = _Planning(the_cluster, strategy, schedule, store, run_id, options)
        self._source = planning.source(self._batches, sampler, ranks, pace)
        # The statistics of the iteration that ended last.
        self._last_statistics: _core.FeedStatistics | LocalStatistics | None = None
        # Process and thread of the iteration that runs, if one does.
        self._iterated_by: tuple[int, int] | None = None
        self._iteration: object = None

    def pieces(self, step: int, micro_batch: int = 0) -> list[Piece]:
        """Returns the documents, or parts of them, of a micro-batch of this replica, in order."""
        if not 0 <= micro_batch < self._ranks.micro_batches:
            raise _core.InvalidArgument(
                f"micro_batch: expected 0 to {self._ranks.micro_batches - 1}, found {micro_batch}"
            )
        return self._batches.pieces(
            step * self._ranks.micro_batches + micro_batch, self._ranks.replica
        )

    def work(self, step: int) -> list[list[float]]:
        """Returns the work of every micro-batch and replica of a step: the sum of (L/B)² + L/B.

        L is the tokens of a document, B the ``balance`` of the packing (131072).
        """
        return [
            [self._batches.dealer.work(pieces) for pieces in row]
            for row in self._batches.dealer.dealt(step)
        ]

    # ----------------------------------------------------------------------------------------
    # planning

    def serve(self, *, threads: int | None = None, timeout: float = 1e6) -> bool:
        """Plans for ranks in other processes until all of them have finished the last step.

        For processes that take no steps themselves, on any machine that reaches the store. Such a
        process plans for all replicas. It may be killed and started again.

        Parameters
        ----------
        threads : int, optional
            Number of planning threads of each replica. Default: that of the loader, at least 1.
        timeout : float
            Seconds after which to return in any case.

        Returns
        -------
        bool
            True if all ranks have finished, False after the timeout.

        Raises
        ------
        InvalidArgument
            The loader has no store.
        """
        if not isinstance(self._source, PlanSource) or self._source.is_private:
            raise _core.InvalidArgument("data loader: expected a store to serve from, found none")
        unit = self._next_step * self._ranks.micro_batches
        return self._source.serve(
            unit, threads=threads or max(self._pace.threads, 1), timeout=timeout
        )

    def close(self) -> None:
        """Stops planning in this process. Iterating again continues at the next step.

        If a step has micro-batches that were not taken, that is the step's first micro-batch.
        """
        self._last_statistics = self._source.statistics() or self._last_statistics
        self._source.close()
        self._iteration = self._iterated_by = None

    # ---------------------------------------------------------------------------------------
    # iterating

    def __iter__(self) -> Iterator[Any]:
        here = (os.getpid(), threading.get_ident())
        if self._iterated_by not in (None, here):
            raise _core.InvalidArgument(
                "data loader: expected one iteration at a time, found another under way in "
                + (
                    "another thread"
                    if self._iterated_by[0] == here[0]
                    else "the process that this one was forked from"
                )
            )
        self.close()
        self._iterated_by = here
        self._source.open(self._next_step * self._ranks.micro_batches)
        iteration = self._iteration = object()
        of_step = self._rounds if self._is_scheduled else self._step
        try:
            while self._pace.end_step is None or self._next_step < self._pace.end_step:
                yield from of_step(self._next_step, iteration)
        finally:
            if self._iteration is iteration:
                self.close()

    def _step(self, step: int, iteration: object) -> Iterator[Step]:
        """Yields the micro-batches of a step."""
        num_labels = 0
        for micro_batch in range(self._ranks.micro_batches):
            unit = step * self._ranks.micro_batches + micro_batch
            taken = self._take(unit, step, micro_batch)
            plans = taken if isinstance(taken, dict) else None
            plan = taken if plans is None else next(iter(plans.values()))
            if micro_batch == 0:
                num_labels = self._num_labels(step, plan)
            share = self._shares.of(
                self.pieces(step, micro_batch),
                plan,
                self._ranks.rank,
                step=step,
                micro_batch=micro_batch,
                num_micro_batches=self._ranks.micro_batches,
                num_labels=num_labels,
                ranks=tuple(range(plan.num_devices)),
                plans=plans,
            )
            if share.is_last:
                self._next_step = step + 1
            yield share
            self._check(iteration)
            self._source.release(unit)

    def _rounds(self, step: int, iteration: object) -> Iterator[Round]:
        """Yields the rounds of a scheduled step."""
        scheduled = self._take(step, step, 0)
        everything = self.pieces(step)
        own = [
            [everything[s] for s in one.sequences] for round in scheduled.rounds for one in round
        ]
        mine = [piece for pieces in own for piece in pieces]
        self._shares.begin_step(mine, mine[0] if mine else everything[0])
        num_labels = self._shares.num_labels(everything, scheduled.begins)
        micro_batch = 0
        for number, round in enumerate(scheduled.rounds):
            shares = []
            for one in round:
                shares.append(
                    self._shares.of(
                        own[micro_batch],
                        one.plan,
                        one.ranks.index(self._ranks.rank),
                        step=step,
                        micro_batch=micro_batch,
                        num_micro_batches=len(own),
                        num_labels=num_labels,
                        ranks=one.ranks,
                    )
                )
                micro_batch += 1
            if number + 1 == len(scheduled.rounds):
                self._next_step = step + 1
            yield Round(step, number, len(scheduled.rounds), shares)
            self._check(iteration)
        self._source.release(step)

    def _check(self, iteration: object) -> None:
        if self._iteration is not iteration:
            raise _core.InvalidArgument(
                "data loader: expected to go on, found it closed or iterated anew"
            )

    def _take(self, unit: int, step: int, micro_batch: int) -> Any:
        try:
            return self._source.take(unit)
        except (_core.PlanningFailed, _core.TransportError) as error:
            if isinstance(error, _core.PlanningFailed):
                self._next_step = step + 1  # it would fail again
            if self._ranks.micro_batches == 1:
                raise
            text = str(error).replace(
                f"step {unit}:", f"step {step}, micro-batch {micro_batch}:", 1
            )
            raise type(error)(text) from None

    def _num_labels(self, step: int, plan: _core.Plan) -> int:
        """Returns the number of labels of a step. ``plan`` is that of its first micro-batch."""
        dealt = self._batches.dealer.dealt(step)
        mine = [piece for row in dealt for piece in row[self._ranks.replica]]
        self._shares.begin_step(mine, self._shares.first_local(mine, plan, self._ranks.rank))
        if len(dealt) * len(dealt[0]) == 1:
            begins = [[[row[0] for row in plan.position_segments if row[4] < 0]]]
        else:
            try:
                begins = self._batches.begins(step)
            except Exception as error:
                self._next_step = step + 1
                raise _core.PlanningFailed(
                    f"step {step}: planning failed: {error_text(error)}"
                ) from error
        return sum(
            self._shares.num_labels(pieces, its_begins)
            for row, row_of_begins in zip(dealt, begins, strict=True)
            for pieces, its_begins in zip(row, row_of_begins, strict=True)
        )

    # -------------------------------------------------------------------------------------------
    # state

    def state_dict(self) -> dict[str, Any]:
        """Returns where the run is: the next step, the order of documents, and those that wait.

        It is the same on every rank. Within a step, it names that step, whose micro-batches come
        again.

        Returns
        -------
        dict
            ``"step"``, ``"order"`` and, for packing that holds documents back, ``"waiting"``. All
            of it can be written as JSON.
        """
        state: dict[str, Any] = {"step": self._next_step, "order": dict(self._order)}
        if self._batches.dealer.may_defer:
            state["waiting"] = self._batches.dealer.waiting(self._next_step).as_lists()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state that ``state_dict`` returned.

        The number of ranks of a replica, planning threads, masks and the strategy may be others.

        Parameters
        ----------
        state : dict
            The state.

        Raises
        ------
        InvalidArgument
            The state has another form or further keys, or the run would repeat or skip documents:
            the dataset, the seed, the sizes of batches or the number of micro-batches in a step are
            others, or the packing holds no documents back and some wait.
        """
        step = state.get("step") if isinstance(state, dict) else None
        order = state.get("order") if isinstance(state, dict) else None
        if (
            not isinstance(step, int)
            or isinstance(step, bool)
            or step < 0
            or not isinstance(order, dict)
        ):
            raise _core.InvalidArgument(
                "state: expected a dict with a step of at least 0 and an order, found "
                f"{state!r:.80}"
            )
        if unknown := sorted(map(str, state.keys() - {"step", "order", "waiting"})):
            raise _core.InvalidArgument(
                f"state: expected step, order and waiting, found {', '.join(unknown)} as well"
            )
        for name in self._order.keys() | order.keys():
            if order.get(name) != self._order.get(name):
                raise _core.InvalidArgument(
                    f"state: expected {name} {order.get(name)}, as when it was saved, found "
                    f"{self._order.get(name)}, which would repeat or skip documents"
                )
        waiting = waiting_of(state["waiting"]) if "waiting" in state else NONE_WAITING
        self.close()
        self._batches.dealer.begin(step, waiting)
        self._next_step = step

    @property
    def statistics(self) -> _core.FeedStatistics:
        """Micro-batches taken, seconds of planning, and seconds that this rank waited for plans.

        They are those of the iteration that runs, or else of the one that ended last. Raises
        InvalidArgument if there was none.
        """
        statistics = self._source.statistics() or self._last_statistics
        if statistics is None:
            raise _core.InvalidArgument(
                "data loader: expected one that was iterated, found a new one"
            )
        # LocalStatistics has the same attributes, except for the bytes that came from a store.
        return cast(_core.FeedStatistics, statistics)
