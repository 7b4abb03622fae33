"""Waits for other threads of this process that notice Ctrl-C.

Python runs the handler of a signal between two instructions of the main thread. A signal that comes
after the last instruction before a wait, for example while the thread hands over the interpreter's
lock, is noticed when that wait ends. So no wait is long.
"""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import TypeVar

T = TypeVar("T")

_LONGEST_S = 0.2


def result_of(future: futures.Future[T], timeout: float | None = None) -> T:
    """Returns a future's result, as ``future.result`` does.

    Raises futures.TimeoutError after ``timeout`` seconds.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LONGEST_S if until is None else max(until - time.monotonic(), 0)
        try:
            return future.result(min(left, _LONGEST_S))
        except futures.TimeoutError:
            if future.done():
                return future.result()  # which may be a TimeoutError of its own
            if left == 0:
                raise


def join(thread: threading.Thread) -> None:
    """Returns when a thread has ended."""
    while thread.is_alive():
        thread.join(_LONGEST_S)


def wait(event: threading.Event) -> None:
    """Returns when an event is set."""
    while not event.wait(_LONGEST_S):
        pass
