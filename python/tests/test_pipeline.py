"""Pools, ping-pong and same-phase pipelines on processes, compared with one process."""

from __future__ import annotations

import contextile as ct
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from contextile.torch import (  # noqa: E402
    Executor,
    PingPong,
    Pool,
    SamePhasePipeline,
    gather_lengths,
    ticks,
)
from pooled_model import (  # noqa: E402
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
from ranks import run_ranks  # noqa: E402

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
    x = PingPong(model.layers, pool)(model.embed(tokens[batch.rows.tokens]), batch.rows.positions, batch=batch)
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
    mine = [model.layers[(c * STAGES + stage) * layers_of_chunk :][:layers_of_chunk] for c in range(chunks)]
    pipeline = SamePhasePipeline(mine, pool, stages=STAGES, hidden=HIDDEN, **options)
    loss = pipeline.step(
        lengths,
        embed=lambda i, rows: model.embed(tokens[i, replica][rows.tokens]),
        loss=lambda i, rows, x: loss_of(model.head(x), tokens[i, replica], rows.tokens, num_tokens),
    )
    check(model, loss, expected_loss, expected_gradients)
    # Idle stages serve: every rank makes the calls of every tick.
    phases = [tick.phase for tick in ticks(STAGES, micro_batches, chunks) if tick.steps[stage] is None]
    calls = layers_of_chunk * options.get("nano_batches", 2)
    again = 2 if options.get("recompute") else 1
    assert pipeline.times["forward"].calls == again * micro_batches * chunks * calls
    assert pipeline.times["backward"].calls == micro_batches * chunks * calls
    assert pipeline.times["idle"].calls == (phases.count("forward") + again * phases.count("backward")) * calls


def eight_ranks():
    executor = Executor()
    replicas_only(executor)
    pipeline(executor, 3, 2)
    pipeline(executor, 1, 1, nano_batches=1)
    pipeline(executor, 4, 1, chunks=2, checkpoint=True)
    pipeline(executor, 2, 1, chunks=2, recompute=True)
    refusals(executor)


def refusals(executor):
    """All ranks refuse these together, so that the group goes on."""
    layers = make_model(2).layers
    pool = Pool(executor, neighbourhoods=4, **SHAPE, strategy=STRATEGY)
    with pytest.raises(ct.InvalidArgument, match="stages that divide the pool's 4 neighbourhoods, found 3"):
        SamePhasePipeline([layers], pool, stages=3, hidden=HIDDEN)
    with pytest.raises(ct.InvalidArgument, match="chunks of equally many layers, found"):
        SamePhasePipeline([layers, layers[:1]], pool, stages=2, hidden=HIDDEN)
    with pytest.raises(ct.InvalidArgument, match="equally many layers on all ranks, found"):
        SamePhasePipeline([layers[: 1 + executor.rank % 2]], pool, stages=2, hidden=HIDDEN)
    pipeline = SamePhasePipeline([layers], pool, stages=2, hidden=HIDDEN)
    with pytest.raises(ct.InvalidArgument, match="lengths of 2 replicas in micro-batch 0, found 1"):
        pipeline.step([[[60]]], embed=None, loss=None)
    keeps = Pool(executor, neighbourhoods=4, **SHAPE, strategy=STRATEGY.replace("resend=on,backward=own", "resend=off"))
    with pytest.raises(ct.InvalidArgument, match="keeps nothing from forward to backward"):
        SamePhasePipeline([layers], keeps, stages=2, hidden=HIDDEN).step(MICRO_BATCHES, embed=None, loss=None)
    with pytest.raises(ct.InvalidArgument, match="one micro-batch in a neighbourhood, found"):
        gather_lengths([executor.rank + 1], pool)


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
