"""Megatron's hybrid context parallelism, pipelines and tensor parallelism, compared with one
process."""

from __future__ import annotations

import gc
import logging
from types import SimpleNamespace

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
pytest.importorskip(
    "megatron.core",
    reason="megatron-core is not installed (pip install --no-deps 'megatron-core==0.16.*')",
)

from test_megatron import (
    VOCABULARY,
    config_of,
    make,
    on_cpus,
    packed,
    relative,
    share_of,
    te_indices,
)

from ranks import run_ranks

SHAPE = {"heads": (4, 2), "head_dim": 16, "dtype": "f32"}
# Skewed lengths, all multiples of 2 x ranks.
SKEWED = [128, 16, 16, 32, 48, 16, 32, 16]
# Micro-batches of equally many tokens, as stages of a pipeline need them.
PACKS = [[32, 16], [48], [8, 24, 16], [16, 32], [40, 8], [16, 16, 16], [24, 24], [8, 40]]
RECOMPUTED = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def sample_of(number, length):
    """The tensors of a sequence. The last three tokens are padding."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, VOCABULARY, (length + 1,), generator=generator)
    loss_mask = torch.ones(length)
    loss_mask[-3:] = 0
    return {
        "tokens": tokens[:-1],
        "labels": tokens[1:],
        "loss_mask": loss_mask,
        "position_ids": torch.arange(length),
    }


class Reference:
    """A model of one process, its loss and its gradients per token of sequences."""

    def __init__(self, samples):
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel()
        self.samples = samples
        self.model = make("plain", num_layers=2)
        losses, num_tokens = 0.0, 0
        for sample in samples:
            tokens, labels, positions = (
                sample[name][None] for name in ("tokens", "labels", "position_ids")
            )
            found = (
                self.model(tokens, positions, None, labels=labels)[0] * sample["loss_mask"]
            ).sum()
            found.backward()
            losses, num_tokens = (
                losses + found.item(),
                num_tokens + sample["loss_mask"].sum().item(),
            )
        self.loss = losses / num_tokens
        self.gradients = {
            name: one.grad / num_tokens for name, one in self.model.named_parameters()
        }
        parallel_state.destroy_model_parallel()


def make_wrapped(reference, **options):
    """The reference's model for this rank, in Megatron's data parallelism, per-token losses."""
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    import contextile.megatron as ctm

    config = config_of(
        "plain",
        num_layers=2,
        calculate_per_token_loss=True,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        context_parallel_size=parallel_state.get_context_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        **options,
    )
    config.finalize_model_grads_func = finalize_model_grads
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = ctm.CoreAttention
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=VOCABULARY,
        max_sequence_length=256,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    whole = dict(reference.model.named_parameters())
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(share_of(whole[name_in_whole(name)], value))
    wrapped = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False),
        model,
    )
    wrapped.zero_grad_buffer()
    return wrapped.train()


def name_in_whole(name):
    """The name of a parameter in the model without pipeline stages, of one layer each."""
    from megatron.core import parallel_state

    first = parallel_state.get_pipeline_model_parallel_rank()
    return name.replace("layers.0.", f"layers.{first}.") if first else name


class SavedBytes:
    """Counts bytes that autograd holds for backward, and their peak. Parameters do not count."""

    def __init__(self, model):
        self._parameters = {one.untyped_storage().data_ptr() for one in model.parameters()}
        self._holders, self._bytes, self.peak = {}, 0, 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._hold, lambda held: held.tensor)

    def _hold(self, tensor):
        outer, storage = self, tensor.untyped_storage()
        key = storage.data_ptr()

        class Held:
            def __init__(self):
                self.tensor = tensor
                if key not in outer._parameters:
                    outer._count(key, storage.nbytes(), 1)

            def __del__(self):
                if key not in outer._parameters:
                    outer._count(key, storage.nbytes(), -1)

        return Held()

    def _count(self, key, num_bytes, step):
        before = self._holders.get(key, 0)
        self._holders[key] = before + step
        if before == 0 or before + step == 0:
            self._bytes += step * num_bytes
            self.peak = max(self.peak, self._bytes)


def on_all_tp_ranks(data_iterator):
    """The next sample. Only the first tensor-parallel rank has data."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    found = [None if data_iterator is None else next(data_iterator)]
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        group = parallel_state.get_tensor_model_parallel_group()
        dist.broadcast_object_list(
            found, src=parallel_state.get_tensor_model_parallel_src_rank(), group=group
        )
    return dict(found[0])


