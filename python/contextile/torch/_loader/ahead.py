"""Plans of the next steps, made while ranks compute the current one."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (for its function at the end, see _close_all)
import logging
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from contextile import _core
from contextile._display import error_text
from contextile._layer_plans import check_shapes, one_shape_of, plans
from contextile._planning import make_workload, options_of, schedule
from contextile._waits import result_of
from contextile.torch._loader.dealing import Dealer
from contextile.torch._loader.documents import Piece

SCHEDULES = ("megatron_dynamic", "megatron_packed", "bytescale")
_log = logging.getLogger("contextile")
Begins = list[int]  # first tokens of documents, which no token predicts


class Batches:
    """Makes the workloads of micro-batches, for planners.

    A unit is a micro-batch: that of step ``unit // micro_batches``. The class has no reference to
    the loader, which would otherwise never be freed.
    """

    def __init__(
        self,
        dealer: Dealer,
        mask: Any,
        num_ranks: int,
        batch: dict[str, Any],
        *,
        replicas: int,
        micro_batches: int,
        kept_steps: int,
    ) -> None:
        self.dealer = dealer
        self._mask, self._num_ranks, self._batch = mask, num_ranks, batch
        self._replicas, self._micro_batches = replicas, micro_batches
        self._kept = kept_steps * replicas * micro_batches
        self._begins: OrderedDict[tuple[int, int, int], Begins] = OrderedDict()

    def pieces(self, unit: int, replica: int) -> list[Piece]:
        step, micro_batch = divmod(unit, self._micro_batches)
        return self.dealer.dealt(step)[micro_batch][replica]

    def lengths(self, unit: int, replica: int) -> list[int]:
        return [piece.num_tokens for piece in self.pieces(unit, replica)]

    @property
    def has_unlike_shapes(self) -> bool:
        """True if layers have unlike shapes, which need a plan each."""
        return one_shape_of(self._batch) != self._batch

    def plans(self, unit: int, replica: int, **options: Any) -> dict[str, _core.Plan]:
        """Returns the plans of a replica's micro-batch by mask."""
        self.workload(unit, replica)  # fails where a mask of the step cannot be made
        pieces = self.pieces(unit, replica)
        made = plans(
            [piece.num_tokens for piece in pieces],
            mask=self.mask_of(pieces),
            **self._batch,
            **options,
        )
        # The workload refuses masks that differ by head, which alone have HeadPlans.
        return cast(dict[str, _core.Plan], made)

    def mask_of(self, pieces: Sequence[Piece]) -> Any:
        return self._mask(pieces) if callable(self._mask) else self._mask

    def workload(self, unit: int, replica: int) -> _core.Workload:
        """Returns the workload of a replica's micro-batch.

        With the first of a step come the beginnings of all others. If a mask cannot be made, the
        step fails for every rank of every replica.
        """
        step, micro_batch = divmod(unit, self._micro_batches)
        workload = self._workload(step, micro_batch, replica)
        if micro_batch == 0:
            self.begins(step)
        return workload

    def begins(self, step: int) -> list[list[Begins]]:
        """Returns the beginnings in every micro-batch of a step, by micro-batch and replica."""
        found = []
        for micro_batch in range(self._micro_batches):
            row = []
            for replica in range(self._replicas):
                key = (step, micro_batch, replica)
                begins = self._begins.get(key)
                if begins is None:
                    begins = self._workload(*key).document_begins
                row.append(begins)
            found.append(row)
        return found

    def _workload(self, step: int, micro_batch: int, replica: int) -> _core.Workload:
        pieces = self.dealer.dealt(step)[micro_batch][replica]
        lengths = [piece.num_tokens for piece in pieces]
        mask = self.mask_of(pieces)
        check_shapes(mask, self._batch)
        workload = make_workload(
            lengths, mask=mask, num_ranks=self._num_ranks, **one_shape_of(self._batch)
        )
        self._begins[step, micro_batch, replica] = workload.document_begins
        while len(self._begins) > self._kept:
            self._begins.popitem(last=False)
        return workload


@dataclass(frozen=True)
class Ahead:
    """The rank that a source of plans is for, and how far ahead it plans."""

    rank: int
    units_ahead: int
    end_unit: int | None  # behind the last one
    threads: int
    timeout: float  # seconds to wait for a plan


class OfReplica:
    """The micro-batches of one replica, as functions of the unit."""

    def __init__(self, batches: Batches, replica: int) -> None:
        self._batches, self._replica = batches, replica

    def workload(self, unit: int) -> _core.Workload:
        return self._batches.workload(unit, self._replica)

    def lengths(self, unit: int) -> list[int]:
        return self._batches.lengths(unit, self._replica)


def _pass_on(planner: _core.LookaheadPlanner) -> None:
    """Logs what a planner's threads had to say, which do not call Python for it."""
    for line in planner.log_lines():
        _log.warning("%s", line)


