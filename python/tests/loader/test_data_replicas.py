"""The data loader over replicas and micro-batches: dealing, one normaliser, fields, resuming."""

from __future__ import annotations

import json
from itertools import islice

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

import torch.distributed as dist
from test_data import SMALL, Text
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from contextile.torch import DataLoader, Executor, Piece, attention
from contextile.torch._loader.dealing import deal_by_work
from ranks import run_ranks

PACKINGS = [
    "sequential",
    "dp_balanced",
    "dp_balanced:max_tokens=400",
    "wlb",
    "wlb:defer=off",
    "wlb:max_tokens=300,levels=100:150",
]


def loader_of(rank=0, replica=0, *, ranks=1, dataset=None, **options):
    options = {**SMALL, "tokens": 300, "data_parallel": 2, "micro_batches": 2, **options}
    return DataLoader(
        dataset or Text(), cluster=f"local:1x{ranks}", rank=rank, replica=replica, **options
    )


def everyone(ranks=1, replicas=2, **options):
    """The loaders of all ranks of all replicas."""
    return [
        loader_of(rank, replica, ranks=ranks, data_parallel=replicas, **options)
        for replica in range(replicas)
        for rank in range(ranks)
    ]


def pieces_of_steps(loaders, steps, micro_batches=2):
    """Returns the pieces of every step, of all loaders."""
    return [
        sorted(
            piece
            for loader in loaders
            for m in range(micro_batches)
            for piece in loader.pieces(step, m)
        )
        for step in range(steps)
    ]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("long_documents", ["split", "drop"])
def test_every_token_is_dealt_once_an_epoch(packing, long_documents):
    loaders = everyone(packing=packing, long_documents=long_documents)
    seen = set()
    whole = {
        (document, at) for document, length in enumerate(Text().lengths) for at in range(length)
    }
    for step in range(100):
        found = [(m, loader.pieces(step, m)) for loader in loaders for m in range(2)]
        assert all(pieces for _, pieces in found)
        limit = (
            400
            if "400" in packing
            else 600
            if packing.startswith("wlb") and "300" not in packing
            else 300
        )
        if packing != "wlb:defer=off":
            assert all(sum(piece.num_tokens for piece in pieces) <= limit for _, pieces in found)
        for _, pieces in found:
            for document, begin, end in pieces:
                tokens = {(document, at) for at in range(begin, end)}
                if seen >= whole:
                    return
                # Documents of a new epoch may come before the last that waits in a queue.
                assert (
                    packing.startswith("wlb")
                    or step > 2
                    or not tokens & seen
                    or len(whole - seen) < 1500
                )
                seen |= tokens
    raise AssertionError(f"{len(whole - seen)} of {len(whole)} tokens never came")


def test_a_deferring_packing_loses_and_repeats_nothing():
    loaders = everyone(packing="wlb:levels=100:150")
    sampler = ct.BatchSampler(Text().lengths, tokens=300)
    steps = 12
    arrived = sorted(Piece(*piece) for batch in sampler.pieces_of(0, 4 * steps) for piece in batch)
    loaders[0]._next_step = steps
    waiting = loaders[0].state_dict()["waiting"]
    held = [Piece(*row) for queue in [*waiting["queues"], waiting["remained"]] for row in queue]
    assert held
    assert (
        sorted([*held, *(piece for step in pieces_of_steps(loaders, steps) for piece in step)])
        == arrived
    )


class Long(Text):
    def __init__(self):
        self.lengths = [290, 300] * 10
        self.seen = set()


def test_no_replica_is_without_documents():
    # All documents are outliers, and a queue rarely holds one for every micro-batch.
    loaders = everyone(dataset=Long(), packing="wlb:levels=290:300", long_documents="drop")
    for step in range(10):
        assert all(loader.pieces(step, m) for loader in loaders for m in range(2))


class Thirds(Text):
    def __getitem__(self, index):
        return torch.arange(self.lengths[index]) % 3


def test_a_token_may_have_the_number_of_no_label():
    loaders = everyone(2, dataset=Thirds(), ignore_index=0, end_step=1)
    shares = [share for loader in loaders for share in loader]
    assert {share.num_labels for share in shares} == {
        sum(int((share.local.labels != 0).sum()) for share in shares)
    }


