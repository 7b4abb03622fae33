"""Checks of the kinds of arguments: expected, found, where."""

from __future__ import annotations

import operator
from typing import Any

from contextile import _core


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Returns a whole number of 64 bits, at least ``least``. Raises InvalidArgument for others."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise _core.InvalidArgument(
            f"{name}: expected a whole number, found {value!r:.80}"
        ) from None
    if not -(2**63) <= found < 2**63:
        raise _core.InvalidArgument(
            f"{name}: expected a whole number of 64 bits, found one of {found.bit_length()}"
        )
    if least is not None and found < least:
        raise _core.InvalidArgument(f"{name}: expected at least {least}, found {found}")
    return found


def flag(name: str, value: Any) -> bool:
    """Returns True or False. Raises InvalidArgument for others, numbers included."""
    if not isinstance(value, bool):
        raise _core.InvalidArgument(f"{name}: expected True or False, found {value!r:.80}")
    return value


def number(name: str, value: Any) -> float:
    """Returns a number as a float. Raises InvalidArgument for others, True and texts included."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise _core.InvalidArgument(f"{name}: expected a number, found {value!r:.80}") from None


def text(name: str, value: Any) -> str:
    """Returns a text. Raises InvalidArgument for others."""
    if not isinstance(value, str):
        raise _core.InvalidArgument(f"{name}: expected a text, found {value!r:.80}")
    return value


def count(name: str, value: Any, least: int | None = None) -> int:
    """Returns a count of 32 bits. The library checks the range of its meaning."""
    found = whole(name, value, least)
    if not -(2**31) <= found < 2**31:
        raise _core.InvalidArgument(f"{name}: expected a number of 32 bits, found {found}")
    return found


def lengths(name: str, values: Any) -> list[int]:
    """Returns whole numbers of at least 1 as a list. Raises InvalidArgument for others."""
    try:
        given = list(values)
    except TypeError:
        raise _core.InvalidArgument(
            f"{name}: expected whole numbers, found {values!r:.80}"
        ) from None
    return [whole(name, value, 1) for value in given]


def plan(name: str, value: Any) -> _core.Plan:
    """Returns a plan. Raises InvalidArgument for anything else."""
    if not isinstance(value, _core.Plan):
        raise _core.InvalidArgument(f"{name}: expected a Plan, found {value!r:.80}")
    return value
