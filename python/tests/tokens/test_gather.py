"""Rows and sums of the whole batch, with gradients, compared with one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)

from torch import nn
from torch.nn import functional

from contextile.torch import (
    Executor,
    attention,
    collect,
    dispatch,
    document_sums,
    gather_last,
    gather_rows,
    local_batch,
    token_log_probs,
)
from ranks import run_ranks

LENGTHS = [70, 26, 160, 1]
FEW = [2]  # tokens for more ranks
STRATEGIES = ["zigzag", "dcp"]


def planned(lengths, strategy="zigzag", **options):
    return ct.plan(
        lengths,
        cluster=ct.Cluster.from_torch(),
        strategy=strategy,
        block_size=16,
        **{"heads": (4, 2), "head_dim": 16, "dtype": "f32", **options},
    )


def close(found, expected, bound=1e-5):
    assert found.shape == expected.shape
    assert found.numel() == 0 or (
        found - expected
    ).abs().max() <= bound * expected.abs().max().clamp(min=1e-12)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def last_of(plan, whole):
    return whole[[end - 1 for _, end in plan.sequences]]


def sums_of(plan, whole):
    return torch.stack([whole[begin:end].sum(0) for begin, end in plan.sequences])


def gathered_in_every_way(plan):
    """Functions of this rank's rows, and of the whole batch in one process."""
    tokens = [0, plan.num_tokens - 1, 0]
    return [
        (lambda x, **how: collect(x, plan=plan, **how), lambda x: x),
        (lambda x, **how: gather_last(x, plan=plan, **how), lambda x: last_of(plan, x)),
        (lambda x, **how: gather_rows(x, tokens, plan=plan, **how), lambda x: x[tokens]),
        (lambda x, **how: document_sums(x, plan=plan, **how), lambda x: sums_of(plan, x)),
    ]


def gather_with_gradients():
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    for lengths, strategy in [(LENGTHS, "zigzag"), (LENGTHS, "dcp"), (FEW, "zigzag")]:
        whole_plan = planned(lengths, strategy)
        piece = ct.Plan.slice_from_bytes(whole_plan.slice_to_bytes(rank))
        for plan in (whole_plan, piece):
            for gathered, one in gathered_in_every_way(plan):
                whole = random(plan.num_tokens, 3, 5).requires_grad_()
                expected = one(whole)
                weights = random(*expected.shape, seed=1)
                (expected.sin() * weights).sum().backward()
                # Every rank computes the same loss.
                mine = dispatch(whole.detach(), plan=whole_plan, rank=rank).requires_grad_()
                found = gathered(mine)
                close(found, expected)
                (found.sin() * weights).sum().backward()
                close(mine.grad, dispatch(whole.grad, plan=whole_plan, rank=rank))
                # The batch's loss is the sum of the ranks' shares.
                shares = torch.softmax(random(size, *expected.shape, seed=2), dim=0)
                mine = mine.detach().requires_grad_()
                (gathered(mine, loss="share").sin() * weights * shares[rank]).sum().backward()
                close(mine.grad, dispatch(whole.grad, plan=whole_plan, rank=rank))
                # Any dimension of the tokens, counted from either end.
                for dim in (1, -2):
                    mine = dispatch(
                        whole.movedim(0, 1).detach(), plan=whole_plan, rank=rank, dim=dim
                    ).requires_grad_()
                    found = gathered(mine, dim=dim)
                    close(found.movedim(1, 0), expected)
                    (found.movedim(1, 0).sin() * weights).sum().backward()
                    close(mine.grad.movedim(1, 0), dispatch(whole.grad, plan=whole_plan, rank=rank))
    for dtype in (torch.bfloat16, torch.int64, torch.float64):
        whole = (random(sum(LENGTHS), 2) * 10).to(dtype)
        plan = planned(LENGTHS)
        mine = dispatch(whole, plan=plan, rank=rank)
        assert torch.equal(collect(mine, plan=plan), whole)
        assert torch.equal(gather_last(mine, plan=plan), last_of(plan, whole))
        assert document_sums(mine, plan=plan).dtype == (
            torch.float32 if dtype == torch.bfloat16 else dtype
        )
    half = dispatch(random(sum(LENGTHS), 2), plan=plan, rank=rank).bfloat16().requires_grad_()
    collect(half, plan=plan, loss="share").sum().backward()
    assert torch.equal(half.grad, torch.full_like(half, size))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_gradients_of_what_is_gathered_are_those_of_one_process(num_ranks):
    run_ranks(gather_with_gradients, num_ranks)


