"""Models of Megatron-LM with another layer spec, on ranks, compared with one process."""

from __future__ import annotations

import contextlib
import itertools

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
pytest.importorskip(
    "megatron.core",
    reason="megatron-core is not installed (pip install --no-deps 'megatron-core==0.16.*')",
)

from ranks import run_ranks

VOCABULARY = 96
SMALL = {
    "num_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 96,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "use_cpu_initialization": True,
}
MODELS = {
    "plain": {},
    "window": {"window_size": (17, 0), "window_attn_skip_freq": [0, 1, 0]},
    "learnable": {"softmax_type": "learnable", "softmax_scale": 0.3},
    "off-by-one": {"softmax_type": "off-by-one", "window_size": (9, 0), "window_attn_skip_freq": 2},
    "no_mask": {"attn_mask_type": "no_mask"},
    "no_mask window": {"attn_mask_type": "no_mask", "window_size": (5, 9)},
    "one group": {"num_query_groups": 1},
    "recomputed": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "recomputed attention": {
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn"],
    },
}
# Lengths of sequences: tokens, and rows with padding.
SBHD = ([48, 48], [48, 48])
THD = ([48, 8, 96, 16], [48, 8, 96, 16])
PADDED = ([45, 3, 96, 9], [48, 8, 96, 16])


def on_cpus():
    """Replaces what megatron-core takes for granted of a GPU."""
    from megatron.core.tensor_parallel import random

    def without_gpu(make):
        def made(*sizes, **options):
            options.pop("pin_memory", None)
            if options.get("device") == "cuda":
                options["device"] = "cpu"
            return make(*sizes, **options)

        return made

    torch.cuda.current_device = lambda: "cpu"
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.synchronize = lambda *_: None
    for made in ("tensor", "ones", "zeros", "empty"):
        setattr(torch, made, without_gpu(getattr(torch, made)))
    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    random._get_all_rng_states = lambda: ()
    random._set_all_rng_states = lambda *_: None
    random._fork_rng = contextlib.nullcontext


def config_of(name, **options):
    from megatron.core.transformer import TransformerConfig

    options = {**SMALL, **MODELS[name], **options}
    options.pop("attn_mask_type", None)
    return TransformerConfig(**options)


def make(name, core_attention=None, **parallel):
    """The model of a name, with Megatron's own attention or another."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.enums import AttnMaskType

    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.params["attn_mask_type"] = AttnMaskType[
        MODELS[name].get("attn_mask_type", "causal")
    ]
    if core_attention is not None:
        spec.submodules.self_attention.submodules.core_attention = core_attention
    torch.manual_seed(5)
    model = GPTModel(
        config=config_of(name, **parallel),
        transformer_layer_spec=spec,
        vocab_size=VOCABULARY,
        max_sequence_length=256,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("softmax_offset"):
                value.copy_(torch.randn(len(value), generator=generator))
    return model.train()


def batch_of(num_rows, seed):
    """Tokens and a gradient of the logits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (num_rows,), generator=generator), torch.randn(
        num_rows, VOCABULARY, generator=generator
    )


def alone(model, lengths, rows, seed):
    """Logits of every sequence by itself, 0 where there is padding. Gradients are added to those of
    the parameters."""
    tokens, dlogits = batch_of(sum(rows), seed)
    logits, begin = torch.zeros(sum(rows), VOCABULARY), 0
    for length, row in zip(lengths, rows, strict=True):
        here = slice(begin, begin + length)
        found = model(tokens[None, here], torch.arange(length)[None], None)[0]
        found.backward(dlogits[here])
        logits[here] = found.detach()
        begin += row
    return logits