def loss_of(mask):
    def loss_func(losses):
        loss = (losses * mask).sum()
        return loss, mask.sum().int(), loss.detach().clone()

    return loss_func


def hybrid_step(planner):
    """A forward step as in Megatron's pretrain_gpt.py."""
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_hybrid_cp_rank

    def step(data_iterator, model):
        sample = on_all_tp_ranks(data_iterator)
        size, ranks = int(sample.pop("local_cp_size")), sample.pop("cp_ranks", None)
        group = None  # Megatron's of that size
        if ranks is not None:
            group = planner.group_of(ranks.tolist())
        elif parallel_state.get_context_parallel_world_size() > 1:
            group = planner.group_of(size)
        batch, params = get_batch_on_this_hybrid_cp_rank(sample, size, group)
        losses = model(
            batch["tokens"],
            batch["position_ids"],
            None,
            labels=batch["labels"],
            packed_seq_params=params,
        )
        return losses, loss_of(batch["loss_mask"])

    return step


def packed_step(data_iterator, model):
    """A forward step on packed sequences over the static context-parallel group."""
    from megatron.core import parallel_state

    batch = on_all_tp_ranks(data_iterator)
    lengths = batch.pop("lengths")
    params = packed(lengths, lengths)
    rows = te_indices(
        params.cu_seqlens_q.tolist(),
        parallel_state.get_context_parallel_world_size(),
        parallel_state.get_context_parallel_rank(),
    )
    local = {name: field[None, rows] for name, field in batch.items()}
    losses = model(
        local["tokens"],
        local["position_ids"],
        None,
        labels=local["labels"],
        packed_seq_params=params,
    )
    return losses, loss_of(local["loss_mask"])


def pack(samples):
    return {
        **{name: torch.cat([one[name] for one in samples]) for name in samples[0]},
        "lengths": [len(one["tokens"]) for one in samples],
    }


def train(what, reference, model, step, data_iterator, **options):
    """Runs Megatron's forward and backward, and compares loss and gradients. Returns the peak of
    saved bytes of each rank."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    if parallel_state.get_tensor_model_parallel_rank() > 0:
        data_iterator = None
    saved = SavedBytes(model)
    with saved.hooks:
        losses = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=data_iterator,
            model=[model],
            micro_batch_size=1,
            **{"num_microbatches": 1, "seq_length": 128, **options},
        )
    gc.collect()
    loss = torch.stack(losses).sum() if losses else torch.zeros(())
    dist.all_reduce(loss)
    # Every tensor-parallel rank has the loss.
    loss /= parallel_state.get_tensor_model_parallel_world_size()
    total = sum(len(reference_sample["tokens"]) - 3 for reference_sample in reference.samples)
    difference = abs(loss.item() / total - reference.loss) / reference.loss
    largest = max(
        relative(one.main_grad, share_of(reference.gradients[name_in_whole(name)], one))
        for name, one in model.module.named_parameters()
    )
    peaks = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(peaks, torch.tensor(saved.peak))
    if dist.get_rank() == 0:
        print(
            f"{what}: loss {difference:.1e}, gradients {largest:.1e}, peaks "
            f"{[int(one) for one in peaks]}",
            flush=True,
        )
    assert difference < 1e-5 and largest < 1e-5, f"{what}: loss {difference}, gradients {largest}"
    return [int(one) for one in peaks]


def megatrons_batches(samples, config):
    """Megatron's scheduler: every data-parallel rank brings packs of its share of the samples."""
    from megatron.core import parallel_state
    from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper

    share = samples[
        parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()
    ]
    packs = []
    for number in range(0, len(share), 2):
        one = pack(share[number : number + 2])
        ends = torch.tensor([0, *one.pop("lengths")], dtype=torch.int32).cumsum(0)
        packs.append({**one, "cu_seqlens": ends})
    return HybridCPDataLoaderWrapper(iter([packs]), config)


