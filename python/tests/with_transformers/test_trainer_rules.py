"""Trainers, DTensors and sums over documents: the rules, and refusals by name."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from contextile.torch import (
    Executor,
    ScaledDotProductAttention,
    attention,
    collect,
    dispatch,
    replace_attention,
    use,
)
from ranks import run_ranks

sys.path.append(str(Path(__file__).parents[3] / "examples" / "trainers"))
pytestmark = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
BATCH = {
    "cluster": "local:1x2",
    "strategy": "dcp",
    "block_size": 16,
    "head_dim": 16,
    "dtype": "f32",
}


# -------------------------------------------------------------------------------------------
# DTensors


def over_heads():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    tp, rank = mesh["tp"], mesh["tp"].get_local_rank()
    executor = Executor(mesh["cp"].get_group())
    for has_sink in (False, True):
        plan = ct.plan([60, 40], heads=(2, 1), sink=has_sink, **BATCH)
        executor.prepare(plan)
        torch.manual_seed(executor.rank)
        q, k, v, weights = (
            torch.randn(1, plan.num_local_tokens(executor.rank), heads, 16)
            for heads in (4, 2, 2, 4)
        )
        sink = torch.tensor([0.5, -1.0, 0.2, 1.5]) if has_sink else None  # the same on all ranks

        def shared(tensor, dim):
            return (
                None
                if tensor is None
                else distribute_tensor(tensor, tp, [Shard(dim)]).requires_grad_()
            )

        def own(tensor, dim):
            return None if tensor is None else tensor.chunk(2, dim)[rank].clone().requires_grad_()

        given = [shared(q, 2), shared(k, 2), shared(v, 2), shared(sink, 0)]
        out, lse = attention(*given[:3], executor=executor, sink=given[3], return_lse=True)
        assert (
            out.placements == (Shard(2),)
            and out.shape == (1, q.shape[1], 4, 16)
            and lse.placements == (Shard(2),)
        )
        (out.full_tensor() * weights).sum().backward()  # the gradient comes replicated
        alone = [own(q, 2), own(k, 2), own(v, 2), own(sink, 0)]
        expected = attention(*alone[:3], executor=executor, sink=alone[3])
        (expected * weights.chunk(2, 2)[rank]).sum().backward()
        assert torch.equal(out.to_local(), expected)
        for one, other in zip(given, alone, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one.grad.to_local(), other.grad)
    whole = [
        distribute_tensor(x, tp, [Replicate()]) for x in (q[:, :, :2], k[:, :, :1], v[:, :, :1])
    ]
    executor.prepare(ct.plan([60, 40], heads=(2, 1), **BATCH))
    assert attention(*whole, executor=executor).placements == (Replicate(),)


def compiled_and_refused():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([8], heads=(2, 1), **{**BATCH, "cluster": "local:1x1"}))
    q, k, v = (torch.randn(8, heads, 16) for heads in (4, 2, 2))

    def placed(*placements):
        return [
            distribute_tensor(x, mesh, [p]) for x, p in zip((q, k, v), placements, strict=False)
        ]

    heads = Shard(1)
    compiled = torch.compile(
        lambda *tensors: attention(*tensors, executor=executor), backend="aot_eager", fullgraph=True
    )
    found, expected = (
        one(*placed(heads, heads, heads))
        for one in (compiled, lambda *x: attention(*x, executor=executor))
    )
    assert found.placements == (heads,) and torch.equal(found.to_local(), expected.to_local())
    for tensors, message in (
        (
            placed(Shard(0), heads, heads),
            r"q: expected a DTensor that is replicated or sharded by heads \(Shard\(1\)\), found "
            r"Shard",
        ),
        (
            placed(heads, heads, Shard(2)),
            "v: expected a DTensor that is replicated or sharded by heads",
        ),
        (
            placed(heads, Replicate(), Replicate()),
            "k: expected heads over the same dimensions of the mesh as q's",
        ),
        ([*placed(heads, heads), v], "found v as plain tensors"),
        (
            [
                distribute_tensor(torch.randn(8, 3, 16), mesh, [heads]),
                *placed(heads, heads, heads)[1:],
            ],
            "q: expected heads that 2 ranks",
        ),
        (
            [DTensor.from_local(q, mesh, [Partial()]), *placed(heads, heads, heads)[1:]],
            "q: expected .* found Partial",
        ),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            attention(*tensors, executor=executor)
    # The operator itself refuses, too.
    number, mask, saved_bytes = executor.prepared_of(None).call_of("")
    with pytest.raises(Exception, match="sharded by heads"):
        torch.ops.contextile.attention(
            *placed(Shard(0), heads, heads), None, number, mask, saved_bytes
        )


def taken_over():
    """A layer whose projections give DTensors is that of one process, through ``use`` and
    ``replace_attention``, on a mesh of 2 ranks of context by 2 of tensor parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    tp, group = mesh["tp"], mesh["cp"].get_group()
    executor = Executor(group)
    lengths = [60, 40]

    def made():
        torch.manual_seed(3)
        return Projected()

    x = torch.randn(1, sum(lengths), 64, generator=torch.Generator().manual_seed(4))
    one = made()
    whole = torch.cat([one(part) for part in x.split(lengths, 1)], 1)
    whole.square().sum().backward()
    for way in (
        "use",
        "BHTD",
        "BTHD",
        "compiled use",
        "compiled BHTD",
        "checkpoint use",
        "checkpoint BTHD",
    ):
        how, layout = way.split()[0], way.split()[-1]
        model = made()
        model.inner_attention.layout = layout
        columns = lambda: ColwiseParallel(use_local_output=False)
        parallelize_module(
            model, tp, {"q": columns(), "k": columns(), "v": columns(), "o": RowwiseParallel()}
        )
        if layout != "use":
            replace_attention(model, executor, layout=layout)
        plan = ct.plan(lengths, heads=(2, 1), **BATCH)
        executor.prepare(plan)
        own = dispatch(x[0], plan=plan, rank=executor.rank)[None]
        torch._dynamo.reset()
        run = torch.compile(model, backend="aot_eager") if how == "compiled" else model
        run = (
            functools.partial(checkpoint, model, use_reentrant=False)
            if how == "checkpoint"
            else run
        )
        with use(executor) if layout == "use" else contextlib.nullcontext():
            out = run(own)
        out.square().sum().backward()
        torch.testing.assert_close(
            collect(out[0], plan=plan, group=group), whole[0], rtol=1e-5, atol=1e-5
        )
        for (name, found), expected in zip(model.named_parameters(), one.parameters(), strict=True):
            local = found.grad.full_tensor().clone()
            torch.distributed.all_reduce(local, group=group)
            error = (local - expected.grad).abs().max() / expected.grad.abs().max()
            assert error < 1e-5, f"{way}: gradient of {name} is off by {error:.2e}"
        for heads in ((4, 2), (2, 2), (1, 1)):
            other = ct.plan(lengths, heads=heads, **BATCH)
            executor.prepare(other)
            own = dispatch(x[0], plan=other, rank=executor.rank)[None]
            message = (
                r"heads of one rank, heads=\(2, 1\), for 2 ranks share the DTensors' heads \(4, "
                rf"2\), found one with heads=\({heads[0]}"
            )
            with (
                pytest.raises(ct.InvalidArgument, match=message),
                use(executor) if layout == "use" else contextlib.nullcontext(),
            ):
                model(own)
            with pytest.raises(ct.InvalidArgument, match=message):
                attention(
                    *(f(own).unflatten(-1, (-1, 16)) for f in (model.q, model.k, model.v)),
                    executor=executor,
                )


