"""Pools and ping-pong, on threads of this process: a rank each. test_pipeline.py has processes."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint

from contextile.torch import Executor, PingPong, Pool, attention, gather_lengths
from contextile.torch._pool.pooled_calls import _InFlight
from pooled_model import (
    SHAPE,
    STRATEGY,
    assert_same,
    dense_loss,
    gradients_of,
    loss_of,
    make_model,
    make_tokens,
)

# Skewed: the first replica has one long document, the second short ones.
REPLICAS = [[150, 10], [24, 40, 30, 33, 33]]


def make_pool(transport, *, neighbourhoods=2, strategy=STRATEGY, **options):
    shape = {**SHAPE, **options}
    return Pool(
        Executor(transport),
        neighbourhoods=neighbourhoods,
        strategy=strategy,
        cluster=f"local:1x{transport.size}",
        **shape,
    )


def expected_of(num_layers, replicas):
    """Loss and gradients of one process."""
    model = make_model(num_layers)
    num_tokens = sum(map(sum, replicas))
    losses = [
        dense_loss(model, lengths, make_tokens(lengths, d), num_tokens)
        for d, lengths in enumerate(replicas)
    ]
    sum(losses).backward()
    return sum(loss.item() for loss in losses), gradients_of(model)


def check(results, expected):
    """Compares the sum of the ranks' losses and gradients with those of one process."""
    expected_loss, expected_gradients = expected
    assert sum(loss for loss, _ in results) == pytest.approx(expected_loss, rel=1e-5)
    assert_same(
        {name: sum(found[name] for _, found in results) for name in expected_gradients},
        expected_gradients,
    )


def test_one_plan_balances_the_attention_of_replicas():
    def body(transport):
        pool = make_pool(transport)
        batch = pool.prepare(REPLICAS, nano_batches=1)
        model, tokens = make_model(2), make_tokens(REPLICAS[pool.neighbourhood], pool.neighbourhood)
        x = model.embed(tokens[batch.rows.tokens])
        for layer in model.layers:
            q, k, v = layer.pre_attention(x, batch.rows.positions)
            x = layer.post_attention(
                attention(q, k, v, executor=pool.executor), x, batch.rows.positions
            )
        loss = loss_of(model.head(x), tokens, batch.rows.tokens, 320)
        loss.backward()
        return (loss.item(), gradients_of(model)), batch.plans[0]

    results = ct.run_inproc(4, body)
    check([result for result, _ in results], expected_of(2, REPLICAS))
    # The second replica has computed for the first; by itself that one would have twice the mean.
    work = [device.flops for device in results[0][1].stats().forward.devices]
    assert max(work) < 1.2 * np.mean(work), work


def test_a_pool_takes_rows_in_the_order_of_megatron():
    replicas = [[128, 32], [24, 40, 32, 64]]

    def body(transport):
        pool = make_pool(transport, layout="zigzag")
        mine = replicas[pool.neighbourhood]
        rows = pool.rows_of(mine, nano_batches=1)
        batch = pool.prepare(replicas, nano_batches=1, rows=rows)
        model, tokens = make_model(2), make_tokens(mine, pool.neighbourhood)
        x = model.embed(tokens[rows.tokens])
        for layer in model.layers:
            out = pool.attention(*layer.pre_attention(x, rows.positions), batch=batch)
            x = layer.post_attention(out, x, rows.positions)
        loss = loss_of(model.head(x), tokens, rows.tokens, 320)
        loss.backward()
        return loss.item(), gradients_of(model)

    check(ct.run_inproc(4, body), expected_of(2, replicas))