def hybrid(what, planner, reference, schedule=None, model_options=None, **options):
    """Megatron's loop with its own scheduler, or with a schedule."""
    import contextile.megatron as ctm

    model = make_wrapped(
        reference,
        hybrid_context_parallel=True,
        max_seqlen_per_dp_cp_rank=options.pop("cap", 32),
        **(model_options or {}),
    )
    batches, waits = megatrons_batches(reference.samples, model.config), Waits()
    if schedule is not None:
        batch = ctm.hybrid_batch(schedule, reference.samples, **options)
        for future in planner.prepare_batch(model.config, batch):
            future.result(timeout=60)
        batches = iter([batch])
    with ctm.use(planner), waits:
        peaks = train(what, reference, model, hybrid_step(planner), batches)
    assert schedule is None or waits.num_waits == 0
    return peaks


class Waits(logging.Handler):
    """Counts layers that waited for plans."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.num_waits = 0

    def emit(self, record):
        self.num_waits += "waited" in record.getMessage()

    def __enter__(self):
        logging.getLogger("contextile").setLevel(logging.INFO)
        logging.getLogger("contextile").addHandler(self)

    def __exit__(self, *_):
        logging.getLogger("contextile").removeHandler(self)


def by_hand(*rounds):
    return SimpleNamespace(
        rounds=[
            SimpleNamespace(
                micro_batches=[
                    SimpleNamespace(sequences=sequences, ranks=ranks) for sequences, ranks in one
                ]
            )
            for one in rounds
        ]
    )


def schedule_of(strategy, num_ranks):
    return ct.schedule(SKEWED, cluster=f"local:1x{num_ranks}", strategy=strategy, **SHAPE)


def four_ranks():
    """Dynamic groups with Megatron's scheduler and ours, and what they keep in memory."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    on_cpus()
    reference = Reference([sample_of(number, length) for number, length in enumerate(SKEWED)])
    of_packed, _ = static("CP 4, one pack", reference, [reference.samples], context_parallel_size=4)
    singles = [[one] for one in reference.samples]
    of_singles, _ = static(
        "CP 4, a sequence at a time", reference, singles, context_parallel_size=4
    )
    of_pairs, _ = static(
        "CP 2 x DP 2, a sequence at a time", reference, singles, context_parallel_size=2
    )

    parallel_state.initialize_model_parallel(hybrid_context_parallel=True)
    planner = ctm.Planner(strategy="dcp", block_size=8)
    of_dynamic = hybrid("Megatron's scheduler", planner, reference)
    assert max(of_dynamic) < 0.6 * max(of_pairs) and max(of_dynamic) < 0.6 * min(of_packed)
    assert max(of_dynamic) <= max(of_singles)  # the longest sequence has all ranks in both
    executors = [team.executor for team in planner._teams._teams.values()]
    assert sorted(one.size for one in executors) == [1, 2, 4]
    hybrid("Megatron's scheduler, recomputed", planner, reference, model_options=RECOMPUTED)
    assert [team.executor for team in planner._teams._teams.values()] == executors
    for strategy in ("megatron_dynamic", "megatron_packed:cap=32"):
        hybrid(strategy, planner, reference, schedule_of(strategy, 4))
    hand_made = by_hand(
        [((1, 2), (0, 1)), ((4,), (2, 3)), ((3,), (2, 3))],
        [((0,), (0, 1, 2, 3))],
        [((5, 6), (2,)), ((7,), (3,))],
    )
    attention_only = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    hybrid(
        "made by hand, attention recomputed",
        planner,
        reference,
        hand_made,
        model_options=attention_only,
    )
    # Groups that Megatron does not have, and no round in which all ranks have work.
    odd = by_hand([((4,), (1, 2, 3))], [((0, 3), (1, 2))], [((1, 2, 5, 6, 7), (0,))])
    hybrid("groups of three", planner, reference, odd, with_ranks=True)
    if dist.get_rank() == 1:
        refused(reference.samples)
        groups_refused(planner)


def refused(samples):
    import contextile.megatron as ctm

    def check(message, *rounds, samples=samples, **options):
        with pytest.raises(ct.InvalidArgument, match=message):
            ctm.hybrid_batch(by_hand(*rounds), samples, **options)

    check(
        r"round 1: sequence 0: expected ranks that Megatron .* found \[1, 2\]",
        [((1,), (0,))],
        [((0,), (1, 2))],
    )
    check(
        "sequence 1: expected a multiple of 2 x 3 tokens .*, found 16",
        [((1,), (0, 1, 2))],
        with_ranks=True,
    )
    check(r"ranks of DP x CP, 0 to 3, found \(3, 4\)", [((0,), (3, 4))])
    check("expected sequence 2 once, found it again", [((2,), (0,))], [((2,), (1,))])
    check("expected sequences, found none", [])
    check(
        "expected loss_mask, .* found tokens",
        [((0,), (0,))],
        samples=[{"tokens": samples[0]["tokens"]}],
    )
    longer = {**samples[0], "labels": samples[0]["labels"][1:]}
    check("sequence 0: expected tensors of equally many tokens", [((0,), (1,))], samples=[longer])


