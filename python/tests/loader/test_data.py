"""The data loader: what ranks are given, in which order, by whomever it is planned."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from itertools import islice

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from contextile.torch import DataLoader, Executor, attention, local_batch
from contextile.torch._loader.ahead import _pass_on
from ranks import run_ranks

SMALL = {"heads": (4, 2), "head_dim": 32, "dtype": "f32", "strategy": "dcp", "block_size": 16}


class Text:
    """Documents whose every token says where it comes from."""

    def __init__(self, count=40, longest=200, seed=0):
        draw = random.Random(seed)
        self.lengths = [draw.randint(1, longest) for _ in range(count)]
        self.seen = set()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        self.seen.add(index)
        return {"tokens": [1000 * index + at for at in range(self.lengths[index])]}


def loaders(num_ranks, dataset=None, **options):
    options = {**SMALL, "tokens": 300, "cluster": f"local:1x{num_ranks}", **options}
    return [DataLoader(dataset or Text(), **{"rank": rank, **options}) for rank in range(num_ranks)]


def whole_batch(loader, step):
    return [
        1000 * piece.document + at
        for piece in loader.pieces(step)
        for at in range(piece.begin, piece.end)
    ]


def test_ranks_share_every_batch_out():
    everyone = loaders(3, end_step=5)
    for step, given in enumerate(zip(*everyone, strict=True)):
        tokens = whole_batch(everyone[0], step)
        assert len(tokens) == 300
        found, weights = [None] * 300, 0.0
        for rank, (local, plan, its_step, pieces, *_) in enumerate(given):
            assert its_step == step and plan.slice_of == rank and pieces == everyone[0].pieces(step)
            expected = local_batch(tokens, plan=plan, rank=rank)
            for one, other in zip(local, expected, strict=True):
                assert torch.equal(one, other)
            for at, token in zip(
                plan.local_tokens(rank).tolist(), local.tokens.tolist(), strict=True
            ):
                found[at] = token
            weights += local.loss_weights.sum().item()
        assert found == tokens
        assert weights == pytest.approx(1.0)


def test_ranks_get_equally_many_tokens_where_that_is_asked_for():
    everyone = loaders(3, end_step=3, strategy="wlb", equal_tokens=True)
    for given in zip(*everyone, strict=True):
        assert [len(step.local.tokens) for step in given] == [100] * 3
    (loader,) = loaders(1, end_step=1, strategy="wlb", tokens_multiple=16)
    with pytest.raises(ct.PlanningFailed, match="tokens_multiple: expected a batch of a multiple"):
        next(iter(loader))


def test_only_documents_of_the_rank_are_looked_at():
    dataset = Text()
    loader = loaders(4, dataset, tokens=2000, end_step=1)[0]
    for step in loader:
        needed = {
            piece.document
            for piece, (begin, end) in zip(step.pieces, step.plan.sequences, strict=True)
            if any(begin <= token < end for token in step.plan.local_tokens(0).tolist())
        }
        assert dataset.seen == needed
        assert len(needed) < len(step.pieces)


def test_a_run_goes_on_from_any_step():
    first = loaders(2, end_step=6)[0]
    whole = [(step.step, step.local.tokens.tolist(), step.plan.digest) for step in first]
    part = loaders(2, end_step=6)[0]
    begun = [(step.step, step.local.tokens.tolist(), step.plan.digest) for step in islice(part, 2)]
    state = part.state_dict()
    assert state["step"] == 2
    for key in ("stpe", 5):
        with pytest.raises(
            ct.InvalidArgument,
            match=f"state: expected step, order and waiting, found {key} as well",
        ):
            part.load_state_dict({**state, key: 1})
    for bad in ({}, {"step": 1.5}, {"step": -1}, {"step": True, "order": {}}, 3):
        with pytest.raises(ct.InvalidArgument, match="a dict with a step"):
            part.load_state_dict(bad)
    with pytest.raises(ct.InvalidArgument, match="expected seed 0, as when it was saved, found 5"):
        loaders(2, seed=5)[0].load_state_dict(state)
    other = loaders(2, end_step=6)[0]
    other.load_state_dict(state)
    rest = [(step.step, step.local.tokens.tolist(), step.plan.digest) for step in other]
    assert begun + rest == whole
    assert [step.step for step in part] == [2, 3, 4, 5]  # goes on where it was left


@pytest.mark.timing
def test_the_order_does_not_depend_on_timing():
    slow = [
        step.plan.digest
        for step in loaders(2, end_step=5, threads=2)[0]
        if time.sleep(0.05) is None
    ]
    fast = [step.plan.digest for step in loaders(2, end_step=5, lookahead=1)[1]]
    assert slow == fast


def test_a_mask_for_every_batch():
    def mask(pieces):
        return ["full" if piece.document % 2 else "causal" for piece in pieces]

    loader = loaders(2, mask=mask, end_step=3)[0]
    for step in loader:
        lengths = [piece.end - piece.begin for piece in step.pieces]
        expected = ct.plan(
            lengths,
            mask=mask(step.pieces),
            cluster="local:1x2",
            **SMALL,
        )
        assert step.plan.digest == expected.digest


def test_what_a_mask_function_raises_is_the_steps_failure():
    def mask(pieces):
        if pieces[0].document != first:
            raise KeyError("no such mask")
        return "causal"

    first = loaders(2)[0].pieces(0)[0].document
    loader = iter(loaders(2, mask=mask)[0])
    assert next(loader).step == 0
    with pytest.raises(
        ct.PlanningFailed,
        match=r"^step 1: planning failed: KeyError: 'no such mask' \(/.*test_data.py:\d+, mask\)$",
    ):
        for _ in range(5):
            next(loader)


def test_plans_weigh_the_linear_layers_that_are_given():
    given = {
        "cluster": "dgx-h200:1x8",
        "strategy": "auto:steps=20000",
        "heads": (32, 8),
        "head_dim": 128,
        "block_size": None,
        "tokens": 40_000,
        "end_step": 1,
    }
    dataset, digests = Text(count=40, longest=20_000), set()
    for price in (0.0, 10.0, "llama-3-8b"):
        loader = loaders(1, dataset, linear_layers=price, **given)[0]
        (step,) = loader
        lengths = [piece.end - piece.begin for piece in step.pieces]
        same = {name: given[name] for name in ("cluster", "strategy", "heads", "head_dim")}
        expected = ct.plan(lengths, linear_layers=price, dtype="f32", **same)
        assert step.plan.digest == expected.digest
        digests.add(expected.digest)
    assert len(digests) > 1
    with pytest.raises(ct.InvalidArgument, match="^linear_layers: expected 0 to 1e6 .*, found -1"):
        loaders(1, linear_layers=-1)
    with pytest.raises(ct.PlanningFailed, match="linear_layers: .* KV heads .*, found 2"):
        next(iter(loaders(1, linear_layers="llama-3-8b", schedule="megatron_dynamic")[0]))


def test_a_run_goes_on_behind_a_step_that_cannot_be_planned():
    def mask(pieces):
        if pieces[0].document == second:
            raise KeyError("no such mask")
        return "causal"

    second = loaders(1)[0].pieces(1)[0].document
    loader = loaders(1, mask=mask, end_step=3)[0]
    with pytest.raises(ct.PlanningFailed, match="step 1"):
        list(loader)
    assert [step.step for step in loader] == [2]


def test_tokens_are_whole_numbers():
    plan = ct.plan([8], cluster="local:1x1", strategy="zigzag", heads=(4, 2), head_dim=32)
    for tokens in (torch.rand(8), torch.ones(8, dtype=torch.bool)):
        with pytest.raises(ct.InvalidArgument, match="tokens: expected whole numbers"):
            local_batch(tokens, plan=plan, rank=0)
    loader = loaders(1, Numbers())[0]
    with pytest.raises(
        ct.InvalidArgument,
        match="dataset: document .*: expected whole numbers, found torch.float32",
    ):
        next(iter(loader))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([[1, 2, 3]])


class Counted(Stream):
    def __len__(self):
        return 1


@pytest.mark.parametrize("dataset", [Stream(), Counted(), iter([[1, 2]]), 3])
def test_datasets_without_numbers_are_refused(dataset):
    message = (
        "dataset: expected one with .*, because documents are dealt by number, found "
        f"{type(dataset).__name__}"
    )
    with pytest.raises(ct.InvalidArgument, match=message):
        loaders(1, dataset)


class Numbers(Text):
    def __getitem__(self, index):
        return torch.rand(self.lengths[index])


def test_statistics():
    loader = loaders(2)[0]
    with pytest.raises(ct.InvalidArgument, match="expected one that was iterated, found a new one"):
        loader.statistics  # noqa: B018  # reading it raises
    for step in islice(loader, 3):  # noqa: B007  # the last one is looked at below
        statistics = loader.statistics
    assert statistics.steps == 3 and statistics.planning_s > 0 and statistics.bytes > 0
    assert step.step == 2
    # After the iteration they are its, until another begins.
    loader.close()
    assert loader.statistics.steps == 3 and loader.statistics.planning_s == statistics.planning_s
    next(iter(loader))
    assert loader.statistics.steps == 1


def test_loaders_are_freed():
    loader = loaders(2)[0]
    for _ in islice(loader, 1):
        pass
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "expected a store"),
        ({"tokens": 0}, "tokens"),
        ({"long_documents": "cut"}, "split or drop"),
        ({"mask": "causl"}, "causl"),
        ({"strategy": "auto:budget_ms=50"}, "budget"),
        ({"lookahead": 0}, "ahead"),
        ({"run_id": "no spaces", "store": "memory:"}, "run id"),
        ({"store": "ftp://x"}, "store"),
        ({"rank": -1}, "rank: expected 0 to 1, found -1"),
        ({"max_document_tokens": 0}, "max_document_tokens: expected at least 1, found 0"),
        ({"tokens": "128"}, "^tokens: expected a whole number, found '128'"),
        ({"tokens": 128.0}, "^tokens: expected a whole number, found 128.0"),
        ({"tokens": None}, "^tokens: expected a whole number, found None"),
        ({"seed": -1}, "^seed: expected at least 0, found -1"),
        ({"seed": "1"}, "^seed: expected a whole number, found '1'"),
        ({"ignore_index": None}, "^ignore_index: expected a whole number, found None"),
        ({"ignore_index": "-100"}, "^ignore_index: expected a whole number, found '-100'"),
        ({"rank": "0"}, "^rank: expected a whole number, found '0'"),
        ({"rank": True}, "^rank: expected a whole number, found True"),
        ({"max_document_tokens": "9"}, "^max_document_tokens: expected a whole number, found '9'"),
        ({"lookahead": 1.5}, "^lookahead: expected a whole number, found 1.5"),
        ({"threads": "2"}, "^threads: expected a whole number, found '2'"),
        ({"end_step": "9"}, "^end_step: expected a whole number, found '9'"),
        ({"first_step": -1}, "^first_step: expected at least 0, found -1"),
        ({"timeout": "9"}, "^timeout: expected a number, found '9'"),
        ({"packing": None}, "^packing: expected a text, found None"),
        ({"long_documents": True}, "^long_documents: expected a text, found True"),
        ({"run_id": 5}, "^run_id: expected a text, found 5"),
        ({"packing": "wlb:foo=1"}, "^packing wlb: expected one of .*, found 'foo'"),
        (
            {"ignore_fields": ["text"]},
            "^ignore_fields: expected fields of document \\d+, tokens.*, found text",
        ),
        ({"ignore_fields": [5]}, "^ignore_fields: expected a text, found 5"),
        ({"ignore_fields": 5}, "^ignore_fields: expected names, found 5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        next(iter(loaders(2, **options)[0]))


@pytest.mark.parametrize("has_lengths", [True, False])
def test_an_empty_dataset_is_refused(has_lengths):
    dataset = type(
        "Empty", (), {"__len__": lambda self: 0, **({"lengths": []} if has_lengths else {})}
    )()
    with pytest.raises(
        ct.InvalidArgument, match="^dataset: expected at least one document, found none$"
    ):
        DataLoader(dataset, rank=0, cluster="local:1x1", tokens=300, **SMALL)
    with pytest.raises(ct.InvalidArgument, match="documents: expected at least one, found none"):
        ct.BatchSampler([], tokens=300)


def test_documents_that_are_shorter_than_they_said():
    loader = DataLoader(_Shorter(Text().lengths), rank=0, cluster="local:1x1", tokens=300, **SMALL)
    with pytest.raises(ct.InvalidArgument, match=r"expected \[.*\] tokens in document"):
        next(iter(loader))


class _Shorter:
    def __init__(self, lengths):
        self.lengths = [length + 50 for length in lengths]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return list(range(self.lengths[index] - 50))


def train(store, planner):
    """Ranks that share their planning; with `planner`, only rank 0's thread plans."""
    import torch.distributed as dist

    executor = Executor()
    threads = 1 if planner == "all" or dist.get_rank() == 0 else 0
    loader = DataLoader(
        Text(),
        rank=executor.rank,
        cluster=ct.Cluster.from_torch(),
        store=store,
        threads=threads,
        end_step=6,
        tokens=300,
        **SMALL,
    )
    seen = []
    for step in loader:
        executor.prepare(step.plan)
        tokens = step.local.tokens
        q, k, v = (
            torch.sin(tokens[:, None, None] * torch.arange(1, heads * 32 + 1).view(heads, 32))
            for heads in (4, 2, 2)
        )
        assert attention(q, k, v, executor=executor).isfinite().all()
        seen.append(step.plan.digest)
    everybody = [None] * executor.size
    dist.all_gather_object(everybody, seen)
    assert everybody == [seen] * executor.size
    alone = [step.plan.digest for step in loaders(executor.size, end_step=6)[0]]
    assert seen == alone


