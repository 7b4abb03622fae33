"""The time of a token outside attention: how callers give it, and what follows from it."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import contextile as ct
from contextile import _core
from contextile._linear_layers import linear_us_of
from contextile._planning import options_of

CLUSTER = ct.Cluster.load("dgx-h200:1x4")
SMALL = {"heads": (4, 2), "head_dim": 32, "dtype": "f32"}
MODEL = {
    "name": "tiny",
    "layers": 2,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 32,
    "ffn": 512,
    "vocabulary": 1000,
}


class Received(Exception):
    """Ends a call of plan once its strategy has the options."""


def price(given, heads=(32, 8), head_dim=128):
    """The price that a strategy in Python receives."""

    def strategy(_workload, _cluster, options):
        raise Received(options.linear_us_per_token)

    with pytest.raises(Received) as received:
        shape = {"heads": heads, "head_dim": head_dim}
        ct.plan([64], cluster=CLUSTER, strategy=strategy, linear_layers=given, **shape)
    return received.value.args[0]


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(MODEL))
    return path


def linear_weights(model):
    """The weights of a layer's matrix products, written out: Q, K, V, output, feed-forward."""
    q, kv = (model[key] * model["head_dim"] for key in ("heads", "kv_heads"))
    return model["hidden"] * (2 * q + 2 * kv + 3 * model["ffn"])


LLAMA_3_8B = {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336}


def test_a_price_is_a_number_of_microseconds():
    assert price(None) is None
    for given in (0, 0.25, 1_000_000, np.float32(0.5), np.int64(3)):
        assert price(given) == float(given)


def test_the_price_of_a_model_is_its_weights_over_half_of_the_peak():
    expected = 2 * linear_weights(LLAMA_3_8B) / (1e6 * CLUSTER.peak_tflops * 0.5)
    assert price("llama-3-8b") == pytest.approx(expected, rel=1e-12)


def test_models_come_from_files(tiny, monkeypatch):
    shape = {"heads": (8, 4), "head_dim": 32}
    expected = 2 * linear_weights(MODEL) / (1e6 * CLUSTER.peak_tflops * 0.5)
    assert price(tiny, **shape) == pytest.approx(expected, rel=1e-12)
    assert price(str(tiny), **shape) == price(tiny, **shape)
    # A path is a file, never a preset.
    monkeypatch.chdir(tiny.parent)
    assert price(Path("tiny.json"), **shape) == price(tiny, **shape)
    with pytest.raises(ct.IoError):
        price(Path("llama-3-8b"))
    with pytest.raises(ct.IoError, match="none.json"):
        price("none.json")
    (tiny.parent / "bad.json").write_text('{"layers": 2}')
    with pytest.raises(ct.InvalidArgument, match="bad.json"):
        price("bad.json")


def test_tensor_parallel_ranks_divide_the_price_of_a_model():
    whole = price("llama-3-8b")
    assert price("llama-3-8b", heads=(8, 2)) == whole / 4
    assert price("llama-3-8b", heads=(4, 1)) == whole / 8
    assert price("llama-3-8b", heads=(2, 1)) == whole / 16  # two ranks have copies of a KV head
    assert price(1.5, heads=(4, 2)) == 1.5  # microseconds are those of the device


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ((64, 8), "query heads that divide the 32 of llama-3-8b, found 64 in the batch"),
        ((12, 4), "query heads that divide the 32 of llama-3-8b, found 12 in the batch"),
        ((32, 4), "8 KV heads of llama-3-8b divided over 1 .*, found 4 in the batch"),
        ((32, 1), "8 KV heads of llama-3-8b divided over 1 .*, found 1 in the batch"),
        ((8, 8), "8 KV heads of llama-3-8b divided over 4 .*, found 8 in the batch"),
        ((2, 2), "8 KV heads of llama-3-8b divided over 16 .*, found 2 in the batch"),
    ],
)
def test_heads_that_are_no_share_of_the_models_are_refused(heads, message):
    with pytest.raises(ct.InvalidArgument, match=f"^linear_layers: expected .*{message}$"):
        price("llama-3-8b", heads=heads)


