"""Ranks tell each other about errors, so that none waits for a rank that has given up."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator
from typing import Any

from torch.utils import checkpoint

from contextile import _core
from contextile.torch._execute.executor import Executor
from contextile.torch._ranks import messages
from contextile.torch._ranks.peers import Peers

# Checkpoints end recomputation by an exception of their own.
_NO_ERRORS: tuple[Any, ...] = tuple(
    filter(None, [getattr(checkpoint, "_StopRecomputationError", None)])
)


def _text_of(error: Exception) -> str:
    text = (
        str(error)
        if isinstance(error, _core.InvalidArgument)
        else f"{type(error).__name__}: {error}"
    )
    return text[: messages.MOST_CHARACTERS] or type(error).__name__


def _anything(value: Any) -> Any:
    return value


def peers_of(executor: Executor) -> Peers:
    """Returns the peers of an executor."""
    return Peers(
        executor.rank, executor.size, executor.group, executor.transport, executor.flight_folder
    )


def agreed(
    executor: Executor,
    where: str,
    problem: Exception | None,
    value: Any = None,
    check: messages.Check = _anything,
) -> list[Any]:
    """Returns the values of all ranks if none of them has found a problem. Collective.

    Values go as JSON, and ``check`` says which values peers may send. If a rank has found a
    problem, every rank raises the same InvalidArgument, which names the first rank with one. A rank
    whose own problem is of another class raises that one. The group goes on.
    """
    return _agreed_among(peers_of(executor), where, problem, value, check)


def _agreed_among(
    peers: Peers, where: str, problem: Exception | None, value: Any, check: messages.Check
) -> list[Any]:
    def read(message: Any) -> tuple[str, Any]:
        text, value = messages.fields(message, "problem", "value")
        text = messages.text(text)
        return text, None if text else check(value)

    if peers.size == 1 and problem is None:
        return [value]
    mine = (
        {"problem": "", "value": value}
        if problem is None
        else {"problem": _text_of(problem), "value": None}
    )
    found = peers.told(where, mine, read)
    problems = {rank: text for rank, (text, _) in enumerate(found) if text}
    if problem is not None and not isinstance(problem, _core.InvalidArgument):
        raise problem
    if problems:
        rank, text = next(iter(problems.items()))
        is_everywhere = len(problems) == len(found) and len(set(problems.values())) == 1
        raise _core.InvalidArgument(
            f"{where}: {text}" if is_everywhere else f"{where}, rank {rank}: {text}"
        )
    return [value for _, value in found]


def _json_of(setting: Any) -> Any:
    """Returns a setting as JSON: 64-bit numbers, texts and lists of them, and others as text."""
    if isinstance(setting, (list, tuple)):
        return [_json_of(item) for item in setting]
    if setting is None or isinstance(setting, (bool, str)):
        return setting
    if not isinstance(setting, numbers.Integral):
        return str(setting)
    # Not in decimal digits, of which Python writes some thousands at most.
    whole = int(setting)
    return whole if -(2**63) <= whole < 2**63 else hex(whole)


def agree(
    executor: Executor, where: str, problem: Exception | None = None, **settings: Any
) -> None:
    """Returns if no rank has found a problem and all have the same settings. Collective.

    Otherwise every rank raises the same error, as ``agreed`` does.
    """
    agree_among(peers_of(executor), where, problem, **settings)


def agree_among(
    peers: Peers, where: str, problem: Exception | None = None, **settings: Any
) -> None:
    """Does what ``agree`` does among the ranks of any group."""
    mine = None if problem is not None else [_json_of(setting) for setting in settings.values()]

    def check(value: Any) -> list[Any]:
        if len(messages.items(value, _anything)) != len(settings):
            raise _core.InvalidArgument(
                f"expected {', '.join(settings) or 'no settings'}, found {messages.shown(value)}"
            )
        return list(value)

    all_settings = _agreed_among(peers, where, problem, mine, check)
    for rank, theirs in enumerate(all_settings):
        for name, first, found in zip(settings, all_settings[0], theirs, strict=True):
            if found != first:
                raise _core.InvalidArgument(
                    f"{where}: expected the same {name} on all ranks, found {first!a:.80} on rank "
                    f"0 and {found!a:.80} on rank {rank}"
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