@pytest.mark.parametrize(
    ("form", "replicas"),
    [
        ("plain", REPLICAS),
        ("plain", [[320], [8, 312]]),
        ("plain", [[1, 1, 1, 157], [81, 80]]),
        ("blocks", REPLICAS),  # the work outside attention is computed again
        ("whole", REPLICAS),  # attention, too
        ("retained", REPLICAS),  # ranks keep what they received for backward
    ],
)
def test_ping_pong_is_one_process(form, replicas):
    strategy = (
        STRATEGY.replace("resend=on,backward=own", "resend=off") if form == "retained" else STRATEGY
    )

    def body(transport):
        pool = make_pool(transport, strategy=strategy)
        mine = replicas[pool.neighbourhood]
        batch = pool.prepare(replicas)
        rows, tokens = batch.rows, make_tokens(mine, pool.neighbourhood)
        assert len(batch.plans) == 2 and max(rows.counts) - min(rows.counts) <= 1
        model = make_model(3)
        layers = PingPong(model.layers, pool, checkpoint=form == "blocks")
        x = model.embed(tokens[rows.tokens])
        if form == "whole":
            x = checkpoint(layers, x, rows.positions, batch=batch, use_reentrant=False)
        else:
            x = layers(x, rows.positions, batch=batch)
        loss = loss_of(model.head(x), tokens, rows.tokens, sum(map(sum, replicas)))
        loss.backward()
        assert layers.times["forward"].calls == 3 * 2 * (2 if form == "whole" else 1)
        assert layers.times["backward"].calls == 3 * 2
        return loss.item(), gradients_of(model)

    check(ct.run_inproc(4, body), expected_of(3, replicas))


@pytest.mark.parametrize("seed", range(5))
def test_random_pools_are_one_process(seed):
    random = np.random.default_rng(seed)
    neighbourhoods, size = random.integers(1, 4, 2).tolist()
    longest = random.choice([2 * size, 50, 200], neighbourhoods)
    replicas = [
        [*random.integers(1, 60, random.integers(1, 6)).tolist(), int(last)] for last in longest
    ]
    strategy = str(
        random.choice(
            [
                STRATEGY,
                "fcp:block=16",
                "distca:nano_batches=2,kv_subrange=on,granularity=1,cost=pairs",
            ]
        )
    )
    nano_batches = int(random.integers(1, 3))

    def body(transport):
        pool = make_pool(transport, neighbourhoods=neighbourhoods, strategy=strategy)
        tokens = make_tokens(replicas[pool.neighbourhood], pool.neighbourhood)
        batch = pool.prepare(replicas, nano_batches=nano_batches)
        model = make_model(2)
        x = PingPong(model.layers, pool)(
            model.embed(tokens[batch.rows.tokens]), batch.rows.positions, batch=batch
        )
        loss = loss_of(model.head(x), tokens, batch.rows.tokens, sum(map(sum, replicas)))
        loss.backward()
        return loss.item(), gradients_of(model)

    check(ct.run_inproc(neighbourhoods * size, body), expected_of(2, replicas))


def test_gradients_of_micro_batches_in_flight_add_up():
    """Backward of an earlier micro-batch, whose plans others replaced."""
    micro_batches = [REPLICAS, [[60, 100], [160]]]

    def body(transport):
        pool = make_pool(transport)
        model = make_model(2)
        layers = PingPong(model.layers, pool)
        losses = []
        for i, lengths in enumerate(micro_batches):
            batch = pool.prepare(lengths)
            tokens = make_tokens(lengths[pool.neighbourhood], 2 * i + pool.neighbourhood)
            x = layers(model.embed(tokens[batch.rows.tokens]), batch.rows.positions, batch=batch)
            losses.append(loss_of(model.head(x), tokens, batch.rows.tokens, 640))
        for loss in losses:
            loss.backward()
        return sum(loss.item() for loss in losses), gradients_of(model)

    check(
        ct.run_inproc(4, body),
        expected_of(2, [lengths for of_replicas in micro_batches for lengths in of_replicas]),
    )


