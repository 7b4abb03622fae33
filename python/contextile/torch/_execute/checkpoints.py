"""Makes checkpoints compute forward again as they did first: under the plan of their batch.

A checkpoint of PyTorch runs its function a second time in backward. By then, the executor may be
prepared for another batch, and ``use`` may have been left. The first run therefore leaves with the
checkpoint what the second one needs: contexts, which are entered around the function.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils import checkpoint

from contextile import _core

# Attributes of the two kinds of checkpoints that have the function which backward runs: of those
# that are not reentrant, and of those that are.
_FUNCTIONS = ("recompute_fn", "run_function")
_BACKWARD = checkpoint.CheckpointFunction.backward.__code__
_REENTRANT = checkpoint.CheckpointFunction.forward.__code__


class _Again:
    """A forward that an executor is computing again."""

    def __init__(self, executor: Any, prepared: Any) -> None:
        self.executor, self.prepared = executor, prepared


class _Around(NamedTuple):
    """A context that runs around calls of an executor, and has to run again with them."""

    executor: Any
    key: Hashable
    context: Callable[[], contextlib.AbstractContextManager[Any]]
    inside: frozenset[int]  # checkpoints whose function entered it, which does so again


# Neither list is thread-local: backward runs on a thread of its own while the thread that called it
# waits. Entries of threads that use other executors may lie between those of one.
_all_again: list[_Again] = []  # innermost last
_all_around: list[_Around] = []  # innermost last


def _leave_out(one: Any, entries: list[Any]) -> None:
    for at in reversed(range(len(entries))):
        if entries[at] is one:
            del entries[at]
            return


@contextlib.contextmanager
def around(
    executor: Any, key: Hashable, context: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Iterator[None]:
    """Makes checkpoints inside ``with`` compute calls of an executor again inside a context."""
    one = _Around(executor, key, context, frozenset(id(run) for run in _first_runs()))
    _all_around.append(one)
    try:
        yield
    finally:
        _leave_out(one, _all_around)


def plan_again(executor: Any) -> Any:
    """Returns the plan under which an executor computes again; None if it does not."""
    return next((one.prepared for one in reversed(_all_again) if one.executor is executor), None)


def replace_plan(executor: Any, prepared: Any) -> None:
    """Makes what is computing again use another plan, because its function prepares by itself."""
    for one in reversed(_all_again):
        if one.executor is executor:
            one.prepared = prepared
            return


class UnderPlan:
    """A context in which an executor's calls without a plan attend by this one.

    It may be entered several times.
    """

    def __init__(self, executor: Any, prepared: Any) -> None:
        self._pair = executor, prepared
        self._entered: list[_Again] = []

    def __enter__(self) -> None:
        self._entered.append(_Again(*self._pair))
        _all_again.append(self._entered[-1])

    def __exit__(self, *error: Any) -> None:
        _leave_out(self._entered.pop(), _all_again)


class Contexts:
    """Contexts of a first run, as one that may be entered several times."""

    def __init__(self, executor: Any, prepared: Any, run: Any = None) -> None:
        self._by_key: dict[Hashable, Callable[[], contextlib.AbstractContextManager[Any]]] = {}
        self._entered: list[contextlib.ExitStack] = []
        self._run = id(run)
        self.add(executor, prepared)

    def add(self, executor: Any, prepared: Any) -> None:
        """Adds those of a call of an executor. The first of a key count."""
        self._by_key.setdefault(executor, lambda: UnderPlan(executor, prepared))
        for one in reversed(_all_around):
            if one.executor is executor and self._run not in one.inside:
                self._by_key.setdefault((executor, one.key), one.context)

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for context in self._by_key.values():
                stack.enter_context(context())
            self._entered.append(stack.pop_all())

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class _Function:
    """The function of a checkpoint, inside the contexts of its first run."""

    def __init__(self, function: Callable[..., Any], contexts: Contexts) -> None:
        self._function, self.contexts = function, contexts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.contexts:
            return self._function(*args, **kwargs)


def _first_runs() -> Iterator[Any]:
    """Yields the checkpoints around the caller that run their function first, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe may be None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == checkpoint.__file__:
            if code is _BACKWARD or code.co_name == "unpack_hook":
                return  # The checkpoints around a backward are not around what it computes again.
            variables = frame.f_locals
            if code is _REENTRANT:
                yield variables["ctx"]
            # A generator keeps the others. It has ended or has no such variable where gradients are
            # off.
            generator = getattr(variables.get("gen"), "gi_frame", None)
            if generator is not None and "new_frame" in generator.f_locals:
                yield generator.f_locals["new_frame"]
        frame = frame.f_back


def remember(executor: Any, prepared: Any) -> None:
    """Makes checkpoints around the caller compute again under a plan, and inside what is around.

    The plan of the first call counts.
    """
    for run in _first_runs():
        name = next((name for name in _FUNCTIONS if hasattr(run, name)), None)
        if name is None:
            raise _core.InvalidArgument(
                "attention: expected a checkpoint whose function is known, which computes again "
                f"by the plan of its batch, found {type(run).__name__} of PyTorch "
                f"{torch.__version__}; checkpoint with "
                "context_fn=contextile.torch.checkpoint_contexts"
            )
        function = getattr(run, name)
        if isinstance(function, _Function):
            function.contexts.add(executor, prepared)
        else:
            setattr(run, name, _Function(function, Contexts(executor, prepared, run)))
