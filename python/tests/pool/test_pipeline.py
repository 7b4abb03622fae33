"""Pools, ping-pong and same-phase pipelines on processes, compared with one process."""

from __future__ import annotations

import os

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

import torch.distributed as dist

from contextile.torch import (
    Executor,
    PingPong,
    Pool,
    SamePhasePipeline,
    gather_lengths,
    ticks,
)
from pooled_model import (
    HIDDEN,
    SHAPE,
    STRATEGY,
    assert_same,
    dense_loss,
    gradients_of,
    loss_of,
    make_model,
    make_tokens,
)
from ranks import leave_together, run_alone, run_ranks

needs_gloo = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")

STAGES, REPLICAS = 2, 2
# lengths[micro-batch][replica]
MICRO_BATCHES = [
    [[90, 6], [20, 30, 46]],
    [[16, 40, 40], [70, 26]],
    [[48, 48], [96]],
    [[33, 30, 33], [64, 32]],
]


def expected_of(num_layers, lengths):
    """Loss and gradients of one process, and the tokens of every micro-batch."""
    model = make_model(num_layers)
    flat = [(i, d) for i in range(len(lengths)) for d in range(len(lengths[i]))]
    tokens = {(i, d): make_tokens(lengths[i][d], 10 * i + d) for i, d in flat}
    num_tokens = sum(map(len, tokens.values()))
    losses = [dense_loss(model, lengths[i][d], tokens[i, d], num_tokens) for i, d in flat]
    sum(losses).backward()
    return sum(loss.item() for loss in losses), gradients_of(model), tokens, num_tokens


def check(model, loss, expected_loss, expected_gradients):
    found = gradients_of(model)
    loss = loss.detach().clone()
    for tensor in (loss, *found.values()):
        dist.all_reduce(tensor)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-5)
    assert_same(found, expected_gradients)


def replicas_only(executor):
    """One micro-batch for each of 4 replicas, without stages."""
    pool = Pool(executor, neighbourhoods=4, **SHAPE, strategy=STRATEGY)
    lengths = [lengths for of_replicas in MICRO_BATCHES[:2] for lengths in of_replicas]
    expected_loss, expected_gradients, tokens, num_tokens = expected_of(2, [lengths])
    mine = gather_lengths(lengths[pool.neighbourhood], pool)
    assert mine == lengths
    batch = pool.prepare(mine)
    model, tokens = make_model(2), tokens[0, pool.neighbourhood]
    x = PingPong(model.layers, pool)(
        model.embed(tokens[batch.rows.tokens]), batch.rows.positions, batch=batch
    )
    loss = loss_of(model.head(x), tokens, batch.rows.tokens, num_tokens)
    loss.backward()
    check(model, loss, expected_loss, expected_gradients)


def pipeline(executor, micro_batches, layers_of_chunk, chunks=1, **options):
    lengths = MICRO_BATCHES[:micro_batches]
    num_layers = layers_of_chunk * chunks * STAGES
    expected_loss, expected_gradients, tokens, num_tokens = expected_of(num_layers, lengths)
    model = make_model(num_layers)
    pool = Pool(executor, neighbourhoods=STAGES * REPLICAS, **SHAPE, strategy=STRATEGY)
    stage, replica = divmod(pool.neighbourhood, REPLICAS)
    mine = [
        model.layers[(c * STAGES + stage) * layers_of_chunk :][:layers_of_chunk]
        for c in range(chunks)
    ]
    pipeline = SamePhasePipeline(mine, pool, stages=STAGES, hidden=HIDDEN, **options)
    loss = pipeline.step(
        lengths,
        embed=lambda i, rows: model.embed(tokens[i, replica][rows.tokens]),
        loss=lambda i, rows, x: loss_of(model.head(x), tokens[i, replica], rows.tokens, num_tokens),
    )
    check(model, loss, expected_loss, expected_gradients)
    # Idle stages serve: every rank makes the calls of every tick.
    phases = [
        tick.phase for tick in ticks(STAGES, micro_batches, chunks) if tick.steps[stage] is None
    ]
    calls = layers_of_chunk * options.get("nano_batches", 2)
    again = 2 if options.get("recompute") else 1
    assert pipeline.times["forward"].calls == again * micro_batches * chunks * calls
    assert pipeline.times["backward"].calls == micro_batches * chunks * calls
    assert (
        pipeline.times["idle"].calls
        == (phases.count("forward") + again * phases.count("backward")) * calls
    )


