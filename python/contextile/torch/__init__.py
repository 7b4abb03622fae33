"""Exact attention of a whole batch on tensors of PyTorch, over any ``torch.distributed`` group.

>>> executor = Executor(group)                                  # every rank
>>> executor.prepare(plan)
>>> out = attention(q, k, v, executor=executor)                 # this rank's tokens, gradients included

``attention`` is a custom operator: it goes through ``torch.compile(fullgraph=True)``, activation checkpointing and
selective checkpointing. ``use`` and ``replace_attention`` bring it under models of plain PyTorch. ``DataLoader`` plans batches
ahead and gives every rank its tokens, positions, labels and loss weights.
"""

from contextile.torch._attention import attention
from contextile.torch._data import DataLoader, Piece, Step
from contextile.torch._executor import Executor
from contextile.torch._group import make_transport
from contextile.torch._layout import LocalBatch, collect, dispatch, local_batch
from contextile.torch._sdpa import ScaledDotProductAttention, checkpoint_contexts, replace_attention, use

__all__ = [
    "DataLoader",
    "Executor",
    "LocalBatch",
    "Piece",
    "ScaledDotProductAttention",
    "Step",
    "attention",
    "checkpoint_contexts",
    "collect",
    "dispatch",
    "local_batch",
    "make_transport",
    "replace_attention",
    "use",
]
