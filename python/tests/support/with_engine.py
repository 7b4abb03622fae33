"""Runs a program whose executors have another engine where they name none.

with_engine.py ENGINE PROGRAM [ARGUMENT…]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from contextile.torch import Executor

Executor.__init__.__kwdefaults__["engine"] = sys.argv[1]
del sys.argv[:2]
sys.path[0] = str(Path(sys.argv[0]).parent)  # as for a program that is run directly
runpy.run_path(sys.argv[0], run_name="__main__")
