"""A cache of plans that are made on demand, or ahead on a thread."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, TypeVar, cast

from contextile import _core
from contextile._waits import result_of

T = TypeVar("T")

_log = logging.getLogger("contextile")
_LONG_WAIT = 0.05  # seconds of a wait for a plan that is logged as a warning


def log_wait(
    layer_number: int, seconds: float, lengths: Sequence[int], num_ranks: int, ahead: str
) -> None:
    """Logs that a layer waited for the plan of a micro-batch, which ``ahead`` could have made."""
    _log.log(
        logging.WARNING if seconds >= _LONG_WAIT else logging.INFO,
        "layer %d waited %.3f s for the plan of a micro-batch (%d sequences, %d tokens, %d "
        "ranks); plan it ahead with %s, or choose a quicker strategy (Planner(strategy=...))",
        layer_number,
        seconds,
        len(lengths),
        sum(lengths),
        num_ranks,
        ahead,
    )


class _Job(Generic[T]):
    """The making of one value. The thread that claims it makes it; the others wait."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.made: Future[T] = Future()
        self._make: Callable[[], T] | None = make
        self._is_claimed = threading.Lock()

    def run(self) -> None:
        """Makes the value, unless a thread does already."""
        if not self._is_claimed.acquire(blocking=False):
            return
        make = cast("Callable[[], T]", self._make)
        self._make = None  # it may refer to the cache
        try:
            self.made.set_result(make())
        except BaseException as error:
            self.made.set_exception(error)
            if not isinstance(error, Exception):
                raise


class _Worker(threading.Thread):
    """A thread that runs jobs in their order until it is stopped."""

    alive: ClassVar[weakref.WeakSet[_Worker]] = weakref.WeakSet()

    def __init__(self) -> None:
        super().__init__(name="contextile-plans", daemon=True)
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._flag = _core.StopFlag()
        _Worker.alive.add(self)
        self.start()

    def put(self, job: _Job[Any]) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Ends the thread after the job that it runs."""
        self._is_stopped = True
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Ends the thread in the middle of a plan, which nothing would take."""
        self.stop()
        self._flag.set()
        self.join()

    def run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._is_stopped:
            with self._flag:
                job.run()
            del job  # it may hold the last reference to a planner


@atexit.register
def _end_workers() -> None:
    """Ends threads that plan."""
    for worker in list(_Worker.alive):
        worker.interrupt()


class PlanCache(Generic[T]):
    """Values by key, those that were used last. Any thread may call it.

    A value that failed is made again when it is next wanted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: OrderedDict[Hashable, _Job[T]] = OrderedDict()
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def find(self, key: Hashable, make: Callable[[], T]) -> tuple[T, bool]:
        """Returns the value, and whether it was there.

        Makes it on this thread if no other has begun to.
        """
        job = self._job_of(key, make)
        was_there = job.made.done()
        job.run()
        return result_of(job.made), was_there

    def begin(self, key: Hashable, make: Callable[[], T]) -> Future[T]:
        """Starts to make the value on a thread of the cache, in the order of calls."""
        job = self._job_of(key, make)
        if not job.made.done():
            with self._lock:
                if self._worker is None:
                    self._worker = _Worker()
                    weakref.finalize(self, self._worker.stop)
            self._worker.put(job)
        return job.made

    def reserve(self, most: int) -> None:
        """Keeps at least so many values."""
        self._most = max(self._most, most)

    def _job_of(self, key: Hashable, make: Callable[[], T]) -> _Job[T]:
        with self._lock:
            job = self._jobs.pop(key, None)
            if job is None or (job.made.done() and job.made.exception() is not None):
                job = _Job(make)
            self._jobs[key] = job
            while len(self._jobs) > self._most:
                self._jobs.popitem(last=False)
            return job
