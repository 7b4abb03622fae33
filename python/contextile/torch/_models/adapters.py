"""Checks of models by the adapters of libraries: each adapter registers its own when it is
imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from contextile.torch._execute.executor import Prepared

# The adapter of each library whose models need checks of their own.
_ADAPTERS = {"transformers": "contextile.transformers"}
_checks: dict[str, Callable[[Prepared], None]] = {}


def register_check(library: str, check: Callable[[Prepared], None]) -> None:
    """Has ``check(prepared)`` run in the calls of every model while ``library`` is loaded.

    It raises InvalidArgument if the model that is computing is one that it refuses.
    """
    _checks[library] = check


def run_checks(prepared: Prepared) -> None:
    """Runs the checks of the libraries that are loaded.

    An adapter that the program has not imported is imported here: models of a loaded library must
    not go unchecked because only ``contextile.torch`` is used.
    """
    for library, adapter in _ADAPTERS.items():
        if library in sys.modules:
            importlib.import_module(adapter)
            _checks[library](prepared)