class PlanSource:
    """Plans of micro-batches, from planners that share a store."""

    def __init__(
        self,
        batches: Batches,
        sampler: _core.BatchSampler,
        cluster: _core.Cluster,
        choice: _core.StrategyChoice,
        options: dict[str, Any],
        shape: _core.AttentionShape,
        *,
        store: _core.Store | str | None,
        run_id: str,
        replicas: int,
        replica: int,
        ahead: Ahead,
    ) -> None:
        self.is_private = store is None
        self._store = (
            _core.open_store(store)
            if isinstance(store, str)
            else store or _core.open_store("memory:")
        )
        run_id = uuid.uuid4().hex[:16] if self.is_private else run_id
        self._run_ids = [run_id if replicas == 1 else f"{run_id}_{r}" for r in range(replicas)]
        self._jobs = [
            _core.PlanJob(
                sampler=sampler,
                shape=shape,
                cluster=cluster,
                choice=choice,
                options=options_of(options, shape=shape, cluster=cluster),
                workload=of_replica.workload,
                lengths=of_replica.lengths,
            )
            for of_replica in (OfReplica(batches, r) for r in range(replicas))
        ]
        self._replica, self._num_ranks = replica, cluster.num_devices
        self._ahead = ahead
        self._planner: _core.LookaheadPlanner | None = None
        self._feeds: list[_core.PlanFeed] = []

    def _planner_of(self, replica: int, unit: int, threads: int) -> _core.LookaheadPlanner:
        return _core.LookaheadPlanner(
            self._jobs[replica],
            self._store,
            run_id=self._run_ids[replica],
            first_step=unit,
            end_step=self._ahead.end_unit,
            steps_ahead=self._ahead.units_ahead,
            threads=threads,
            store_patience=self._ahead.timeout,
        )

    def open(self, unit: int) -> None:
        # A private store has no other ranks, so this rank acknowledges their share, too.
        ranks = range(self._num_ranks) if self.is_private else [self._ahead.rank]
        self._feeds = [
            _core.PlanFeed(
                self._store,
                self._jobs[self._replica],
                rank=rank,
                run_id=self._run_ids[self._replica],
                first_step=unit,
                timeout=self._ahead.timeout,
            )
            for rank in sorted(ranks, key=lambda rank: rank != self._ahead.rank)
        ]
        if self._ahead.threads > 0:
            self._planner = self._planner_of(self._replica, unit, self._ahead.threads)
            self._feeds[0].watch(self._planner)

    def close(self) -> None:
        if self._planner is not None:
            self._planner.close()
            _pass_on(self._planner)
        self._planner, self._feeds = None, []

    def take(self, unit: int) -> _core.Plan:
        try:
            return self._feeds[0].take(unit)
        finally:
            if self._planner is not None:
                _pass_on(self._planner)

    def release(self, unit: int) -> None:
        for feed in self._feeds:
            feed.acknowledge(unit)

    def statistics(self) -> _core.FeedStatistics | None:
        return self._feeds[0].statistics() if self._feeds else None

    def serve(self, unit: int, *, threads: int, timeout: float) -> bool:
        """Plans for all replicas until their ranks have finished. False after the timeout."""
        until = time.monotonic() + timeout
        planners = [self._planner_of(replica, unit, threads) for replica in range(len(self._jobs))]
        try:
            # By turns, because each of them raises the error that ended its planning.
            while True:
                left = max(until - time.monotonic(), 0)
                done = [
                    planner.wait_for(timeout=min(left, 1.0) / len(planners)) for planner in planners
                ]
                for planner in planners:
                    _pass_on(planner)
                if all(done) or left == 0:
                    return all(done)
        finally:
            for planner in planners:
                planner.close()
                _pass_on(planner)


class MadeHere(NamedTuple):
    """A plan that a thread of this process made for a unit."""

    value: Any
    planning_s: float


class RankSchedule(NamedTuple):
    """The micro-batches of a rank in a step."""

    rounds: list[list[_core.ScheduledMicroBatch]]
    begins: Begins  # of the whole step


@dataclass
class LocalStatistics:
    """Steps that threads of this process planned for one rank so far."""

    steps: int = 0  # or micro-batches
    planning_s: float = 0.0  # that planning took
    exposed_s: float = 0.0  # that this rank waited

    @property
    def hidden_s(self) -> float:
        """Seconds of planning that the rank did not wait for."""
        return max(self.planning_s - self.exposed_s, 0.0)


# Sources with threads. A pool's threads would make all plans that were asked for before the
# interpreter ends, so sources are closed before it waits for pools.
_open: weakref.WeakSet[LocalSource] = weakref.WeakSet()


def _close_all() -> None:
    for source in list(_open):
        source.close()


