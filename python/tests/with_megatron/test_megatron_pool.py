"""Megatron's layers with the attention of all replicas in one plan, compared with one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
pytest.importorskip(
    "megatron.core",
    reason="megatron-core is not installed (pip install --no-deps 'megatron-core==0.16.*')",
)

from test_megatron import (
    MODELS,
    Group,
    config_of,
    make,
    on_cpus,
    packed,
    relative,
    te_indices,
)
from test_megatron_dynamic import (
    RECOMPUTED,
    Reference,
    make_wrapped,
    pack,
    packed_step,
    sample_of,
    train,
)

from ranks import run_ranks

STRATEGY = "distca:nano_batches=1,resend=on,backward=own,granularity=4,tolerance=0.05,cost=pairs"
# Documents by micro-batch and replica: replicas take turns at one long document. The first two
# micro-batches of replica 1 have the same lengths, and so have the last two of replica 0.
SKEWED = [
    ([96], [8, 16, 24, 48]),
    ([16] * 6, [8, 16, 24, 48]),
    ([16] * 6, [96]),
    ([16] * 6, [40, 56]),
]
ATTENTION_ONLY = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}


def packs_of(batches):
    """Samples by micro-batch and replica."""
    number, packs = 0, []
    for of_replicas in batches:
        packs.append([])
        for lengths in of_replicas:
            packs[-1].append([sample_of(number + i, length) for i, length in enumerate(lengths)])
            number += len(lengths)
    return packs


def reference_of(packs):
    return Reference(
        [sample for of_replicas in packs for samples in of_replicas for sample in samples]
    )


def pooled(what, planner, reference, packs, **options):
    """Trains on this replica's packs."""
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    replica = parallel_state.get_data_parallel_rank()
    with ctm.use(planner):
        train(
            what,
            reference,
            make_wrapped(reference, **options),
            packed_step,
            iter([pack(of_replicas[replica]) for of_replicas in packs]),
            num_microbatches=len(packs),
            seq_length=96,
        )


def four_ranks():
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    on_cpus()
    packs = packs_of(SKEWED)
    reference, of_two = reference_of(packs), reference_of(packs[:2])
    odd = packs_of([([61], [5, 7, 9]), ([5, 7, 9], [61]), ([33], [33])])
    odd = [[*odd[0], *odd[1]], [*odd[2], *odd[0]]]  # of four replicas
    of_odd = reference_of(odd)
    expected = logits_of_one_process()

    parallel_state.initialize_model_parallel(context_parallel_size=2)
    planner = ctm.Planner(strategy=STRATEGY, pool="dp_cp")
    pooled("DP 2 x CP 2, two micro-batches", planner, of_two, packs[:2])
    pooled("DP 2 x CP 2", planner, reference, packs)
    pooled("DP 2 x CP 2, recomputed", planner, reference, packs, **RECOMPUTED)
    pooled("DP 2 x CP 2, attention recomputed", planner, reference, packs, **ATTENTION_ONLY)
    balanced(planner)
    options = {"strategy": STRATEGY, "cluster": "local:1x4", "pool": "dp_cp"}
    pooled(
        "DP 2 x CP 2, one plan cached",
        ctm.Planner(planner.executor, plans_cached=1, **options),
        reference,
        packs,
    )
    rows_of_sbhd(planner, expected)
    one_layer(planner, padded=True)
    other = ctm.Planner(planner.executor, **{**options, "strategy": "fcp:block=8"})
    one_layer(other, padded=False, kind="no_mask")
    one_layer(other, padded=True, window=5)
    refused(planner)
    parallel_state.destroy_model_parallel()

    parallel_state.initialize_model_parallel()
    pooled("DP 4, any lengths", ctm.Planner(pool="dp_cp"), of_odd, odd)
    parallel_state.destroy_model_parallel()

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    pooled("TP 2 x DP 2", ctm.Planner(strategy=STRATEGY, pool="dp_cp"), reference, packs)
    parallel_state.destroy_model_parallel()

    parallel_state.initialize_model_parallel(context_parallel_size=2, order="tp-ep-dp-cp-pp")
    with pytest.raises(
        ct.InvalidArgument,
        match=r"expected a context-parallel group side by side in DP x CP, .*, found \[",
    ):
        ctm.Planner(pool="dp_cp")
    parallel_state.destroy_model_parallel()