def test_one_nano_batch_computes_while_the_other_is_on_its_way(monkeypatch):
    """Backward goes through the same steps in reverse, beginning where forward ends."""
    log = []
    pool = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    batch = pool.prepare([[40, 21]])
    sizes = [len(plan.local_tokens(0)) for plan in batch.plans]
    assert sizes[0] != sizes[1]

    def logged(method, name):
        original = getattr(_InFlight, method)

        def call(self, *arguments):
            result = original(self, *arguments)
            log.append((self._counted, f"{name} {'AB'[sizes.index(len(self.arrays['q']))]}"))
            return result

        monkeypatch.setattr(_InFlight, method, call)

    for method, name in (("__init__", "begin"), ("advance", "advance"), ("finish", "end")):
        logged(method, name)

    class Noted(torch.nn.Module):
        """A layer that notes when its work after attention runs."""

        def __init__(self, layer):
            super().__init__()
            self.layer, self.pre_attention = layer, layer.pre_attention

        def post_attention(self, attended, x, positions):
            x = self.layer.post_attention(attended, x, positions)
            log.append(("forward", "work"))
            x.register_hook(lambda _: log.append(("backward", "work")))
            return x

    model, tokens = make_model(2), make_tokens([40, 21], 0)
    layers = PingPong([Noted(layer) for layer in model.layers], pool)
    x = layers(model.embed(tokens[batch.rows.tokens]), batch.rows.positions, batch=batch)
    x.sum().backward()
    assert [step for direction, step in log if direction == "forward"] == [
        "begin A",
        "begin B",
        "advance A",
        "advance B",
        "end A",
        "work",
        "begin A",
        "end B",
        "work",
        "begin B",
        "advance A",
        "advance B",
        "end A",
        "work",
        "end B",
        "work",
    ]
    assert [step for direction, step in log if direction == "backward"] == [
        "work",
        "begin B",
        "work",
        "begin A",
        "advance B",
        "advance A",
        "end B",
        "work",
        "begin B",
        "end A",
        "work",
        "begin A",
        "advance B",
        "advance A",
        "end B",
        "end A",
    ]


def test_rows_are_dealt_in_sequence_or_as_megatron_deals_them():
    group = ct.inproc_group(4)
    pools = [make_pool(transport) for transport in group]
    # Nano-batch 0: the document of 8 tokens, and 4 tokens of the other; nano-batch 1: the other 12.
    parts = ct._core.nano_batches([8, 16], ["causal"])
    assert sorted(sum(end - begin for _, begin, end in part) for part in parts) == [12, 12]
    rows = [pool.rows_of([8, 16]) for pool in pools]
    assert all(found.counts == (6, 6) for found in rows)
    assert sorted(torch.cat([rows[0].tokens, rows[1].tokens]).tolist()) == list(range(24))
    assert torch.equal(rows[0].tokens, rows[2].tokens)
    assert torch.equal(
        rows[0].positions, torch.where(rows[0].tokens < 8, rows[0].tokens, rows[0].tokens - 8)
    )
    assert torch.equal(rows[1].sequence_ids, (rows[1].tokens >= 8).long())
    zigzag = [
        make_pool(transport, layout="zigzag").rows_of([8, 16], nano_batches=1).tokens.tolist()
        for transport in group[:2]
    ]
    assert zigzag[0] == [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]
    assert zigzag[1] == [2, 3, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19]