@pytest.mark.parametrize("planner", ["all", "one"])
def test_ranks_plan_for_each_other(tmp_path, planner):
    if not ct.gloo_available():
        pytest.skip("this build has no gloo")
    run_ranks(train, 3, f"file://{tmp_path}/store", planner)


def test_a_process_that_only_plans(tmp_path):
    import threading

    store = f"file://{tmp_path}/store"
    server = loaders(2, store=store, end_step=4)[0]
    serving = threading.Thread(target=server.serve)
    serving.start()
    takers = loaders(2, store=store, threads=0, end_step=4)
    digests = [[a.plan.digest, b.plan.digest] for a, b in zip(*takers, strict=True)]
    serving.join(timeout=60)
    assert not serving.is_alive()
    assert [a for a, _ in digests] == [step.plan.digest for step in loaders(2, end_step=4)[0]]
    with pytest.raises(ct.InvalidArgument, match="expected a store to serve from"):
        loaders(2)[0].serve()


@pytest.mark.timing
def test_planning_waits_out_a_store_that_fails(tmp_path, caplog):
    folder, away = tmp_path / "store", tmp_path / "away"
    loader = DataLoader(
        Text(),
        rank=0,
        cluster="local:1x1",
        store=f"file://{folder}",
        lookahead=1,
        end_step=5,
        tokens=300,
        timeout=300,
        **SMALL,
    )
    steps = []
    for step in loader:
        steps.append(step.step)
        if step.step == 2:
            folder.rename(away)
            # The rank computes: it is the planner alone that calls the store, and says so.
            await_line(caplog, loader, "planner: the store fails, trying again: store file://")
            away.rename(folder)
            await_line(caplog, loader, "planner: the store answers again after")
    assert steps == [0, 1, 2, 3, 4]