class Projected(torch.nn.Module):
    """A layer with the projections of its 4 query heads and 2 KV heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            torch.nn.Linear(64, n, bias=False) for n in (64, 32, 32, 64)
        )
        self.inner_attention = Sdpa()

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 16)) for f in (self.q, self.k, self.v))
        if self.inner_attention.layout == "BTHD":
            return self.o(self.inner_attention(q, k, v).flatten(2))
        return self.o(
            self.inner_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2).flatten(2)
        )


class Sdpa(torch.nn.Module):
    layout = "BHTD"

    def forward(self, q, k, v):
        if self.layout == "BTHD":
            return scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True
            ).transpose(1, 2)
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def refused_dtensors():
    """Refusals of DTensors name the dimensions that the caller knows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    executor = Executor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([8], heads=(2, 1), **{**BATCH, "cluster": "local:1x1"}))
    modules = {
        layout: ScaledDotProductAttention(executor, layout=layout) for layout in ("BHTD", "BTHD")
    }
    for layout, module in modules.items():
        dim = layout.index("H")
        x = [
            torch.randn(1, heads, 8, 16) if dim == 1 else torch.randn(1, 8, heads, 16)
            for heads in (4, 2, 2)
        ]

        def placed(*placements, tensors=x):
            return [
                distribute_tensor(one, mesh, [placement])
                for one, placement in zip(tensors, placements, strict=False)
            ]

        heads, tokens = Shard(dim), Shard(3 - dim)
        assert module(*placed(heads, heads, heads)).placements == (heads,)
        mask = torch.ones(8, 8)
        for tensors, options, message in (
            (
                placed(tokens, tokens, tokens),
                {},
                r"q: expected a DTensor that is replicated or sharded by heads "
                rf"\(Shard\({dim}\)\), found",
            ),
            (placed(Shard(3), heads, heads), {}, r"q: expected .*, found Shard\(dim=3\)"),
            (
                placed(heads, heads, Replicate()),
                {},
                "v: expected heads over the same dimensions of the mesh as q's",
            ),
            ([*placed(heads, heads), x[2]], {}, "found v as plain tensors"),
            (placed(heads, heads, heads), {"attn_mask": mask}, "expected no attn_mask"),
            (
                placed(heads, heads, heads),
                {"attn_mask": distribute_tensor(mask, mesh, [Replicate()])},
                "expected no attn_mask",
            ),
            (placed(heads, heads, heads), {"scale": 0.3}, "expected the plan's scale"),
            (placed(heads, heads, heads), {"dropout_p": 0.1}, "expected dropout 0"),
            (
                [one.double() for one in placed(heads, heads, heads)],
                {},
                "expected the plan's torch.float32",
            ),
            (
                placed(heads, heads, heads, tensors=[one.narrow(3 - dim, 0, 5) for one in x]),
                {},
                "this rank's 8 tokens",
            ),
            (
                placed(heads, heads, heads, tensors=[one[..., :8] for one in x]),
                {},
                "the plan's dims",
            ),
        ):
            with pytest.raises(ct.InvalidArgument, match=message):
                module(*tensors, **options)
    named = executor.prepare(ct.plan([8], heads=(4, 2), **{**BATCH, "cluster": "local:1x1"}))
    assert named.plan.shape.q_heads == 4
    whole = [distribute_tensor(one, mesh, [Replicate()]) for one in x]
    assert modules["BTHD"](*whole).placements == (Replicate(),)


