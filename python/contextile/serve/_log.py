"""Lines of the server's log, on standard error. They quote nothing that a client sent."""

from __future__ import annotations

import contextlib
import sys
import traceback


def log(line: str) -> None:
    """Writes a line if it can be written."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # full, or closed
            print(f"serve: {line}", file=sys.stderr, flush=True)


def log_bug(error: BaseException) -> None:
    """Names the kind and the place of an error that should not be."""
    places = traceback.extract_tb(error.__traceback__)
    place = f" at {places[-1].filename}, line {places[-1].lineno}" if places else ""
    log(f"an internal error: {type(error).__name__}{place}")