def await_line(caplog, loader, words):
    """Returns when a planner's line with these words has gone to the log."""
    while not any(words in record.getMessage() for record in caplog.records):
        time.sleep(0.01)
        _pass_on(loader._source._planner)


@pytest.mark.timing
def test_a_rank_learns_why_planning_has_ended():
    store = ct.open_store("memory:")
    store.replace("ended/next/1", b"-7", expiry=1000)
    loader = loaders(2, store=store, run_id="ended", timeout=300)[0]
    with pytest.raises(
        ct.TransportError,
        match="the planner of this process has ended: .*expected the step .* found '-7'",
    ):
        next(iter(loader))
    with pytest.raises(ct.InvalidPlan, match="found '-7'"):
        loader.serve(timeout=300)


def test_one_iteration_at_a_time():
    loader = loaders(1, end_step=4)[0]
    steps = iter(loader)
    next(steps)
    errors = []

    def iterate():
        try:
            next(iter(loader))
        except ct.InvalidArgument as error:
            errors.append(str(error))

    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join()
    assert len(errors) == 1 and "under way in another thread" in errors[0]
    assert next(steps).step == 1
    again = iter(loader)  # of the same thread: the first one has ended
    assert next(again).step == 2
    with pytest.raises(ct.InvalidArgument, match="found it closed or iterated anew"):
        next(steps)
    assert next(again).step == 3
    loader._iterated_by = (os.getpid() - 1, threading.get_ident())
    with pytest.raises(ct.InvalidArgument, match="forked from"):
        next(iter(loader))


