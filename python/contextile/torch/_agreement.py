"""Ranks tell each other about errors, so that none waits for a rank that has given up."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

from torch.utils import checkpoint

from contextile import _core
from contextile.torch._executor import Executor

# Checkpoints end recomputation by an exception of their own.
_NO_ERRORS: tuple[Any, ...] = tuple(filter(None, [getattr(checkpoint, "_StopRecomputationError", None)]))


def _gather(transport: _core.Transport, value: Any) -> list[Any]:
    """Returns the values of all ranks, by rank. Collective."""
    mine = pickle.dumps(value)
    sizes = [int.from_bytes(size, "little") for size in transport.all_gather(len(mine).to_bytes(8, "little"))]
    padded = transport.all_gather(mine.ljust(max(sizes), b"\0"))
    return [pickle.loads(one[:size]) for one, size in zip(padded, sizes, strict=True)]


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, _core.InvalidArgument) else f"{type(error).__name__}: {error}"


def agreed(executor: Executor, where: str, problem: Exception | None, value: Any = None) -> list[Any]:
    """Returns the values of all ranks if none of them has found a problem. Collective.

    Otherwise every rank raises the same InvalidArgument, which names the first rank with a problem.
    A rank whose own problem is of another class raises that one. The group goes on.
    """
    mine = ("" if problem is None else _text_of(problem), value)
    found = [mine] if executor.size == 1 else _gather(executor.transport, mine)
    problems = {rank: text for rank, (text, _) in enumerate(found) if text}
    if problem is not None and not isinstance(problem, _core.InvalidArgument):
        raise problem
    if problems:
        rank, text = next(iter(problems.items()))
        is_everywhere = len(problems) == len(found) and len(set(problems.values())) == 1
        raise _core.InvalidArgument(f"{where}: {text}" if is_everywhere else f"{where}, rank {rank}: {text}")
    return [value for _, value in found]


def agree(executor: Executor, where: str, problem: Exception | None = None, **settings: Any) -> None:
    """Returns if no rank has found a problem and all have the same settings. Collective.

    Otherwise every rank raises the same error, as ``agreed`` does.
    """
    all_settings = agreed(executor, where, problem, settings)
    for rank, theirs in enumerate(all_settings):
        for name, value in all_settings[0].items():
            if theirs[name] != value:
                raise _core.InvalidArgument(
                    f"{where}: expected the same {name} on all ranks, found {value!r:.80} on rank 0 and "
                    f"{theirs[name]!r:.80} on rank {rank}"
                )


def give_up(executor: Executor, where: str, error: BaseException) -> None:
    """Tells the other ranks, which may wait for this one, that it stops with an error.

    The group has ended then, and their calls raise TransportError with this text.
    """
    if executor.size > 1:
        text = _text_of(error) if isinstance(error, Exception) else type(error).__name__
        executor.transport.abort(f"{where}: {text}")


@contextlib.contextmanager
def telling_peers(executor: Executor, where: str) -> Iterator[None]:
    """Surrounds work between collective calls. If it fails, no rank waits for this one."""
    try:
        yield
    except _NO_ERRORS:
        raise
    except BaseException as error:
        # Before the traceback is gone: it keeps calls that are under way.
        give_up(executor, where, error)
        raise
