"""A server of language models for clients of OpenAI's protocols, chats included.

It runs the engine of ``contextile serve`` with the tokenizer and the chat template of
``transformers``::

    python -m contextile.serve MODEL
    torchrun --nproc-per-node 4 -m contextile.serve MODEL

Needs ``pip install contextile[serve]``.
"""

from __future__ import annotations

try:
    import starlette  # noqa: F401  # only whether it is installed
    import uvicorn  # noqa: F401  # only whether it is installed
except ImportError as error:
    raise ImportError(
        f"contextile.serve: expected the packages of contextile[serve], found none: {error}"
    ) from error

from contextile.serve._app import make_app
from contextile.serve._engine import EngineThread
from contextile.serve._options import ServeOptions
from contextile.serve._program import main
from contextile.serve._requests import Limits

__all__ = ["EngineThread", "Limits", "ServeOptions", "main", "make_app"]