@pytest.mark.parametrize(
    "given",
    [
        *(True, False, np.True_, b"llama-3-8b", [1.0], {}, 1j, Decimal(1), np.ones(1), object),
        *(-1, -1e-9, 1e6 + 1, 10**400, math.nan, math.inf, -math.inf, np.float32("nan")),
    ],
)
def test_other_prices_are_one_clear_error(given):
    message = (
        r"^linear_layers: expected 0 to 1e6 microseconds, the name of a model or a \.json file, "
        "found "
    )
    with pytest.raises(ct.InvalidArgument, match=message):
        linear_us_of(given, 32, 8, CLUSTER)
    for call, strategy in ((ct.plan, "zigzag"), (ct.schedule, "megatron_dynamic")):
        with pytest.raises(ct.InvalidArgument, match=message):
            call([64, 64], cluster="local:1x2", strategy=strategy, linear_layers=given)
    with pytest.raises(ct.InvalidArgument, match=message):
        ct.compare([64, 64], cluster="local:1x2", strategies="zigzag", linear_layers=given)
    with pytest.raises(ct.InvalidArgument, match=message):
        ct.plans([64, 64], cluster="local:1x2", strategy="zigzag", linear_layers=given)


def test_a_name_that_is_no_model_is_refused_with_a_suggestion():
    with pytest.raises(
        ct.InvalidArgument,
        match="^linear_layers: expected microseconds or a model; .*llama-3-8B.*llama-3-8b",
    ):
        price("llama-3-8B")
    for text in ("2.5", ""):
        with pytest.raises(ct.InvalidArgument, match="^linear_layers: expected microseconds or"):
            price(text)


def test_plan_options_have_the_price():
    assert _core.PlanOptions().linear_us_per_token is None
    options = _core.PlanOptions(linear_us_per_token=0.5)
    assert options.linear_us_per_token == 0.5
    with pytest.raises(AttributeError):
        options.linear_us_per_token = 1.0
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ct.InvalidArgument, match="^linear_us_per_token: expected 0 or more"):
            _core.PlanOptions(linear_us_per_token=bad)
    shape = ct.make_workload([64]).shape
    given = options_of({"linear_layers": "llama-3-8b"}, shape=shape, cluster=CLUSTER)
    assert given.linear_us_per_token == price("llama-3-8b")


def most_over_mean(plan):
    return plan.stats().token_overload


def test_tokens_are_even_unless_they_cost_nothing():
    batch = {"cluster": "dgx-h200:1x8", "strategy": "auto:steps=100000", "head_dim": 128}
    lengths = [30_000, *[700] * 40]
    free = ct.plan(lengths, linear_layers=0.0, **batch)
    default = ct.plan(lengths, **batch)
    dear = ct.plan(lengths, linear_layers=10.0, **batch)
    assert most_over_mean(default) < 0.1
    assert most_over_mean(dear) < 0.1
    assert free.simulate().time_us <= default.simulate().time_us
    assert most_over_mean(free) > most_over_mean(default)


def passes_times_tokens(row, backward=True):
    """The layers' passes over the tokens of the fullest device, and of the mean."""
    mean = row.statistics.tokens / 4
    passes = 3 if backward else 1
    return passes * mean * (1 + row.statistics.token_overload), passes * mean


@pytest.mark.parametrize("backward", [True, False])
def test_compared_layers_add_the_linear_layers_of_the_fullest_device(backward):
    rows = ct.compare(
        [900, 100, 24],
        cluster="dgx-h200:1x4",
        strategies="zigzag,dcp,wlb,distca",
        mask="lambda:8,64",
        linear_layers=0.5,
        backward=backward,
        **SMALL,
    )
    assert [row.layer_us for row in rows if row.ok] == sorted(
        row.layer_us for row in rows if row.ok
    )
    assert rows.best() is rows[0]
    for row in rows:
        if not row.ok:
            assert row.layer_us is None and row.uneven_us is None
            continue
        most, mean = passes_times_tokens(row, backward)
        assert row.layer_us == pytest.approx(row.time_us + 0.5 * most, rel=1e-12)
        assert row.uneven_us == pytest.approx(0.5 * (most - mean), rel=1e-9, abs=1e-9)


