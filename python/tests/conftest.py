"""Fixtures and settings that the tests share."""

from __future__ import annotations

import os

# Before torch is imported: tests must not depend on what earlier runs compiled.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
# Before Triton is imported, which PyTorch may do: its interpreter runs kernels on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests know the tilings of Triton's kernels.
os.environ["CONTEXTILE_TRITON_TILINGS"] = os.devnull

from hypothesis import settings

# The same examples in every run; `pytest --hypothesis-profile=default` draws new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
