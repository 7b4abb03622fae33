"""Trees of branches: their masks, their labels, and training on them as on each branch alone."""

from __future__ import annotations

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_transformers import make
from torch.nn.functional import cross_entropy

import contextile.transformers as cth
from contextile.torch import (
    DataLoader,
    Executor,
    collect,
    dispatch,
    document_sums,
    gather_last,
    local_batch,
    token_log_probs,
)
from ranks import run_ranks

SMALL = {
    "cluster": "local:1x2",
    "heads": (2, 1),
    "head_dim": 8,
    "dtype": "f32",
    "strategy": "dcp",
    "block_size": 4,
}


def random_tokens(seed, count):
    return torch.randint(1, 97, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def documents_of():
    """Returns the branches of every document: two levels, a plain document, three levels."""
    prompt, root = random_tokens(0, 19), random_tokens(1, 11)
    answers = [prompt + random_tokens(10 + i, count) for i, count in enumerate([7, 23, 1, 12])]
    ways = []
    for i, (count, ends) in enumerate([(9, [5, 14, 3]), (17, [0]), (6, [8, 8, 0])]):
        way = root + random_tokens(20 + i, count)
        ways += [way + random_tokens(30 + 10 * i + j, end) for j, end in enumerate(ends)]
    return [answers, [random_tokens(2, 33)], ways]


def weights_of(documents):
    """Returns one weight of every branch; those of tokens for the first document's."""
    generator = np.random.default_rng(3)
    weights = [[1 / len(branch) for branch in branches] for branches in documents]
    weights[2] = [float(generator.normal()) / len(branch) for branch in documents[2]]
    weights[0] = [
        np.where(np.arange(len(branch)) < 19, 0.0, 1 / (len(branch) - 18))
        for branch in documents[0]
    ]
    return weights


def trees_of(documents):
    return [ct.masks.token_tree(branches) for branches in documents]


# ------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("document", range(3))
def test_a_branch_attends_itself_as_if_alone(document):
    tree = trees_of(documents_of())[document]
    plan = ct.plan([len(tree.tokens)], mask=tree.mask, **SMALL)
    dense = plan.mask(0).dense()
    for branch, at in zip(documents_of()[document], tree.branches, strict=True):
        assert tree.tokens[at].tolist() == branch
        assert np.array_equal(dense[np.ix_(at, at)], np.tri(len(at), dtype=bool))
        assert dense[at].sum() == len(at) * (len(at) + 1) // 2
        for rank in range(2):
            held = dict(zip(plan.local_tokens(rank), plan.positions(rank), strict=True))
            assert all(
                held[token] == position for position, token in enumerate(at) if token in held
            )


def test_trees_that_are_none_are_refused():
    assert ct.masks.tree([3, 2], [-1, 0]) == ct.masks.parse("tree:[3,2],[-1,0]")
    for lengths, parents, message in (
        ([3, 2], [-1], "expected a parent for each of 2 lengths, found 1"),
        ([3, 0], [-1, 0], "length: expected 1 to"),
        ([3, 2], [-1, 1], "parent of segment 1: expected 0 to 0, found 1"),
        ([3, 2], [0, 0], "parent of segment 0: expected -1"),
        ([], [], "expected"),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            ct.masks.tree(lengths, parents)
    with pytest.raises(
        ct.InvalidArgument, match="sum to the sequence's 6 tokens, found a sum of 5"
    ):
        ct.plan([6], mask=ct.masks.tree([3, 2], [-1, 0]), **SMALL)
    for branches, message in (
        ([], "at least one branch"),
        ([[1, 2], []], "branch 1: expected at least one token"),
        ([[1, 2], [2, 2]], "branch 1: expected token 1 first"),
        ([[1, 2], [1, 2.5]], "branch 1: expected a list of whole numbers"),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            ct.masks.token_tree(branches)
    tree = ct.masks.token_tree([[1, 2], [1, 3, 4]])
    for weights, message in (
        ([1], "weights of 2 branches, found 1"),
        ([1, [1, 2]], r"branch 1, or 3, found \[2\]"),
        ([1, float("nan")], "finite weights of branch 1"),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            tree.loss_weights(weights)


def test_masks_of_one_batch_have_the_same_branches():
    trees = {"a": ct.masks.tree([4, 2, 2], [-1, 0, 0]), "b": ct.masks.tree([3, 3, 2], [-1, 0, 0])}
    with pytest.raises(
        ct.InvalidArgument, match="mask 'b': expected the branches of the masks before it"
    ):
        ct.plan([8], mask=trees, **SMALL)
    ct.plan([8], mask={**trees, "b": "sliding_window:3", "c": trees["a"]}, **SMALL)


# ------------------------------------------------------------------------------------------ labels


def test_a_token_where_branches_part_has_all_their_labels():
    tree = ct.masks.token_tree([[5, 6, 7, 8], [5, 6, 9], [5, 6, 9, 4]])
    plan = ct.plan([3, 6], mask=["causal", tree.mask], **SMALL)
    tokens = [1, 2, 3, *tree.tokens.tolist()]
    found = []
    for rank in range(2):
        local = local_batch(tokens, plan=plan, rank=rank)
        at = plan.local_tokens(rank)
        rows, following, labels, weights = local.targets
        found += zip(at[rows].tolist(), following.tolist(), labels.tolist(), strict=True)
        assert torch.equal(weights, torch.full((len(rows),), 1 / 7))
        for name in ("labels", "loss_weights"):
            with pytest.raises(
                ct.InvalidArgument,
                match=f"expected {name} of a batch .* that follow token 4, .* use targets",
            ):
                getattr(local, name)
        with pytest.raises(ct.InvalidArgument, match="use targets"):
            list(local)
    expected = [(0, 1, 2), (1, 2, 3), (3, 4, 6), (4, 5, 7), (4, 7, 9), (5, 6, 8), (7, 8, 4)]
    assert sorted(found) == expected
    # The plan's file, its slices and its JSON know the branches, too.
    for copy in (
        ct.Plan.from_bytes(plan.to_bytes()),
        ct.Plan.from_json(plan.to_json()),
        ct.Plan.slice_from_bytes(plan.slice_to_bytes(1)),
    ):
        assert (
            copy.position_segments
            == plan.position_segments
            == [(0, 3, 0, 0, -1), (3, 7, 1, 0, -1), (7, 9, 1, 2, 4)]
        )
        assert all(map(np.array_equal, copy.next_tokens(1), plan.next_tokens(1)))


def test_targets_are_the_labels_of_a_batch_without_branches():
    plan = ct.plan([5, 4], **SMALL)
    mask = [True, True, False, True, True, True, True, True, False]
    for rank in range(2):
        local = local_batch(
            range(10, 19), plan=plan, rank=rank, loss_mask=mask, loss_weights=np.arange(9.0)
        )
        rows, following, labels, weights = local.targets
        assert torch.equal(local.labels[rows], labels) and torch.equal(
            local.loss_weights[rows], weights
        )
        assert (local.labels != -100).sum() == len(rows) and torch.equal(labels, following + 10)
        assert torch.equal(weights, following.float())
        assert not set(following.tolist()) & {0, 2, 5, 8}
    with pytest.raises(ct.InvalidArgument, match="loss_weights: expected finite numbers"):
        local_batch(range(9), plan=plan, rank=0, loss_weights=[float("nan")] * 9)
    with pytest.raises(ct.InvalidArgument, match=r"loss_weights: expected \[9\], found \[8\]"):
        local_batch(range(9), plan=plan, rank=0, loss_weights=[1.0] * 8)


# ---------------------------------------------------------------------------------------- training


def alone(model, documents, weights):
    """Runs every branch by itself. Returns their logits and the loss, and adds up gradients."""
    logits, loss = [], 0.0
    for branches, its_weights in zip(documents, weights, strict=True):
        for branch, weight in zip(branches, its_weights, strict=True):
            tokens = torch.tensor(branch)
            found = model(
                tokens[None], position_ids=torch.arange(len(branch))[None], use_cache=False
            ).logits[0]
            each = torch.broadcast_to(torch.as_tensor(weight, dtype=torch.float32), tokens.shape)[
                1:
            ]
            one = (cross_entropy(found[:-1], tokens[1:], reduction="none") * each).sum()
            one.backward()
            logits.append(found.detach())
            loss += one.item()
    return logits, loss


def difference(found, expected):
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-8)).item()


def check_gradients(model, expected):
    import torch.distributed as dist

    for (key, value), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        dist.all_reduce(value.grad)
        assert difference(value.grad, other.grad) < 1e-5, f"gradient of {key}"


def train(*strategies):
    import torch.distributed as dist

    documents, executor = documents_of(), Executor()
    weights, trees = weights_of(documents), trees_of(documents)
    tokens = np.concatenate([tree.tokens for tree in trees])
    expected = make("Llama", "eager")
    logits_alone, loss_alone = alone(expected, documents, weights)
    for strategy in strategies:
        model = make("Llama", cth.register())
        rules = ["causal" if len(tree.branches) == 1 else tree.mask for tree in trees]
        plan = ct.plan(
            [len(tree.tokens) for tree in trees],
            cluster=ct.Cluster.from_torch(),
            strategy=strategy,
            block_size=8,
            **cth.batch_of(model, mask={"full": (rules, 3)}),
        )
        plan.verify()
        executor.prepare(plan)
        summed = np.concatenate(
            [tree.loss_weights(each) for tree, each in zip(trees, weights, strict=True)]
        )
        local = local_batch(tokens, plan=plan, rank=executor.rank, loss_weights=summed)
        with cth.use(executor):
            logits = model(
                local.tokens[None], position_ids=local.positions[None], use_cache=False
            ).logits[0]
            rows, _, labels, loss_weights = local.targets
            loss = (cross_entropy(logits[rows], labels, reduction="none") * loss_weights).sum()
            loss.backward()
        whole, begin, branch = collect(logits, plan=plan), 0, 0
        for tree in trees:
            for at in tree.branches:
                assert difference(whole[begin + at], logits_alone[branch]) < 1e-5, (
                    f"{strategy}: branch {branch}"
                )
                branch += 1
            begin += len(tree.tokens)
        loss = loss.detach()
        dist.all_reduce(loss)
        assert loss.item() == pytest.approx(loss_alone, rel=1e-5), strategy
        check_gradients(model, expected)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_tree_trains_as_its_branches_do_alone(ranks):
    run_ranks(train, ranks, "zigzag", "dcp", "auto:steps=20000", "magi", timeout=600)


def test_layers_whose_masks_join_branches_are_refused():
    model = make("Gemma2", cth.register())  # two of three layers have a window
    tree = trees_of(documents_of())[0]
    executor = Executor(ct.inproc_group(1)[0])
    for windows, message in (
        (
            "sliding_window:17",
            "mask 'sliding': expected branches that do not attend each other, .* found token 26 "
            ".* token 25",
        ),
        ([tree.mask], "mask 'sliding': expected a window of 17"),
    ):
        batch = cth.batch_of(model, mask={"full": ([tree.mask], 1), "sliding": (windows, 2)})
        plan = ct.plan([len(tree.tokens)], cluster="local:1x1", strategy="zigzag", **batch)
        executor.prepare(plan)
        local = local_batch(tree.tokens, plan=plan, rank=0)
        inputs = {"position_ids": local.positions[None], "use_cache": False}
        with pytest.raises(ct.InvalidArgument, match=message), cth.use(executor):
            model(local.tokens[None], **inputs)
        with cth.use(executor, check_masks=False):
            model(local.tokens[None], **inputs)


class Trees:
    """Documents of several branches, with weights."""

    def __init__(self):
        self.trees = trees_of(documents_of())
        self.lengths = [len(tree.tokens) for tree in self.trees]
        self.weights = [
            tree.loss_weights(each)
            for tree, each in zip(self.trees, weights_of(documents_of()), strict=True)
        ]

    def __len__(self):
        return len(self.trees)

    def __getitem__(self, index):
        return {"tokens": self.trees[index].tokens, "loss_weights": self.weights[index]}

    def masks_of(self, pieces):
        return [self.trees[piece.document].mask for piece in pieces]


def loader_of(dataset, rank, ranks, **options):
    return DataLoader(
        dataset,
        **{
            **SMALL,
            "cluster": f"local:1x{ranks}",
            "rank": rank,
            "mask": dataset.masks_of,
            "tokens": 220,
            "long_documents": "drop",
            "end_step": 1,
            **options,
        },
    )


def train_with_loader():
    dataset, executor = Trees(), Executor()
    model, expected = make("Llama", cth.register()), make("Llama", "eager")
    loader = loader_of(
        dataset,
        executor.rank,
        executor.size,
        **{
            name: value
            for name, value in cth.batch_of(model).items()
            if name in ("heads", "head_dim")
        },
    )
    for step in loader:
        executor.prepare(step.plan)
        with cth.use(executor, check_masks=False):
            inputs = {"position_ids": step.local.positions[None], "use_cache": False}
            logits = model(step.local.tokens[None], **inputs).logits[0]
            rows, _, labels, weights = step.local.targets
            (cross_entropy(logits[rows], labels, reduction="none") * weights).sum().backward()
        drawn = [piece.document for piece in step.pieces]
    assert sorted(drawn) == [0, 1, 2]
    alone(expected, documents_of(), weights_of(documents_of()))
    check_gradients(model, expected)


def test_the_loader_gives_trees():
    run_ranks(train_with_loader, 2)


def test_labels_of_a_step_count_every_token_of_a_tree_once():
    class Unweighted(Trees):
        def __getitem__(self, index):
            return self.trees[index].tokens

    for packing in ("sequential", "dp_balanced"):
        for micro_batches in (1, 2):
            steps = [
                step
                for rank in range(2)
                for step in loader_of(
                    Unweighted(), rank, 2, micro_batches=micro_batches, packing=packing
                )
            ]
            labels = sum(len(step.local.targets.labels) for step in steps)
            assert {step.num_labels for step in steps} == {labels}
            pieces = [piece for step in steps[:micro_batches] for piece in step.pieces]
            assert labels == sum(piece.num_tokens - 1 for piece in pieces)
            assert sum(
                step.local.targets.loss_weights.sum().item() for step in steps
            ) == pytest.approx(1)


def test_a_tree_that_is_cut_is_refused():
    dataset = Trees()
    with pytest.raises(
        (ct.PlanningFailed, ct.InvalidArgument), match="mask tree: expected lengths that sum to"
    ):
        list(loader_of(dataset, 0, 2, long_documents="split", tokens=30))


# -------------------------------------------------------------------------------- sums of branches


def packed(documents, ranks):
    """The trees, None for a document without one, with the batch's tokens and plan."""
    trees = [tree if len(tree.branches) > 1 else None for tree in trees_of(documents)]
    masks = [tree.mask if tree else "causal" for tree in trees]
    lengths = [len(tree.tokens) for tree in trees_of(documents)]
    plan = ct.plan(lengths, mask=masks, **{**SMALL, "cluster": f"local:1x{ranks}"})
    return trees, np.concatenate([tree.tokens for tree in trees_of(documents)]), plan


def branches_of(documents):
    """The tokens of every branch, in the batch."""
    begin, found = 0, []
    for tree in trees_of(documents):
        found += [torch.from_numpy(at) + begin for at in tree.branches]
        begin += len(tree.tokens)
    return found


def loss_of(sums, lasts):
    return (sums.square() * torch.arange(1, len(sums) + 1)).sum() + lasts.square().sum()


def sum_branches():
    """Log-probabilities and last rows of branches, of logits that are leaves, and gradients."""
    import torch.distributed as dist

    documents = documents_of()
    trees, tokens, plan = packed(documents, dist.get_world_size())
    whole = torch.randn(
        len(tokens), 97, generator=torch.Generator().manual_seed(4)
    ).requires_grad_()
    logits = dispatch(whole.detach(), plan=plan, rank=dist.get_rank()).requires_grad_()
    local = local_batch(torch.from_numpy(tokens), plan=plan, rank=dist.get_rank())
    rows, _, labels, _ = local.targets
    sums = document_sums(
        token_log_probs(logits[rows], labels), plan=plan, trees=trees, targets=local.targets
    )
    lasts = gather_last(logits, plan=plan, trees=trees)
    loss_of(sums, lasts).backward()
    expected = []
    for at in branches_of(documents):
        labels = torch.from_numpy(tokens)[at[1:]]
        expected.append(whole[at[:-1]].log_softmax(-1).gather(1, labels[:, None]).sum())
    last_rows = torch.stack([whole[at[-1]] for at in branches_of(documents)])
    loss_of(torch.stack(expected), last_rows).backward()
    assert torch.allclose(sums, torch.stack(expected), rtol=1e-5)
    assert torch.equal(lasts, last_rows)
    assert difference(collect(logits.grad, plan=plan), whole.grad) < 1e-5
    # Values of tokens, not of what they predict.
    ones = document_sums(torch.ones(plan.num_local_tokens(dist.get_rank())), plan=plan, trees=trees)
    assert ones.tolist() == [len(at) for at in branches_of(documents)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_sums_and_last_rows_of_branches_are_those_of_branches_alone(ranks):
    run_ranks(sum_branches, ranks)


def test_trees_that_are_not_the_batchs_are_refused():
    documents = documents_of()
    trees, tokens, plan = packed(documents, 1)
    values = torch.ones(len(tokens))
    targets = local_batch(torch.from_numpy(tokens), plan=plan, rank=0).targets
    for given, message in (
        (trees[:2], "one for each of 3 documents, or None, found 2"),
        (trees[0], "one for each of 3 documents, or None, found 1"),
        (
            [trees[2], None, trees[2]],
            f"one of {len(trees[0].tokens)} tokens for document 0, found {len(trees[2].tokens)}",
        ),
        ([trees[0], "causal", trees[2]], "a TokenTree for document 1, or None, found str"),
    ):
        for call in (gather_last, document_sums):
            with pytest.raises(ct.InvalidArgument, match=f"trees: expected {message}"):
                call(values, plan=plan, trees=given)
    with pytest.raises(
        ct.InvalidArgument,
        match=f"expected {len(targets.tokens)} targets in dimension 0, found {len(tokens)}",
    ):
        document_sums(values, plan=plan, trees=trees, targets=targets)