def test_batches_of_one_pass_are_those_of_many():
    for options in ({}, {"long_documents": "drop"}, {"max_document_tokens": 70}):
        sampler = ct.BatchSampler(Text().lengths, tokens=190, seed=3, **options)
        assert sampler.pieces_of(2, 40) == [sampler.pieces(step) for step in range(2, 42)]


def test_replicas_get_equal_work():
    class Skewed(Text):
        def __init__(self):
            super().__init__(count=400, longest=40)
            self.lengths = [
                length if i % 10 else 10 * length for i, length in enumerate(self.lengths)
            ]

    def overload(packing):
        """Returns max / mean - 1 of the replicas' attention work, on average over steps."""
        replicas = everyone(replicas=4, dataset=Skewed(), packing=packing, tokens=512)
        found = []
        for step in range(16):
            work = [
                sum(piece.num_tokens**2 for m in range(2) for piece in loader.pieces(step, m))
                for loader in replicas
            ]
            found.append(max(work) * 4 / sum(work) - 1)
        return sum(found) / len(found)

    sequential, balanced, wlb = (
        overload(packing)
        for packing in ("sequential", "dp_balanced:balance=20", "wlb:balance=20,levels=100:200:300")
    )
    assert wlb < 0.5 * balanced and balanced < 0.5 * sequential
    replicas = everyone(packing="wlb:balance=100")
    assert replicas[0].work(3) == [
        [
            sum((p.num_tokens / 100) ** 2 + p.num_tokens / 100 for p in loader.pieces(3, m))
            for loader in replicas
        ]
        for m in range(2)
    ]


def test_the_most_work_goes_to_the_replica_with_the_least():
    assert deal_by_work([1, 8, 4, 6], 2) == [[1, 3], [0, 2]]
    assert deal_by_work([5, 5, 5], 3) == [[0, 1, 2]]
    assert deal_by_work([3, 9], 1) == [[1], [0]]


@pytest.mark.parametrize("packing", ["sequential", "wlb"])
def test_weights_of_a_step_sum_to_one(packing):
    loaders = everyone(2, packing=packing, end_step=3, mask=mask_of)
    for step in range(3):
        shares = [share for loader in loaders for share in islice(iter(loader), 2)]
        assert [share.micro_batch for share in shares] == [0, 1] * 4
        assert [share.is_last for share in shares] == [False, True] * 4
        assert {share.step for share in shares} == {step}
        labels = sum(len(share.local.targets.labels) for share in shares)
        assert {share.num_labels for share in shares} == {labels}
        assert sum(
            share.local.targets.loss_weights.sum().item() for share in shares
        ) == pytest.approx(1)


def mask_of(pieces):
    """Answers to a shared question: two branches, both predicted by the question."""
    return ["shared_question:0.5,2" if piece.num_tokens > 50 else "causal" for piece in pieces]