def eight_ranks():
    executor = Executor()
    replicas_only(executor)
    pipeline(executor, 3, 2)
    pipeline(executor, 1, 1, nano_batches=1)
    pipeline(executor, 4, 1, chunks=2, checkpoint=True)
    pipeline(executor, 2, 1, chunks=2, recompute=True)
    refusals(executor)


def everywhere(executor, message, body):
    """All ranks raise the same error, and the group goes on."""
    with pytest.raises(ct.InvalidArgument, match=message) as raised:
        body()
    texts = [None] * executor.size
    dist.all_gather_object(texts, str(raised.value))
    assert len(set(texts)) == 1, texts
    executor.transport.barrier()


def refusals(executor):
    """Most of these are found by one rank alone."""
    layers, rank = make_model(2).layers, executor.rank
    pool = Pool(executor, neighbourhoods=4, **SHAPE, strategy=STRATEGY)

    def made(chunks=None, pool=pool, **options):
        return SamePhasePipeline(
            [layers] if chunks is None else chunks,
            pool,
            **{"stages": 2, "hidden": HIDDEN, **options},
        )

    three = 3 if rank == 1 else 2
    everywhere(
        executor,
        "^pipeline: expected stages that divide the pool's 4 neighbourhoods, found 3",
        lambda: made(stages=3),
    )
    everywhere(
        executor,
        "^pipeline, rank 1: expected stages that divide .* found 3",
        lambda: made(stages=three),
    )
    uneven = [layers, layers[:1]] if rank == 2 else [layers]
    everywhere(
        executor,
        r"^pipeline, rank 2: expected chunks of equally many layers, found \[2, 1\]",
        lambda: made(uneven),
    )
    everywhere(
        executor, r"^pipeline: expected chunks of equally many layers, found \[\]", lambda: made([])
    )
    fewer = [layers[: 1 + rank % 2]]
    everywhere(
        executor,
        "^pipeline: expected the same layers on all ranks, found 1 on rank 0 and 2 on rank 1",
        lambda: made(fewer),
    )
    for name, value, usual in (
        ("hidden", 8, HIDDEN),
        ("nano_batches", 1, 2),
        ("recompute", True, False),
    ):
        other = {name: value if rank == 3 else usual}
        everywhere(
            executor,
            f"^pipeline: expected the same {name} on all ranks, .* on rank 3",
            lambda other=other: made(**other),
        )
    for name, value in (
        ("hidden", "16"),
        ("hidden_dtype", "f32"),
        ("nano_batches", 1.0),
        ("recompute", 1),
        ("chunks", 5),
    ):
        other = {name: value} if rank == 1 else {}
        everywhere(
            executor, "^pipeline, rank 1: .*expected .*, found", lambda other=other: made(**other)
        )

    keeps = Pool(
        executor,
        neighbourhoods=4,
        **SHAPE,
        strategy=STRATEGY.replace("resend=on,backward=own", "resend=off"),
    )
    nothing = {
        "embed": lambda i, rows: torch.zeros(len(rows.tokens), HIDDEN),
        "loss": lambda i, rows, x: x.sum(),
    }
    everywhere(
        executor,
        "^pipeline: strategy: expected one that keeps nothing from forward to backward",
        lambda: made(pool=keeps).step(MICRO_BATCHES, **nothing),
    )
    with pytest.raises(ct.InvalidArgument, match="one micro-batch in a neighbourhood, found"):
        gather_lengths([rank + 1], pool)
    steps_refused(executor, made)


