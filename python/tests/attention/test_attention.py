"""contextile.torch.attention compared with attention on one device."""

from __future__ import annotations

import copy
import gc
import pickle
from functools import partial

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from contextile.torch import Executor, attention, collect, dispatch, local_batch
from reference import dense_mask, inputs, relative_error, run_dense, run_plan

LENGTHS = [70, 26, 160, 1]
HEADS = (4, 2)
DIM = 32
EVERY_STRATEGY = [
    "zigzag",
    "ring",
    "ulysses",
    "ulysses:layout=contiguous",
    "hybrid:head_parallel=2",
    "all_gather",
    "wlb",
    "bytescale",
    "megatron_dynamic",
    "magi:chunk=16",
    "dcp",
    "fcp:block=32",
    "distca:granularity=16",
    "auto:steps=20000",
]


def planned(strategy="zigzag", *, ranks=4, mask="causal", **options):
    options = {"heads": HEADS, "head_dim": DIM, "dtype": "f32", **options}
    lengths = options.pop("lengths", LENGTHS)
    return ct.plan(lengths, mask=mask, cluster=f"local:1x{ranks}", strategy=strategy, **options)


def dense_of(mask, lengths=LENGTHS):
    return dense_mask(ct.make_workload(lengths, mask=mask))


@pytest.fixture
def alone():
    """One rank that is the whole group, prepared for a plan."""
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(planned(ranks=1))
    return executor


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_output_and_gradients_are_those_of_one_device(strategy):
    heads = (4, 4) if strategy == "ulysses:layout=contiguous" else HEADS
    plan = planned(strategy, heads=heads)
    tensors = inputs(plan.num_tokens, heads, DIM)
    for found, expected in zip(
        run_plan(plan, tensors), run_dense(tensors, dense_of("causal")), strict=True
    ):
        assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize(
    "mask", ["full", "sliding_window:9", "lambda:4,16", "shared_question:0.3,2", "chunked:7"]
)
def test_masks(mask):
    plan = planned("dcp", mask=mask)
    tensors = inputs(plan.num_tokens, HEADS, DIM)
    for found, expected in zip(
        run_plan(plan, tensors), run_dense(tensors, dense_of(mask)), strict=True
    ):
        assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
def test_half_precision(dtype, bound):
    plan = planned("fcp:block=32", dtype=dtype)
    tensors = inputs(plan.num_tokens, HEADS, DIM, dtype=dtype)
    for found, expected in zip(
        run_plan(plan, tensors), run_dense(tensors, dense_of("causal")), strict=True
    ):
        assert found.dtype == dtype
        assert relative_error(found, expected) < bound


def test_a_sink_takes_weight_and_gets_its_gradient():
    plan = planned("zigzag", sink=True)
    sink = torch.linspace(-1, 2, HEADS[0])
    q, k, v, dout = inputs(plan.num_tokens, HEADS, DIM)
    found = run_plan(plan, (q, k, v, dout), sink=sink)
    # A sink is a key whose value is 0.
    leaf = sink.double().requires_grad_()
    scores = (
        torch.einsum("qhd,khd->hqk", q.double(), k.double().repeat_interleave(2, 1)) * DIM**-0.5
    )
    scores = scores.masked_fill(~torch.from_numpy(dense_of("causal")), float("-inf"))
    with_sink = torch.cat([scores, leaf[:, None, None].expand(-1, len(q), 1)], dim=2)
    weights = torch.softmax(with_sink, dim=2)[..., :-1]
    out = torch.einsum("hqk,khd->qhd", weights, v.double().repeat_interleave(2, 1))
    out.backward(dout.double())
    assert relative_error(found[0], out.detach()) < 1e-5
    assert relative_error(found[4], leaf.grad) < 1e-5


def test_layouts_of_frameworks(alone):
    q, k, v, _ = inputs(257, HEADS, DIM)
    expected, lse = attention(q, k, v, executor=alone, return_lse=True)
    assert lse.shape == (257, HEADS[0])
    for view in (lambda x: x[None], lambda x: x[:, None]):
        out, its_lse = attention(view(q), view(k), view(v), executor=alone, return_lse=True)
        assert torch.equal(out, view(expected))
        assert torch.equal(its_lse, view(lse))
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    assert torch.equal(attention(*heads_first, executor=alone), expected)
    dim_first = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in (q, k, v)]
    assert torch.equal(attention(*dim_first, executor=alone), expected)