def refused(message, call):
    with pytest.raises(ct.InvalidArgument, match=message):
        call()


def gather_what_does_not_fit():
    import torch.distributed as dist

    rank = dist.get_rank()
    plan, other = planned(LENGTHS), planned([200, 57])
    mine = dispatch(random(sum(LENGTHS), 4), plan=plan, rank=rank)
    refused(
        "loss: expected same or share, found 'mean'", lambda: collect(mine, plan=plan, loss="mean")
    )
    refused(
        r"collect: expected a dimension of \[\d+, 4\], found dim=2",
        lambda: collect(mine, plan=plan, dim=2),
    )
    refused(
        r"dispatch: expected a dimension of \[257\], found dim=-2",
        lambda: dispatch(torch.zeros(257), plan=plan, rank=0, dim=-2),
    )
    refused(
        r"tokens: expected 0 to 256, found -1 to 5", lambda: gather_rows(mine, [5, -1], plan=plan)
    )
    refused(r"tokens: expected whole numbers", lambda: gather_rows(mine, [0.5], plan=plan))
    # All ranks learn of what is wrong on one.
    wrong = mine[:-1] if rank == 1 else mine
    refused(
        r"gather_last: expected \d+ tokens in dimension 0, found \d+"
        if rank == 1
        else "expected every rank's own tokens.*on rank 1",
        lambda: gather_last(wrong, plan=plan),
    )
    found = "expected one plan, shape, dtype, loss= and tokens on all ranks, found others on rank"
    refused(found, lambda: gather_rows(mine, [3, rank], plan=plan))
    refused(
        found,
        lambda: collect(
            dispatch(random(257, 4), plan=other, rank=rank) if rank else mine,
            plan=other if rank else plan,
        ),
    )
    refused(found, lambda: document_sums(mine if rank else mine[:, :2], plan=plan))
    refused(found, lambda: collect(mine, plan=plan, loss="share" if rank else "same"))
    # Gradients that differ are no gradients of one loss.
    for gathered in (collect, gather_last, document_sums):
        leaf = mine.clone().requires_grad_()
        loss = gathered(leaf, plan=plan)[rank].sum()
        refused("loss: expected every rank to compute the same loss", loss.backward)
    assert torch.equal(collect(mine, plan=plan), random(sum(LENGTHS), 4))


def test_what_does_not_fit_is_refused_on_all_ranks():
    run_ranks(gather_what_does_not_fit, 2)


def test_log_probs_are_those_of_log_softmax():
    hidden, weight = random(37, 8).requires_grad_(), random(11, 8, seed=1).requires_grad_()
    labels = torch.arange(37) % 11
    labels[::5] = -100
    whole = torch.log_softmax(hidden @ weight.T, -1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    expected = torch.where(labels >= 0, whole, 0.0)
    expected.cos().sum().backward()
    gradients = hidden.grad, weight.grad
    calls = []

    def head(rows):
        calls.append(len(rows))
        return rows @ weight.T

    for make in (
        lambda: token_log_probs(hidden @ weight.T, labels, chunks=3),
        lambda: token_log_probs(hidden, labels, head=head, chunks=50),
        lambda: token_log_probs(hidden[None], labels[None], head=head, chunks=1)[0],
    ):
        hidden.grad = weight.grad = None
        found = make()
        close(found, expected)
        found.cos().sum().backward()
        close(hidden.grad, gradients[0])
        close(weight.grad, gradients[1])
    assert calls[:50] == [1] * 37 + [0] * 13  # as often on every rank, however many its tokens
    refused(
        r"labels: expected \[37\], as the tokens, found \[36\]",
        lambda: token_log_probs(hidden, labels[1:], head=head),
    )
    refused(
        "chunks: expected at least 1, found 0",
        lambda: token_log_probs(hidden, labels, head=head, chunks=0),
    )


# ----------------------------------------------------------------------------------------
# preferences


class Model(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 64), nn.Embedding(256, 64)
        self.head = nn.Linear(64, outputs, bias=outputs > 1)
        self.qkv = nn.ModuleList(nn.Linear(64, 8 * 16) for _ in range(2))
        # Without biases, which drop out of differences of rewards.
        self.out = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, tokens, positions, attend):
        x = self.embed(tokens) + self.places(positions)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).view(len(tokens), 8, 16).split([4, 2, 2], dim=1)
            x = x + out(attend(q, k, v).flatten(1))
        return x