def test_what_a_pool_cannot_do_is_refused_by_name():
    group = ct.inproc_group(4)
    with pytest.raises(
        ct.InvalidArgument, match="neighbourhoods that divide the 4 ranks evenly, found 3"
    ):
        make_pool(group[0], neighbourhoods=3)
    with pytest.raises(ct.InvalidArgument, match="expected contiguous or zigzag, found 'ring'"):
        make_pool(group[0], layout="ring")
    pool = make_pool(group[0])
    with pytest.raises(
        ct.InvalidArgument,
        match="expected the micro-batches of 2 neighbourhoods, not all idle, found 1",
    ):
        pool.plan([[60]])
    with pytest.raises(ct.InvalidArgument, match="found 2, 2 of them idle"):
        pool.plan([None, []])
    with pytest.raises(
        ct.InvalidArgument, match="found a micro-batch of 3 tokens in 2 nano-batches, one of 1"
    ):
        pool.plan([[3], [60]])
    with pytest.raises(ct.InvalidArgument, match="expected 1 or 2 nano-batches, found 3"):
        pool.plan([[60], [60]], nano_batches=3)
    with pytest.raises(ct.InvalidArgument, match="expected 1 nano-batch with the layout zigzag"):
        make_pool(group[0], layout="zigzag").plan([[60], [60]])
    with pytest.raises(ct.InvalidArgument, match="multiples of 4 .* found 6"):
        make_pool(group[0], layout="zigzag").plan([[6], [8]], nano_batches=1)
    with pytest.raises(
        ct.InvalidArgument,
        match="pre_attention and post_attention of layer 0, found no post_attention",
    ):
        layer = torch.nn.Linear(1, 1)
        layer.pre_attention = layer.forward
        PingPong([layer], pool)
    with pytest.raises(ct.InvalidArgument, match="expected a layer, found none"):
        PingPong([], pool)

    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    batch = alone.prepare([[60, 40]])
    q, k = torch.zeros(100, 4, 8), torch.zeros(100, 2, 8)
    with pytest.raises(ct.InvalidArgument, match="a batch of 1 nano-batch, found 2"):
        alone.attention(q, k, k, batch=batch)
    with pytest.raises(ct.InvalidArgument, match="q, k and v of 100 rows, found 99"):
        alone.attention(q[:99], k[:99], k[:99], batch=alone.prepare([[60, 40]], nano_batches=1))
    with pytest.raises(ct.InvalidArgument, match="found 99 rows for 100"):
        PingPong(make_model(1).layers, alone)(
            torch.zeros(99, 16), batch.rows.positions, batch=batch
        )
    few = Pool(
        Executor(ct.inproc_group(1)[0], plans_prepared=1),
        neighbourhoods=1,
        cluster="local:1x1",
        **SHAPE,
    )
    with pytest.raises(ct.InvalidArgument, match="plans_prepared of at least 2"):
        PingPong(make_model(1).layers, few)(
            torch.zeros(100, 16), batch.rows.positions, batch=few.prepare([[60, 40]])
        )


def test_plain_attention_refuses_rows_that_are_not_the_plans():
    """A nano-batch has as many local rows as the whole micro-batch may have."""
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    q, k = torch.zeros(100, 4, 8), torch.zeros(100, 2, 8)
    alone.prepare([[60, 40]], nano_batches=1)
    attention(q, k, k, executor=alone.executor)
    alone.prepare([[60, 40]])
    with pytest.raises(ct.InvalidArgument, match="pool.attention or PingPong"):
        attention(q, k, k, executor=alone.executor)
    alone.prepare([[60, 40]], nano_batches=1, rows=alone.rows_of([60, 40], nano_batches=1))
    with pytest.raises(ct.InvalidArgument, match="pool.attention or PingPong"):
        attention(q, k, k, executor=alone.executor)


def test_pools_refuse_values_of_other_kinds():
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    with pytest.raises(ct.InvalidArgument, match="lengths: expected a whole number, found 1.5"):
        alone.prepare([[1.5, 20]])
    with pytest.raises(
        ct.InvalidArgument, match="cluster: expected one of 1 devices, as there are ranks, found 3"
    ):
        Pool(Executor(ct.inproc_group(1)[0]), neighbourhoods=1, cluster="local:1x3", **SHAPE)
    with pytest.raises(ct.InvalidArgument, match="plans_cached: expected at least 1, found 0"):
        Pool(
            Executor(ct.inproc_group(1)[0]),
            neighbourhoods=1,
            cluster="local:1x1",
            plans_cached=0,
            **SHAPE,
        )


@pytest.mark.parametrize("returned", [lambda x: x[:-1], lambda x: (x, x), lambda x: None])
def test_ping_pong_checks_the_rows_that_layers_return(returned):
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    layers = make_model(1).layers
    post = layers[0].post_attention
    layers[0].post_attention = lambda *arguments: returned(post(*arguments))
    batch = alone.prepare([[60, 40]])
    with pytest.raises(
        ct.InvalidArgument, match="layer 0: expected post_attention to return a tensor of 50 rows"
    ):
        PingPong(layers, alone)(torch.zeros(100, 16), batch.rows.positions, batch=batch)