def test_the_operators_keep_their_promises_to_pytorch(alone, monkeypatch):
    # The operator returns the number of its call, which is a new one every time.
    monkeypatch.setattr(alone, "begin_call", lambda: 1)
    number, index, saved = alone.prepared_of(None).call_of("")
    q, k, v, dout = inputs(257, HEADS, DIM)
    args = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(
        torch.ops.contextile.attention.default, (*args, None, number, index, saved)
    )
    with torch.no_grad():
        out, lse, kept, made_by = torch.ops.contextile.attention(
            q, k, v, None, number, index, saved
        )
    torch.library.opcheck(
        torch.ops.contextile.attention_backward.default,
        (dout, q.detach(), k.detach(), v.detach(), None, out, lse, kept, made_by, number, index),
    )


def test_saved_tensors_may_be_copied(alone):
    """Activation offload and compression copy what forward saves; the identity of the call travels
    with it."""
    q, k, v, dout = inputs(257, HEADS, DIM)

    def run():
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        outs = [attention(*leaves, executor=alone) for _ in range(3)]
        sum((out * dout).sum() for out in outs).backward()
        return [x.grad for x in leaves]

    expected = run()
    kept = []  # so that copies lie where nothing was saved
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.clone()) or kept[-1], lambda t: t.clone()
    ):
        found = run()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def gradients_of(function, tensors):
    leaves = [x.clone().requires_grad_() for x in tensors[:3]]
    out = function(*leaves)
    out.backward(tensors[3])
    return [out.detach(), *(x.grad for x in leaves)]


class Calls:
    """Counts an executor's calls on this rank."""

    def __init__(self, monkeypatch):
        from contextile.torch._attention import operators

        self.forward = self.backward = 0
        original = operators.rank_executor_of

        def counted(number):
            rank = original(number)
            calls = self

            class Counting:
                def forward(self, **tensors):
                    calls.forward += 1
                    rank.forward(**tensors)

                def backward(self, **tensors):
                    calls.backward += 1
                    rank.backward(**tensors)

            return Counting()

        monkeypatch.setattr(operators, "rank_executor_of", counted)


def test_checkpointing(alone, monkeypatch):
    tensors = inputs(257, HEADS, DIM)
    attend = lambda q, k, v: attention(q * 1.5, k, v, executor=alone) * 2
    expected = gradients_of(attend, tensors)
    calls = Calls(monkeypatch)
    for found, one in zip(
        gradients_of(partial(checkpoint, attend, use_reentrant=False), tensors),
        expected,
        strict=True,
    ):
        assert torch.equal(found, one)
    assert (calls.forward, calls.backward) == (2, 1)  # recomputed, as asked


