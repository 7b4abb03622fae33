"""Audits of the context parallelism of PyTorch, Megatron-LM and this package."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)

import torch.distributed as dist
import torch.nn.functional as F

from contextile.torch import Executor, attention, audit
from ranks import run_ranks

aten = torch.ops.aten


def repeated(x, heads):
    return x.repeat_interleave(heads // x.shape[1], 1)


def causal(q, k, v):
    """One document, [tokens, heads, dim], by what ``scaled_dot_product_attention`` is now."""
    q, k, v = (repeated(x, q.shape[1]).transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)


class TorchRing(torch.autograd.Function):
    """The ring behind torch's ``context_parallel``, with the operators that CPUs have."""

    @staticmethod
    def forward(ctx, q, k, v):
        from torch.distributed.tensor.experimental import _attention as torch_cp

        op = aten._scaled_dot_product_flash_attention_for_cpu
        out, lse, *_ = torch_cp._templated_ring_attention(
            dist.group.WORLD, 2, op, q, k, v, is_causal=True
        )
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        from torch.distributed.tensor.experimental import _context_parallel

        q, k, v, out, lse = ctx.saved_tensors
        return _context_parallel._attention._templated_ring_attention_backward(
            dist.group.WORLD,
            2,
            aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            grad.contiguous(),
            "grad_out",
            q,
            k,
            v,
            out.to(q.dtype),
            lse,
            is_causal=True,
            dropout_p=0.0,
        )[:3]


def torch_ring(q, k, v):
    q, k, v = (repeated(x, q.shape[1]).transpose(0, 1)[None].contiguous() for x in (q, k, v))
    return TorchRing.apply(q, k, v)[0].transpose(0, 1)


def audit_torch():
    report = audit(torch_ring, lengths=[96], heads=(4, 2), head_dim=16)
    assert report.ok, str(report)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_torch_passes(num_ranks):
    if importlib.util.find_spec("torch.distributed.tensor.experimental._context_parallel") is None:
        pytest.skip("this PyTorch keeps its ring elsewhere")
    run_ranks(audit_torch, num_ranks)


def without_context_parallelism(q, k, v):
    return causal(q, k, v)


def audit_shards():
    """A model that attends inside its shard alone."""
    report = audit(
        without_context_parallelism, lengths=[96], heads=(4, 2), head_dim=16, layout="contiguous"
    )
    assert report.causes == ["remote_keys_ignored"], str(report)


def test_attention_inside_shards_is_named():
    run_ranks(audit_shards, 2)


class Planned:
    """``contextile.torch.attention`` with a plan for every call."""

    def __init__(self, settings):
        self.settings = settings
        self.executor = Executor()
        self.prepared = {}

    def plan(self, lengths, mask="causal"):
        return ct.plan(
            lengths,
            mask=ct.masks.parse(mask),
            cluster=f"local:1x{dist.get_world_size()}",
            **self.settings,
        )

    def rows(self, cu_seqlens, rank, size, mask):
        lengths = [end - begin for begin, end in itertools.pairwise(cu_seqlens)]
        return self.plan(lengths, mask).local_tokens(rank)

    def attend(self, q, k, v, cu_seqlens, mask, sink, dropout_p, dropout_seed):
        key = (tuple(cu_seqlens.tolist()), mask)
        if key not in self.prepared:
            plan = self.plan(cu_seqlens.diff().tolist(), mask)
            self.prepared[key] = self.executor.prepare(plan)
        return attention(
            q,
            k,
            v,
            executor=self.executor,
            plan=self.prepared[key],
            sink=sink,
            dropout_p=dropout_p,
            dropout_seed=dropout_seed,
        )


def audit_ours(strategies):
    for strategy in strategies.split():
        for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            ours = Planned(
                {
                    "strategy": strategy,
                    "heads": (4, 2),
                    "head_dim": 16,
                    "dtype": name,
                    "sink": True,
                    "softcap": 5.0,
                    "scale": 0.3,
                }
            )

            # Softcap and scale belong to the plan.
            def attend(
                q, k, v, cu_seqlens, mask, sink, softcap, scale, dropout_p, dropout_seed, ours=ours
            ):
                assert (softcap, scale) == (5.0, 0.3)
                return ours.attend(q, k, v, cu_seqlens, mask, sink, dropout_p, dropout_seed)

            report = audit(
                attend,
                lengths=[37, 5, 1, 22],
                masks=["causal", "sliding_window:7", "full"],
                heads=(4, 2),
                head_dim=16,
                layout=ours.rows,
                sinks=True,
                softcap=5.0,
                scale=0.3,
                dropout_p=0.3,
                dtype=dtype,
            )
            assert report.ok, f"{strategy}: {report}"


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_own_attention_passes(num_ranks):
    run_ranks(audit_ours, num_ranks, "zigzag" if num_ranks == 2 else "dcp")


def audit_plan():
    ours = Planned({"strategy": "zigzag", "heads": 2, "head_dim": 16, "dtype": "f32"})
    plan = ours.plan([40, 9])
    prepared = ours.executor.prepare(plan)

    def attend(q, k, v, cu_seqlens):
        assert cu_seqlens.tolist() == [0, 40, 49]
        return attention(q, k, v, executor=ours.executor, plan=prepared)

    report = audit(attend, lengths=[40, 9], heads=2, head_dim=16, layout=plan)
    assert report.ok, str(report)
    assert "lengths: the layout has one set of lengths" in report.not_tested


def test_a_plan_is_a_layout():
    run_ranks(audit_plan, 2)


def audit_megatron():
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from test_megatron import on_cpus

    import contextile.megatron as ctm

    on_cpus()
    size = dist.get_world_size()
    parallel_state.initialize_model_parallel(context_parallel_size=size)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        context_parallel_size=size,
    )
    kind = DotProductAttention if size == 1 else ctm.CoreAttention
    layer = kind(config, 1, AttnMaskType.causal, "self")

    def one_document(q, k, v):  # [tokens, heads, dim] -> [tokens, 1, heads, dim]
        out = layer(*(x.unsqueeze(1) for x in (q, k, v)), None, AttnMaskType.causal)
        return out.reshape(q.shape)

    def packed(q, k, v, *, cu_seqlens, cu_seqlens_padded):
        longest = int(cu_seqlens_padded.diff().max())
        params = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_kv=cu_seqlens,
            cu_seqlens_q_padded=cu_seqlens_padded,
            cu_seqlens_kv_padded=cu_seqlens_padded,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )
        out = layer(q, k, v, None, AttnMaskType.causal, packed_seq_params=params)
        return out.reshape(q.shape)

    # Megatron's own layer has no context parallelism and no packing without Transformer Engine.
    if size == 1:
        report = audit(one_document, lengths=[40], heads=(4, 2), head_dim=16)
        assert report.ok, str(report)
        return
    with ctm.use(ctm.Planner(Executor(plans_kept=16))):
        report = audit(packed, lengths=[37, 5, 1, 22], heads=(4, 2), head_dim=16)
    assert report.ok, str(report)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_megatron_passes(num_ranks):
    pytest.importorskip("megatron.core")
    run_ranks(audit_megatron, num_ranks)