def balanced(planner):
    """The pool's plan of a skewed micro-batch, and the same without a pool."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    lengths = SKEWED[0][parallel_state.get_data_parallel_rank()]
    config, params = config_of("plain", context_parallel_size=2), packed(lengths, lengths)
    plan = planner.plan_of(config, params)
    assert plan.num_devices == 4 and planner.executor.plan == plan
    pooled_flops = [device.flops for device in plan.stats().forward.devices]
    own = ct.plan(ctm.workload_of(config, params), cluster="local:1x2", strategy="zigzag")
    apart = [None] * 4
    mine = own.stats().forward.devices[parallel_state.get_context_parallel_rank()].flops
    dist.all_gather_object(apart, mine)
    if dist.get_rank() == 0:
        print(
            f"FLOPs of attention by rank: pool {pooled_flops}, replicas apart {apart}", flush=True
        )
    assert sum(pooled_flops) == sum(apart)
    assert max(pooled_flops) < 1.1 * sum(pooled_flops) / 4 < max(apart)


def tokens_of(replica):
    return torch.randint(0, 96, (2, 48), generator=torch.Generator().manual_seed(replica))


def logits_of_one_process():
    """Logits [tokens, vocabulary] of two sequences of each of two replicas."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel()
    model, positions = make("plain"), torch.arange(48)[None]
    logits = [
        torch.cat([model(one[None], positions, None)[0] for one in tokens_of(d)]).detach()
        for d in range(2)
    ]
    parallel_state.destroy_model_parallel()
    return logits


def rows_of_sbhd(planner, expected):
    """Two sequences in sbhd, whose rows interleave, then the same lengths in thd."""
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_cp_rank

    import contextile.megatron as ctm

    model = make("plain", ctm.CoreAttention, context_parallel_size=2)
    replica = parallel_state.get_data_parallel_rank()
    tokens, expected = tokens_of(replica), expected[replica]
    local = get_batch_on_this_cp_rank({"tokens": tokens, "index": torch.arange(96).view(2, 48)})
    with ctm.use(planner):
        found = model(local["tokens"], torch.zeros_like(local["tokens"]), None).flatten(0, 1)
        assert relative(found, expected[local["index"].flatten()]) < 1e-5
        rows = te_indices([0, 48, 96], 2, parallel_state.get_context_parallel_rank())
        params = packed([48, 48], [48, 48])
        found = model(
            tokens.flatten()[None, rows],
            torch.zeros_like(rows)[None],
            None,
            packed_seq_params=params,
        )[0]
        assert relative(found, expected[rows]) < 1e-5


def one_layer(planner, padded, kind="causal", window=None):
    """Attention of a layer on two documents. Rows of padding are 0, and neither get nor give
    gradients."""
    from megatron.core import parallel_state
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm

    docs, used = (
        ([48, 8], [45, 3]) if parallel_state.get_data_parallel_rank() else ([16, 40], [13, 9])
    )
    used = used if padded else docs
    document = torch.repeat_interleave(torch.tensor(docs))
    position = torch.cat([torch.arange(length) for length in docs])
    is_used = position < torch.tensor(used)[document]
    behind = position[:, None] - position
    attended = (document[:, None] == document) & is_used[:, None] & is_used
    attended &= (kind == "no_mask") | (behind >= 0)
    attended &= behind <= (56 if window is None else window)
    generator = torch.Generator().manual_seed(7)
    q, k, v, dout = (torch.randn(56, heads, 16, generator=generator) for heads in (4, 2, 2, 4))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    parts = (x[None].transpose(1, 2) for x in whole)
    expected = (
        torch.nn.functional.scaled_dot_product_attention(
            *parts, attn_mask=attended | ~is_used[:, None], enable_gqa=True
        )[0].transpose(0, 1)
        * is_used[:, None, None]
    )
    expected.backward(dout)
    rows = te_indices([0, docs[0], 56], 2, parallel_state.get_context_parallel_rank())
    mine = [x[rows].clone().requires_grad_() for x in (q, k, v)]
    config = config_of(
        "plain", context_parallel_size=2, window_size=None if window is None else (window, 0)
    )
    layer = ctm.CoreAttention(config, 1, AttnMaskType[kind], "self")
    with ctm.use(planner):
        found = layer(*mine, None, packed_seq_params=packed(used, docs))
    found.backward(dout[rows].flatten(1))
    assert found[~is_used[rows]].eq(0).all()
    assert relative(found, expected[rows].flatten(1)) < 1e-5
    for one, expected_one in zip(mine, whole, strict=True):
        assert relative(one.grad, expected_one.grad[rows]) < 1e-5


def layer_of(name="plain", **options):
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm

    kind = AttnMaskType[MODELS[name].get("attn_mask_type", "causal")]
    return ctm.CoreAttention(config_of(name, **options), 1, kind, "self")


