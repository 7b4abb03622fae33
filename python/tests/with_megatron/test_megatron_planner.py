"""Plans of Megatron's micro-batches: when they are made, by whom, and for which group."""

from __future__ import annotations

import atexit
import logging
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
pytest.importorskip(
    "megatron.core",
    reason="megatron-core is not installed (pip install --no-deps 'megatron-core==0.16.*')",
)

from test_megatron import Group, config_of, packed


def layer_of(num_ranks=1, rank=0, **options):
    from megatron.core.transformer.enums import AttnMaskType

    import contextile.megatron as ctm

    groups = SimpleNamespace(tp=Group(1, 0), cp=Group(num_ranks, rank))
    return ctm.CoreAttention(
        config_of("plain", **options), 3, AttnMaskType.causal, "self", pg_collection=groups
    )


def planner_of(**options):
    import contextile.megatron as ctm
    from contextile.torch import Executor

    return ctm.Planner(Executor(ct.inproc_group(1)[0]), cluster="local:1x1", **options)


def attend(planner, seq_length, params=None, layer=None):
    import contextile.megatron as ctm

    query, key = torch.ones(seq_length, 1, 4, 16), torch.ones(seq_length, 1, 2, 16)
    if params is not None and params.qkv_format == "thd":
        query, key = query[:, 0], key[:, 0]
    with ctm.use(planner):
        return (layer or layer_of())(query, key, key, None, packed_seq_params=params)


class Planning:
    """Takes the place of planning: counts calls, and lets them pass by number of tokens."""

    def __init__(self, monkeypatch):
        from contextile.megatron import _planner

        self.made, self.began, self._gates, self._plan = [], {}, {}, _planner.make_plan
        monkeypatch.setattr(_planner, "make_plan", self)

    def hold(self, num_tokens):
        self.began[num_tokens], self._gates[num_tokens] = threading.Event(), threading.Event()

    def release(self, num_tokens):
        self._gates[num_tokens].set()

    def __call__(self, workload, **options):
        self.made.append(workload.num_tokens)
        if workload.num_tokens in self._gates:
            self.began[workload.num_tokens].set()
            assert self._gates[workload.num_tokens].wait(timeout=60)
        return self._plan(workload, **options)


def waits(caplog):
    return [record.getMessage() for record in caplog.records if "waited" in record.getMessage()]


@pytest.mark.timing
def test_a_layer_waits_only_for_its_own_plan(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="contextile")
    planning, planner, config = Planning(monkeypatch), planner_of(), config_of("plain")
    attend(planner, 16)
    (message,) = waits(caplog)
    assert message.startswith("layer 3 waited 0.")
    assert message.endswith(
        "s for the plan of a micro-batch (1 sequences, 16 tokens, 1 ranks); plan it ahead with "
        "Planner.prepare, or choose a quicker strategy (Planner(strategy=...))"
    )
    caplog.clear()

    planning.hold(32)
    first, second = planner.prepare(config, seq_length=32), planner.prepare(config, seq_length=48)
    planning.began[32].wait(timeout=60)
    attend(planner, 16)  # has its plan, while another is being made
    assert not waits(caplog) and not first.done()
    attend(planner, 48)  # plans by itself, for the thread has not begun to
    assert len(waits(caplog)) == 1 and second.done() and not first.done()
    caplog.clear()

    layer = threading.Thread(target=attend, args=(planner, 32))
    layer.start()
    planning.release(32)
    layer.join(timeout=60)
    first.result(timeout=60)
    attend(planner, 32)
    assert planning.made == [16, 32, 48]


def test_a_plan_made_ahead_is_not_waited_for(caplog):
    caplog.set_level(logging.INFO, logger="contextile")
    planner, config = planner_of(), config_of("plain")
    params = packed([5, 20], [8, 24])
    planner.prepare(config, params).result(timeout=60)
    attend(planner, 32, params)
    assert not waits(caplog)


def plan_while_ending():
    """Leaves the interpreter while a thread plans, and more plans are to be made."""
    # Callbacks run in reverse order: this one after those of modules that are imported later.
    atexit.register(lambda: print("planning:", planner._plans._worker.is_alive(), flush=True))
    planner = planner_of(strategy="auto:steps=600000")
    for window in (16, 17, 18):
        config = config_of("plain", window_size=(window, 0), window_attn_skip_freq=[0, 1, 0])
        planner.prepare(config, packed([512] * 64, [512] * 64))
    assert planner._plans._worker.is_alive()


