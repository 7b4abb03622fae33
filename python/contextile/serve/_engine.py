"""The engine's thread, and streams of tokens for the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from contextile import _serving
from contextile._waits import join, wait
from contextile.serve._fields import Refusal
from contextile.serve._guides import Guide, GuideError


class Stream:
    """A request whose events go to a queue as (index, event), or at last (index, Refusal)."""

    def __init__(
        self,
        number: int,
        index: int,
        events: asyncio.Queue[tuple[int, Any]],
        cancel: Callable[[int], None],
    ) -> None:
        self.number, self._cancel = number, cancel
        self._index, self._events = index, events

    def put(self, event: _serving.EngineEvent | Refusal) -> None:
        self._events.put_nowait((self._index, event))

    def cancel(self) -> None:
        """Ends the request if it is under way."""
        self._cancel(self.number)


class EngineThread:
    """Drives the first rank of an engine in a thread of its own.

    Parameters
    ----------
    make : callable
        Makes the ``ServingEngine``; called in the thread.
    patience : float
        Seconds after which ranks hear from each other though there is nothing to compute.
    """

    def __init__(
        self, make: Callable[[], _serving.ServingEngine], *, patience: float = 2.0
    ) -> None:
        self._make, self._patience = make, patience
        self._streams: dict[int, Stream] = {}  # used by the event loop alone
        self._guides: dict[int, Guide] = {}
        self._guides_lock = threading.Lock()  # held until a new request's guide is entered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="contextile-engine", daemon=True)
        self.engine: _serving.ServingEngine | None = None
        self.error: BaseException | None = None
        self.lost: Callable[[], None] | None = None  # called in the event loop
        self._stopped = False

    def start(self) -> _serving.ServingEngine:
        """Returns when the engine is ready. Raises the errors of making it."""
        self._thread.start()
        wait(self._ready)
        if self.engine is None:
            raise self.error or RuntimeError("the engine's thread ended")
        return self.engine

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the event loop that requests come from."""
        self._loop = loop

    @property
    def is_well(self) -> bool:
        return self.error is None and not self._stopped

    def submit(
        self,
        *,
        index: int,
        events: asyncio.Queue[tuple[int, Any]],
        guide: Guide | None = None,
        **asked: Any,
    ) -> Stream:
        """Starts a request with the arguments of ``ServingEngine.submit``. In the event loop.

        Its events are put into the queue with the index. Its tokens are those of the guide.
        """
        if not self.is_well or self.engine is None:
            raise _unavailable()
        if guide is None:
            number = self.engine.submit(**asked)
        else:
            with self._guides_lock:
                number = self.engine.submit(allowed=guide.allowed(), **asked)
                self._guides[number] = guide
        stream = Stream(number, index, events, self._cancel)
        self._streams[stream.number] = stream
        return stream

    def stop(self) -> None:
        """Ends all ranks' engines, and requests with an error. In the event loop."""
        self._stopped = True
        self._fail_all()
        if self.engine is not None:
            self.engine.stop()

    def join(self) -> None:
        join(self._thread)

    def _cancel(self, number: int) -> None:
        if self._streams.pop(number, None) is not None and self.engine is not None:
            self._forget_guide(number)
            self.engine.cancel(number)

    def _forget_guide(self, number: int) -> None:
        with self._guides_lock:
            self._guides.pop(number, None)

    def _guide(self, engine: _serving.ServingEngine, event: _serving.EngineEvent) -> None:
        """Says what a request's next token may be. In the engine's thread."""
        with self._guides_lock:
            guide = self._guides.get(event.request)
        if guide is None or event.finish or event.failure:
            return
        try:
            guide.take(event.token)
            engine.allow(event.request, guide.allowed())
        except GuideError as error:
            engine.cancel(event.request)
            refusal = Refusal(
                f"the grammar's library gave up: {error}", status=500, kind="server_error"
            )
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._end, event.request, refusal)

    def _run(self) -> None:
        try:
            engine = self._make()
            self.engine = engine
            if self._stopped:  # while it was made
                engine.stop()
            self._ready.set()
            stopped = False
            while not stopped:
                events, rejections, stopped = engine.advance(self._patience)
                for event in events:
                    self._guide(engine, event)
                if self._loop is not None and (events or rejections):
                    self._loop.call_soon_threadsafe(self._deliver, events, rejections)
        except BaseException as error:
            self.error = error
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._note_lost)
        finally:
            self._ready.set()

    def _deliver(
        self, events: list[_serving.EngineEvent], rejections: list[_serving.EngineRejection]
    ) -> None:
        for rejection in rejections:
            self._end(rejection.request, _refusal_of(rejection))
        for event in events:
            if event.failure:
                self._end(event.request, Refusal(event.failure, status=503, kind="server_error"))
            elif event.finish:
                self._end(event.request, event)
            elif event.request in self._streams:
                self._streams[event.request].put(event)

    def _end(self, number: int, last: Any) -> None:
        self._forget_guide(number)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.put(last)

    def _fail_all(self) -> None:
        for number in list(self._streams):
            self._end(number, _unavailable())

    def _note_lost(self) -> None:
        self._fail_all()
        if self.lost is not None:
            self.lost()


def _refusal_of(rejection: _serving.EngineRejection) -> Refusal:
    if rejection.is_full:
        return Refusal(rejection.reason, status=429, kind="rate_limit_error")
    return Refusal(rejection.reason)


def _unavailable() -> Refusal:
    return Refusal(
        "the engines are lost or stop; the request may be sent again",
        status=503,
        kind="server_error",
    )