def attend_alone(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[
        0
    ].transpose(0, 1)


# chosen and rejected in turns; the first tokens of each are a prompt
ANSWERS = [90, 60, 33, 40, 5, 9]
PROMPTS = [30, 30, 8, 8, 2, 2]


def preference_batch(seed=3):
    tokens = torch.randint(50, (sum(ANSWERS),), generator=torch.Generator().manual_seed(seed))
    is_answer = torch.cat(
        [torch.arange(length) >= prompt for length, prompt in zip(ANSWERS, PROMPTS, strict=True)]
    )
    return tokens, is_answer


def dpo_loss(log_probs, reference_log_probs, beta=0.5):
    margins = (log_probs - reference_log_probs).view(-1, 2)
    return -functional.logsigmoid(beta * (margins[:, 0] - margins[:, 1])).mean()


def reward_loss(rewards):
    chosen, rejected = rewards.view(-1, 2).unbind(1)
    return -functional.logsigmoid(chosen - rejected).mean()


def documents(tokens):
    begin = 0
    for length in ANSWERS:
        yield tokens[begin : begin + length], torch.arange(length)
        begin += length


def log_probs_alone(model, tokens, is_answer):
    sums = []
    for (document, positions), (wanted, _) in zip(
        documents(tokens), documents(is_answer), strict=True
    ):
        logits = model.head(model(document, positions, attend_alone))[:-1]
        found = -functional.cross_entropy(logits, document[1:], reduction="none")
        sums.append(found[wanted[1:]].sum())
    return torch.stack(sums)


def check_parameters(model, alone):
    """Gradients, summed over ranks as in data parallelism, are those of one process."""
    import torch.distributed as dist

    for (name, found), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        if expected.grad is None:
            assert found.grad is None, name
            continue
        dist.all_reduce(found.grad)
        error = (found.grad - expected.grad).abs().max() / expected.grad.abs().max().clamp(min=1e-4)
        assert error < 1e-5, (
            f"gradient of {name} is off by {error:.2e}, largest {expected.grad.abs().max():.2e}"
        )


def made(outputs, seed):
    torch.manual_seed(seed)
    return Model(outputs)


def dpo_and_reward_step(strategy):
    executor = Executor()
    plan = planned(ANSWERS, strategy)
    executor.prepare(plan)
    tokens, is_answer = preference_batch()
    local = local_batch(tokens, plan=plan, rank=executor.rank, loss_mask=is_answer)

    def attend(q, k, v):
        return attention(q, k, v, executor=executor)

    def log_probs(model):
        hidden = model(local.tokens, local.positions, attend)
        return document_sums(token_log_probs(hidden, local.labels, head=model.head), plan=plan)

    policy, reference, alone = made(50, 1), made(50, 2), made(50, 1)
    with torch.no_grad():
        reference_log_probs = log_probs(reference)
        close(reference_log_probs, log_probs_alone(reference, tokens, is_answer))
    loss = dpo_loss(log_probs(policy), reference_log_probs)
    loss.backward()
    expected = dpo_loss(log_probs_alone(alone, tokens, is_answer), reference_log_probs)
    expected.backward()
    close(loss, expected)
    check_parameters(policy, alone)

    reward, alone = made(1, 4), made(1, 4)
    rewards = gather_last(reward.head(reward(local.tokens, local.positions, attend)), plan=plan)
    loss = reward_loss(rewards)
    loss.backward()
    lasts = [alone.head(alone(*document, attend_alone)[-1]) for document in documents(tokens)]
    expected = reward_loss(torch.stack(lasts))
    expected.backward()
    close(loss, expected)
    check_parameters(reward, alone)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_dpo_step_and_a_reward_model_are_those_of_one_process(num_ranks, strategy):
    run_ranks(dpo_and_reward_step, num_ranks, strategy)


def gather_on_one_rank_and_go_back_on_another(loss):
    executor = Executor()
    plan = planned(ANSWERS, "dcp")
    executor.prepare(plan)
    x = torch.ones(plan.num_local_tokens(executor.rank), 3, requires_grad=True)
    total = gather_last(x, plan=plan, loss=loss).sum()
    other = "forward" if executor.rank == 0 else "backward"
    match = f"expected all ranks in the same call.*in {other} of a gathering function"
    with pytest.raises(ct.InvalidArgument, match=match):
        if executor.rank == 0:
            total.backward()
        else:
            gather_last(x, plan=plan, loss=loss)


def test_ranks_in_forward_and_backward_say_so():
    run_ranks(gather_on_one_rank_and_go_back_on_another, 2, "same")
