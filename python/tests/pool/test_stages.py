"""Stages of torch's pipelines: each micro-batch is computed by its own plan, or refused by name."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)
pipelining = pytest.importorskip("torch.distributed.pipelining")

from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from contextile.torch import Executor, Stage, attention, local_batch, use
from contextile.torch._pool import stages
from ranks import run_alone, run_ranks

HEADS, KV_HEADS, DIM, HIDDEN, VOCABULARY = 4, 2, 8, 16, 50
# Documents of every micro-batch. The second rank of two has no token of the fourth; two are alike.
LENGTHS = [[40, 9, 31], [64], [5, 20, 11, 30], [3], [40, 9, 31], [17, 50]]
NUM_BATCHES = len(LENGTHS)
MOST_TOKENS = 64
SHAPE = {"heads": (HEADS, KV_HEADS), "head_dim": DIM, "dtype": "f32"}
LAYERS = 4


def rotated(x, positions):
    angles = positions[..., None, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1
    ).flatten(-2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.RMSNorm(HIDDEN), nn.Linear(HEADS * DIM, HIDDEN)
        self.project = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM)

    def forward(self, x, positions, attend):
        q, k, v = (
            self.project(self.norm(x))
            .unflatten(2, (-1, DIM))
            .split([HEADS, KV_HEADS, KV_HEADS], dim=2)
        )
        return x + self.out(attend(rotated(q, positions), rotated(k, positions), v).flatten(2))


class Part(nn.Module):
    """Layers of one stage, with the embedding before the first and the loss after the last."""

    def __init__(self, part, parts, attend, again=False):
        super().__init__()
        torch.manual_seed(0)
        embed, head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        layers = [Layer() for _ in range(LAYERS)]
        size = LAYERS // parts
        self.layers = nn.ModuleList(layers[part * size : (part + 1) * size])
        self.embed, self.head = embed if part == 0 else None, head if part == parts - 1 else None
        self.attend, self.again, self.calls = attend, again, 0

    def forward(self, x, positions, labels=None, loss_weights=None):
        self.calls += 1
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers:
            x = (
                checkpoint(layer, x, positions, self.attend, use_reentrant=False)
                if self.again
                else layer(x, positions, self.attend)
            )
        if self.head is None:
            return x
        return (cross_entropy(self.head(x)[0], labels, reduction="none") * loss_weights).sum()


def tokens_of(lengths, seed):
    return torch.randint(VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def alone(parts):
    """Loss and gradients, by part and name, of all micro-batches in one process."""

    def attend(q, k, v):
        out = []
        for document in zip(*(x.split(lengths, dim=1) for x in (q, k, v)), strict=True):
            heads = (x.transpose(1, 2) for x in document)
            one = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
            out.append(one.transpose(1, 2))
        return torch.cat(out, dim=1)

    models = [Part(part, parts, attend) for part in range(parts)]
    plan_options = {"cluster": "local:1x1", "strategy": "zigzag", **SHAPE}
    losses = []
    for i, lengths in enumerate(LENGTHS):
        local = local_batch(tokens_of(lengths, i), plan=ct.plan(lengths, **plan_options), rank=0)
        x = local.tokens[None]
        for part, model in enumerate(models):
            more = (
                {"labels": local.labels, "loss_weights": local.loss_weights}
                if part == parts - 1
                else {}
            )
            x = model(x, local.positions[None], **more)
        x.backward()
        losses.append(x.item())
    return losses, [{name: p.grad for name, p in model.named_parameters()} for model in models]


class Rank:
    """A rank of the mesh (pp, cp): its group, its executor and its micro-batches."""

    def __init__(self, pp, timeout=60.0, **executor):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(
            "cpu", (pp, dist.get_world_size() // pp), mesh_dim_names=("pp", "cp")
        )
        self.pp, self.cp = mesh["pp"].get_group(), mesh["cp"].get_group()
        self.executor = Executor(self.cp, timeout=timeout, **executor)
        self.stage, self.size = self.pp.rank(), self.pp.size()
        self.plans = [self.plan(lengths) for lengths in LENGTHS]
        tokens = [tokens_of(lengths, i) for i, lengths in enumerate(LENGTHS)]
        self.locals = [
            local_batch(t, plan=plan, rank=self.executor.rank)
            for t, plan in zip(tokens, self.plans, strict=True)
        ]

    def plan(self, lengths):
        cluster = f"local:1x{self.executor.size}"
        return ct.plan(lengths, cluster=cluster, strategy="dcp", block_size=4, **SHAPE)

    def attend(self, q, k, v):
        return attention(q, k, v, executor=self.executor)

    def wrapped(self, part, parts, **options):
        module = Part(part, parts, options.pop("attend", self.attend), options.pop("again", False))
        last = part == parts - 1
        options = {"max_tokens": MOST_TOKENS, "out_features": None if last else HIDDEN, **options}
        return Stage(module, self.executor, group=self.pp, **options)

    def torch_stage(self, stage, part, parts):
        return pipelining.PipelineStage(stage, part, parts, torch.device("cpu"), group=self.pp)

    def arguments(self, last):
        found = {"positions": [local.positions[None] for local in self.locals]}
        if last:
            found |= {
                name: [getattr(local, name) for local in self.locals]
                for name in ("labels", "loss_weights")
            }
        return found

    def schedule(self, kind, stage, count=NUM_BATCHES):
        return kind(stage, count, loss_fn=lambda loss, target: loss.sum(), scale_grads=False)

    def run(self, schedule, stage):
        """Runs a step on a rank with one stage and returns the losses of its micro-batches."""
        losses = []
        given = [stage.inputs([local.tokens for local in self.locals])] if self.stage == 0 else []
        last = self.stage == self.size - 1
        schedule.step(
            *given, **({"target": torch.zeros(NUM_BATCHES), "losses": losses} if last else {})
        )
        return [loss.detach() for loss in losses]


def check(rank, models, losses):
    """Compares the sum over ranks of a stage with one process."""
    import torch.distributed as dist

    parts = models[0][2]
    expected, gradients = alone(parts)
    for part, model, _ in models:
        if part == parts - 1:
            found = torch.stack(losses)
            dist.all_reduce(found, group=rank.cp)
            assert (found - torch.tensor(expected)).abs().max() < 1e-5 * max(expected)
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad, group=rank.cp)
            one = gradients[part][name]
            error = float((parameter.grad - one).abs().max() / one.abs().max())
            assert error < 2e-5, f"gradient of {name} in part {part} is off by {error:.1e}"


SCHEDULES = ("ScheduleGPipe", "Schedule1F1B")


def train(name, again):
    rank = Rank(2)
    stage = rank.wrapped(rank.stage, 2, again=again == "again")
    schedule = rank.schedule(getattr(pipelining, name), rank.torch_stage(stage, rank.stage, 2))
    arguments = rank.arguments(rank.stage == 1)
    for step in range(2):
        stage.zero_grad()
        calls, before = stage.module.calls, rank.executor._num_calls
        with stage.step(rank.plans, **arguments):
            losses = rank.run(schedule, stage)
        # The call for shapes, in the first step alone, ran nothing.
        assert stage.module.calls - calls == NUM_BATCHES, step
        assert rank.executor._num_calls - before == NUM_BATCHES * LAYERS // 2 * (
            2 if again == "again" else 1
        )
    check(rank, [(rank.stage, stage.module, 2)], losses)


@pytest.mark.parametrize(
    ("name", "again", "ranks"),
    [
        ("ScheduleGPipe", "", 4),
        ("Schedule1F1B", "", 4),
        ("Schedule1F1B", "again", 4),
        ("Schedule1F1B", "", 6),
    ],
)
def test_losses_and_gradients_are_those_of_one_process(name, again, ranks):
    run_ranks(train, ranks, name, again)


def train_interleaved(name):
    rank = Rank(2)
    parts = [rank.stage, 3 - rank.stage if "ZBV" in name else rank.stage + 2]
    both = [rank.wrapped(part, 4) for part in parts]
    torch_stages = [
        rank.torch_stage(stage, part, 4) for part, stage in zip(parts, both, strict=True)
    ]
    schedule = rank.schedule(getattr(pipelining, name), torch_stages)
    losses = []
    for _ in range(2):
        with contextlib.ExitStack() as steps:
            for part, stage in zip(parts, both, strict=True):
                stage.zero_grad()
                steps.enter_context(stage.step(rank.plans, **rank.arguments(part == 3)))
            given = (
                [both[0].inputs([local.tokens for local in rank.locals])] if rank.stage == 0 else []
            )
            schedule.step(
                *given,
                **({"target": torch.zeros(NUM_BATCHES), "losses": losses} if 3 in parts else {}),
            )
    check(
        rank,
        [(part, stage.module, 4) for part, stage in zip(parts, both, strict=True)],
        [x.detach() for x in losses],
    )


@pytest.mark.parametrize(
    "name", ["ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"]
)
def test_ranks_of_several_stages_share_an_executor(name):
    run_ranks(train_interleaved, 4, name)


def train_in_another_order():
    """The tickets decide, not the order in which the schedule calls."""
    rank = Rank(2)
    stage = rank.wrapped(rank.stage, 2)
    schedule = rank.schedule(pipelining.Schedule1F1B, rank.torch_stage(stage, rank.stage, 2))
    order, losses = [3, 5, 0, 2, 1, 4], []
    with stage.step(rank.plans, **rank.arguments(rank.stage == 1)):
        given = (
            [stage.inputs([local.tokens for local in rank.locals])[order]]
            if rank.stage == 0
            else []
        )
        schedule.step(
            *given,
            **({"target": torch.zeros(NUM_BATCHES), "losses": losses} if rank.stage == 1 else {}),
        )
    losses = [losses[order.index(i)].detach() for i in range(len(losses))]
    check(rank, [(rank.stage, stage.module, 2)], losses)


def test_a_stage_runs_the_micro_batch_that_came():
    run_ranks(train_in_another_order, 4)


def attends_by_use():
    rank = Rank(2)

    def attend(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with use(rank.executor):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(
                1, 2
            )

    stage = rank.wrapped(rank.stage, 2, attend=attend)
    schedule = rank.schedule(pipelining.ScheduleGPipe, rank.torch_stage(stage, rank.stage, 2))
    with stage.step(rank.plans, **rank.arguments(rank.stage == 1)):
        losses = rank.run(schedule, stage)
    check(rank, [(rank.stage, stage.module, 2)], losses)
    # Validation runs the same schedule forward.
    with torch.no_grad(), stage.step(rank.plans, **rank.arguments(rank.stage == 1)):
        again = rank.run(SimpleNamespace(step=schedule.eval), stage)
    assert all(torch.equal(*pair) for pair in zip(losses, again, strict=True))


def test_layers_of_plain_pytorch_attend_by_the_plan_of_the_micro_batch():
    run_ranks(attends_by_use, 4)


# ----------------------------------------------------------------------------------------- refusals


def with_ticket(x, at, **changes):
    """The input with another ticket in one micro-batch."""
    x = x.clone()
    ticket = stages._ticket_of(x[at, MOST_TOKENS:].tolist())._replace(**changes)
    x[at, MOST_TOKENS:] = torch.tensor([*ticket.bytes_()])
    return x


UNKNOWN = "0123456789abcdef"
# Changes of the input by a rank of the first stage, and the error of all ranks.
SPOILED = {
    "unknown": (
        lambda x, rank: with_ticket(x, 2, digest=UNKNOWN),
        rf"micro-batch 2: expected .* of plan \w+, found those of {UNKNOWN}, no plan of the step",
    ),
    "another": (
        lambda x, rank: with_ticket(x, 2, digest=rank.plans[1].digest),
        "micro-batch 2: expected .*, that of micro-batch 1",
    ),
    "beyond": (
        lambda x, rank: with_ticket(x, 1, number=77),
        "micro-batch 77: expected one of the 6 of the step",
    ),
    "tokens": (
        lambda x, rank: with_ticket(x, 1, num_tokens=63),
        r"micro-batch 1: expected \d+ tokens of this rank, as its plan has, found 63",
    ),
    "rank": (
        lambda x, rank: with_ticket(x, 1, rank=5),
        "micro-batch 1: expected hidden states of rank . of the executor's group, found those of "
        "rank 5",
    ),
    "refused": (
        lambda x, rank: with_ticket(x, 1, is_refused=True),
        "expected hidden states, found that an earlier stage refused the micro-batch",
    ),
    "no ticket": (
        lambda x, rank: torch.ones_like(x),
        "expected one micro-batch of inputs.* found torch.int64 .* without one",
    ),
    "other shape": (
        lambda x, rank: x[:, 1:],
        "expected one micro-batch of inputs.* found torch.int64 .* without one",
    ),
}


def goes_on(rank, stage, schedule):
    """A step after one that was refused is right."""
    stage.zero_grad()
    with stage.step(rank.plans, **rank.arguments(rank.stage == 1)):
        losses = rank.run(schedule, stage)
    check(rank, [(rank.stage, stage.module, 2)], losses)


def refuse_inputs(where):
    """One rank of the first stage, or all of them, spoil the input."""
    rank = Rank(2)
    for name, (spoil, message) in SPOILED.items():
        stage = rank.wrapped(rank.stage, 2)
        schedule = rank.schedule(pipelining.Schedule1F1B, rank.torch_stage(stage, rank.stage, 2))
        given = []
        calls = rank.executor._num_calls
        with (
            pytest.raises(ct.InvalidArgument, match=rf"pipeline(, rank 0)?: stage.*: {message}"),
            stage.step(rank.plans, **rank.arguments(rank.stage == 1)),
        ):
            if rank.stage == 0:
                x = stage.inputs([local.tokens for local in rank.locals])
                given = [
                    spoil(x, rank)
                    if where == "everywhere" or rank.executor.rank == 1 or name == "other shape"
                    else x
                ]
            schedule.step(
                *given, **({"target": torch.zeros(NUM_BATCHES)} if rank.stage == 1 else {})
            )
        # No rank attended for the refused micro-batch.
        num_run = 0 if name in ("no ticket", "other shape") and where == "everywhere" else None
        if num_run is not None:
            assert rank.executor._num_calls - calls == num_run, name
        if name != "other shape":
            goes_on(rank, stage, schedule)


@pytest.mark.parametrize("where", ["everywhere", "on one rank"])
def test_all_ranks_refuse_wrong_inputs(where):
    run_ranks(refuse_inputs, 4, where)


def refuse_hidden_states():
    """One rank of the first stage sends hidden states under another plan."""
    rank = Rank(2)
    stage = rank.wrapped(rank.stage, 2)
    schedule = rank.schedule(pipelining.ScheduleGPipe, rank.torch_stage(stage, rank.stage, 2))
    honest = stage._ticket
    if rank.stage == 0 and rank.executor.rank == 1:
        inputs = stage.inputs

        def lying(*arguments, **options):
            x = inputs(*arguments, **options)
            stage._ticket = lambda step, number, is_refused=False: honest(
                step, number, is_refused
            )._replace(digest=UNKNOWN if number == 3 else honest(step, number).digest)
            stage._problem_of = lambda step, x, ticket: None
            return x

        stage.inputs = lying
    message = (
        f"pipeline, rank 1: stage, rank 1: micro-batch 3: expected .* found those of {UNKNOWN}"
    )
    calls = stage.module.calls
    with (
        pytest.raises(ct.InvalidArgument, match=message),
        stage.step(rank.plans, **rank.arguments(rank.stage == 1)),
    ):
        rank.run(schedule, stage)
    assert stage.module.calls - calls == NUM_BATCHES - rank.stage
    for name in ("inputs", "_ticket", "_problem_of"):
        stage.__dict__.pop(name, None)
    goes_on(rank, stage, schedule)


def test_all_ranks_refuse_hidden_states_of_an_unknown_plan():
    run_ranks(refuse_hidden_states, 4)


def refuse_before():
    rank = Rank(2, plans_kept=6)
    first, last = rank.stage == 0, rank.stage == 1
    stage = rank.wrapped(rank.stage, 2)
    arguments = rank.arguments(last)
    unknown = {name: [value.clone() for value in values] for name, values in arguments.items()}
    one = rank.executor.rank == 1
    other = rank.plan([7, 8])
    foreign = ct.plan([7, 8], cluster="local:1x3", strategy="zigzag", **SHAPE)
    wrong = {
        # Plans and arguments of this rank, and the error of all.
        "pipeline: expected the same plans on all ranks": (
            rank.plans if first else rank.plans[::-1],
            unknown,
        ),
        "pipeline, rank 0: stage: expected the same plans on all ranks": (
            [other, *rank.plans[1:]] if first and one else rank.plans,
            unknown,
        ),
        "pipeline, rank 1: stage: micro-batch 0, positions: expected tensors of plan": (
            rank.plans if first else rank.plans[::-1],
            arguments,
        ),
        "stage, rank 1: labels: expected a value for each of 6 micro-batches, found 5": (
            rank.plans,
            arguments | ({"labels": arguments["labels"][:5]} if last and one else {}),
        ),
        "micro-batch 5: expected a plan for the 2 ranks of the executor, found one for 3": (
            [*rank.plans[:5], foreign] if first else rank.plans,
            arguments,
        ),
        r"stage: arguments: expected those of \w+.forward.*, found positions, .*places": (
            rank.plans,
            arguments | {"places": [0] * 6},
        ),
        "missing a required argument: 'positions'": (
            rank.plans,
            {name: values for name, values in arguments.items() if name != "positions"},
        ),
        "pipeline: stage: plans: expected one of every micro-batch, found none": ([], {}),
        "pipeline: stage: micro-batch 1, plan: expected a Plan, found 7": ([rank.plans[0], 7], {}),
        "executor: expected plans_kept of at least 7, as a step has plans, found 6": (
            [*rank.plans, other, rank.plan([8, 7])],
            {},
        ),
        r"micro-batch 0: expected at most 64 tokens of a rank \(max_tokens\), found \d+": (
            [rank.plan([200])],
            {},
        ),
    }
    for message, (plans, given) in wrong.items():
        with pytest.raises(ct.InvalidArgument, match=message), stage.step(plans, **given):
            raise AssertionError(message)
    one_inside_another = pytest.raises(
        ct.InvalidArgument, match="pipeline: stage: step: expected one at a time"
    )
    with (
        one_inside_another,
        stage.step(rank.plans, **arguments),
        stage.step(rank.plans, **arguments),
    ):
        raise AssertionError
    for call in (lambda: stage.inputs([]), lambda: stage(torch.ones(1, 90))):
        with pytest.raises(ct.InvalidArgument, match="stage: expected a call inside of step"):
            call()
    for message, options in {
        "pipeline, rank 1: stage: expected the same out_features on all ranks": {
            "out_features": 16 + (rank.executor.rank if last else 0)
        },
        "pipeline: expected the same max_tokens on all ranks": {"max_tokens": 64 + rank.stage},
        "pipeline, rank 0: stage: out_dtype: expected float32": {
            "out_dtype": torch.int64 if first else torch.float32
        },
    }.items():
        with pytest.raises(ct.InvalidArgument, match=message):
            rank.wrapped(rank.stage, 2, **options)
    goes_on(
        rank, stage, rank.schedule(pipelining.Schedule1F1B, rank.torch_stage(stage, rank.stage, 2))
    )


def test_all_ranks_refuse_a_step_before_it_begins():
    run_ranks(refuse_before, 4)


def refuse_other_counts():
    rank = Rank(2)
    last = rank.stage == 1
    stage = rank.wrapped(rank.stage, 2)
    # Two micro-batches in one call, and a micro-batch that does not run.
    for count, message in {
        3: (
            r"pipeline, rank 0: stage: expected one micro-batch of inputs.*found torch.int64 \[2, "
            r"87\]"
        ),
        5: (
            "pipeline: stage: expected the schedule to run all 6 micro-batches of the step, found "
            "no forward of 5"
        ),
    }.items():
        schedule = rank.schedule(
            pipelining.ScheduleGPipe, rank.torch_stage(stage, rank.stage, 2), count
        )
        with (
            pytest.raises(ct.InvalidArgument, match=message),
            stage.step(rank.plans, **rank.arguments(last)),
        ):
            x = stage.inputs([local.tokens for local in rank.locals])
            given = [] if last else [x if count == 3 else x[:5]]
            schedule.step(*given, **({"target": torch.zeros(count)} if last else {}))
    schedule = rank.schedule(pipelining.Schedule1F1B, rank.torch_stage(stage, rank.stage, 2))
    message = (
        r"pipeline, rank 0: stage, rank 1: inputs, micro-batch 2: expected the \d+ rows of this "
        r"rank by its plan, found \d+"
    )
    with (
        pytest.raises(ct.InvalidArgument, match=message),
        stage.step(rank.plans, **rank.arguments(last)),
    ):
        if rank.executor.rank == 1:
            whole = rank.locals[2]
            rank.locals[2] = SimpleNamespace(tokens=whole.tokens[:-1])
        rank.run(schedule, stage)
    if rank.executor.rank == 1:
        rank.locals[2] = whole
    goes_on(rank, stage, schedule)


def test_all_ranks_refuse_other_numbers_of_micro_batches_or_rows():
    run_ranks(refuse_other_counts, 4)


def end_when_layers_raise():
    rank = Rank(2, timeout=20.0)
    stage = rank.wrapped(rank.stage, 2)
    if rank.stage == 1 and rank.executor.rank == 0:
        stage.module.layers[1].forward = lambda *_: 1 / 0
    schedule = rank.schedule(pipelining.Schedule1F1B, rank.torch_stage(stage, rank.stage, 2))
    with stage.step(rank.plans, **rank.arguments(rank.stage == 1)):
        rank.run(schedule, stage)


def test_no_rank_waits_for_one_whose_layers_raise():
    outputs = run_alone(end_when_layers_raise, 4, timeout=60)
    assert "ZeroDivisionError: division by zero" in outputs[2]
    assert (
        "TransportError" in outputs[3] and "stage, micro-batch 0: ZeroDivisionError" in outputs[3]
    )
    assert all("Traceback" in text for text in outputs)