def refused(planner):
    """Every rank refuses by itself, before it waits for others."""
    from megatron.core import parallel_state

    import contextile.megatron as ctm
    from contextile.torch import Executor

    def check(message, call):
        with pytest.raises(ct.InvalidArgument, match=message):
            call()

    def attend(name, params=None, **options):
        q, k = torch.ones(8, 1, 4, 16), torch.ones(8, 1, 2, 16)
        if params is not None and params.qkv_format == "thd":
            q, k = q[:, 0], k[:, 0]
        with ctm.use(planner):
            layer_of(name, context_parallel_size=2, **options)(
                q, k, k, None, packed_seq_params=params
            )

    check(
        r"layer 1, pool dp_cp: window_size: expected one mask .* found causal, sliding_window:18",
        lambda: attend("window"),
    )
    check(
        "pool dp_cp: window_size: expected a window without .*, found window:5,9",
        lambda: attend("no_mask window"),
    )
    check("pool dp_cp: softmax_type: expected vanilla", lambda: attend("learnable"))
    check(
        "pool dp_cp: expected a causal mask with padded .*, found full",
        lambda: attend("no_mask", packed([13], [16])),
    )
    params = packed([16], [16])
    params.cp_group, params.local_cp_size = parallel_state.get_context_parallel_group(), 2
    check(
        r"layer 1, pool dp_cp: expected micro-batches of the static .* found one of a group of 2",
        lambda: attend("plain", params),
    )
    check(
        "layer 1, pool dp_cp: expected micro-batches of the static",
        lambda: planner.plan_of(config_of("plain"), params),
    )
    foreign = layer_of(context_parallel_size=2)
    foreign.pg_collection.cp = Group(4, 1)
    with ctm.use(planner):
        check(
            "expected a layer of rank .* found rank 1 of 4",
            lambda: foreign(*[torch.ones(8, 1, 4, 16)] * 3, None),
        )
    config = config_of("plain", context_parallel_size=2)
    for name, call in {
        "prepare": lambda: planner.prepare(config, seq_length=16),
        "prepare_batch": lambda: planner.prepare_batch(config, ({}, [])),
        "group_of": lambda: planner.group_of(2),
        "join": lambda: planner.join(None),
    }.items():
        check(f"^{name}: expected a planner without a pool, found dp_cp", call)
    check("pool: expected dp_cp or None, found 'cp'", lambda: ctm.Planner(pool="cp"))
    check(
        "pool dp_cp: expected no block_size, found 8",
        lambda: ctm.Planner(pool="dp_cp", block_size=8),
    )
    check(
        "pool dp_cp: expected no wire, found bf16", lambda: ctm.Planner(pool="dp_cp", wire="bf16")
    )
    check(
        "pool dp_cp: expected no linear_layers, found 0.5",
        lambda: ctm.Planner(pool="dp_cp", linear_layers=0.5),
    )
    interleaved = config_of("plain", context_parallel_size=2)
    interleaved.virtual_pipeline_model_parallel_size = 2
    message = (
        "pool dp_cp: expected a pipeline that is not interleaved, found "
        "virtual_pipeline_model_parallel_size 2"
    )
    check(message, lambda: planner.plan_of(interleaved, seq_length=16))
    parallel_state.set_virtual_pipeline_model_parallel_world_size(2)
    check(message, lambda: ctm.Planner(planner.executor, cluster="local:1x4", pool="dp_cp"))
    parallel_state.set_virtual_pipeline_model_parallel_world_size(None)
    for cached in (-1, "64"):
        check(
            "planner, plans_cached: expected",
            lambda cached=cached: ctm.Planner(pool="dp_cp", plans_cached=cached),
        )
    two = Executor(parallel_state.get_context_parallel_group())
    check(
        r"expected an executor of DP x CP, ranks \[0, 1, 2, 3\], found one of 2 ranks",
        lambda: ctm.Planner(two, pool="dp_cp"),
    )
    other = {"cluster": "local:1x2", "pool": "dp_cp"}
    check(
        "cluster: expected 4 devices, as DP x CP has ranks, found 2",
        lambda: ctm.Planner(planner.executor, **other),
    )


def eight_ranks():
    """Stages of a pipeline, each with a pool of its replicas."""
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    on_cpus()
    packs = packs_of(SKEWED)
    reference = reference_of(packs)
    parallel_state.initialize_model_parallel(
        context_parallel_size=2, pipeline_model_parallel_size=2
    )
    planner = ctm.Planner(strategy=STRATEGY, pool="dp_cp")
    pooled("PP 2 x DP 2 x CP 2", planner, reference, packs)
    parallel_state.destroy_model_parallel()


def test_pools_of_replicas_are_one_process():
    print(run_ranks(four_ranks, 4, timeout=300).stdout)


@pytest.mark.whole
def test_pools_of_stages_are_one_process():
    print(run_ranks(eight_ranks, 8, timeout=300).stdout)