@pytest.mark.parametrize(
    "replicas", [[None, [24, 40, 30, 33, 33]], [[150, 10], None], [[64, 96], []]]
)
@pytest.mark.parametrize("nano_batches", [1, 2])
def test_an_idle_replica_runs_the_same_code_with_no_rows(replicas, nano_batches):
    given = [(d, lengths) for d, lengths in enumerate(replicas) if lengths]
    model = make_model(2)
    losses = [dense_loss(model, lengths, make_tokens(lengths, d), 160) for d, lengths in given]
    sum(losses).backward()

    def body(transport):
        pool = make_pool(transport)
        mine = replicas[pool.neighbourhood]
        batch = pool.prepare(replicas, nano_batches=nano_batches)
        tokens = make_tokens(mine or [], pool.neighbourhood)
        assert bool(mine) == (len(batch.rows.tokens) > 0) and len(batch.rows.counts) == nano_batches
        model = make_model(2)
        layers = PingPong(model.layers, pool)
        x = layers(model.embed(tokens[batch.rows.tokens]), batch.rows.positions, batch=batch)
        loss = loss_of(model.head(x), tokens, batch.rows.tokens, 160)
        loss.backward()
        assert layers.times["backward"].calls == 2 * nano_batches
        return loss.item(), gradients_of(model)

    check(ct.run_inproc(4, body), (sum(loss.item() for loss in losses), gradients_of(model)))


def errors_of(num_ranks, body):
    """The error of every rank."""

    def caught(transport):
        with pytest.raises(ct.Error) as raised:
            body(transport)
        return raised.value

    return ct.run_inproc(num_ranks, caught)


@pytest.mark.parametrize("second", [[[60, 100], [160]], REPLICAS])
def test_ranks_in_different_backwards_say_which_call_each_is_in(second):
    """Also if both batches have one plan, which messages alone would not tell."""

    def body(transport):
        pool = make_pool(transport)
        model = make_model(1)
        layers = PingPong(model.layers, pool)
        losses = []
        for lengths in (REPLICAS, second):
            batch = pool.prepare(lengths)
            x = layers(model.embed(batch.rows.tokens % 50), batch.rows.positions, batch=batch)
            losses.append(x.sum())
        losses[transport.rank % 2].backward()

    errors = errors_of(4, body)
    call = r"(backward \d+|prepare) of plan \S+"
    text = rf"expected all ranks in the same one, found rank \d in {call}.* and rank \d in {call}"
    assert any(isinstance(error, ct.InvalidArgument) for error in errors), errors
    assert all(re.search(text, str(error)) for error in errors), errors


def test_a_rank_in_prepare_and_one_in_attention_say_so():
    def body(transport):
        pool = make_pool(transport, neighbourhoods=1)
        batch = pool.prepare([[60, 40]], nano_batches=1)
        if transport.rank == 0:
            pool.prepare([[50, 50]], nano_batches=1)
        else:
            rows = len(batch.rows.tokens)
            attention(
                torch.zeros(rows, 4, 8),
                torch.zeros(rows, 2, 8),
                torch.zeros(rows, 2, 8),
                executor=pool.executor,
            )

    for error in errors_of(2, body):
        assert "prepare of plan" in str(error) and "forward 1 of plan" in str(error), error