def test_a_step_that_failed_is_not_taken():
    loader = loaders(1, end_step=2)[0]
    original, Text.__getitem__ = Text.__getitem__, lambda self, index: {"tokens": [0]}
    try:
        with pytest.raises(ct.InvalidArgument, match="tokens in document"):
            list(loader)
    finally:
        Text.__getitem__ = original
    assert loader.state_dict()["step"] == 0
    assert [step.step for step in loader] == [0, 1]


class Chats:
    """Prompts of 8 tokens that are not trained on, and answers."""

    lengths = (12, 20)

    def __init__(self, **more):
        self.more = more

    def __len__(self):
        return 2

    def __getitem__(self, index):
        tokens = torch.arange(self.lengths[index]) + 100 * (index + 1)
        labels = tokens.clone()
        labels[:8] = -100
        return {"tokens": tokens, "labels": labels, **self.more}


def steps_of(dataset, ranks=1, **options):
    found = []
    for rank in range(ranks):
        loader = DataLoader(
            dataset,
            cluster=f"local:1x{ranks}",
            rank=rank,
            strategy="zigzag",
            block_size=4,
            tokens=32,
            end_step=1,
            heads=(2, 1),
            head_dim=8,
            dtype="f32",
            **options,
        )
        found.extend(loader)
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_labels_of_documents_are_kept(ranks):
    steps = steps_of(Chats(), ranks)
    labels = torch.cat([step.local.labels for step in steps])
    expected = [*range(108, 112), *range(208, 220)]  # those of answers, each by the token before it
    assert sorted(labels[labels != -100].tolist()) == expected
    weights = torch.cat([step.local.loss_weights for step in steps])
    assert torch.equal(weights > 0, labels != -100)
    assert weights.sum().item() == pytest.approx(1)
    masked = torch.arange(12) >= 8
    only_mask = steps_of(
        type(
            "Masked",
            (Chats,),
            {
                "lengths": [12, 12],
                "__getitem__": lambda self, index: {
                    "tokens": torch.arange(12) + 100 * (index + 1),
                    "loss_mask": masked,
                },
            },
        )()
    )
    labels = only_mask[0].local.labels
    assert sorted(labels[labels != -100].tolist()) == [*range(108, 112), *range(208, 212)]


def test_fields_that_nobody_reads_are_refused():
    with pytest.raises(
        ct.InvalidArgument,
        match=(
            r"pixel_values of document \d, as tokens, found \[3\]; .* ignore_fields= those to "
            r"leave out"
        ),
    ):
        steps_of(Chats(pixel_values=torch.zeros(3)))
    assert steps_of(Chats(pixel_values=torch.zeros(3)), ignore_fields=["pixel_values"])
    with pytest.raises(ct.InvalidArgument, match="labels of document"):
        steps_of(Chats(labels=torch.zeros(3, dtype=torch.int64)))