@pytest.mark.timing
def test_a_process_may_end_while_a_thread_plans():
    code = "import test_megatron_planner; test_megatron_planner.plan_while_ending()"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [
                str(Path(__file__).parent),
                str(Path(__file__).parents[1] / "support"),
                os.environ.get("PYTHONPATH", ""),
            ]
        ),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "planning: False\n"), done.stderr


def test_the_thread_ends_with_its_planner():
    planner = planner_of()
    planner.prepare(config_of("plain"), seq_length=16).result(timeout=60)
    thread = planner._plans._worker
    del planner
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_planning_that_failed_is_tried_again():
    planner, config = planner_of(strategy="dcp", block_size=-5), config_of("plain")
    future = planner.prepare(config, seq_length=16)
    with pytest.raises(ct.InvalidArgument, match="block"):
        future.result(timeout=60)
    with pytest.raises(ct.InvalidArgument, match="block"):
        attend(planner, 16)
    planner._options["block_size"] = 8
    assert attend(planner, 16).shape == (16, 1, 64)


def test_plans_weigh_the_linear_layers_that_are_given():
    prices = []

    def strategy(_workload, _cluster, options):
        prices.append(options.linear_us_per_token)

    for given in (None, 0.5, "llama-3-8b"):
        with pytest.raises(ct.InvalidArgument):
            planner_of(strategy=strategy, linear_layers=given).plan_of(
                config_of("plain"), seq_length=16
            )
    assert prices == [None, 0.5], "4 query heads and 2 KV heads are no share of 32 and 8"


def test_plans_that_were_used_last_are_kept(monkeypatch):
    planning, planner = Planning(monkeypatch), planner_of(plans_cached=2)
    for seq_length in (16, 32, 16, 48, 16, 32):
        attend(planner, seq_length)
    assert planning.made == [16, 32, 48, 32]


def test_the_default_search_is_quick_and_the_same_on_all_ranks():
    from contextile.megatron._planner import quick_strategy

    assert [quick_strategy(size) for size in (1, 8, 16, 64)] == [
        "auto:steps=100000",
        "auto:steps=100000",
        "auto:steps=25000",
        "auto:steps=5000",
    ]
    plans = [planner_of().plan_of(config_of("plain"), seq_length=64) for _ in range(2)]
    assert plans[0] == plans[1] and plans[0].strategy == "auto"


def test_clusters_of_groups_have_the_constants_of_the_given_one():
    from contextile.megatron._groups import cluster_like

    given = ct.Cluster.load("dgx-h200:4x8")
    whole = cluster_like(given, ct.Cluster.load("local:2x8"))
    assert (whole.nodes, whole.devices_per_node, whole.attention_tflops) == (
        2,
        8,
        given.attention_tflops,
    )
    assert whole.inter_gbytes_per_s_per_node == given.inter_gbytes_per_s_per_node
    part = cluster_like(given, ct.Cluster.load("local:2x2"))
    assert part.inter_gbytes_per_s_per_node == given.inter_gbytes_per_s_per_node / 4
    assert part.nics_per_node == 2


def test_one_rank_is_local_attention():
    from megatron.core.packed_seq_params import PackedSeqParams

    planner = planner_of()
    layer = layer_of(num_ranks=4, rank=1)  # of a job with static context parallelism
    with pytest.raises(
        ct.InvalidArgument,
        match="layer 3: expected an executor of the context-parallel group, rank 1 of 4",
    ):
        attend(planner, 16, layer=layer)
    params = PackedSeqParams(qkv_format="sbhd", local_cp_size=1)
    assert torch.equal(attend(planner, 16, params, layer), attend(planner, 16))


def test_one_rank_has_nothing_to_split():
    from megatron.core.packed_seq_params import PackedSeqParams

    params = PackedSeqParams(qkv_format="sbhd", local_cp_size=1)
    planner = planner_of(strategy="hybrid:head_parallel=2")  # for the other groups
    assert torch.equal(attend(planner, 16, params), attend(planner_of(), 16))
    with pytest.raises(ct.InvalidArgument, match="head_paralel"):
        attend(planner_of(strategy="hybrid:head_paralel=2"), 16, params)