@pytest.mark.parametrize(
    ("function", "num_ranks"),
    [
        (over_heads, 4),
        (compiled_and_refused, 2),
        pytest.param(taken_over, 4, marks=pytest.mark.whole),
        (refused_dtensors, 2),
    ],
)
def test_dtensors(function, num_ranks):
    run_ranks(function, num_ranks)


# -------------------------------------------------------------------------------------------
# batches


def documents_of(**inputs):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from contextile.transformers._collated import documents_of

    return documents_of(
        {
            name: torch.tensor(value) if isinstance(value, list) else value
            for name, value in inputs.items()
        }
    )


def test_rows_are_taken_apart_into_documents():
    ids = [[5, 6, 7, 0], [0, 0, 8, 9]]
    mask = [[1, 1, 1, 0], [0, 0, 1, 1]]  # padded on the right, and on the left
    tokens, labels, lengths = documents_of(input_ids=ids, labels=ids, attention_mask=mask)
    assert tokens.tolist() == labels.tolist() == [5, 6, 7, 8, 9] and lengths == [3, 2]
    packed = {
        "input_ids": [[1, 2, 3, 4, 5]],
        "labels": [[1, 2, 3, 4, 5]],
        "position_ids": [[0, 1, 0, 1, 2]],
    }
    assert documents_of(**packed)[2] == [2, 3]
    more = {
        "cu_seq_lens_q": [0, 2, 5],
        "cu_seq_lens_k": [0, 2, 5],
        "max_length_q": 3,
        "max_length_k": 3,
        "seq_idx": [[0, 0, 1, 1, 1]],
    }
    assert documents_of(**packed, **more)[2] == [2, 3]
    assert documents_of(input_ids=ids, labels=ids)[2] == [4, 4]
    for name, wrong in (
        ("cu_seq_lens_k", [0, 3, 5]),
        ("max_length_q", 4),
        ("seq_idx", [[0, 0, 0, 1, 1]]),
    ):
        with pytest.raises(
            ct.InvalidArgument, match=rf"{name}: expected documents of \[2, 3\] tokens"
        ):
            documents_of(**packed, **{**more, name: wrong})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "expected input_ids and labels, found no labels"),
        (
            {"pixel_values": [1.0]},
            "batch: expected input_ids, .* found pixel_values, which no rank would get its part of",
        ),
        (
            {"labels": [[1, 2, 3]]},
            r"expected input_ids and labels \[rows, tokens\], found \[1, 4\] and \[1, 3\]",
        ),
        (
            {"attention_mask": [[1, 0, 1, 1]]},
            "attention_mask: expected .* side by side, .* with a gap",
        ),
        (
            {"attention_mask": [[[1, 1, 1, 1]]]},
            r"attention_mask: expected \[1, 4\].* found \[1, 1, 4\]",
        ),
        ({"attention_mask": [[0, 0, 0, 0]]}, "batch: expected tokens, found padding alone"),
        (
            {"position_ids": [[0, 1, 3, 4]]},
            "position_ids: expected 0, 1, 2, … in every document of a row, found 3 at token 2",
        ),
        ({"position_ids": [[1, 2, 3, 4]]}, "found 1 at token 0"),
        ({"position_ids": [[0, 1, 2]]}, r"position_ids: expected \[1, 4\], found \[1, 3\]"),
    ],
)
def test_batches_that_cannot_be_shared_out_are_refused(changes, message):
    batch = {"input_ids": [[1, 2, 3, 4]], "labels": [[1, 2, 3, 4]], **changes}
    with pytest.raises(ct.InvalidArgument, match=message):
        documents_of(**batch)
    rows = {
        "input_ids": [[1, 2], [3, 4]],
        "labels": [[1, 2], [3, 4]],
        "position_ids": [[0, 1], [2, 3]],
    }
    with pytest.raises(ct.InvalidArgument, match="found 2 at token 2"):
        documents_of(**rows)


