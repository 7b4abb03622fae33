"""Replaces parts of transformers inside ``use``, and puts them back for models of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager


class _Patches:
    """Replacements that can be taken back and made again."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self.begin()

    def begin(self) -> None:
        self._now = self._make()
        self._now.__enter__()

    def end(self) -> None:
        self._now.__exit__(None, None, None)


_all: list[_Patches] = []  # innermost last


@contextlib.contextmanager
def patched(make: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Makes replacements, inside ``with``."""
    patches = _Patches(make)
    _all.append(patches)
    try:
        yield
    finally:
        if patches in _all:  # not if making them again has failed
            _all.remove(patches)
            patches.end()


@contextlib.contextmanager
def unpatched() -> Iterator[None]:
    """Takes all replacements back, inside ``with``."""
    taken = []
    try:
        while _all:
            taken.append(_all.pop())
            taken[-1].end()
        yield
    finally:
        for patches in reversed(taken):
            patches.begin()
            _all.append(patches)