def steps_refused(executor, made):
    """One stage or one rank finds these in its first step. The pipeline works afterwards."""
    rank, model = executor.rank, make_model(2)
    pipeline = made([[layer] for layer in model.layers])

    def step(lengths=MICRO_BATCHES, embed=None, loss=None):
        pipeline.step(
            lengths,
            embed=embed or (lambda i, rows: model.embed(rows.tokens % 50)),
            loss=loss or (lambda i, rows, x: x.sum()),
        )

    for wrong, message in [
        ([[[60]]], "^pipeline: expected lengths of 2 replicas in micro-batch 0, found 1"),
        (
            [*MICRO_BATCHES[:1], [[]]],
            "^pipeline: expected lengths of 2 replicas in micro-batch 1, found 1",
        ),
        (
            [*MICRO_BATCHES[:1], [[], [60]]],
            "^pipeline: expected document lengths of replica 0 in micro-batch 1, found none",
        ),
        (
            [[None, [60]]],
            "^pipeline: expected document lengths of replica 0 in micro-batch 0, found none",
        ),
        (
            [[[2], [60]]],
            "^pipeline: micro-batch 0, replica 0: pool: expected a token in every nano-batch",
        ),
        (
            [[[60], ["x"]]],
            "^pipeline: micro-batch 0: pool, neighbourhood 1: lengths: expected a whole number, "
            "found 'x'",
        ),
        (None, "^pipeline: expected lengths of every micro-batch and replica, found None"),
        ([], "at least 1 stage, 1 micro-batch"),
        (MICRO_BATCHES[:1], "pipeline interleaved|multiple|at least"),
    ]:
        everywhere(executor, message, lambda wrong=wrong: step(wrong))
        if wrong != MICRO_BATCHES[:1]:
            only_here = wrong if rank == 1 else MICRO_BATCHES
            everywhere(
                executor,
                message.lstrip("^").replace("pipeline: ", "pipeline, rank 1: "),
                lambda given=only_here: step(given),
            )
    shuffled = [*MICRO_BATCHES[1:], MICRO_BATCHES[0]] if rank == 5 else MICRO_BATCHES
    everywhere(
        executor,
        "^pipeline: expected the same lengths on all ranks, found .* on rank 0 and .* on rank 5",
        lambda: step(shuffled),
    )
    first = (
        f"^pipeline, rank 0: embed of micro-batch 0: expected rows .*, {HIDDEN}. of torch.float32 "
        ".*, found "
    )
    everywhere(
        executor,
        first + ".* of torch.float64",
        lambda: step(embed=lambda i, rows: model.embed(rows.tokens % 50).double()),
    )
    everywhere(
        executor,
        first + r"\[1, 16\]",
        lambda: step(embed=lambda i, rows: model.embed(rows.tokens[:1] % 50)),
    )
    everywhere(
        executor,
        first + r"\[\d+, 8\]",
        lambda: step(embed=lambda i, rows: model.embed(rows.tokens % 50)[:, :8]),
    )
    everywhere(executor, first + "None", lambda: step(embed=lambda i, rows: None))
    everywhere(
        executor,
        "rank 0: embed: expected a function, found 5",
        lambda: step(embed=5 if rank == 0 else None),
    )
    loss = (
        "^pipeline, forward tick \\d, rank \\d: loss of micro-batch 0: expected a scalar tensor "
        "of floating point, found "
    )
    for returned, found in (
        (2.5, "2.5"),
        (None, "None"),
        (torch.zeros(2), "a tensor"),
        (torch.tensor(1), "a tensor"),
    ):
        everywhere(
            executor, loss + found, lambda returned=returned: step(loss=lambda i, rows, x: returned)
        )
    cut = model.layers[0].post_attention
    model.layers[0].post_attention = lambda *arguments: cut(*arguments)[:, :8]
    everywhere(
        executor,
        "^pipeline, forward tick 0, rank 0: layers of chunk 0: expected rows .*found .*8. of",
        step,
    )
    model.layers[0].post_attention = cut
    # An error of another class stays with its rank.
    with pytest.raises(
        ZeroDivisionError if rank < executor.size // 2 else ct.InvalidArgument, match="division"
    ):
        step(embed=lambda i, rows: 1 // 0)
    step()


def late(where):
    """A function of one rank raises in the second step."""
    executor = Executor()
    model = make_model(4)
    pool = Pool(executor, neighbourhoods=4, **SHAPE, strategy=STRATEGY)
    pipeline = SamePhasePipeline(
        [model.layers[2 * (executor.rank // 2) :][:2]], pool, stages=2, hidden=HIDDEN
    )
    with pytest.raises(AttributeError, match="chunks"):
        pipeline.chunks = []  # steps would not see it

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("of backward")

    def embed(i, rows):
        x = model.embed(rows.tokens % 50)
        if is_second and executor.rank == 1 and i == 1 and where == "embed":
            raise KeyError("of embed")
        return Raises.apply(x) if is_second and executor.rank == 1 and where == "backward" else x

    def loss(i, rows, x):
        if is_second and executor.rank == 3 and i == 2 and where.startswith("loss"):
            if where == "loss":
                raise KeyError("of loss")
            return 5.0
        return x.sum()

    for is_second in (False, True):
        try:
            pipeline.step(MICRO_BATCHES, embed=embed, loss=loss)
        except Exception as error:
            assert is_second
            print(f"rank {executor.rank}: {type(error).__name__}: {error}", flush=True)
    leave_together()
    os._exit(0)  # the end of gloo's group waits for receives of the step that failed


@needs_gloo
@pytest.mark.parametrize(
    ("where", "rank", "cause"),
    [
        ("embed", 1, "KeyError: 'of embed'"),
        ("loss", 3, "KeyError: 'of loss'"),
        (
            "loss of another kind",
            3,
            "loss of micro-batch 2: expected a scalar tensor of floating point, found 5.0",
        ),
        ("backward", 1, "KeyError: 'of backward'"),
    ],
)
def test_ranks_hear_of_functions_that_raise(where, rank, cause):
    outputs = run_alone(late, 4, where)
    for r, output in enumerate(outputs):
        assert cause in output, outputs
        if r != rank:
            assert (
                f"rank {r}: TransportError" in output
                and f"rank {rank} gave up: pipeline, " in output
            ), outputs


@needs_gloo
def test_replicas_and_stages_on_eight_ranks_are_one_process():
    run_ranks(eight_ranks, 8)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_ticks_have_one_phase_and_run_every_step_after_its_inputs(stages, chunks):
    for micro_batches in (stages, 2 * stages):
        all_ticks = ticks(stages, micro_batches, chunks)
        assert len(all_ticks) == 2 * (micro_batches * chunks + stages - 1)
        done = {}
        for number, tick in enumerate(all_ticks):
            for stage, step in enumerate(tick.steps):
                if step is not None:
                    key = (tick.phase, step[0], step[1] * stages + stage)
                    assert key not in done
                    done[key] = number
        assert len(done) == 2 * micro_batches * chunks * stages
        last = chunks * stages - 1
        for (phase, i, at), number in done.items():
            if phase == "forward":
                assert at == 0 or done["forward", i, at - 1] < number
            else:
                assert done["forward", i, last] < number
                assert at == last or done["backward", i, at + 1] < number
        # Idle stages: while the pipeline fills and drains, in each phase.
        idle = sum(step is None for tick in all_ticks for step in tick.steps)
        assert idle == 2 * stages * (stages - 1)


def test_impossible_ticks_are_refused():
    with pytest.raises(ct.InvalidArgument, match="at least 1 stage, 1 micro-batch and 1 chunk"):
        ticks(stages=2, micro_batches=0)
    with pytest.raises(ct.InvalidArgument, match="the last of at least 3"):
        ticks(stages=3, micro_batches=4, chunks=2)
    for sizes, name in (
        ((1.5, 2), "stages"),
        ((2, "2"), "micro_batches"),
        ((2, 2, None), "chunks"),
        ((True, 2), "stages"),
    ):
        with pytest.raises(
            ct.InvalidArgument, match=f"ticks, {name}: expected a whole number, found"
        ):
            ticks(*sizes)
