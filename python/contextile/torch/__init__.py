"""Exact attention over the ranks of a ``torch.distributed`` group, on tensors of PyTorch.

Each rank holds some tokens of a batch. ``attention`` lets them attend to the whole batch, by a plan
that ``contextile.plan`` makes.

>>> import contextile as ct
>>> import torch
>>> from contextile.torch import Executor, attention
>>> executor = Executor(ct.inproc_group(1)[0])      # one rank; Executor() under torchrun
>>> plan = ct.plan([60, 40], cluster="local:1x1", strategy="zigzag",
...                heads=(4, 2), head_dim=32, dtype="f32")
>>> prepared = executor.prepare(plan)
>>> q, k, v = (torch.randn(100, heads, 32) for heads in (4, 2, 2))
>>> attention(q, k, v, executor=executor).shape
torch.Size([100, 4, 32])

``attention`` is a custom operator with gradients: it passes ``torch.compile(fullgraph=True)``,
activation checkpointing and selective checkpointing. ``use`` and ``replace_attention`` apply it to
models of plain PyTorch. ``DataLoader`` plans batches ahead and gives every rank its tokens,
positions, labels and loss weights.
"""

from contextile.torch._attention.bias import (
    Alibi,
    RelativeBias,
    Softcap,
    alibi,
    relative_bias,
    t5_bias,
)
from contextile.torch._attention.operators import attention
from contextile.torch._attention.score_mod import ScoreMod, from_score_mod
from contextile.torch._attention.sides import Sides, cross_attention
from contextile.torch._audit.audit import audit
from contextile.torch._audit.findings import AuditFinding, AuditPass, AuditReport
from contextile.torch._audit.loss_audit import audit_loss
from contextile.torch._batch.layout import LocalBatch, Targets, dispatch, local_batch
from contextile.torch._batch.packing import Packed, pack
from contextile.torch._execute.executor import Executor
from contextile.torch._execute.tuning import Tuned, tune
from contextile.torch._loader.documents import Piece
from contextile.torch._loader.loader import DataLoader
from contextile.torch._loader.shares import Round, Step
from contextile.torch._models.doors import (
    ScaledDotProductAttention,
    checkpoint_contexts,
    replace_attention,
    use,
)
from contextile.torch._models.gathered_layers import gather_layers
from contextile.torch._models.states import causal_conv, linear_attention, ssd_scan
from contextile.torch._pool.ping_pong import PingPong
from contextile.torch._pool.pipeline import SamePhasePipeline, Tick, ticks
from contextile.torch._pool.pool import Pool, PooledBatch, gather_lengths
from contextile.torch._pool.pool_layout import Rows
from contextile.torch._pool.pooled_calls import CallTimes
from contextile.torch._pool.stages import Stage
from contextile.torch._ranks.group import make_transport
from contextile.torch._tokens.gather import (
    collect,
    document_sums,
    gather_last,
    gather_rows,
    token_log_probs,
)
from contextile.torch._tokens.roll import roll
from contextile.torch._tokens.token_layout import (
    Chunks,
    Part,
    TokenLayout,
    WholeDocuments,
    chunks_of,
    documents_of,
)

__all__ = [
    "Alibi",
    "AuditFinding",
    "AuditPass",
    "AuditReport",
    "CallTimes",
    "Chunks",
    "DataLoader",
    "Executor",
    "LocalBatch",
    "Packed",
    "Part",
    "Piece",
    "PingPong",
    "Pool",
    "PooledBatch",
    "RelativeBias",
    "Round",
    "Rows",
    "SamePhasePipeline",
    "ScaledDotProductAttention",
    "ScoreMod",
    "Sides",
    "Softcap",
    "Stage",
    "Step",
    "Targets",
    "Tick",
    "TokenLayout",
    "Tuned",
    "WholeDocuments",
    "alibi",
    "attention",
    "audit",
    "audit_loss",
    "causal_conv",
    "checkpoint_contexts",
    "chunks_of",
    "collect",
    "cross_attention",
    "dispatch",
    "document_sums",
    "documents_of",
    "from_score_mod",
    "gather_last",
    "gather_layers",
    "gather_lengths",
    "gather_rows",
    "linear_attention",
    "local_batch",
    "make_transport",
    "pack",
    "relative_bias",
    "replace_attention",
    "roll",
    "ssd_scan",
    "t5_bias",
    "ticks",
    "token_log_probs",
    "tune",
    "use",
]