def test_selective_checkpointing_does_not_communicate_twice(alone, monkeypatch):
    tensors = inputs(257, HEADS, DIM)
    attend = lambda q, k, v: attention(q * 1.5, k, v, executor=alone) * 2
    expected = gradients_of(attend, tensors)
    calls = Calls(monkeypatch)
    contexts = partial(
        create_selective_checkpoint_contexts, [torch.ops.contextile.attention.default]
    )
    found = gradients_of(
        partial(checkpoint, attend, use_reentrant=False, context_fn=contexts), tensors
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert (calls.forward, calls.backward) == (1, 1)


@pytest.mark.parametrize("prepared", [False, True], ids=["the last prepared", "plan="])
def test_compiled_whole_graphs_serve_all_plans(alone, prepared):
    from torch._dynamo.testing import CompileCounterWithBackend

    def attend(q, k, v, plan):
        return torch.sin(attention(q.cos(), k, v, executor=alone, plan=plan))

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for lengths in (
        [200, 57],
        [200],
        [100, 100, 50],
        [31],
        [8, 90],
        [400],
        [64, 64],
        [129],
        [5, 5, 5],
        [77],
    ):
        batch = alone.prepare(planned(ranks=1, lengths=lengths))
        plan = batch if prepared else None
        tensors = inputs(sum(lengths), HEADS, DIM)
        both = [gradients_of(partial(one, plan=plan), tensors) for one in (compiled, attend)]
        for found, expected in zip(*both, strict=True):
            assert relative_error(found, expected) < 1e-6
    # One compilation for the first, and one for any number of a plan and of tokens.
    assert counter.frame_count <= 2


_global_executor = None


def test_compiled_functions_find_the_executor_anywhere(alone):
    from torch._dynamo.testing import CompileCounterWithBackend

    global _global_executor
    _global_executor = alone

    class Layer(torch.nn.Module):
        def __init__(self, executor):
            super().__init__()
            self.executor = executor

        def forward(self, q, k, v):
            return attention(q, k, v, executor=self.executor)

    for attend in (lambda q, k, v: attention(q, k, v, executor=_global_executor), Layer(alone)):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(attend, fullgraph=True, backend=counter)
        for length in range(300, 288, -1):
            alone.prepare(planned(ranks=1, lengths=[length]))
            q, k, v, _ = inputs(length, HEADS, DIM)
            assert torch.equal(compiled(q, k, v), attention(q, k, v, executor=alone))
        assert counter.frame_count <= 2


def test_ranks_in_different_calls_are_told():
    masks = {"long": ("causal", 1), "short": ("sliding_window:8", 1)}
    one, other = (
        planned("zigzag", ranks=2, mask=masks, lengths=lengths) for lengths in ([64, 64], [128])
    )

    def differ_in_mask(executor, tensors, rank):
        attention(*tensors, executor=executor, mask="long" if rank else "short")

    def differ_in_plan(executor, tensors, rank):
        batches = [executor.prepare(plan) for plan in (one, other)]
        attention(*tensors, executor=executor, mask="long", plan=batches[rank])

    def differ_in_order(executor, tensors, rank):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        outs = [attention(*leaves, executor=executor, mask="long").sum() for _ in range(2)]
        outs[rank].backward()

    for differ in (differ_in_mask, differ_in_plan, differ_in_order):

        def body(transport, differ=differ):
            executor = Executor(transport)
            executor.prepare(one)
            q, k, v, _ = inputs(one.num_tokens, HEADS, DIM)
            tensors = [dispatch(x, plan=one, rank=transport.rank) for x in (q, k, v)]
            differ(executor, tensors, transport.rank)

        with pytest.raises(
            ct.InvalidArgument, match="expected all ranks in the same one, found rank . in "
        ):
            ct.run_inproc(2, body, timeout=10)


def test_plans_of_other_executors_are_refused(alone):
    other = Executor(ct.inproc_group(1)[0])
    batch = other.prepare(planned(ranks=1))
    q, k, v, _ = inputs(257, HEADS, DIM)
    with pytest.raises(ct.InvalidArgument, match="found another executor's"):
        attention(q, k, v, executor=alone, plan=batch)


def test_copies_of_models_share_the_executor(alone):
    assert copy.deepcopy([alone])[0] is alone
    with pytest.raises(ct.InvalidArgument, match="save the model's state_dict"):
        pickle.dumps(alone)


def test_plans_are_named_by_themselves_too(alone):
    first, second = planned(ranks=1), planned(ranks=1, lengths=[257])
    q, k, v, _ = inputs(257, HEADS, DIM)
    expected = attention(q, k, v, executor=alone)
    alone.prepare(second)
    assert not torch.equal(attention(q, k, v, executor=alone), expected)
    assert torch.equal(attention(q, k, v, executor=alone, plan=first), expected)
    with pytest.raises(ct.InvalidArgument, match="plan: expected one of the last 16"):
        attention(q, k, v, executor=alone, plan=planned(ranks=1, lengths=[256, 1]))


def test_autocast_casts_to_the_dtype_of_the_plan(alone):
    alone.prepare(planned(ranks=1, dtype="bf16"))
    q, k, v, _ = inputs(257, HEADS, DIM)
    leaf = q.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(leaf, k.bfloat16(), v.half(), executor=alone)
    out.sum().backward()
    assert torch.equal(
        out, attention(q.bfloat16(), k.bfloat16(), v.half().bfloat16(), executor=alone)
    )
    assert leaf.grad.dtype == torch.float32
    with pytest.raises(ct.InvalidArgument, match="expected q "):
        attention(q, k, v, executor=alone)
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(ct.InvalidArgument, match="autocast: expected the plan's torch.bfloat16"),
    ):
        attention(q, k, v, executor=alone)


def test_forward_mode_is_refused(alone):
    q, k, v, tangent = inputs(257, HEADS, DIM)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, tangent)
        with pytest.raises(NotImplementedError, match="forward-mode"):
            attention(dual, k, v, executor=alone)
        assert attention(q, k, v, executor=alone).shape == q.shape
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda x: attention(x, k, v, executor=alone), (q,), (tangent,))