def groups_refused(planner):
    for ranks, message in (
        (3, r"expected one of Megatron's groups of 1, 2, 4 ranks, found 3"),
        ([2, 1], r"expected ascending ranks of DP x CP, 0 to 3, found \[2, 1\]"),
        ([1, 4], r"expected ascending ranks of DP x CP, 0 to 3, found \[1, 4\]"),
        ([0, 2], r"expected a group that this rank, 1, is in, found \[0, 2\]"),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            planner.group_of(ranks)
    assert planner.group_of([0, 1]) is planner.group_of(2) and planner.group_of(
        [1, 2, 3]
    ) is planner.group_of([1, 2, 3])


def static(what, reference, packs, strategy="zigzag", **parallel):
    """Packs of samples on static groups, each replica with its share of them."""
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    parallel_state.initialize_model_parallel(**parallel)
    share = packs[
        parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()
    ]
    planner = ctm.Planner(strategy=strategy, block_size=8 if strategy == "dcp" else None)
    with ctm.use(planner):
        model = make_wrapped(reference)
        order = note_order(model)
        peaks = train(
            what,
            reference,
            model,
            packed_step,
            iter([pack(samples) for samples in share]),
            num_microbatches=len(share),
            seq_length=sum(len(one["tokens"]) for one in packs[0]),
        )
    parallel_state.destroy_model_parallel()
    return peaks, order


def note_order(model):
    """A list that gets "forward" or "backward" when the model's last layer runs it."""
    order = []
    layer = model.module.decoder.layers[-1]
    layer.register_forward_hook(lambda *_: order.append("forward"))
    layer.mlp.register_full_backward_hook(lambda *_: order.append("backward"))
    return order


def eight_ranks():
    """Tensor and pipeline parallelism around context parallelism, static and dynamic."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    import contextile.megatron as ctm

    on_cpus()
    reference = Reference([sample_of(number, length) for number, length in enumerate(SKEWED)])
    parallel_state.initialize_model_parallel(context_parallel_size=2, hybrid_context_parallel=True)
    planner = ctm.Planner(strategy="dcp", block_size=8)
    hybrid("CP 2 x DP 4, Megatron's scheduler", planner, reference, cap=16)
    hybrid(
        "CP 2 x DP 4, megatron_dynamic",
        planner,
        reference,
        schedule_of("megatron_dynamic:cap=16", 8),
    )
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=2, hybrid_context_parallel=True
    )
    planner = ctm.Planner(strategy="zigzag")
    hybrid(
        "TP 2 x DP 4, megatron_dynamic",
        planner,
        reference,
        schedule_of("megatron_dynamic:cap=32", 4),
    )
    parallel_state.destroy_model_parallel()

    packs, number = [], 0
    for lengths in PACKS:
        packs.append([sample_of(number + i, length) for i, length in enumerate(lengths)])
        number += len(lengths)
    reference = Reference([one for samples in packs for one in samples])
    tp, cp, pp = (
        {f"{name}_parallel_size": 2} for name in ("tensor_model", "context", "pipeline_model")
    )
    static("TP 2 x CP 2 x DP 2", reference, packs, "dcp", **tp, **cp)
    for what, parallel in (
        ("PP 2 x CP 2 x DP 2", {**cp, **pp}),
        ("PP 2 x TP 2 x CP 2", {**tp, **cp, **pp}),
    ):
        _, order = static(what, reference, packs, "dcp", **parallel)
        first_stage = dist.get_rank() < 4
        assert order[:3] == (
            ["forward", "forward", "backward"]
            if first_stage
            else ["forward", "backward", "forward"]
        )


def test_dynamic_groups_are_one_process():
    print(run_ranks(four_ranks, 4, timeout=300).stdout)


@pytest.mark.whole
def test_eight_ranks_are_one_process():
    print(run_ranks(eight_ranks, 8, timeout=300).stdout)