# As concurrent.futures.thread does, which waits for pools. Functions run in the reverse order, so
# this one is registered after that module's, which its package would import with the first pool.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # noqa: SLF001  # see above


class LocalSource:
    """The plans that threads of this process make for the next units."""

    is_private = True
    _what = "plans"

    def __init__(
        self,
        choice: _core.StrategyChoice | None,
        ahead: Ahead,
    ) -> None:
        if choice is not None and choice.options.get("budget_ms", "0") != "0":
            raise _core.InvalidArgument(
                "data loader: expected a strategy without a time budget (auto:steps=N), found "
                f"budget_ms={choice.options['budget_ms']}: its plans would differ from rank to rank"
            )
        if ahead.units_ahead < 1 or ahead.threads < 1:
            raise _core.InvalidArgument(
                "data loader: expected at least 1 step ahead and 1 thread, found "
                f"{ahead.units_ahead} and {ahead.threads}"
            )
        self._ahead = ahead
        self._pool: futures.ThreadPoolExecutor | None = None
        self._stop = _core.StopFlag()
        self._steps: dict[int, futures.Future[MadeHere]] = {}
        self._statistics = LocalStatistics()

    def open(self, unit: int) -> None:
        self._pool = futures.ThreadPoolExecutor(
            self._ahead.threads, thread_name_prefix="contextile-plan"
        )
        self._stop = _core.StopFlag()
        self._statistics = LocalStatistics()
        _open.add(self)
        self._fill(unit)

    def close(self) -> None:
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._steps = None, {}
        _open.discard(self)

    def take(self, unit: int) -> Any:
        begun = time.monotonic()
        self._fill(unit)
        try:
            taken = result_of(self._steps[unit], self._ahead.timeout)
        except futures.TimeoutError:
            raise _core.TransportError(
                f"rank {self._ahead.rank}: step {unit}: expected its {self._what} within "
                f"{self._ahead.timeout} s, found it unfinished"
            ) from None
        except Exception as error:
            text = str(error) if isinstance(error, _core.Error) else error_text(error)
            raise _core.PlanningFailed(f"step {unit}: planning failed: {text}") from None
        self._statistics.steps += 1
        self._statistics.planning_s += taken.planning_s
        self._statistics.exposed_s += time.monotonic() - begun
        return taken.value

    def release(self, unit: int) -> None:
        del self._steps[unit]
        self._fill(unit + 1)

    def statistics(self) -> LocalStatistics | None:
        return None if self._pool is None else self._statistics

    def _fill(self, unit: int) -> None:
        """Begins the steps from ``unit`` on that may be planned."""
        end = unit + self._ahead.units_ahead
        for ahead in range(
            unit, end if self._ahead.end_unit is None else min(end, self._ahead.end_unit)
        ):
            if ahead not in self._steps and self._pool is not None:
                self._steps[ahead] = self._pool.submit(self._timed, ahead, self._stop)

    def _timed(self, unit: int, stop: _core.StopFlag) -> MadeHere:
        begun = time.monotonic()
        with stop:
            return MadeHere(self._make(unit), time.monotonic() - begun)

    def _make(self, unit: int) -> Any:
        raise NotImplementedError


class ScheduleSource(LocalSource):
    """Schedules of the next steps. A unit is a step."""

    _what = "schedule"

    def __init__(
        self,
        batches: Batches,
        cluster: _core.Cluster,
        choice: _core.StrategyChoice,
        group_choice: _core.StrategyChoice | None,
        options: dict[str, Any],
        ahead: Ahead,
    ) -> None:
        if choice.name not in SCHEDULES:
            raise _core.InvalidArgument(
                f"schedule: expected {', '.join(SCHEDULES)}, found {choice.name}"
            )
        super().__init__(group_choice, ahead)
        self._batches, self._cluster = batches, cluster
        self._choices = {"strategy": choice, "group_strategy": group_choice, **options}

    def _make(self, unit: int) -> RankSchedule:
        workload = self._batches.workload(unit, 0)
        rounds = schedule(workload, cluster=self._cluster, **self._choices).of(self._ahead.rank)
        return RankSchedule(rounds, workload.document_begins)


class ShapesSource(LocalSource):
    """Plans of the next micro-batches for layers of unlike shapes, by mask."""

    def __init__(
        self,
        batches: Batches,
        cluster: _core.Cluster,
        choice: _core.StrategyChoice,
        options: dict[str, Any],
        replica: int,
        ahead: Ahead,
    ) -> None:
        super().__init__(choice, ahead)
        self._batches, self._replica = batches, replica
        self._options = {"cluster": cluster, "strategy": choice, **options}

    def _make(self, unit: int) -> dict[str, _core.Plan]:
        return self._batches.plans(unit, self._replica, **self._options)