def test_double_backward_is_refused(alone):
    q, k, v, _ = inputs(257, HEADS, DIM)
    q.requires_grad_()
    (dq,) = torch.autograd.grad(attention(q, k, v, executor=alone).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        dq.sum().backward()


def test_layers_masks_and_batches_in_flight_on_one_executor():
    masks = {"long": ("causal", 1), "short": ("sliding_window:8", 1)}
    plans = [
        planned("dcp", ranks=2, mask=masks, lengths=lengths)
        for lengths in ([60, 40], [100], [30, 30, 40])
    ]
    batches = [inputs(100, HEADS, DIM, seed=seed) for seed in range(3)]
    kinds = ("long", "short", "long")

    def body(transport):
        executor = Executor(transport, plans_prepared=1)
        outs, leaves = [], []
        for plan, tensors in zip(plans, batches, strict=True):
            executor.prepare(plan)
            local = [
                dispatch(x, plan=plan, rank=transport.rank).requires_grad_() for x in tensors[:3]
            ]
            leaves.append(local)
            outs.append([attention(*local, executor=executor, mask=kind) for kind in kinds])
        # The first batch's backward comes last, long after the executor was prepared for others.
        for plan, tensors, out in reversed(list(zip(plans, batches, outs, strict=True))):
            torch.autograd.backward(out, [dispatch(tensors[3], plan=plan, rank=transport.rank)] * 3)
        return [
            ([o.detach() for o in out], [x.grad for x in local])
            for out, local in zip(outs, leaves, strict=True)
        ]

    results = ct.run_inproc(2, body)
    for b, (plan, tensors) in enumerate(zip(plans, batches, strict=True)):
        lengths = [end - begin for begin, end in plan.sequences]
        of_kind = {
            name: run_dense(tensors, dense_of(rule, lengths)) for name, (rule, _) in masks.items()
        }
        for rank in range(2):
            tokens = torch.from_numpy(plan.local_tokens(rank))
            outs, grads = results[rank][b]
            for kind, out in zip(kinds, outs, strict=True):
                assert relative_error(out, of_kind[kind][0][tokens]) < 1e-5
            for at, grad in enumerate(grads):
                expected = sum(of_kind[kind][1 + at] for kind in kinds)[tokens]
                assert relative_error(grad, expected) < 1e-5


def test_a_plan_that_is_gone_says_so():
    executor = Executor(ct.inproc_group(1)[0], plans_kept=1)
    executor.prepare(planned(ranks=1))
    q, k, v, _ = inputs(257, HEADS, DIM)
    out = attention(q.requires_grad_(), k, v, executor=executor)
    executor.prepare(planned(ranks=1, lengths=[257]))
    with pytest.raises(ct.InvalidArgument, match="plans_kept"):
        out.sum().backward()
    executor.close()
    with pytest.raises(ct.InvalidArgument, match="expected prepare before attention"):
        attention(q, k, v, executor=executor)


def test_executors_are_freed():
    from contextile.torch._execute.executor import _executors

    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(planned(ranks=1))
    number = executor.prepared_of(None).number
    assert number in _executors
    del executor
    gc.collect()
    assert number not in _executors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[:-1], k, v), "q, k and v of the same tokens"),
        (lambda q, k, v: (q[:-1], k[:-1], v[:-1]), "expected q "),
        (
            lambda q, k, v: (q.double(), k, v),
            "expected q of torch.float32, as the plan, found torch.float64",
        ),
        (lambda q, k, v: (q.bfloat16(), k, v), "expected q "),
        (lambda q, k, v: (q, k[:, :1], v), "expected k "),
    ],
)
def test_tensors_that_do_not_fit(alone, change, message):
    q, k, v, _ = inputs(257, HEADS, DIM)
    with pytest.raises(ct.InvalidArgument, match=message):
        attention(*change(q, k, v), executor=alone)
    assert attention(q, k, v, executor=alone).shape == q.shape  # goes on


def test_masks_by_name(alone):
    q, k, v, _ = inputs(257, HEADS, DIM)
    with pytest.raises(
        ct.InvalidArgument, match=r"expected one of the plan's \(causal\), found 'causl'"
    ):
        attention(q, k, v, executor=alone, mask="causl")
    assert torch.equal(
        attention(q, k, v, executor=alone, mask="causal"), attention(q, k, v, executor=alone)
    )


def test_local_batches_add_up_to_the_mean_loss():
    plan = planned("fcp:block=32")
    tokens = torch.arange(plan.num_tokens) % 11
    logits = torch.randn(plan.num_tokens, 11, generator=torch.Generator().manual_seed(1))
    total, seen = 0.0, []
    for rank in range(4):
        local = local_batch(tokens, plan=plan, rank=rank)
        mine = dispatch(logits, plan=plan, rank=rank)
        losses = torch.nn.functional.cross_entropy(mine, local.labels, reduction="none")
        total += (losses * local.loss_weights).sum().item()
        seen += local.tokens.tolist()
    expected, count = 0.0, 0
    for begin, end in plan.sequences:
        expected += torch.nn.functional.cross_entropy(
            logits[begin : end - 1], tokens[begin + 1 : end], reduction="sum"
        ).item()
        count += end - begin - 1
    assert sorted(seen) == sorted(tokens.tolist())
    assert total == pytest.approx(expected / count, rel=1e-5)