class Chats(Text):
    """Documents with prompts, a reward per document, and values per token."""

    def __getitem__(self, index):
        tokens = torch.arange(self.lengths[index]) + 1000 * index
        labels = tokens.clone()
        labels[: len(labels) // 3] = -100
        return {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": tokens % 5 != 0,
            "advantages": tokens.double() / 7,
            "rope": torch.stack([tokens, tokens + 1, tokens + 2], dim=1).to(torch.int32),
            "reward": index / 2,
            "text": "left out",
        }


FIELDS = {"sequence_fields": ["reward"], "ignore_fields": ["text"]}


def test_fields_go_where_their_tokens_go():
    loaders = everyone(2, dataset=Chats(), packing="wlb", end_step=1, **FIELDS)
    shares = [share for loader in loaders for share in loader]
    assert len(shares) == 8
    labels = 0
    for share in shares:
        tokens = share.local.tokens
        assert share.fields.keys() == {"advantages", "rope"}
        assert torch.equal(share.fields["advantages"], tokens.double() / 7)
        assert share.fields["rope"].dtype == torch.int32 and torch.equal(
            share.fields["rope"][:, 2], (tokens + 2).int()
        )
        assert torch.equal(
            share.sequence_fields["reward"],
            torch.tensor([piece.document / 2 for piece in share.pieces]),
        )
        assert torch.equal(
            tokens // 1000,
            torch.tensor([piece.document for piece in share.pieces])[share.local.sequence_ids],
        )
        labels += int((share.local.labels != -100).sum())
    assert {share.num_labels for share in shares} == {labels}
    assert sum(share.local.loss_weights.sum().item() for share in shares) == pytest.approx(1)


class Broken(Chats):
    def __init__(self, which, change):
        super().__init__()
        self.which, self.change = which, change

    def __getitem__(self, index):
        item = super().__getitem__(index)
        if self.which in (None, index):
            self.change(item)
        return item


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda item: item.update(advantages=item["advantages"][1:]),
            r"expected \[\d+, …\] advantages of document \d+, as tokens, found \[\d+\]; seq",
        ),
        (
            lambda item: item.update(score=1.0),
            r"expected \[\d+, …\] score of document \d+, as tokens, found \[\]; sequence_fields= "
            r"names",
        ),
        (
            lambda item: item.update(advantages=item["advantages"].float()),
            "expected torch.float64 .* in advantages of document .*found torch.float32",
        ),
        (
            lambda item: item.update(rope=item["rope"][:, :2]),
            r"expected torch.int32 \[3\] in rope of document .*found torch.int32 \[2\]",
        ),
        (
            lambda item: item.update(advantages=["a"] * len(item["tokens"])),
            "expected numbers in advantages of document",
        ),
        (
            lambda item: item.update(extra=None),
            "expected numbers in extra of document .*found NoneType None",
        ),
        (
            lambda item: item.update(
                tokens=torch.full((len(item["tokens"]),), 2**63, dtype=torch.uint64)
            ),
            "expected whole numbers below 2.*63, found a larger one",
        ),
        (
            lambda item: item.update(source="web"),
            "expected numbers in source of document .*found str 'web'",
        ),
        (
            lambda item: item.pop("advantages"),
            "expected .*advantages.* of document .*, as of document",
        ),
        (lambda item: item.pop("labels"), "expected .*labels.* of document .*, as of document"),
        (lambda item: item.pop("reward"), "expected reward of document .*sequence_fields"),
        (
            lambda item: item.update(reward=[1.0, 2.0]),
            r"expected torch.float32 \[\] in reward of document",
        ),
        (
            lambda item: item.update(loss_mask=item["advantages"]),
            "loss_mask of document .*expected truth values",
        ),
        (
            lambda item: item.update(labels=item["advantages"]),
            "labels of document .*: expected whole numbers",
        ),
        (
            lambda item: item.update(labels=item["labels"][:, None]),
            r"expected \[\d+\] labels of document",
        ),
        (lambda item: item.pop("tokens"), "expected 'tokens' of document"),
        (
            lambda item: item.update(tokens=3),
            r"expected \[tokens\] tokens of document \d+, found \[\]",
        ),
        (
            lambda item: item.update(tokens=item["tokens"][1:]),
            "labels of document|loss_mask of document",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused(change, message):
    good = loader_of(dataset=Chats(), **FIELDS)
    which = good.pieces(0, 1)[-1].document
    assert which != good.pieces(0)[0].document
    with pytest.raises(ct.InvalidArgument, match=message):
        next(iter(loader_of(dataset=Broken(which, change), **FIELDS)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel": 0}, "data_parallel: expected at least 1, found 0"),
        ({"micro_batches": 1.5}, "micro_batches: expected a whole number, found 1.5"),
        ({"replica": 2}, "replica: expected 0 to 1, found 2"),
        ({"packing": "best_fit"}, "packing: expected sequential, dp_balanced"),
        ({"packing": "wlb:micro_batches=4"}, "expected no micro_batches"),
        ({"packing": "wlb:levls=4"}, "did you mean 'levels'"),
        ({"packing": "wlb:max_tokens=200"}, "max_tokens of at least the 300 tokens"),
        (
            {"packing": "dp_balanced:max_samples=2"},
            "packing dp_balanced: expected max_tokens=N or balance=N, found max_samples=2",
        ),
        ({"sequence_fields": "reward"}, "sequence_fields: expected names, found the text 'reward'"),
        ({"sequence_fields": ["labels"]}, "sequence_fields: expected names other than"),
        (
            {"sequence_fields": ["text"], "ignore_fields": ["text"]},
            "sequence_fields: expected names other than",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        loader_of(**options)


def taken(loader, count=None):
    return [
        (
            share.step,
            share.micro_batch,
            share.local.tokens.tolist(),
            share.num_labels,
            share.plan.digest,
        )
        for share in islice(loader, count)
    ]


@pytest.mark.parametrize("packing", ["sequential", "wlb:levels=100:150"])
def test_a_run_continues_with_the_same_samples(packing):
    whole = taken(loader_of(packing=packing, end_step=6))
    part = loader_of(packing=packing, end_step=6, threads=2)
    begun = taken(part, 7)  # the fourth step has begun
    state = json.loads(json.dumps(part.state_dict()))
    assert state["step"] == 3
    other = loader_of(packing=packing, end_step=6, threads=3, lookahead=2)
    other.load_state_dict(state)
    assert begun[:6] + taken(other) == whole
    # On more ranks of a replica, each step has the same samples.
    wider = loader_of(packing=packing, end_step=6, ranks=2)
    wider.load_state_dict(state)
    assert [wider.pieces(step, m) for step in range(3, 6) for m in range(2)] == [
        other.pieces(step, m) for step in range(3, 6) for m in range(2)
    ]
    # The same number of micro-batches, divided among more replicas.
    more = loader_of(packing=packing, end_step=6, data_parallel=4, micro_batches=1)
    more.load_state_dict(state)


def test_a_state_that_would_repeat_or_skip_is_refused():
    loader = loader_of(packing="wlb:levels=100:150")
    taken(loader, 8)
    state = loader.state_dict()
    for options, message in [
        (
            {"data_parallel": 4},
            r"data_parallel \* micro_batches 4, as when it was saved, found 8, which would repeat",
        ),
        ({"micro_batches": 3}, r"data_parallel \* micro_batches 4, .* found 6"),
        ({"seed": 5}, "seed 0, .* found 5"),
        ({"tokens": 600}, "tokens 300, .* found 600"),
        ({"long_documents": "drop"}, "long_documents split, .* found drop"),
        ({"max_document_tokens": 50}, "max_document_tokens None, .* found 50"),
        ({"dataset": Text(seed=1)}, "documents .*, as when it was saved"),
        (
            {"packing": "sequential"},
            "packing it was saved with, wlb, found sequential, which would skip",
        ),
        ({"packing": "wlb:levels=100"}, "packing: expected a state with 1 outlier queues, found 2"),
    ]:
        with pytest.raises(ct.InvalidArgument, match=message):
            other = loader_of(**{"packing": "wlb:levels=100:150", **options})
            other.load_state_dict(state)
            other.pieces(state["step"])
    for bad in (
        {**state, "waiting": [1]},
        {**state, "waiting": {"queues": [[[1, 2]]], "remained": []}},
        {**state, "waiting": {"queues": [], "remained": [], "more": 1}},
    ):
        with pytest.raises(ct.InvalidArgument, match="expected waiting documents"):
            loader.load_state_dict(bad)


def test_a_step_that_cannot_be_planned_fails_for_every_replica():
    bad = loader_of(replica=1).pieces(1, 1)[0]

    def mask(pieces):
        if pieces[0] == bad:
            raise KeyError("no such mask")
        return "causal"

    for loader in everyone(mask=mask, end_step=3):
        assert [share[0] for share in taken(loader, 2)] == [0, 0]
        with pytest.raises(
            ct.PlanningFailed,
            match="step 1, micro-batch 0: planning failed: KeyError: 'no such mask'",
        ):
            next(iter(loader))
        assert [share[0] for share in taken(loader)] == [2, 2]


def test_a_process_plans_for_all_replicas(tmp_path):
    import threading

    options = {
        "store": f"file://{tmp_path}/store",
        "end_step": 2,
        "packing": "wlb",
        "run_id": "run-of-two",
    }
    serving = threading.Thread(target=loader_of(**options).serve)
    serving.start()
    found = [taken(loader_of(replica=replica, threads=0, **options)) for replica in range(2)]
    serving.join(timeout=60)
    assert not serving.is_alive()
    assert found == [
        taken(loader_of(replica=replica, end_step=2, packing="wlb")) for replica in range(2)
    ]


# ------------------------------------------------------------------------------------- schedules


def scheduled(rank=0, *, ranks=4, dataset=None, **options):
    options = {
        **SMALL,
        "strategy": None,
        "tokens": 600,
        "schedule": "megatron_dynamic:cap=100",
        "cluster": f"local:1x{ranks}",
        **options,
    }
    return DataLoader(dataset or Text(), rank=rank, **options)


@pytest.mark.parametrize(
    "schedule", ["megatron_dynamic:cap=100", "megatron_packed:cap=150", "bytescale:cap=150"]
)
def test_rounds_share_a_step_out(schedule):
    loaders = [
        scheduled(rank, schedule=schedule, end_step=2, dataset=Chats(), **FIELDS)
        for rank in range(4)
    ]
    sizes = set()
    of_steps = {0: [], 1: []}
    for rounds in zip(*loaders, strict=True):
        assert len({(round.step, round.round, round.num_rounds) for round in rounds}) == 1
        for rank, round in enumerate(rounds):
            for share in round.micro_batches:
                assert rank in share.ranks and share.plan.num_devices == len(share.ranks)
                sizes.add(len(share.ranks))
                tokens = share.local.tokens
                assert torch.equal(share.fields["advantages"], tokens.double() / 7)
                assert len(share.sequence_fields["reward"]) == len(share.pieces)
                of_steps[round.step].append(share)
    assert len(sizes) > 1
    for step, shares in of_steps.items():
        tokens = sorted(token for share in shares for token in share.local.tokens.tolist())
        pieces = loaders[0].pieces(step)
        assert tokens == sorted(
            1000 * piece.document + at for piece in pieces for at in range(piece.begin, piece.end)
        )
        assert sum(share.local.loss_weights.sum().item() for share in shares) == pytest.approx(1)
        assert {share.num_labels for share in shares} == {
            sum(int((share.local.labels != -100).sum()) for share in shares)
        }


def rounds_of(loader, count=None):
    return [
        (
            round.step,
            round.round,
            [(share.ranks, share.local.tokens.tolist()) for share in round.micro_batches],
        )
        for round in islice(loader, count)
    ]


def test_a_scheduled_run_continues_and_has_branches():
    whole = rounds_of(scheduled(end_step=4, mask=mask_of))
    part = scheduled(end_step=4, mask=mask_of, threads=3)
    until = [one[0] for one in whole].index(2)
    begun = rounds_of(part, until + 1)
    other = scheduled(end_step=4, mask=mask_of, lookahead=1)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert begun[:until] + rounds_of(other) == whole
    shares = [
        share
        for rank in range(4)
        for round in scheduled(rank, end_step=1, mask=mask_of)
        for share in round.micro_batches
    ]
    assert sum(share.local.targets.loss_weights.sum().item() for share in shares) == pytest.approx(
        1
    )


def test_a_step_that_cannot_be_scheduled_fails():
    bad = scheduled().pieces(1)[0]

    def mask(pieces):
        if pieces[0] == bad:
            raise KeyError("no such mask")
        return "causal"

    loader = scheduled(mask=mask, end_step=3)
    seen = []
    with pytest.raises(
        ct.PlanningFailed, match="step 1: planning failed: KeyError: 'no such mask'"
    ):
        for round in loader:
            seen.append(round.step)
            assert loader.statistics.steps == 1 and loader.statistics.hidden_s >= 0
    assert set(seen) == {0} and {round.step for round in loader} == {2}
    with pytest.raises(ct.PlanningFailed, match="step 0: planning failed: .*cap"):
        next(iter(scheduled(schedule="megatron_dynamic:cap=10")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"data_parallel": 2},
            "schedule: expected no store, data_parallel, .*found data_parallel=2",
        ),
        ({"micro_batches": 2, "packing": "wlb"}, "found micro_batches=2, packing=wlb"),
        ({"store": "memory:"}, "found store=memory:"),
        (
            {"schedule": "zigzag"},
            "schedule: expected megatron_dynamic, megatron_packed, bytescale, found zigzag",
        ),
        ({"schedule": "megatron_dynamic:cp=3"}, "cp"),
        ({"strategy": "auto:budget_ms=50"}, "without a time budget"),
        ({"lookahead": 0}, "at least 1 step ahead"),
        ({"rank": 4}, "rank: expected 0 to 3, found 4"),
    ],
)
def test_bad_options_of_schedules(options, message):
    with pytest.raises(ct.Error, match=message):
        next(iter(scheduled(**options)))


# ------------------------------------------------------------------------------------- gradients


class Model(nn.Module):
    """One layer of attention without positions, over a small vocabulary."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.head = (
            nn.Embedding(64, 32),
            nn.Linear(32, 8 * 32),
            nn.Linear(128, 64),
        )

    def forward(self, tokens, attend):
        q, k, v = self.qkv(self.embed(tokens)).view(-1, 8, 32).split([4, 2, 2], dim=1)
        return self.head(attend(q, k, v).flatten(1))


class Letters(Chats):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        tokens = (item["tokens"] * 7 + index) % 64
        return {
            "tokens": tokens,
            "labels": torch.where(item["labels"] == -100, -100, tokens),
            "loss_mask": item["loss_mask"],
        }


def reference_gradients(pieces, dataset):
    """One process's mean loss over all labels of these pieces, by dense attention in each."""
    model = Model()
    losses = []
    for document, begin, end in pieces:
        item = {name: field[begin:end] for name, field in dataset[document].items()}

        def attend(q, k, v):
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[
                0
            ].transpose(0, 1)

        labels = torch.where(item["loss_mask"], item["labels"], -100)
        logits = model(item["tokens"], attend)
        losses.append(cross_entropy(logits[:-1], labels[1:], reduction="none")[labels[1:] != -100])
    loss = torch.cat(losses).mean()
    loss.backward()
    return loss.item(), [parameter.grad for parameter in model.parameters()]


def train():
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replica = dist.get_rank() // 2
    executor = Executor(groups[replica])
    for packing in ("sequential", "wlb"):
        train_packed(packing, executor, replica)
    # Groups of ranks, one executor each.
    tiles = [[first + i for i in range(size)] for size in (1, 2, 4) for first in range(0, 4, size)]
    executors = {}
    for tile in tiles:
        group = dist.new_group(tile)
        if dist.get_rank() in tile:
            executors[tuple(tile)] = Executor(group)
    for schedule in ("megatron_dynamic:cap=100", "megatron_packed:cap=150", "bytescale:cap=150"):
        train_scheduled(schedule, executors)


def train_packed(packing, executor, replica):
    """Two replicas of two ranks, two micro-batches: gradients accumulate, then all ranks sum."""
    dataset = Letters()
    options = {"ranks": 2, "dataset": dataset, "packing": packing, "end_step": 2}
    loader = loader_of(executor.rank, replica, **options)
    model, mean = Model(), torch.zeros(())
    for share in loader:
        mean += run(model, share, executor)
        if share.is_last:
            check_gradients(
                model,
                mean,
                dataset,
                [
                    piece
                    for r in range(2)
                    for m in range(2)
                    for piece in loader_of(0, r, **options).pieces(share.step, m)
                ],
            )


def train_scheduled(schedule, executors):
    """The same in rounds of micro-batches, each by a group of ranks that fits it."""
    dataset = Letters()
    loader = scheduled(dist.get_rank(), schedule=schedule, dataset=dataset, end_step=2)
    model, mean = Model(), torch.zeros(())
    sizes = set()
    for round in loader:
        for share in round.micro_batches:
            sizes.add(len(share.ranks))
            if share.ranks not in executors:
                group = dist.new_group(share.ranks, use_local_synchronization=True)
                executors[share.ranks] = Executor(group)
            mean += run(model, share, executors[share.ranks])
        if round.is_last:
            # A rank that had no micro-batch has no gradients yet.
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            check_gradients(model, mean, dataset, loader.pieces(round.step))
    assert sizes


def run(model, share, executor):
    executor.prepare(share.plan)
    logits = model(share.local.tokens, lambda q, k, v: attention(q, k, v, executor=executor))
    losses = cross_entropy(logits, share.local.labels, reduction="none")
    loss = (losses * share.local.loss_weights).sum()
    # DDP and FSDP average over all ranks, so that the loss is multiplied by their number.
    (loss * dist.get_world_size()).backward()
    return loss.detach()


def check_gradients(model, mean, dataset, pieces):
    dist.all_reduce(mean)
    gradients = []
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        gradients.append(parameter.grad / dist.get_world_size())
    expected, expected_gradients = reference_gradients(pieces, dataset)
    assert abs(mean.item() - expected) < 1e-5 * expected
    for found, one in zip(gradients, expected_gradients, strict=True):
        assert (found - one).norm() <= 1e-5 * one.norm() + 1e-8
    model.zero_grad()
    mean.zero_()


def test_gradients_equal_those_of_one_process():
    if not ct.gloo_available():
        pytest.skip("this build has no gloo")
    run_ranks(train, 4)
