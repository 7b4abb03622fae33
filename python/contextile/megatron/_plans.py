"""A cache of plans that are made on demand, or ahead on a thread."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    """The making of one value. The thread that claims it makes it; the others wait."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.made: Future[T] = Future()
        self._make = make
        self._is_claimed = threading.Lock()

    def run(self) -> None:
        """Makes the value, unless a thread does already."""
        if not self._is_claimed.acquire(blocking=False):
            return
        try:
            self.made.set_result(self._make())
        except BaseException as error:
            self.made.set_exception(error)
            if not isinstance(error, Exception):
                raise


class PlanCache(Generic[T]):
    """Values by key, those that were used last. Any thread may call it.

    A value that failed is made again when it is next wanted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: OrderedDict[Hashable, _Job[T]] = OrderedDict()
        self._lock = threading.Lock()
        self._ahead: queue.SimpleQueue[_Job[T]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def find(self, key: Hashable, make: Callable[[], T]) -> tuple[T, bool]:
        """Returns the value, and whether it was there.

        Makes it on this thread if no other has begun to.
        """
        job = self._job_of(key, make)
        was_there = job.made.done()
        job.run()
        return job.made.result(), was_there

    def begin(self, key: Hashable, make: Callable[[], T]) -> Future[T]:
        """Starts to make the value on a thread of the cache, in the order of calls."""
        job = self._job_of(key, make)
        if not job.made.done():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=_work, args=(self._ahead,), name="contextile-plans", daemon=True)
                    self._thread.start()
            self._ahead.put(job)
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


def _work(jobs: queue.SimpleQueue[_Job[T]]) -> None:
    while True:
        jobs.get().run()