def te_indices(cu_seqlens, num_ranks, rank):
    """Rows of a rank in thd, row by row as Transformer Engine counts them
    (thd_get_partitioned_indices)."""
    indices = []
    for begin, end in itertools.pairwise(cu_seqlens):
        rows = (end - begin) // num_ranks
        for row in range(rows):
            chunks_before = rank if row < rows // 2 else 2 * (num_ranks - 1) - rank
            indices.append(begin + row + rows // 2 * chunks_before)
    return torch.tensor(indices, dtype=torch.int64)


def cumulative(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def packed(lengths, rows):
    from megatron.core.packed_seq_params import PackedSeqParams

    ends, padded = cumulative(lengths), cumulative(rows)
    extra = (
        {}
        if list(lengths) == list(rows)
        else {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    )
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=max(rows),
        max_seqlen_kv=max(rows),
        **extra,
    )


def used_rows(lengths, rows):
    return torch.cat(
        [torch.arange(row) < length for length, row in zip(lengths, rows, strict=True)]
    )


def forward(model, form, lengths, rows, seed):
    """This rank's logits [rows, vocabulary], the gradient they get, and the rows of the batch they
    are."""
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_cp_rank

    from contextile.megatron._layer_specs import micro_batch_of, tokens_of_rows

    tokens, dlogits = batch_of(sum(rows), seed)
    dlogits = dlogits * used_rows(lengths, rows)[:, None]
    num_ranks, rank = (
        parallel_state.get_context_parallel_world_size(),
        parallel_state.get_context_parallel_rank(),
    )
    if form == "sbhd":
        index = torch.arange(sum(rows)).view(len(rows), -1)
        local = get_batch_on_this_cp_rank({"tokens": tokens.view(index.shape), "index": index})
        found = tokens_of_rows(micro_batch_of(None, num_ranks, rows[0], len(rows)), num_ranks, rank)
        assert found.tolist() == local["index"].t().flatten().tolist()
        logits = model(local["tokens"], torch.zeros_like(local["tokens"]), None)
        index = local["index"].flatten()
        return logits.flatten(0, 1), dlogits[index], index
    index = te_indices(cumulative(rows).tolist(), num_ranks, rank)
    logits = model(
        tokens[None, index],
        torch.zeros_like(index)[None],
        None,
        packed_seq_params=packed(lengths, rows),
    )
    return logits[0], dlogits[index], index


def share_of(whole, like):
    """A tensor-parallel rank's part of one process's tensor."""
    from megatron.core import parallel_state

    size, rank = (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
    for dim, (all_of_it, part) in enumerate(zip(whole.shape, like.shape, strict=True)):
        if all_of_it != part:
            return whole.chunk(size, dim)[rank]
    return whole


def relative(found, expected):
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-8)).item()


def compare(what, model, reference, results):
    """Compares logits of micro-batches, and gradients after their sum over the context-parallel
    group."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    largest = {"logits": 0.0, "gradients": 0.0}
    for (logits, index, used), expected in results:
        expected = share_of(expected[index], logits)
        kept = used[index]
        largest["logits"] = max(largest["logits"], relative(logits[kept], expected[kept]))
    ours = dict(model.named_parameters())
    assert list(model.state_dict()) == list(reference.state_dict())
    for key, one in reference.named_parameters():
        found = ours[key].grad
        dist.all_reduce(found, group=parallel_state.get_context_parallel_group())
        largest["gradients"] = max(
            largest["gradients"], relative(found, share_of(one.grad, ours[key]))
        )
    if dist.get_rank() == 0:
        print(
            f"{what}: logits {largest['logits']:.1e}, gradients {largest['gradients']:.1e}",
            flush=True,
        )
    assert max(largest.values()) < 1e-5, f"{what}: {largest}"


def references():
    """One process's models and their logits of every case, by Megatron's own attention."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel()
    made = {}
    for _, _, cases in RUNS:
        for name, _, *micro_batches in cases:
            if (name, repr(micro_batches)) not in made:
                model = make("plain" if name.startswith("recomputed") else name)
                logits = [
                    alone(model, *micro_batch, seed)
                    for seed, micro_batch in enumerate(micro_batches)
                ]
                made[name, repr(micro_batches)] = (model, logits)
    parallel_state.destroy_model_parallel()
    return made


def train_one(what, model, form, micro_batches, reference, expected):
    with torch.no_grad():
        for value, one in zip(model.parameters(), reference.parameters(), strict=True):
            value.copy_(share_of(one, value))
    # All forward before any backward, as in the warm-up of a pipeline.
    parts = [
        forward(model, form, *micro_batch, seed) for seed, micro_batch in enumerate(micro_batches)
    ]
    for logits, dlogits, _ in parts:
        logits.backward(share_of(dlogits, logits))
    results = [
        ((logits.detach(), index, used_rows(*micro_batch)), one)
        for (logits, _, index), micro_batch, one in zip(parts, micro_batches, expected, strict=True)
    ]
    compare(what, model, reference, results)


def train():
    """Compares every case of every run with one process."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    import contextile.megatron as ctm
    from contextile.torch import Executor

    on_cpus()
    made = references()
    for tp, strategies, cases in RUNS:
        parallel = {
            "tensor_model_parallel_size": tp,
            "context_parallel_size": dist.get_world_size() // tp,
        }
        parallel_state.initialize_model_parallel(**parallel)
        executor = Executor(parallel_state.get_context_parallel_group())
        for strategy in strategies.split():
            with ctm.use(
                ctm.Planner(
                    executor, strategy=strategy, block_size=8 if strategy == "dcp" else None
                )
            ):
                for name, form, *micro_batches in cases:
                    reference, expected = made[name, repr(micro_batches)]
                    model = make(name, ctm.CoreAttention, **parallel)
                    what = f"{name}, {form}, {strategy}, {tp} tensor-parallel"
                    train_one(what, model, form, micro_batches, reference, expected)
        parallel_state.destroy_model_parallel()


# For each run the tensor-parallel ranks of the four, a strategy, and cases: a model, the form of
# its micro-batches, and these.
RUNS = [
    (
        1,
        "dcp",
        [
            *(
                (name, form, batch)
                for name in MODELS
                if not name.startswith("recomputed")
                for form, batch in (("sbhd", SBHD), ("thd", THD), ("thd", PADDED))
            ),
            ("plain", "thd", THD, PADDED, SBHD),
            ("recomputed", "thd", THD, PADDED),
            ("recomputed attention", "sbhd", SBHD, ([32] * 3, [32] * 3)),
        ],
    ),
    (
        1,
        "zigzag ring auto:steps=20000",
        [("window", "sbhd", SBHD), ("window", "thd", PADDED), ("plain", "thd", THD)],
    ),
    (
        2,
        "dcp zigzag",
        [("learnable", "sbhd", SBHD), ("window", "thd", PADDED), ("one group", "thd", THD)],
    ),
]


def test_models_are_those_of_one_process():
    print(run_ranks(train, 4, timeout=900).stdout)


class Group:
    """The part of a process group that cutting a batch looks at."""

    def __init__(self, size, rank):
        self.size, self.rank = lambda: size, lambda: rank


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("batch", [THD, PADDED], ids=["thd", "padded"])
def test_rows_of_a_rank_are_those_of_transformer_engine(num_ranks, batch):
    from contextile.megatron._layer_specs import micro_batch_of, tokens_of_rows

    micro_batch = micro_batch_of(packed(*batch), num_ranks, None, None)
    for rank in range(num_ranks):
        rows = tokens_of_rows(micro_batch, num_ranks, rank)
        assert rows.tolist() == te_indices(cumulative(batch[1]).tolist(), num_ranks, rank).tolist()


@pytest.mark.parametrize(
    "strategy", ["ring", "zigzag", "all_gather", "dcp", "wlb", "megatron_dynamic", "bytescale"]
)
@pytest.mark.parametrize("form", ["sbhd", "thd", "padded"])
def test_plans_leave_tokens_where_they_are(strategy, form):
    import contextile.megatron as ctm
    from contextile.megatron._layer_specs import micro_batch_of, tokens_of_rows
    from contextile.megatron._planner import planned_of

    config = config_of("window", context_parallel_size=4)
    params = None if form == "sbhd" else packed(*(PADDED if form == "padded" else THD))
    workload = ctm.workload_of(config, params, seq_length=48, micro_batch_size=2)
    assert workload.mask_names == ["causal", "sliding_window:18"]
    plan = ct.plan(workload, cluster="local:1x4", strategy=strategy)
    micro_batch = micro_batch_of(params, 4, 48, 2)
    for rank in range(4):
        rows = torch.from_numpy(tokens_of_rows(micro_batch, 4, rank))
        planned = planned_of(plan, micro_batch, rank)
        local = rows if planned.to_local is None else rows[planned.to_local]
        assert local.tolist() == plan.local_tokens(rank).tolist()
        assert (
            rows if planned.from_local is None else local[planned.from_local]
        ).tolist() == rows.tolist()
    elsewhere = ct.plan(
        list(micro_batch.lengths), cluster="local:1x4", home="contiguous", strategy="zigzag"
    )
    with pytest.raises(ct.InvalidArgument, match="expected the tokens that Megatron gives rank 0"):
        planned_of(elsewhere, micro_batch, 0)


def test_what_a_micro_batch_asks_of_a_plan():
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm

    config = config_of("learnable", tensor_model_parallel_size=2, context_parallel_size=2)
    shape = ct.plan(
        ctm.workload_of(config, seq_length=16), cluster="local:1x2", strategy="zigzag"
    ).shape
    assert (shape.q_heads, shape.kv_heads, shape.head_dim, shape.dtype, shape.sink) == (
        2,
        1,
        16,
        "f32",
        True,
    )
    assert shape.effective_scale == pytest.approx(0.3)
    config = config_of("no_mask window", context_parallel_size=2)
    two_sided = ctm.workload_of(
        config, packed([13, 0, 7], [16, 4, 8]), attn_mask_type=AttnMaskType.no_mask
    )
    assert two_sided.mask_names == ["window:5,9"]
    expected = torch.zeros(28, 28, dtype=torch.bool)
    for begin, end in ((0, 13), (20, 27)):
        for query in range(begin, end):
            expected[query, max(begin, query - 5) : min(end, query + 10)] = True
    assert torch.equal(torch.from_numpy(two_sided.mask().dense(28)).bool(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"seq_length": 30},
            r"sequence 0 of the micro-batch: expected a multiple of 2 x 4 tokens .*, found 30",
        ),
        ({}, "expected seq_length and micro_batch_size"),
        (
            {"attn_mask_type": "arbitrary"},
            "attn_mask_type: expected one of causal, .*, found arbitrary",
        ),
        ({"window_size": (4, 2)}, "expected no token ahead of a causal query"),
        ({"lengths": [12, 8], "rows": [12, 8]}, "sequence 0 .* found 12; pad it"),
        ({"lengths": [12, 8], "rows": [8, 16]}, "expected room for every sequence"),
        ({"lengths": [12, 8], "rows": [24]}, "expected room for every sequence"),
        ({"cu_seqlens_q": torch.tensor([3, 8])}, "cu_seqlens_q: expected ascending from 0"),
        ({"cu_seqlens_q": None}, "expected cu_seqlens_q, found none"),
        (
            {"cu_seqlens_kv": torch.tensor([0, 16])},
            "expected cu_seqlens_kv as cu_seqlens_q, found another",
        ),
        ({"qkv_format": "bshd"}, "expected qkv_format sbhd or thd, found bshd"),
        ({"local_cp_size": 2}, "expected cp_group, a group of local_cp_size 2 ranks, found none"),
        ({"local_cp_size": 0}, "local_cp_size: expected a number of ranks, found 0"),
        ({"local_cp_size": "two"}, "local_cp_size: expected a number of ranks, found 'two'"),
        ({"cp_group": Group(8, 0)}, r"sequence 0 .* multiple of 2 x 8 tokens .*, found 8"),
        (
            {"cp_group": Group(2, -1)},
            "cp_group: expected a group that this rank is in, found another",
        ),
        ({"cp_group": -100}, "cp_group: expected a group that this rank is in, found another"),
        (
            {"local_cp_size": 2, "cp_group": Group(4, 0)},
            "expected a group of local_cp_size 2 ranks, found one of 4",
        ),
        (
            {"local_cp_size": 1, "cp_group": Group(2, 0)},
            "expected a group of local_cp_size 1 ranks, found one of 2",
        ),
        (
            {"qkv_format": "sbhd", "max_seqlen_q": 16},
            "max_seqlen_kv: expected 16, the tokens of an sbhd sequence, found 8",
        ),
        (
            {"qkv_format": "sbhd"},
            r"cu_seqlens_q: expected 1 sbhd sequences of 8 tokens, found \[0, 8, 16\]",
        ),
    ],
)
def test_micro_batches_that_can_not_be_are_refused(change, message):
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm

    window = {"window_size": change.pop("window_size")} if "window_size" in change else {}
    config = config_of("plain", context_parallel_size=4, **window)
    kind = AttnMaskType[change.pop("attn_mask_type", "causal")]
    params = None
    if change and "seq_length" not in change:
        params = packed(change.pop("lengths", [8, 8]), change.pop("rows", [8, 8]))
        for name, value in change.items():
            setattr(params, name, value)
    elif window or kind is not AttnMaskType.causal:
        change["seq_length"] = 32
    with pytest.raises(ct.InvalidArgument, match=message):
        ctm.workload_of(config, params, seq_length=change.get("seq_length"), attn_mask_type=kind)


def call(layer, change, seq_length=16):
    """A layer on tensors of its dims."""
    generator = torch.Generator().manual_seed(3)
    dims = {"query": (4, 24), "key": (2, 24), "value": (2, 16)}
    tensors = {
        name: torch.randn(seq_length, 2, *dim, generator=generator) for name, dim in dims.items()
    }
    tensors["attention_mask"] = None
    tensors.update(change)
    return layer(**tensors), tensors


def one_rank():
    """Dims of multi-latent attention, and every call that is refused, on one rank."""
    from megatron.core import parallel_state
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm
    from contextile.torch import Executor

    parallel_state.initialize_model_parallel()
    options = {
        "layer_number": 1,
        "attn_mask_type": AttnMaskType.causal,
        "attention_type": "self",
        "softmax_scale": 0.2,
        "k_channels": 24,
        "v_channels": 16,
    }
    layer = ctm.CoreAttention(config_of("plain"), **options)
    planner = ctm.Planner(strategy="zigzag")
    with ctm.use(planner):
        out, tensors = call(layer, {})
        q, k, v = (tensors[name].permute(1, 2, 0, 3) for name in ("query", "key", "value"))
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=0.2, enable_gqa=True
        )
        assert relative(out, expected.permute(2, 0, 1, 3).flatten(2)) < 1e-5
        padded, _ = call(layer, {"packed_seq_params": packed([5, 20], [8, 24])})
        is_used = used_rows([5, 20], [8, 24])
        assert (
            padded.flatten(0, 1)[is_used].ne(0).all() and padded.flatten(0, 1)[~is_used].eq(0).all()
        )
    plan = planner.plan_of(config_of("plain"), seq_length=16, micro_batch_size=2)
    plain = ctm.CoreAttention(
        config_of("plain"),
        **{**options, "softmax_scale": None, "k_channels": None, "v_channels": None},
    )
    with ctm.use(planner):
        call(plain, {"query": torch.ones(16, 2, 4, 16), "key": torch.ones(16, 2, 2, 16)})
    assert planner.executor.plan is plan
    sinks = ctm.CoreAttention(config_of("learnable"), **options)
    assert [*sinks.sharded_state_dict("core_attention.")] == ["core_attention.softmax_offset"]

    def refused(message, change, planner=planner, layer=layer):
        with pytest.raises(ct.InvalidArgument, match=message), ctm.use(planner):
            call(layer, change)

    refused("layer 1: expected no attention mask", {"attention_mask": torch.ones(1, 1, 16, 16)})
    refused("expected no attention bias", {"attention_bias": torch.ones(1, 4, 16, 16)})
    refused(
        "expected one of causal, .*, found arbitrary", {"attn_mask_type": AttnMaskType.arbitrary}
    )
    refused(
        r"expected keys of the tokens that queries are of, \[16, 2\], found \[8, 2\]",
        {"key": torch.ones(8, 2, 2, 24)},
    )
    refused(
        "expected 20 tokens of packed sequences on 1 ranks, found 32",
        {"packed_seq_params": packed([8, 12], [8, 12])},
    )
    with pytest.raises(ct.InvalidArgument, match="layer 1: expected a planner"):
        call(layer, {})
    two = Executor(ct.inproc_group(2)[1])
    other = ctm.Planner(two, strategy="zigzag", cluster="local:1x2")
    refused(
        "expected an executor of the context-parallel group, rank 0 of 1, found rank 1 of 2",
        {},
        planner=other,
    )
    with pytest.raises(ct.InvalidArgument, match="cluster: expected 2 devices, .* found 4"):
        ctm.Planner(two, cluster="local:1x4")
    dropping = ctm.CoreAttention(config_of("plain", attention_dropout=0.1), **options)
    refused("expected attention_dropout 0, found 0.1", {}, layer=dropping)
    with ctm.use(planner):
        assert torch.equal(call(dropping.eval(), {})[0], out)
    with pytest.raises(
        ct.InvalidArgument, match="expected self attention, found attention_type cross"
    ):
        ctm.CoreAttention(config_of("plain"), **{**options, "attention_type": "cross"})
    config = config_of("plain")
    config.log_max_attention_logit = True
    with pytest.raises(ct.InvalidArgument, match="log_max_attention_logit: expected off, found on"):
        ctm.CoreAttention(config, **options)


def test_one_rank():
    run_ranks(one_rank, 1)


def communications():
    """Types of communication are those of the planner's strategy, or refused by name."""
    from megatron.core import parallel_state
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm

    on_cpus()
    size = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(context_parallel_size=size)
    config = config_of("plain", context_parallel_size=size)

    def layer_of(kind, sizes=None):
        config.hierarchical_context_parallel_sizes = sizes
        return ctm.CoreAttention(config, 1, AttnMaskType.causal, "self", cp_comm_type=kind)

    made = {
        text: ctm.Planner(strategy=text)
        for text in ("zigzag", "ulysses", "all_gather", "hybrid:head_parallel=2")
    }
    made["auto"] = ctm.Planner()
    made["chosen"] = ctm.Planner(strategy=ct.strategies.parse("ulysses")[0])
    shape = (8, 1)
    tensors = [
        torch.randn(*shape, heads, 16, generator=torch.Generator().manual_seed(heads))
        for heads in (4, 2, 2)
    ]
    for kind, sizes, strategies in (
        (None, None, [*made]),
        ("p2p", None, [*made]),
        ("a2a", None, ["ulysses", "chosen"]),
        ("all_gather", None, ["all_gather"]),
        ("a2a+p2p", [2, size // 2], ["hybrid:head_parallel=2"]),
        ("p2p", [1, size], []),
    ):
        layer = layer_of(kind, sizes)
        for name, planner in made.items():
            if name in strategies:
                with ctm.use(planner):
                    assert layer(*tensors, None).shape == (8, 1, 64)
            else:
                what = "cp_comm_type" if kind != "p2p" else "hierarchical_context_parallel_sizes"
                with (
                    pytest.raises(
                        ct.InvalidArgument,
                        match=f"layer 1: {what}: expected .* the plan says what moves: Planner",
                    ),
                    ctm.use(planner),
                ):
                    layer(*tensors, None)
    with pytest.raises(
        ct.InvalidArgument, match="layer 1: cp_comm_type: expected p2p, a2a, .* found 'ring'"
    ):
        layer_of("ring")


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_communication_is_that_of_the_strategy(num_ranks):
    run_ranks(communications, num_ranks)