# ------------------------------------------------------------------------------------------
# trainers


def make_trainer(folder, *, trainer=None, **changes):
    """A trainer of one process, or of the ranks of this job."""
    import tiny
    import transformers

    import contextile.transformers as cth

    class Trainer(cth.TrainerMixin, transformers.Trainer):
        pass

    executor = changes.pop("executor", None) or Executor(ct.inproc_group(1)[0])
    given = {
        name: changes.pop(name)
        for name in ("compute_loss_func", "compute_metrics", "train_dataset", "eval_dataset")
        if name in changes
    }
    settings = {**tiny.SETTINGS, "ddp_backend": None, **changes}
    return (trainer or Trainer)(
        tiny.make_model(cth.register()),
        transformers.TrainingArguments(folder, **settings),
        data_collator=tiny.pad,
        executor=executor,
        plan={"strategy": "dcp", "block_size": 16},
        **{"train_dataset": tiny.make_documents(), **given},
    )


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label_smoothing_factor": 0.1},
            "label_smoothing_factor with context parallelism, found 0.1",
        ),
        ({"compute_loss_func": print}, "compute_loss_func"),
        ({"compute_metrics": print}, "compute_metrics"),
        (
            {"average_tokens_across_devices": False},
            "average_tokens_across_devices with context parallelism, found False",
        ),
        (
            {"train_sampling_strategy": "batch_rebalance"},
            "train_sampling_strategy .* found 'batch_rebalance'",
        ),
        (
            {"accelerator_config": {"dispatch_batches": True}},
            "dispatch_batches .* found True; set it to False",
        ),
        ({"train_dataset": Stream()}, "dispatch_batches .* found None; set it to False"),
    ],
)
def test_settings_that_would_train_wrongly_are_refused(changes, message, tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    with pytest.raises(ct.InvalidArgument, match=f"trainer: expected no .*{message}"):
        make_trainer(tmp_path, **changes)


def test_one_rank_trains_and_predictions_are_refused(tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 4
    with pytest.raises(ct.InvalidArgument, match="expected evaluation of the loss alone"):
        trainer.predict(trainer.train_dataset)


def test_evaluation_without_labels_that_the_trainer_knows_is_refused(tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    import tiny

    trainer = make_trainer(
        tmp_path, label_names=["label_ids"], eval_dataset=tiny.make_documents()[:2]
    )
    with pytest.raises(ct.InvalidArgument, match="labels: expected none inside use"):
        trainer.evaluate()


def other_batches(folder):
    # Ranks whose datasets are in another order.
    import tiny
    import torch.distributed as dist

    documents = tiny.make_documents()
    mixed = documents if dist.get_rank() == 0 else documents[::-1]
    trainer = make_trainer(folder, executor=Executor(), train_dataset=mixed, ddp_backend="gloo")
    with pytest.raises(
        ct.InvalidArgument,
        match=(
            "batch: expected the same batch on every rank .* found another than rank 0's on rank "
            "1 of 2"
        ),
    ):
        trainer.train()


def scattered_groups(folder):
    import torch.distributed as dist

    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    with pytest.raises(
        ct.InvalidArgument,
        match=r"executor: expected a group of 2 neighbouring ranks .* found ranks \[\d, \d\] of 4",
    ):
        make_trainer(folder, executor=Executor(groups[dist.get_rank() % 2]), ddp_backend="gloo")


def resumed_and_evaluated(folder):
    """Trains 4 steps at once, and 2 and 2, and evaluates rows that do not fill the last batch."""
    import tiny
    import torch.distributed as dist

    settings = {
        "executor": Executor(),
        "ddp_backend": "gloo",
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": 4,
    }
    whole = make_trainer(
        f"{folder}/whole",
        eval_dataset=tiny.make_documents()[:5],
        include_num_input_tokens_seen="all",
        **settings,
    )
    whole.train()
    dist.barrier()
    again = make_trainer(f"{folder}/whole", **settings)
    again.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-2")
    for (name, one), other in zip(
        whole.model.named_parameters(), again.model.parameters(), strict=True
    ):
        assert (one - other).abs().max() < 1e-5, name
    assert whole.get_total_train_batch_size(whole.args) == 2
    found = {
        "eval_loss": whole.evaluate()["eval_loss"],
        "tokens": whole.state.num_input_tokens_seen,
    }
    if dist.get_rank() == 0:
        torch.save({**found, "parameters": whole.model.state_dict()}, f"{folder}/out.pt")


@pytest.mark.parametrize(("function", "num_ranks"), [(other_batches, 2), (scattered_groups, 4)])
def test_groups_get_the_same_batches_or_training_ends(function, num_ranks, tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    run_ranks(function, num_ranks, str(tmp_path))


def test_training_continues_and_evaluates_as_in_one_process(tmp_path):
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    run_ranks(resumed_and_evaluated, 2, str(tmp_path))
    import tiny
    import transformers

    found = torch.load(tmp_path / "out.pt")
    settings = {
        **tiny.SETTINGS,
        "ddp_backend": None,
        "max_steps": 4,
        "include_num_input_tokens_seen": "non_padding",
    }
    args = transformers.TrainingArguments(tmp_path / "alone", **settings)
    documents = tiny.make_documents()
    alone = transformers.Trainer(
        tiny.make_model(),
        args,
        data_collator=tiny.pad,
        train_dataset=documents,
        eval_dataset=documents[:5],
    )
    alone.train()
    for name, one in alone.model.state_dict().items():
        assert (one - found["parameters"][name]).abs().max() < 1e-5 * one.abs().max().clamp(
            min=1e-3
        ), name
    assert found["tokens"] == alone.state.num_input_tokens_seen
    assert abs(alone.evaluate()["eval_loss"] - found["eval_loss"]) < 1e-5