@pytest.mark.parametrize("where", ["pre_attention", "post_attention", "x"])
def test_ranks_hear_of_a_layer_that_raises(where):
    prepared = threading.Barrier(4)  # of threads: one of the transport may be left early, too

    def body(transport):
        pool = make_pool(transport)
        batch = pool.prepare(REPLICAS)
        prepared.wait(60)  # otherwise a peer may still be in prepare
        layers, rows = make_model(2).layers, len(batch.rows.tokens)
        if transport.rank == 2 and where == "x":
            rows -= 1
        elif transport.rank == 2:
            setattr(layers[where == "pre_attention"], where, lambda *_: 1 // 0)
        try:
            PingPong(layers, pool)(torch.zeros(rows, 16), batch.rows.positions, batch=batch)
        except Exception as error:
            return error

    errors = ct.run_inproc(4, body)
    assert isinstance(errors[2], ct.InvalidArgument if where == "x" else ZeroDivisionError)
    for error in errors[:2] + errors[3:]:
        assert isinstance(error, ct.TransportError), error
        assert "rank 2 gave up: ping-pong: " in str(error) and str(errors[2]) in str(error), error


def test_ranks_with_other_micro_batches_go_on():
    def body(transport):
        pool = make_pool(transport)
        with pytest.raises(ct.InvalidPlan, match="expected one plan on all ranks"):
            pool.prepare([[60, 40], [100]] if transport.rank == 2 else REPLICAS)
        return len(pool.prepare(REPLICAS).rows.tokens)

    assert ct.run_inproc(4, body) == [80] * 4


def test_a_batch_of_another_pool_is_refused():
    executor = Executor(ct.inproc_group(1)[0])
    pools = [
        Pool(executor, neighbourhoods=1, cluster="local:1x1", mask=mask, strategy="dcp", **SHAPE)
        for mask in ("causal", "sliding_window:8")
    ]
    batch = pools[1].prepare([[60, 40]], nano_batches=1)
    message = (
        "expected a batch that this pool prepared, found one of another pool .*mask "
        "sliding_window:8, for one of 1, mask causal"
    )
    with pytest.raises(ct.InvalidArgument, match=message):
        PingPong(make_model(1).layers, pools[0])(
            torch.zeros(100, 16), batch.rows.positions, batch=batch
        )
    q, k = torch.zeros(100, 4, 8), torch.zeros(100, 2, 8)
    with pytest.raises(ct.InvalidArgument, match=message):
        pools[0].attention(q, k, k, batch=batch)
    for wrong in (None, [[60, 40]]):
        with pytest.raises(ct.InvalidArgument, match=r"expected a batch of Pool.prepare, found "):
            pools[0].attention(q, k, k, batch=wrong)
        with pytest.raises(
            ct.InvalidArgument, match=r"ping-pong: expected a batch of Pool.prepare, found "
        ):
            PingPong(make_model(1).layers, pools[0])(
                torch.zeros(100, 16), batch.rows.positions, batch=wrong
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": None}, "pool, mask: expected one rule .*, found None"),
        (
            {"mask": {"full": "causal"}},
            "pool, mask: expected one rule .*, found {'full': 'causal'}",
        ),
        ({"mask": ["causal"]}, "pool, mask: expected one rule"),
        ({"mask": "causl"}, "causl"),
        ({"plans_cached": -1}, "pool, plans_cached: expected at least 1, found -1"),
        ({"plans_cached": 1.5}, "pool, plans_cached: expected a whole number, found 1.5"),
        ({"neighbourhoods": "2"}, "pool, neighbourhoods: expected a whole number, found '2'"),
        ({"neighbourhoods": True}, "pool, neighbourhoods: expected a whole number, found True"),
        ({"layout": None}, "pool, layout: expected contiguous or zigzag, found None"),
    ],
)
def test_pools_of_other_kinds_are_refused(options, message):
    executor = Executor(ct.inproc_group(1)[0])
    with pytest.raises(ct.InvalidArgument, match=message):
        Pool(executor, **{"neighbourhoods": 1, "cluster": "local:1x1", **SHAPE, **options})
    with pytest.raises(ct.InvalidArgument, match="pool: expected an Executor, found None"):
        Pool(None, neighbourhoods=1, **SHAPE)


@pytest.mark.parametrize("call", ["prepare", "plan"])
@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            None,
            {},
            "pool: expected a list with document lengths, or None, for every neighbourhood's .*, "
            "found None",
        ),
        (5, {}, "for every neighbourhood's micro-batch, found 5"),
        ("64", {}, "for every neighbourhood's micro-batch, found '64'"),
        ({0: [64]}, {}, "for every neighbourhood's micro-batch, found {0"),
        ([64], {}, "pool, neighbourhood 0: lengths: expected a list of whole numbers, found 64"),
        (
            ["64"],
            {},
            "pool, neighbourhood 0: lengths: expected a list of whole numbers, found '64'",
        ),
        ([["64"]], {}, "pool, neighbourhood 0: lengths: expected a whole number, found '64'"),
        ([[True]], {}, "lengths: expected a whole number, found True"),
        (
            torch.tensor([64]),
            {},
            "pool, neighbourhood 0: lengths: expected a list of whole numbers",
        ),
        ([torch.tensor([64.0])], {}, "pool, neighbourhood 0: lengths: expected a whole number"),
        ([[64]], {"nano_batches": 1.0}, "pool, nano_batches: expected a whole number, found 1.0"),
        ([[64]], {"nano_batches": "2"}, "pool, nano_batches: expected a whole number, found '2'"),
        ([[64]], {"nano_batches": True}, "pool, nano_batches: expected a whole number, found True"),
    ],
)
def test_micro_batches_of_other_kinds_are_refused(call, given, options, message):
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    with pytest.raises(ct.InvalidArgument, match=message):
        getattr(alone, call)(given, **options)


