"""Planning, plans and their proof, from Python."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contextile as ct

SMALL = {"heads": (4, 2), "head_dim": 32, "dtype": "f32"}


@pytest.fixture(scope="module")
def plan():
    return ct.plan([700, 260, 64], cluster="local:2x2", strategy="zigzag", mask="causal", **SMALL)


def test_a_plan_says_what_it_is(plan):
    assert plan.strategy == "zigzag"
    assert (plan.nodes, plan.devices_per_node, plan.num_devices, plan.num_tokens) == (2, 2, 4, 1024)
    assert plan.sequences == [(0, 700), (700, 960), (960, 1024)]
    assert plan.mask_names == ["causal"]
    assert plan.has_backward
    assert plan.cluster.name == "local"
    assert plan.digest in repr(plan)
    assert plan.verify().ok and bool(plan.verify())
    stats = plan.stats()
    assert stats.tokens == 1024
    assert stats.forward.total_bytes == stats.forward.inter_bytes + stats.forward.intra_bytes
    assert sum(stats.forward.bytes_by_kind.values()) == stats.forward.total_bytes
    assert sum(device.sent_bytes for device in stats.backward.devices) == stats.backward.total_bytes


def test_plans_are_those_of_the_program(plan):
    # docs/start.md shows this digest for the same batch: the program and Python make one plan.
    same = ct.plan(
        [700, 260, 64],
        cluster="local:2x2",
        strategy="zigzag",
        heads=(8, 2),
        head_dim=32,
        dtype="f32",
    )
    assert same.digest == "822e18d01a584461"


def test_a_search_reports_its_phases(plan):
    assert plan.search is None  # zigzag does not search
    found = ct.plan([3000, 200], cluster="local:1x4", strategy="auto:steps=100000", **SMALL).search
    names = [phase.name for phase in found.phases]
    assert len(names) == len(set(names))
    assert found.found_in in names
    shares = [phase.budget_share for phase in found.phases]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    bests = [phase.best_us for phase in found.phases if phase.best_us is not None]
    assert bests
    assert bests == sorted(bests, reverse=True)
    assert sum(phase.candidates for phase in found.phases) > 0


def test_layouts_partition_the_batch(plan):
    tokens = np.concatenate([plan.local_tokens(rank) for rank in range(4)])
    assert sorted(tokens.tolist()) == list(range(1024))
    for rank in range(4):
        local = plan.local_tokens(rank)
        assert len(local) == plan.num_local_tokens(rank)
        assert np.array_equal(
            np.concatenate([np.arange(a, b) for a, b in plan.local_ranges(rank)]), local
        )
        starts = np.array([begin for begin, _ in plan.sequences])
        assert np.array_equal(plan.positions(rank), local - starts[plan.sequence_ids(rank)])
        ends = np.array([end for _, end in plan.sequences])[plan.sequence_ids(rank)]
        assert np.array_equal(plan.rolled_tokens(rank), np.where(local + 1 < ends, local + 1, -1))
    with pytest.raises(ct.InvalidArgument):
        plan.local_tokens(4)
    with pytest.raises(ct.InvalidArgument):
        plan.local_tokens(-1)


def test_round_trips(plan, tmp_path):
    plan.save(str(tmp_path / "a.plan"))
    for other in (
        ct.Plan.load(str(tmp_path / "a.plan")),
        ct.Plan.from_bytes(plan.to_bytes()),
        ct.Plan.from_json(plan.to_json()),
        pickle.loads(pickle.dumps(plan)),
    ):
        assert other == plan and hash(other) == hash(plan)
    assert pickle.loads(pickle.dumps(plan)).cluster == plan.cluster
    part = ct.Plan.slice_from_bytes(plan.slice_to_bytes(2))
    assert part.slice_of == 2 and part != plan
    assert np.array_equal(part.local_tokens(2), plan.local_tokens(2))
    assert json.loads(plan.to_json())["digest"] == plan.digest


@pytest.mark.parametrize("load", [ct.Plan.from_bytes, ct.Plan.slice_from_bytes])
def test_foreign_bytes_are_refused(plan, load):
    data = bytearray(plan.to_bytes() if load is ct.Plan.from_bytes else plan.slice_to_bytes(0))
    for at in range(0, len(data), max(1, len(data) // 60)):
        changed = bytearray(data)
        changed[at] ^= 0x55
        with pytest.raises(ct.InvalidPlan):
            load(bytes(changed))
    for end in (0, 1, 8, len(data) // 2, len(data) - 1):
        with pytest.raises(ct.InvalidPlan):
            load(bytes(data[:end]))


def test_a_plan_from_a_file_has_no_cluster_of_its_own(plan):
    other = ct.Plan.from_bytes(plan.to_bytes())
    assert other.cluster is None
    with pytest.raises(ct.InvalidArgument, match="cluster: expected one"):
        other.simulate()
    assert other.simulate(ct.Cluster.load("local:2x2")).time_us == plan.simulate().time_us


def test_simulation_timeline_reasons_and_pages(plan, tmp_path):
    simulation = plan.simulate(timeline=True)
    assert simulation.time_us == simulation.forward.time_us + simulation.backward.time_us
    program = simulation.forward.programs[0]
    assert program.activities and program.messages
    assert max(end for *_, end in program.activities) == pytest.approx(simulation.forward.time_us)
    assert len(simulation.forward.devices) == 4
    assert not plan.simulate().forward.programs[0].activities
    assert "critical path" in plan.why()
    plan.report(str(tmp_path / "plan.html"))
    page = (tmp_path / "plan.html").read_text()
    assert page.startswith("<!doctype html>") or page.lower().startswith("<!doctype html>")
    plan.trace(str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())
    with pytest.raises(ct.IoError):
        plan.report(str(tmp_path / "missing" / "plan.html"))
    assert "<svg" in plan._repr_html_() and plan.digest in plan._repr_html_()


@pytest.mark.parametrize("strategy", ["zigzag", "ulysses", "hybrid", "dcp"])
def test_the_display_of_a_plan_tells_its_predicted_time_and_the_gain_over_zigzag(strategy):
    lengths, cluster = [500, 90_000, 40_572], "dgx-h200:4x8"
    plan = ct.plan(lengths, cluster=cluster, strategy=strategy)
    (zigzag,) = ct.compare(lengths, cluster=cluster, strategies="zigzag")
    own = plan.simulate().time_us
    for text in (repr(plan), plan._repr_html_()):
        assert strategy in text and f"predicted {own / 1e3:.4g} ms" in text
        gain = f"{zigzag.time_us / own:.3g} times as fast as zigzag"
        assert (gain in text) == (strategy != "zigzag")
    assert len(plan._repr_html_().encode()) <= 20_000
    assert "predicted" not in repr(ct.Plan.from_bytes(plan.to_bytes()))  # it knows no cluster
    assert plan.digest in repr(ct.Plan.slice_from_bytes(plan.slice_to_bytes(0)))


def test_the_display_of_a_plan_of_many_documents_and_tiles_stays_small():
    lengths = [17 + 61 * (i % 29) for i in range(400)]
    plan = ct.plan(lengths, cluster="dgx-h200:4x8", strategy="dcp", block_size=512)
    page = plan._repr_html_()
    assert "<svg" in page and len(page.encode()) <= 20_000


def test_clusters():
    preset = ct.Cluster.preset("dgx-h200", nodes=4)
    assert (preset.nodes, preset.devices_per_node, preset.num_devices) == (4, 8, 32)
    assert ct.Cluster.parse_json(preset.to_json()) == preset
    assert [preset.node_of(rank) for rank in (0, 7, 8, 31)] == [0, 0, 1, 3]
    copy = ct.Cluster(preset)
    copy.inter_gbytes_per_s_per_node = 1.0
    assert copy != preset
    slower = ct.plan([4096], cluster=copy, strategy="ring", **SMALL)
    faster = ct.plan([4096], cluster=preset, strategy="ring", **SMALL)
    assert slower.simulate().time_us > faster.simulate().time_us
    flows = ct.Cluster(preset)
    flows.flow_gbytes_per_s = [(2, 0.5), (8, 0.25)]
    assert flows.flow_gbytes_per_s == [(2, 0.5), (8, 0.25)]
    assert ct.Cluster.parse_json(flows.to_json()) == flows
    limited = ct.plan([4096], cluster=flows, strategy="ring", **SMALL)
    assert limited.simulate().time_us > faster.simulate().time_us
    hosted = ct.Cluster(preset)
    assert hosted.engine == ct.EngineCosts()
    hosted.engine = ct.EngineCosts("torch")
    hosted.engine.host_stage_us = 5000
    assert ct.Cluster.parse_json(hosted.to_json()).engine == hosted.engine
    assert [name for name, _ in ct.engine_presets()][:2] == ["native", "torch"]
    assert pickle.loads(pickle.dumps(hosted.engine)) == hosted.engine
    assert deepcopy(hosted.engine) == hosted.engine
    sized = ct.Cluster.preset("dgx-h200,kernel=fa2,engine=ring", nodes=3)
    assert (sized.nodes, sized.name) == (3, "dgx-h200,kernel=fa2,engine=ring")
    waiting = ct.plan([4096], cluster=hosted, strategy="ring", **SMALL)
    assert waiting.simulate().time_us > faster.simulate().time_us + 5000
    with pytest.raises(ct.InvalidArgument, match="engine: expected one of native"):
        ct.EngineCosts("troch")
    copy.devices_per_node = 0
    for broken in (
        copy.check,
        lambda: copy.node_of(0),
        lambda: ct.plan([64], cluster=copy, **SMALL),
    ):
        with pytest.raises(ct.InvalidArgument):
            broken()
    with pytest.raises(ct.InvalidArgument, match="launches: expected concurrent or grouped"):
        copy.launches = "some"
    assert "dgx-h200" in dict(ct.cluster_presets())
    assert preset.group(tp=8).num_devices == 4


def test_every_strategy_has_a_function_with_its_options():
    from contextile import _core

    for name, summary, options in _core.strategy_table():
        function = getattr(ct.strategies, name, None) or getattr(ct.strategies, name + "_")
        assert summary in function.__doc__
        assert function() == ct.StrategyChoice(name)
        for option in options:
            assert option.help in function.__doc__
    assert str(ct.strategies.dcp(divisions=6, relays=True)) == "dcp:divisions=6,relays=on"
    assert str(ct.strategies.fcp(block="auto")) == "fcp:block=auto"
    assert ct.strategies.dcp(divisions=4) == ct.strategies.dcp()
    with pytest.raises(ct.InvalidArgument, match="expected an option among divisions, "):
        ct.strategies.dcp(T=6)
    with pytest.raises(ct.InvalidArgument, match="did you mean"):
        ct.StrategyChoice("zigzg")
    assert {name.rstrip("_") for name in ct.strategies.__all__} >= set(ct.strategies.names())


def test_comparisons():
    rows = ct.compare(
        [900, 100], cluster="local:1x4", strategies="zigzag,dcp,distca", mask="lambda:8,64", **SMALL
    )
    by_name = {row.strategy: row for row in rows}
    assert by_name["distca"].skipped and not by_name["distca"].ok
    assert rows.best() is rows[0] and rows[0].time_us <= rows[1].time_us
    assert by_name["zigzag"].forward_bound.time_us <= by_name["zigzag"].simulation.forward.time_us
    assert "zigzag" in repr(rows) and "<table>" in rows._repr_html_()
    with pytest.raises(ct.InvalidArgument, match="expected one of"):
        ct.compare([64], cluster="local:1x2", strategies=["nope"], **SMALL)


def test_comparisons_say_what_they_hang_on():
    given = {"cluster": "local:1x4", "strategies": "zigzag,dcp", **SMALL}
    rows = ct.compare([900, 100], sensitivity="kept", **given)
    as_is, *changed = rows.sensitivity
    assert as_is.constant == "" and as_is.fastest == [rows.best().strategy]
    assert as_is.times_us == {row.strategy: row.time_us for row in rows}
    slower = next(
        row for row in changed if row.constant == "attention_tflops" and row.value == "0.05"
    )
    assert slower.was == "0.1" and slower.cluster.attention_tflops == 0.05
    plan = ct.plan([900, 100], cluster="local:1x4", strategy="dcp", **SMALL)
    assert slower.times_us["dcp"] == plan.simulate(slower.cluster).time_us
    replan = ct.compare([900, 100], sensitivity="replan", **given).sensitivity
    assert [row.constant for row in replan] == [row.constant for row in rows.sensitivity]
    assert replan[0].times_us == as_is.times_us
    assert ct.compare([900, 100], **given).sensitivity is None
    with pytest.raises(ct.InvalidArgument, match="expected 'kept', 'replan' or None"):
        ct.compare([900, 100], sensitivity="yes", **given)


def test_bounds_are_not_undercut():
    workload = ct.make_workload([900, 100], **SMALL)
    bound = ct.lower_bound(workload, cluster="local:1x4", direction="backward")
    assert bound.time_us <= ct.plan(workload, cluster="local:1x4").simulate().backward.time_us
    assert bound.time_us == max(bound.separate_us, bound.joint_us)
    assert bound.communication_us == max(bound.device_ports_us, bound.node_uplinks_us)
    with pytest.raises(ct.InvalidArgument, match="direction: expected forward or backward"):
        ct.lower_bound(workload, cluster="local:1x4", direction="up")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": []}, "lengths"),
        ({"lengths": [1, 0]}, "index 1"),
        ({"lengths": [2**31, 2**31]}, "tokens"),
        ({"mask": "causl"}, "mask"),
        ({"mask": 3}, "mask: expected a rule"),
        ({"mask": ["causal"]}, "expected a rule for each of 2 documents, found 1"),
        ({"heads": (3, 2)}, "heads"),
        ({"dtype": "f8"}, "f8"),
        ({"strategy": "zigzag,ring"}, "expected one, found 2"),
        ({"strategy": lambda *_: None}, "returns an Arrangement, found NoneType"),
        ({"strategy": "ulysses", "cluster": "local:1x7"}, "ulysses"),
        ({"cluster": "local:0x2"}, "local"),
        ({"home": [(0, 10, 0)]}, "home"),
        ({"home": "zagzig"}, "zagzig"),
        ({"token_limit": 3, "strategy": "zigzag"}, "violations"),
        ({"memory_limit_bytes": 3, "strategy": "auto:steps=1000"}, "at most 3 bytes of a device"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    arguments = {
        "lengths": [64, 64],
        "cluster": "local:1x8",
        "strategy": "zigzag",
        **SMALL,
        **arguments,
    }
    lengths = arguments.pop("lengths")
    with pytest.raises((ct.InvalidArgument, ct.CheckFailed, ct.IoError)) as error:
        ct.plan(lengths, **arguments)
    assert message in str(error.value)


def test_a_workload_comes_alone():
    workload = ct.make_workload([64], **SMALL)
    with pytest.raises(ct.InvalidArgument, match="found it with mask"):
        ct.plan(workload, cluster="local:1x2", mask="causal")


def test_home_stays():
    plan = ct.plan([512, 512], cluster="local:1x2", strategy="dcp", home="contiguous", **SMALL)
    assert plan.local_ranges(0) == [(0, 512)] or sorted(plan.local_tokens(0).tolist()) == list(
        range(512)
    )


def test_progress_is_told_and_may_end_the_work():
    told = []
    ct.plan(
        [3000, 200],
        cluster="local:1x4",
        strategy="auto:steps=100000",
        progress=lambda *step: told.append(step),
        **SMALL,
    )
    assert {what for what, _, _ in told} >= {"arranging", "building the plan", "verifying"}
    assert all(0 <= done <= total for _, done, total in told)

    class Stop(Exception):
        pass

    def stop(what, done, total):
        raise Stop

    with pytest.raises(Stop):
        ct.plan([3000, 200], cluster="local:1x4", strategy="auto", progress=stop, **SMALL)


def test_progress_bar():
    pytest.importorskip("tqdm")
    assert ct.plan([300], cluster="local:1x2", strategy="zigzag", progress=True, **SMALL).verify()


@pytest.mark.timing
def test_ctrl_c_ends_planning():
    code = (
        # Background jobs of a shell ignore the signal.
        "import contextile as ct, os, signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    ct.plan([131072] * 8, cluster='dgx-h200:8x8', strategy='auto:effort=100')\n"
        "except KeyboardInterrupt:\n"
        "    print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "ended", done.stderr


@pytest.mark.timing
def test_the_gil_is_free_while_planning():
    ticks = 0
    done = threading.Event()

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    ct.plan([20000, 3000], cluster="dgx-h200:2x8", strategy="auto:steps=1000000")
    during = ticks - before
    done.set()
    thread.join()
    assert during > 1  # one tick may come just before the call


def test_importing_needs_neither_torch_nor_numpy():
    code = (
        "import sys, contextile\ncontextile.plan([64], cluster='local:1x2', "
        "strategy='zigzag')\nprint([name for name in ('torch', 'numpy', 'tqdm', 'matplotlib') if "
        "name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------- masks


def dense_rule(rule, lengths):
    return ct.make_workload(lengths, mask=rule).mask(0).dense(sum(lengths))


def test_rules_are_their_texts():
    for rule, text in {
        ct.masks.full(): "full",
        ct.masks.causal(): "causal",
        ct.masks.sliding_window(7): "sliding_window:7",
        ct.masks.lambda_(3, 9): "lambda:3,9",
        ct.masks.causal_blockwise(4, 2, 1): None,
        ct.masks.shared_question(0.25, 3): None,
        ct.masks.shared_question(lengths=[5, 3, 2]): None,
        ct.masks.prefix_lm(6): "prefix_lm:6",
        ct.masks.chunked(8): "chunked:8",
    }.items():
        assert ct.masks.parse(str(rule)) == rule
        if text:
            assert ct.masks.parse(text) == rule
    with pytest.raises(ct.InvalidArgument):
        ct.masks.sliding_window(0)


def test_parameters_mean_what_their_names_say():
    n = 40
    q, k = np.arange(n)[:, None], np.arange(n)[None]
    causal = q >= k
    assert np.array_equal(dense_rule(ct.masks.sliding_window(5), [n]), causal & (q - k < 5))
    assert np.array_equal(dense_rule(ct.masks.lambda_(3, 5), [n]), causal & ((q - k < 5) | (k < 3)))
    assert np.array_equal(dense_rule(ct.masks.prefix_lm(6), [n]), causal | (k < 6))
    assert np.array_equal(dense_rule(ct.masks.chunked(8), [n]), causal & (q // 8 == k // 8))
    blockwise = dense_rule(ct.masks.causal_blockwise(block=4, window=2, sink=1), [n])
    expected = causal & ((q - k <= 2 * 4) | (k < 4) | (q // 4 == (n - 1) // 4))
    assert np.array_equal(blockwise, expected)
    question = dense_rule(ct.masks.shared_question(lengths=[20, 12, 8]), [n])
    answer = (q >= 20).astype(int) + (q >= 32)
    of_key = (k >= 20).astype(int) + (k >= 32)
    assert np.array_equal(question, causal & ((of_key == 0) | (of_key == answer)))


def test_a_rule_for_each_document():
    mixed = dense_rule(["full", ct.masks.causal()], [5, 7])
    expected = np.zeros((12, 12), dtype=bool)
    expected[:5, :5] = True
    expected[5:, 5:] = np.tril(np.ones((7, 7), dtype=bool))
    assert np.array_equal(mixed, expected)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 24).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_any_dense_mask_survives(rows):
    dense = np.array(rows, dtype=bool)
    n = len(dense)
    mask = ct.masks.from_dense(dense)
    assert np.array_equal(mask.dense(n), dense)
    assert mask.num_pairs == dense.sum()
    assert ct.masks.from_bands(mask.bands, num_tokens=n) == mask
    padded = np.pad(dense, ((0, 0), (1, 1))).astype(np.int8)
    change = np.diff(padded, axis=1)
    ranges = [
        list(zip(np.flatnonzero(row == 1), np.flatnonzero(row == -1), strict=True))
        for row in change
    ]
    assert np.array_equal(ct.masks.from_row_ranges(ranges).dense(n), dense)
    if dense.any():
        workload = ct.make_workload([n], mask=mask, **SMALL)
        for strategy in ("dcp", "zigzag"):
            plan = ct.plan(workload, cluster="local:1x2", strategy=strategy)
            assert plan.stats().forward.pairs == dense.sum()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5))
def test_cu_seqlens(lengths, window):
    ends = np.concatenate([[0], np.cumsum(lengths)])
    n = int(ends[-1])
    for causal, last, rule in (
        (True, None, "causal"),
        (False, None, "full"),
        (True, window, f"sliding_window:{window}"),
    ):
        mask = ct.masks.from_cu_seqlens(ends, causal=causal, window=last)
        assert np.array_equal(mask.dense(n), dense_rule(rule, lengths))


def test_slices_are_magi_attentions():
    mask = ct.masks.from_slices([(0, 4), (4, 8)], [(0, 4), (0, 8)], ["causal", "full"])
    expected = np.zeros((8, 8), dtype=bool)
    expected[:4, :4] = np.tril(np.ones((4, 4), dtype=bool))
    expected[4:] = True
    assert np.array_equal(mask.dense(8), expected)
    with pytest.raises(ct.InvalidArgument, match="type of a slice"):
        ct.masks.from_slices([(0, 4)], [(0, 4)], ["diagonal"])


@pytest.mark.parametrize(
    "build",
    [
        lambda: ct.masks.from_bands([(0, 4, 0, 9, None, 0)], num_tokens=8),
        lambda: ct.masks.from_bands([(0, 4, 0, 4, None, 0), (0, 4, 0, 4, 0, None)], num_tokens=8),
        lambda: ct.masks.from_row_ranges([[(0, 2), (1, 3)]]),
        lambda: ct.masks.from_row_ranges([[(2, 2)]]),
        lambda: ct.masks.from_dense(np.ones((3, 4))),
        lambda: ct.masks.from_dense(np.ones(9)),
        lambda: ct.masks.from_cu_seqlens([0, 5, 5]),
        lambda: ct.masks.from_cu_seqlens([1, 5]),
        lambda: ct.masks.from_cu_seqlens([0, 5], causal=False, window=3),
        lambda: ct.masks.from_slices([(0, 4)], [], ["full"]),
    ],
)
def test_bad_masks_are_refused(build):
    with pytest.raises(ct.InvalidArgument):
        build()


# -------------------------------------------------------------------------------- data and stores


def test_batches_of_a_sampler_are_its_pieces():
    sampler = ct.BatchSampler([250, 30, 70], tokens=100, max_document_tokens=60, seed=4)
    for step in range(20):
        pieces = sampler.pieces(step)
        assert sampler.batch(step) == [end - begin for _, begin, end in pieces]
        assert sum(sampler.batch(step)) == 100
    assert (
        ct.sample_lengths("prolong", tokens=4096)[0]
        and sum(ct.sample_lengths("prolong", tokens=4096)[0]) == 4096
    )


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_stores(kind, tmp_path):
    store = ct.open_store("memory:" if kind == "memory" else f"file://{tmp_path}/store")
    key = f"{kind}/{tmp_path.name}"
    assert store.get(key) is None
    assert store.put(key, b"one", expiry=60)
    assert not store.put(key, b"two", expiry=60)
    assert store.pull(key, timeout=1) == b"one"
    store.replace(key, b"two", expiry=60)
    assert store.get(key) == b"two"
    assert store.renew(key, b"two", expiry=60) and not store.renew(key, b"one", expiry=60)
    assert store.erase(key) and store.pull(key, timeout=0.01) is None
    with pytest.raises(ct.InvalidArgument):
        store.put("", b"", expiry=60)
    with pytest.raises(ct.InvalidArgument, match="expiry"):
        store.put(key, b"", expiry=float("nan"))
    with pytest.raises(ct.InvalidArgument):
        ct.open_store("ftp://x")


# ------------------------------------------------------------------------------- execution in NumPy


def test_numpy_executors_of_threads():
    plan = ct.plan([100, 60], cluster="local:1x4", strategy="dcp", **SMALL)
    rng = np.random.default_rng(0)
    q, k, v, dout = (
        rng.standard_normal((160, heads, 32), dtype=np.float32) for heads in (4, 2, 2, 4)
    )
    mask = dense_rule("causal", [100, 60])

    def body(transport):
        executor = ct.NumpyExecutor(transport)
        executor.prepare(plan)
        mine = plan.local_tokens(transport.rank)
        output = executor.forward(q[mine], k[mine], v[mine])
        gradients = executor.backward(dout[mine], q[mine], k[mine], v[mine], output)
        assert executor.last_stats.total_s > 0
        return mine, output, gradients

    out = np.empty_like(dout)
    dq = np.empty_like(q)
    for mine, output, gradients in ct.run_inproc(4, body):
        out[mine], dq[mine] = output.out, gradients.dq
        assert gradients.dsink is None
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), np.repeat(k, 2, 1)) / np.sqrt(32)
    scores[:, ~mask] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.abs(out - np.einsum("hqk,khd->qhd", weights, np.repeat(v, 2, 1))).max() < 1e-5
    dweights = np.einsum("qhd,khd->hqk", dout, np.repeat(v, 2, 1))
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdims=True)) / np.sqrt(32)
    assert np.abs(dq - np.einsum("hqk,khd->qhd", dscores, np.repeat(k, 2, 1))).max() < 1e-5


def test_an_error_on_one_rank_is_the_error_of_all():
    plan = ct.plan([100, 60], cluster="local:1x2", strategy="zigzag", **SMALL)

    def body(transport):
        executor = ct.NumpyExecutor(transport)
        executor.prepare(plan)
        rows = plan.num_local_tokens(transport.rank) - (transport.rank == 1)
        zeros = [np.zeros((rows, heads, 32), dtype=np.float32) for heads in (4, 2, 2)]
        executor.forward(*zeros)

    with pytest.raises(ct.InvalidArgument, match="rank 1"):
        ct.run_inproc(2, body)


def test_a_group_refuses_what_is_no_secret(tmp_path):
    def join(**options):
        return ct.gloo_transport(rank=0, size=1, rendezvous="tcp://127.0.0.1:29876", **options)

    if not ct.gloo_available():
        pytest.skip("this build has no gloo")
    with pytest.raises(ct.InvalidArgument, match="expected a secret of 16 to 4096 bytes, found 5"):
        join(secret="short")
    path = tmp_path / "secret"
    path.write_text("only these ranks know it\n")
    path.chmod(0o644)
    with pytest.raises(ct.InvalidArgument, match="chmod 600"):
        join(secret_file=str(path))
    path.chmod(0o600)
    assert join(secret_file=str(path)).size == 1
    with pytest.raises(ct.InvalidArgument, match="found both"):
        join(secret="only these ranks know it", secret_file=str(path))


def test_executors_check_their_plans():
    transport = ct.inproc_group(1)[0]
    executor = ct.NumpyExecutor(transport)
    zeros = np.zeros((1, 4, 32), dtype=np.float32)
    with pytest.raises(ct.InvalidArgument, match="expected prepare"):
        executor.forward(zeros, zeros, zeros)
    with pytest.raises(ct.InvalidPlan, match="expected a plan for 1 ranks, found one for 2"):
        executor.prepare(ct.plan([64], cluster="local:1x2", strategy="zigzag", **SMALL))
    with pytest.raises(ct.InvalidArgument):
        ct.NumpyExecutor(transport, kernel="cuda")
    assert "reference" in ct.kernels()


@pytest.mark.parametrize("strategy", ["dcp", "auto:steps=10000", "zigzag", "fcp"])
@pytest.mark.parametrize(
    "home", [[(0, 20, 0), (20, 50, 7)], [(0, 20, 0), (20, 50, 10**6)], [(0, 50, -1)]]
)
def test_homes_that_the_cluster_lacks(strategy, home):
    with pytest.raises(ct.InvalidArgument, match="expected a rank below 2|rank"):
        ct.plan([50], cluster="local:1x2", strategy=strategy, home=home, **SMALL)


def test_backward_is_of_the_plan_of_forward():
    executor = ct.NumpyExecutor(ct.inproc_group(1)[0])
    a, b = (
        ct.plan(lengths, cluster="local:1x1", strategy="zigzag", **SMALL)
        for lengths in ([100, 60], [80, 80])
    )
    q, k, v = (np.ones((160, heads, 32), dtype=np.float32) for heads in (4, 2, 2))
    executor.prepare(a)
    output = executor.forward(q, k, v)
    executor.prepare(b)
    with pytest.raises(
        ct.InvalidArgument, match="expected an executor prepared for the output's plan"
    ):
        executor.backward(output.out, q, k, v, output)


def test_plans_are_not_other_things(plan):
    assert plan != 3 and plan is not None and plan != None  # noqa: E711  # the operator is tested
    assert plan.shape != 3 and plan.cluster != "local"


@pytest.mark.parametrize("lengths", [[60.9], "123", [None], [2.0]])
def test_lengths_are_whole_numbers(lengths):
    with pytest.raises(ct.InvalidArgument, match="expected a (list of )?whole number"):
        ct.plan(lengths, cluster="local:1x2", strategy="zigzag")


def test_additive_masks_are_refused():
    with pytest.raises(ct.InvalidArgument, match="expected truth values"):
        ct.masks.from_dense(np.where(np.tri(4) > 0, 0.0, -np.inf))


def test_what_is_given_to_plan_can_be_pickled():
    cluster = ct.Cluster.preset("dgx-h200", nodes=3)
    cluster.launch_us = 7.25
    spec = ct.masks.shared_question(lengths=[3, 4, 5])
    mask = ct.masks.from_row_ranges([[(0, 1)], [(0, 2)], [(1, 3)]])
    shape = ct.AttentionShape(
        q_heads=8,
        kv_heads=2,
        head_dim=64,
        value_dim=32,
        dtype="f16",
        scale=0.3,
        softcap=20,
        sink=True,
    )
    choice = ct.strategies.dcp(divisions=6)
    for one in (cluster, spec, mask, shape, choice):
        assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(mask)).num_tokens == 3
    workload = ct.make_workload(
        [30, 12, 22],
        mask={"rules": (["causal", spec, "full"], 3), "all": "causal"},
        num_ranks=2,
        home=[(0, 40, 1), (40, 64, 0)],
        **SMALL,
    )
    again = pickle.loads(pickle.dumps(workload))
    plans = [
        ct.plan(one, cluster="local:1x2", strategy="dcp", block_size=8) for one in (workload, again)
    ]
    assert again == workload != ct.make_workload([64], **SMALL)
    assert plans[0].digest == plans[1].digest
    assert plans[0].positions(0).tolist() == plans[1].positions(0).tolist()
    cached = ct.make_workload(
        [12],
        mask=ct.masks.from_bands([(8, 12, 0, 12, None, 0)], num_tokens=12),
        roles=[(0, 8, "kv_only")],
    )
    assert pickle.dumps(pickle.loads(pickle.dumps(cached))) == pickle.dumps(cached)


def test_offsets_of_masks():
    plan = ct.plan(
        [20, 7],
        cluster="local:1x2",
        strategy="dcp",
        mask={"a": "causal", "b": "sliding_window:3", "c": "full"},
        **SMALL,
    )
    assert [plan.mask(i).offsets for i in range(3)] == [(-19, 0), (-2, 0), (-19, 19)]
    assert plan.mask(0) == ct.Plan.slice_from_bytes(plan.slice_to_bytes(1)).mask(0)
    assert ct.masks.from_bands([], num_tokens=4).offsets is None
    with pytest.raises(ct.InvalidArgument, match="num_tokens: expected 0 to 2147483648"):
        ct.masks.from_bands([(0, 9, 0, 9, None, 0)], num_tokens=2**63 - 1)
    with pytest.raises(ct.InvalidArgument, match="an index below 3, found 3"):
        plan.mask(3)


def test_pickles_of_others_are_checked():
    for one, state in (
        (ct.Mask, ([(0, 4, 0, 4, None, None), (0, 4, 0, 4, None, 0)], 4)),
        (ct.Cluster, "{}"),
        (ct.MaskSpec, "causl"),
        (ct.StrategyChoice, ("dpc", {})),
        (ct.AttentionShape, (8, 3, 64, 64, "f32", 0.0, 0.0, False)),
        (
            ct.Workload,
            (
                [(0, 4)],
                (8, 2, 64, 64, "f32", 0.0, 0.0, False),
                [("m", 1, [(0, 9, 0, 9, None, None)])],
                [],
                [],
                [],
            ),
        ),
    ):
        with pytest.raises(ct.InvalidArgument):
            one.__new__(one).__setstate__(state)


def test_masks_know_their_batch():
    mask = ct.masks.from_dense(np.tri(5))
    assert mask.num_tokens == 5
    assert np.array_equal(mask.dense(), np.tri(5) > 0)
    with pytest.raises(
        ct.InvalidArgument, match="expected one of the batch's 8 tokens, found one of 5"
    ):
        ct.make_workload([8], mask=mask)
    slices = ([(0, 5)], [(0, 5)], ["causal"])
    assert ct.masks.from_slices(*slices).num_tokens is None
    with pytest.raises(ct.InvalidArgument, match="expected num_tokens"):
        ct.masks.from_slices(*slices).dense()
    with pytest.raises(
        ct.InvalidArgument, match="expected one of the batch's 8 tokens, found one of 5"
    ):
        ct.make_workload([8], mask=ct.masks.from_slices(*slices, num_tokens=5))
    with pytest.raises(ct.InvalidArgument):
        ct.masks.from_slices(*slices, num_tokens=4)


def test_paths_and_names_of_clusters(plan, tmp_path):
    plan.save(tmp_path / "plan.bin")
    assert ct.Plan.load(tmp_path / "plan.bin") == plan
    (tmp_path / "cluster.json").write_text(plan.cluster.to_json())
    of_file = ct.plan([64], cluster=tmp_path / "cluster.json", strategy="zigzag", **SMALL)
    assert of_file.cluster == plan.cluster
    (tmp_path / "lengths").write_text("3\n4\n")
    assert ct.read_lengths(tmp_path / "lengths") == [3, 4]
    slow = plan.simulate("dgx-h200:2x2")
    assert (
        slow.time_us
        == plan.simulate(ct.Cluster.load("dgx-h200:2x2")).time_us
        != plan.simulate().time_us
    )
    assert plan.why("dgx-h200:2x2") == plan.why(ct.Cluster.load("dgx-h200:2x2"))
    with pytest.raises(
        ct.InvalidArgument, match="cluster: expected a Cluster, its name or a file, found int"
    ):
        ct.plan([64], cluster=3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"block_size": 2.5}, "block_size: expected a whole number, found 2.5"),
        ({"seed": 2**70}, "seed: expected a whole number of 64 bits, found one of 71"),
        ({"heads": "8"}, "q_heads: expected a whole number, found '8'"),
        ({"head_dim": 2**40}, "head_dim: expected a number of 32 bits"),
        ({"token_limit": None, "lengths": [2**70]}, "lengths: expected a whole number of 64 bits"),
    ],
)
def test_numbers_that_are_none(option, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        ct.plan(option.pop("lengths", [64]), cluster="local:1x2", strategy="dcp", **option)


def test_numpy_arrays_may_be_read_only_and_lists_are_arrays():
    executor = ct.NumpyExecutor(ct.inproc_group(1)[0])
    executor.prepare(ct.plan([20], cluster="local:1x1", strategy="zigzag", **SMALL))
    q, k, v = (
        np.random.default_rng(heads).random((20, heads, 32), dtype=np.float32)
        for heads in (4, 2, 3)
    )
    v = v[:, :2]
    expected = executor.forward(q, k, v)
    gradients = executor.backward(expected.out, q, k, v, expected)
    for array in (q, k, v, expected.out, expected.lse, expected.saved):
        array.setflags(write=False)
    found = executor.forward(q, k, v)
    assert np.array_equal(found.out, expected.out)
    for one, other in zip(
        executor.backward(expected.out, q, k, v, expected)[:3], gradients[:3], strict=True
    ):
        assert np.array_equal(one, other)
    with pytest.raises(
        ct.InvalidArgument, match=r"q: expected \[tokens, heads, dim\], found \[20, 4\]"
    ):
        executor.forward(q[:, :, 0], k, v)
    with pytest.raises(ct.InvalidArgument, match="q: expected float32"):
        executor.forward(q.tolist(), k, v)


@pytest.mark.parametrize(
    ("ranks", "wire", "expected"),
    [
        (4, None, "bf16"),
        (8, None, "f32"),
        (8, "original", "bf16"),
        (8, "bf16", "bf16"),
        (4, "f32", "f32"),
    ],
)
def test_results_that_are_rounded_often_travel_in_f32(ranks, wire, expected):
    plan = ct.plan([4096], cluster=f"dgx-h200:1x{ranks}", strategy="zigzag", wire=wire)
    assert json.loads(plan.to_json())["shape"]["partial_wire"] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed: expected at least 0, found -1"),
        ({"seed": True}, "seed: expected a whole number, found True"),
        ({"seed": "1"}, "seed: expected a whole number, found '1'"),
        ({"backward": "off"}, "backward: expected True or False, found 'off'"),
        ({"backward": 1}, "backward: expected True or False, found 1"),
        ({"backward": None}, "backward: expected True or False, found None"),
        ({"token_limit": -5}, "token_limit: expected at least 1, found -5"),
        ({"token_limit": 1.5}, "token_limit: expected a whole number, found 1.5"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes: expected at least 1, found 0"),
        ({"block_size": "64"}, "block_size: expected a whole number, found '64'"),
        ({"progress": "yes"}, "progress: expected True, False or a function, found 'yes'"),
        ({"scale": "1"}, "scale: expected a number, found '1'"),
        ({"softcap": True}, "softcap: expected a number, found True"),
        ({"sink": 1}, "sink: expected True or False, found 1"),
    ],
)
def test_options_of_other_kinds_are_refused(options, message):
    for call, strategy in ((ct.plan, "zigzag"), (ct.schedule, "megatron_dynamic")):
        with pytest.raises(ct.InvalidArgument, match=f"^{message}$"):
            call([64, 64], cluster="local:1x2", strategy=strategy, **options)
    if options.keys() <= {"seed", "backward", "block_size", "scale", "softcap", "sink"}:
        with pytest.raises(ct.InvalidArgument, match=f"^{message}$"):
            ct.compare([64, 64], cluster="local:1x2", strategies="zigzag", **options)


def test_force_is_true_or_false():
    with pytest.raises(ct.InvalidArgument, match="^force: expected True or False, found 'no'$"):
        ct.plan([64, 64], cluster="local:1x2", strategy="zigzag", force="no")


@pytest.mark.parametrize("rank", ["a", 1.0, True, (0,), 2**31])
def test_ranks_of_other_kinds_are_refused(plan, rank):
    schedule = ct.schedule([64, 64], cluster="local:1x2", strategy="megatron_dynamic", **SMALL)
    calls = [
        schedule.of,
        plan.num_local_tokens,
        plan.local_tokens,
        plan.local_ranges,
        plan.positions,
        plan.sequence_ids,
    ]
    others = [plan.rolled_tokens, plan.slice_to_bytes, plan.stages, plan.cluster.node_of]
    for call in [*calls, *others]:
        with pytest.raises(
            ct.InvalidArgument, match="^rank: expected a whole number below 2.31, found "
        ):
            call(rank)
        call(np.int64(1))


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no list of mapped libraries")
def test_importing_loads_no_blas():
    look = "import contextile; print('openblas' in open('/proc/self/maps').read())"
    assert (
        subprocess.run(
            [sys.executable, "-c", look], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