@pytest.mark.parametrize("cached", [0, -1, 1.5, "64"])
def test_the_number_of_cached_plans_is_checked(cached):
    with pytest.raises(ct.InvalidArgument, match="planner, plans_cached: expected"):
        planner_of(plans_cached=cached)


def test_micro_batches_of_unknown_groups_are_not_planned_ahead(monkeypatch):
    from megatron.core.packed_seq_params import PackedSeqParams

    from contextile.megatron import _groups

    planner = planner_of()
    monkeypatch.setattr(_groups, "ranks_of", lambda group: (0, 1))
    params = PackedSeqParams(qkv_format="sbhd", max_seqlen_q=16, cp_group=Group(2, 0))
    with pytest.raises(
        ct.InvalidArgument,
        match="cp_group: expected a group that the planner knows, found a new one",
    ):
        planner.prepare(config_of("plain"), params)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (
            (2, 1),
            {},
            r"rank 0 of 2, as Megatron's RoPE does, found rank 1 of 2 \(cp_group\); use sbhd",
        ),
        (
            (1, 0),
            {"apply_rope_fusion": True},
            r"rank 0 of 2, as Megatron's RoPE does, found rank 0 of 1 \(cp_group\); use sbhd",
        ),
    ],
)
def test_thd_of_another_group_is_refused(monkeypatch, ranks, options, message):
    from contextile.megatron import _groups

    planner, layer = planner_of(), layer_of(num_ranks=2)
    for name, value in options.items():
        setattr(layer.config, name, value)
    team = SimpleNamespace(size=ranks[0], rank=ranks[1])
    monkeypatch.setattr(_groups.Teams, "join", lambda *_: team)
    params = packed([16], [16])
    params.cp_group = Group(*ranks)
    with pytest.raises(ct.InvalidArgument, match=message):
        attend(planner, 16, params, layer)


def test_executors_of_groups_have_the_options_of_the_given_one():
    from contextile.torch import Executor

    given = Executor(
        ct.inproc_group(1)[0],
        kernel=ct.kernels()[0],
        plans_kept=3,
        plans_prepared=1,
        timeout=7.0,
        flight_folder="x",
    )
    made = given.for_group(ct.inproc_group(1)[0])
    names = (
        "_kernel",
        "device",
        "_gpu",
        "_plans_kept",
        "_plans_prepared",
        "_timeout",
        "_flight_folder",
    )
    assert made.transport is not given.transport
    assert [getattr(made, name) for name in names] == [getattr(given, name) for name in names]


def test_a_sequence_length_may_come_from_the_parameters():
    from megatron.core.packed_seq_params import PackedSeqParams

    planner = planner_of()
    params = PackedSeqParams(qkv_format="sbhd", max_seqlen_q=48, max_seqlen_kv=48, local_cp_size=1)
    assert planner.plan_of(config_of("plain"), params) == planner.plan_of(
        config_of("plain"), seq_length=48
    )


def test_cumulative_lengths_are_read_once_and_again_when_they_change():
    from contextile.megatron._layer_specs import _numbers_of, _read

    ends = torch.tensor([0, 8, 16])
    assert _numbers_of(ends) == [0, 8, 16] and _numbers_of(ends) is _numbers_of(ends)
    ends[1] = 4
    assert _numbers_of(ends) == [0, 4, 16]
    num_known = len(_read)
    del ends
    assert len(_read) == num_known - 1


@pytest.mark.parametrize("seed", range(20))
def test_schedules_are_those_of_megatrons_scheduler(seed):
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    from contextile.megatron._schedule import sample_ids_of

    rng = random.Random(seed)
    num_ranks, cap = rng.choice([4, 8]), rng.choice([64, 128, 256])
    most = [
        cap // 2 if rng.random() < 0.4 else cap // (2 * num_ranks)
        for _ in range(rng.randint(3, 20))
    ]
    lengths = [2 * num_ranks * rng.randint(1, one) for one in most]
    scheduler = BalancedCPScheduler(cap, SimpleNamespace(size=lambda: num_ranks))
    _, expected = scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)
    schedule = ct.schedule(
        lengths,
        strategy=f"megatron_dynamic:cap={cap}",
        cluster=f"local:1x{num_ranks}",
        heads=(4, 2),
        head_dim=16,
    )
    assert sample_ids_of(schedule, num_ranks) == expected