def test_micro_batches_may_be_arrays_of_whole_numbers():
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    expected = alone.plan([[60, 40]])
    for given in (
        torch.tensor([[60, 40]]),
        [torch.tensor([60, 40])],
        np.array([[60, 40]]),
        ([60, 40],),
        iter([[60, 40]]),
    ):
        assert alone.plan(given) == expected


def test_rows_of_another_micro_batch_are_refused():
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    with pytest.raises(
        ct.InvalidArgument, match="pool, rows: expected this rank's 100 rows .*, found 99 rows"
    ):
        alone.prepare([[60, 40]], nano_batches=1, rows=alone.rows_of([60, 39], nano_batches=1))
    with pytest.raises(
        ct.InvalidArgument, match="pool, rows: expected Rows of 2 nano-batches .*, found rows of 1"
    ):
        alone.prepare([[60, 40]], rows=alone.rows_of([60, 40], nano_batches=1))
    with pytest.raises(
        ct.InvalidArgument, match=r"pool, rows: expected Rows of 1 nano-batches .*, found tensor"
    ):
        alone.prepare([[60, 40]], nano_batches=1, rows=torch.arange(100))


def test_ping_pong_of_other_kinds_is_refused():
    alone = make_pool(ct.inproc_group(1)[0], neighbourhoods=1)
    layers, batch = make_model(1).layers, alone.prepare([[60, 40]])
    for arguments, message in [
        ((layers, None), "ping-pong: expected a Pool, found None"),
        ((None, alone), "ping-pong: expected a list of layers, each an nn.Module, found NoneType"),
        ((layers[0], alone), "expected a list of layers, each an nn.Module, found Layer"),
        (([len], alone), "expected a list of layers, each an nn.Module, found builtin"),
    ]:
        with pytest.raises(ct.InvalidArgument, match=message):
            PingPong(*arguments)
    with pytest.raises(
        ct.InvalidArgument, match="ping-pong, checkpoint: expected True or False, found 'yes'"
    ):
        PingPong(layers, alone, checkpoint="yes")
    for x in (None, torch.zeros(()), [0.0] * 100):
        with pytest.raises(
            ct.InvalidArgument,
            match="ping-pong: expected x of this rank's rows of the batch, found",
        ):
            PingPong(layers, alone)(x, batch.rows.positions, batch=batch)
    for returned in (None, torch.zeros(3, 1), (None, None, None)):
        layers[0].pre_attention = lambda *_, returned=returned: returned
        with pytest.raises(
            ct.InvalidArgument,
            match="layer 0: expected pre_attention to return the tensors q, k and v, found",
        ):
            PingPong(layers, alone)(torch.zeros(100, 16), batch.rows.positions, batch=batch)


def test_executors_of_other_kinds_are_refused():
    transport = ct.inproc_group(1)[0]
    for options in (
        {"plans_kept": "16"},
        {"plans_kept": True},
        {"plans_prepared": 1.5},
        {"timeout": "60"},
    ):
        with pytest.raises(
            ct.InvalidArgument,
            match=f"executor, {next(iter(options))}: expected a (whole )?number, found",
        ):
            Executor(transport, **options)
    for plan in (None, "plan.ctx", 5):
        with pytest.raises(ct.InvalidArgument, match="executor, prepare: expected a Plan, found"):
            Executor(transport).prepare(plan)


def test_lengths_of_another_kind_are_refused_on_every_rank():
    def body(transport):
        pool = make_pool(transport)
        with pytest.raises(
            ct.InvalidArgument,
            match="gather_lengths, rank 1: lengths: expected a whole number, found 'x'",
        ):
            gather_lengths([5, "x"] if transport.rank == 1 else [5], pool)
        return gather_lengths([40] if pool.neighbourhood else None, pool)

    assert ct.run_inproc(4, body) == [[[], [40]]] * 4