def test_compared_layers_have_the_guess_where_no_price_is_given():
    workload = ct.make_workload([900, 100, 24], **SMALL)
    guess = _core.guessed_linear_us_per_token(workload.shape, CLUSTER)
    for row in ct.compare(workload, cluster=CLUSTER, strategies="zigzag,dcp"):
        most, mean = passes_times_tokens(row)
        assert row.layer_us == pytest.approx(row.time_us + guess * most, rel=1e-12)
        assert row.uneven_us == pytest.approx(guess * (most - mean), rel=1e-9, abs=1e-9)


def test_comparisons_are_in_the_order_of_their_layers():
    # One long document among short ones: uneven tokens make attention even.
    given = {
        "cluster": "dgx-h200:1x4",
        "strategies": "auto:objective=attention,zigzag",
        "head_dim": 128,
    }
    rows = ct.compare([8000, *[250] * 32], linear_layers=5.0, **given)
    assert rows.best().strategy == "zigzag"
    assert rows[1].time_us < rows[0].time_us
    rows = ct.compare([8000, *[250] * 32], linear_layers=0, **given)
    assert rows.best().strategy == "auto:objective=attention"
    assert rows.best().layer_us == rows.best().time_us and rows.best().uneven_us == 0
    head, *lines = repr(rows).splitlines()
    assert head.split()[:5] == ["strategy", "layer", "ms", "time", "ms"]
    assert len(lines) == 2 and "layer ms" in rows._repr_html_()


def test_schedules_are_compared_by_the_layer_of_their_micro_batches():
    batch = {"cluster": "dgx-h200:1x4", **SMALL}
    for linear_us in (0, 0.5):
        (row,) = ct.compare(
            [900, 100, 24, 500], strategies="megatron_dynamic", linear_layers=linear_us, **batch
        )
        schedule = ct.schedule(
            [900, 100, 24, 500],
            strategy="megatron_dynamic",
            linear_layers=linear_us,
            wire="original",
            **batch,
        )
        predicted = schedule.predict(linear_us_per_token=linear_us).time_us
        assert row.layer_us == pytest.approx(predicted, rel=1e-12)


def test_plans_of_unlike_shapes_have_the_price_of_whole_layers(tiny):
    masks = {"full": "causal", "near": "sliding_window:64"}
    given = {"cluster": "local:1x2", "strategy": "dcp", "head_dim": 32, "mask": masks}
    found = ct.plans([300, 84], linear_layers=tiny, heads=(8, 4), **given)
    assert found["full"].shape.q_heads == 8
    by_head = ct.masks.by_head(["causal"] * 2 + ["sliding_window:64"] * 6)
    # Its groups have 2 and 6 query heads, of which 6 do not divide the model's 8.
    found = ct.plans([300, 84], linear_layers=tiny, heads=(8, 4), **{**given, "mask": by_head})
    assert [len(group.q_heads) for group in found["by_head"].groups] == [2, 6]
    unlike = {"full": (8, 4), "near": (4, 2)}
    with pytest.raises(
        ct.InvalidArgument,
        match="^linear_layers: expected microseconds, because .* for 8, 4 query heads$",
    ):
        ct.plans([300, 84], linear_layers=tiny, heads=unlike, **given)
    ct.plans([300, 84], linear_layers=0.5, heads=unlike, **given)


def test_compare_refuses_a_batch_that_a_workload_has_already():
    workload = ct.make_workload([900, 100, 24], **SMALL)
    with pytest.raises(ct.InvalidArgument, match="compare: expected a workload alone, found it"):
        ct.compare(workload, cluster=CLUSTER, strategies="zigzag", mask="full")


def test_heads_of_another_size_than_the_models_are_refused():
    with pytest.raises(ct.InvalidArgument, match="heads of 128, which llama-3-8b has, found 64"):
        price("llama-3-8b", head_dim=64)
