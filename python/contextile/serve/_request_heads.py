"""The time that a client may take for the head of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_LONGEST_S = 10.0  # from the first byte, or the connection, to the end of the head


class HeadsInTime(AutoHTTPProtocol):  # type: ignore[valid-type, misc]  # uvicorn's is a variable
    """uvicorn's protocol, but a connection whose head does not come in time is closed."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._limit is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._limit = asyncio.get_running_loop().call_later(_LONGEST_S, self.transport.close)

    def _stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