def tree_rows(parents):
    rows = []
    for token, parent in enumerate(parents):
        rows.append(([] if parent < 0 else rows[parent]) + [(token, token + 1)])
    return rows


IN_ORDER = [*range(-1, 11)]
ANSWERS = [*range(-1, 6), 3, *range(7, 11)]  # of 3 and 5 tokens, to a question of 4
PACKED = [*range(-1, 4), -1, *range(5, 11)]
FOREST = [-1, 0, 1, 1, 3, 0, 5, 2, 7, -1, 9, 10]


@pytest.mark.parametrize(
    ("mask", "followed"),
    [
        # The answers to a question, packed documents, trees: the same batch in several notations.
        (ct.masks.shared_question(lengths=[4, 3, 5]), ANSWERS),
        (ct.masks.tree([4, 3, 5], [-1, 0, 0]), ANSWERS),
        (
            ct.masks.from_slices(
                [(0, 7), (7, 12), (7, 12)], [(0, 7), (0, 4), (7, 12)], ["causal", "full", "causal"]
            ),
            ANSWERS,
        ),
        (ct.masks.from_cu_seqlens([0, 5, 12]), PACKED),
        (
            ct.masks.from_mask_mod(
                lambda b, h, q, k: (k <= q) & ((q < 5) == (k < 5)), num_tokens=12
            ),
            PACKED,
        ),
        (ct.masks.from_row_ranges(tree_rows(FOREST)), FOREST),
        (ct.masks.tree([3, 4, 2, 1, 2], [-1, 0, 0, 1, 2]), [*range(-1, 6), 2, 7, 6, 8, 10]),
        # Rules of a whole document keep its order, whatever their masks leave out.
        (ct.masks.chunked(4), IN_ORDER),
        (ct.masks.sliding_window(1), IN_ORDER),
        ({"long": "causal", "short": ct.masks.chunked(4)}, IN_ORDER),
    ],
)
def test_positions_and_labels_follow_the_mask(mask, followed):
    plan = ct.plan(
        [12],
        mask=mask,
        cluster="local:1x2",
        strategy="ring",
        heads=(2, 1),
        head_dim=8,
        block_size=4,
    )
    tokens = torch.arange(100, 112)
    positions = []
    for token in followed:
        positions.append(0 if token < 0 else positions[token] + 1)
    weight = 1 / sum(token >= 0 for token in followed)
    parts = {token for token in followed if token >= 0 and followed.count(token) > 1}
    predicted = []
    for rank in range(2):
        local = local_batch(tokens, plan=plan, rank=rank)
        at = plan.local_tokens(rank)
        assert local.positions.tolist() == [positions[token] for token in at]
        rows, following, labels, weights = local.targets
        assert at[rows].tolist() == [followed[token] for token in following.tolist()]
        assert labels.tolist() == tokens[following].tolist()
        assert weights.tolist() == pytest.approx([weight] * len(rows))
        predicted += following.tolist()
        if parts:
            with pytest.raises(ct.InvalidArgument, match=f"that follow token {min(parts)}"):
                local.labels  # noqa: B018  # reading them raises
        else:
            assert local.labels.tolist() == [
                followed.index(token) + 100 if token in followed else -100 for token in at
            ]
    assert sorted(predicted) == [token for token in range(12) if followed[token] >= 0]
    # The answer also survives a plan file, a slice and JSON.
    for read in (
        ct.Plan.from_bytes(plan.to_bytes()),
        ct.Plan.from_json(plan.to_json()),
        ct.Plan.slice_from_bytes(plan.slice_to_bytes(1)),
    ):
        assert all(map(torch.equal, local_batch(tokens, plan=read, rank=1).targets, local.targets))


def test_dispatch_and_local_batch_check_their_tokens():
    plan = planned()
    with pytest.raises(ct.InvalidArgument, match="expected 257 tokens in dimension 0, found 256"):
        dispatch(torch.zeros(256, 1), plan=plan, rank=0)
    with pytest.raises(ct.InvalidArgument, match=r"expected \[257\], found \[2, 257\]"):
        local_batch(torch.zeros(2, 257, dtype=torch.int64), plan=plan, rank=0)


def test_groups_must_exist():
    with pytest.raises(ct.InvalidArgument, match="call torch.distributed.init_process_group first"):
        Executor()
    with pytest.raises(ct.InvalidArgument, match="call torch.distributed.init_process_group first"):
        ct.Cluster.from_torch()
    assert callable(collect)
