"""The engine torch on tensors of a GPU that are not there: FakeTensorMode knows their devices,
shapes and dtypes, and raises where the host would read one."""

from __future__ import annotations

import gc
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

from lone_rank import LoneRank, NotedRows, Operators, agree_alone, planned, tensors_of
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import contextile as ct
from contextile.torch._attention.bias import Terms
from contextile.torch._engine.rank_program import Attention, Intervals
from contextile.torch._kernels import row_ops, triton_stage
from contextile.torch._kernels.stage_calls import mark_used
from contextile.torch._kernels.triton_stage import TritonStage

STRATEGIES = {
    "zigzag": {},
    "dcp": {"block_size": 64},
    "fcp": {"block_size": 64},
    "auto": {},
    "distca": {},
    "ulysses": {},
    "magi": {},
    "megatron_dynamic": {},
}
PLANS = {name: planned(name, **options) for name, options in STRATEGIES.items()}
RANKS = range(4)
FEW = [80, 20]  # documents of plans that run by tiles, which are slow under FakeTensorMode


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    agree_alone(monkeypatch)


@pytest.fixture
def launches(monkeypatch):
    """Names of the Triton kernels that would run on the GPU, in order."""
    kernels = pytest.importorskip("contextile.torch._kernels.triton_attention")
    names = []

    def note(launch):
        tensors = tensors_of(launch.arguments)
        assert launch.grid > 0 and all(x.device == torch.device("cuda:0") for x in tensors)
        names.append(launch.kernel.__name__)

    monkeypatch.setattr(kernels.Launch, "run", note)
    monkeypatch.setattr(TritonStage, "check_on", lambda *given: None)
    return names


class NoWait(Operators):
    """Refuses operators for which the host would wait for the GPU, and notes those of attention."""

    def __init__(self):
        super().__init__(self.look)
        self.attention = []

    def look(self, function, args, kwargs, results):
        name = function.name()
        given, made = tensors_of([args, kwargs]), tensors_of(results)
        on_gpu = [x for x in given if x.device.type == "cuda"]
        # A single number on the CPU goes along with the launch.
        on_host = [x for x in given if x.device.type == "cpu" and x.dim() > 0]
        assert not on_gpu or all(x.device.type == "cuda" for x in made), f"{name} leaves the GPU"
        copies = name in ("aten::_to_copy", "aten::copy_")
        if on_host and any(x.device.type == "cuda" for x in [*on_gpu, *made]):
            assert copies and kwargs.get("non_blocking"), f"{name} waits for a copy"
        if copies and not on_gpu and any(x.device.type == "cuda" for x in made):
            assert kwargs.get("non_blocking"), f"{name} waits for a copy"
        if name.startswith("aten::_flash_attention"):
            self.attention.append((name, args, kwargs))


def run_rank(plan, rank, make_terms=lambda: None, kernel=""):
    """Forward and backward of a rank, with checks of whatever can be known about them."""
    with FakeTensorMode(), torch.no_grad(), NoWait() as mode:
        lone, terms = LoneRank(plan, rank, "cuda:0", kernel), make_terms()
        out, lse, saved = lone.forward(terms)
        grads = lone.backward(out, lse, saved, terms)
    shape, tokens = plan.shape, plan.num_local_tokens(rank)
    expected = [
        (out, (tokens, shape.q_heads, shape.value_dim), lone.q.dtype),
        (lse, (tokens, shape.q_heads), torch.float32),
        (grads[0], (tokens, shape.q_heads, shape.head_dim), lone.q.dtype),
        (grads[1], (tokens, shape.kv_heads, shape.head_dim), lone.q.dtype),
        (grads[2], (tokens, shape.kv_heads, shape.value_dim), lone.q.dtype),
        (grads[3], (shape.q_heads if shape.sink else 0,), torch.float32),
    ]
    for tensor, size, dtype in expected:
        assert tensor.device == torch.device("cuda:0")
        assert tensor.shape == size and tensor.dtype == dtype
    for note in [note for batch in lone.messages.batches for note in batch]:
        assert note.device == "cuda" and note.is_contiguous and note.num_bytes > 0
    return lone, mode


def check_flash_arguments(mode):
    """Checks what the CUDA functions behind the operators ask for and meta functions do not."""
    for name, args, kwargs in mode.attention:
        is_forward = name == "aten::_flash_attention_forward"
        packed = args[:3] if is_forward else args[:5]
        q_offsets, k_offsets, max_q, max_k = args[3:7] if is_forward else args[6:10]
        for x in packed:
            assert x.dim() == 3 and x.dtype == packed[0].dtype and x.stride(-1) == 1
            assert x.shape[2] == packed[0].shape[2] and x.shape[2] % 8 == 0
        if not is_forward:
            assert args[5].shape == (args[1].shape[1], args[1].shape[0])
            assert args[5].dtype == torch.float32 and args[5].is_contiguous()
        assert q_offsets.dtype == k_offsets.dtype == torch.int32
        assert q_offsets.is_contiguous() and k_offsets.is_contiguous()
        assert q_offsets.shape == k_offsets.shape and len(q_offsets) > 1
        assert max_q > 0 and max_k > 0
        assert args[7 if is_forward else 10] == 0.0  # dropout
        assert args[8 if is_forward else 11] == (kwargs["window_size_left"] == -1) * (
            kwargs["window_size_right"] == 0
        )


def check_entries(lone):
    """FlashAttention aligns an entry's last row with its last key, and gives rows that see no key
    a log-sum-exp of +inf. So classes fix how many keys there are more than rows."""
    for programs in lone.rank._surroundings().lists._programs.values():
        stages = [x for one in programs for x in one.instructions if isinstance(x, Attention)]
        for call, _ in [job for stage in stages for job in stage.jobs]:
            assert not isinstance(call, Intervals)
            assert call.max_q == max(b - a for a, b, _, _ in call.entries())
            assert call.max_k == max(d - c for _, _, c, d in call.entries())
            for a, b, c, d in call.entries():
                rows, keys = b - a, d - c
                assert rows > 0 and keys > 0
                if call.entry_class == "causal":
                    assert keys >= rows
                elif call.entry_class != "full":
                    assert keys - rows == (call.window if call.entry_class == "window" else 0)


@pytest.mark.parametrize("strategy", PLANS)
def test_every_rank_of_a_strategy_runs_flash_attention_on_the_gpu(strategy):
    plan, kernels = PLANS[strategy], set()
    for rank in RANKS:
        lone, mode = run_rank(plan, rank)
        check_flash_arguments(mode)
        check_entries(lone)
        stats, messages = plan.stats(), lone.messages
        both = [stats.forward.devices[rank], stats.backward.devices[rank]]
        assert messages.sent_bytes == sum(one.sent_bytes for one in both)
        assert messages.received_bytes == sum(one.received_bytes for one in both)
        kernels.add(lone.rank.kernel)
    assert kernels == {"torch:flash"}


@pytest.mark.parametrize("mask", ["full", "sliding_window:90", "lambda:16,90", "chunked:70"])
def test_every_class_of_entries_suits_flash_attention(mask):
    plan, classes = planned("magi", mask=mask), set()
    for rank in RANKS:
        lone, mode = run_rank(plan, rank)
        check_flash_arguments(mode)
        check_entries(lone)
        windows = [(kw["window_size_left"], kw["window_size_right"]) for *_, kw in mode.attention]
        classes |= {(min(left, 1), right) for left, right in windows}
    if mask in ("full", "chunked:70"):
        assert classes <= {(-1, -1), (-1, 0)}
    else:
        assert classes & {(1, 0), (0, -1)}, classes  # a window, or the inverse of a triangle


# Options of a plan, and whether FlashAttention runs it.
CHOICES = {
    "a sink": ({"sink": True}, True),
    "float16": ({"dtype": "f16"}, True),
    "narrow values": ({"value_dim": 16}, True),
    "wide values": ({"value_dim": 64}, False),
    "a softcap": ({"softcap": 20.0}, False),
    "a sink and a softcap": ({"sink": True, "softcap": 20.0}, False),
    "float32": ({"dtype": "f32"}, False),
    "an odd head dim": ({"head_dim": 20}, False),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_gpu_runs_what_flash_attention_has_not_by_triton(choice, launches):
    options, is_flash = CHOICES[choice]
    plan = planned("zigzag", FEW, **options)
    for rank in (0, 3):
        lone, mode = run_rank(plan, rank)
        check_flash_arguments(mode)
        assert lone.rank.kernel == ("torch:flash" if is_flash else "torch:triton")
        assert bool(mode.attention) == is_flash
        stages = {way: len(lone.jobs(way)) for way in ("forward", "backward")}
        expected = ["forward_kernel"] * stages["forward"] + ["dkv_kernel"] * stages["backward"]
        assert launches == ([] if is_flash else expected)
        launches.clear()


def test_a_gpu_without_triton_runs_by_tiles(monkeypatch):
    monkeypatch.setattr(triton_stage, "has_triton", lambda: False)
    plan = planned("zigzag", FEW, softcap=20.0)
    for rank in (0, 3):
        assert run_rank(plan, rank)[0].rank.kernel == "torch:tiles"
    with FakeTensorMode(), pytest.raises(ct.InvalidArgument, match="it needs the package triton"):
        LoneRank(plan, 0, "cuda:0", "torch:triton")


@pytest.mark.parametrize("strategy", PLANS)
def test_every_rank_of_a_strategy_may_run_triton(strategy, launches):
    plan = PLANS[strategy]
    for rank in RANKS:
        lone, mode = run_rank(plan, rank, kernel="torch:triton")
        assert lone.rank.kernel == "torch:triton" and not mode.attention
        assert len(launches) == len(lone.jobs("forward")) + len(lone.jobs("backward"))
        launches.clear()


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_deterministic_calls_add_up_without_atomics(launches, deterministic, monkeypatch):
    fused = NotedRows()
    monkeypatch.setattr(row_ops, "fused", lambda device: fused)
    lone, _ = run_rank(PLANS["dcp"], 0)
    assert lone.rank.kernel == "torch:flash"
    assert "merge_rows" in fused.names and "add_rows" not in fused.names
    lone, _ = run_rank(PLANS["dcp"], 0, kernel="torch:triton")
    stages = len(lone.jobs("backward"))
    assert launches[-2 * stages :] == ["dq_kernel", "dkv_kernel"] * stages


def test_a_seed_on_the_gpu_is_refused(launches):
    with FakeTensorMode(), torch.no_grad():
        lone = LoneRank(PLANS["dcp"], 1, "cuda:0")
        seed = torch.zeros(1, dtype=torch.int64, device="cuda:0")
        with pytest.raises(ct.InvalidArgument, match="dropout_seed: expected a number on the CPU"):
            lone.forward(Terms(None, None, None, 0, 0.1, seed))


def test_agreements_leave_out_biases_on_a_device():
    slopes, table, buckets = torch.zeros(4), torch.zeros(4, 8), torch.arange(9)
    with FakeTensorMode():
        there = torch.zeros(4, device="cuda:0")
        tables = torch.zeros(4, 8, device="cuda:0")
    assert Terms(there, table, buckets).on_host() == Terms(None, table, buckets)
    assert Terms(slopes, tables, buckets).on_host() == Terms(slopes)
    assert not Terms(there).on_host().has_any
    given = Terms(slopes, table, buckets, -4, 0.1, torch.tensor(3))
    assert given.on_host() is given


def test_calls_are_captured_once_they_have_run(launches, monkeypatch):
    def terms_of(dropout=0.0, device="cuda:0"):
        slopes = torch.zeros(4, device=device)
        return Terms(slopes, None, None, 0, dropout, torch.tensor([5]) if dropout else None)

    with FakeTensorMode(), torch.no_grad():
        lone = LoneRank(PLANS["dcp"], 1, "cuda:0")
        lone.backward(*lone.forward())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with NoWait():
            kept = lone.forward()
            lone.backward(*kept)
        with pytest.raises(ct.InvalidArgument, match="graph: expected one such call before"):
            lone.forward(terms_of())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        lone.forward(terms_of())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with NoWait():
            lone.forward(terms_of())
        with pytest.raises(ct.InvalidArgument, match="expected no dropout, found dropout_p=0.25"):
            lone.forward(terms_of(0.25))
        with pytest.raises(ct.InvalidArgument, match="slopes of the bias on cuda:0, found them on"):
            lone.forward(terms_of(device="cpu"))


def test_a_deterministic_gradient_of_a_table_is_refused(launches, deterministic):
    def make_terms():
        return Terms(None, torch.zeros(4, 8), torch.arange(200) // 25, -100, 0.0, None)

    with pytest.raises(ct.InvalidArgument, match="torch:triton: expected no gradient of a table"):
        run_rank(planned("auto", FEW), 0, make_terms)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("kernel", ["torch:triton", "torch:tiles"])
def test_bias_and_dropout_on_a_gpu_wait_for_nothing(kernel, dropout, launches, monkeypatch):
    monkeypatch.setattr(triton_stage, "has_triton", lambda: kernel == "torch:triton")

    def make_terms():
        table, buckets = torch.zeros(4, 8), torch.arange(200) // 25
        return Terms(torch.zeros(4), table, buckets, -100, dropout, torch.tensor([5]))

    plan = planned("auto", FEW)
    for rank in (0, 3):
        lone, mode = run_rank(plan, rank, make_terms)
        assert not mode.attention
        # Flash was prepared for calls without terms.
        assert set(lone.rank.kernel.split(", ")) == {"torch:flash", kernel}


def test_partial_results_may_travel_as_bf16():
    plan = planned("distca", wire="bf16")
    for rank in RANKS:
        lone, _ = run_rank(plan, rank)
        assert lone.messages.sent_bytes == sum(
            one.devices[rank].sent_bytes for one in (plan.stats().forward, plan.stats().backward)
        )


def test_a_kernel_of_the_cpu_is_refused_for_a_gpu():
    plan = planned("zigzag")
    for kernel in ("torch:cpu", "torch:flex"):
        with (
            FakeTensorMode(),
            pytest.raises(ct.InvalidArgument, match="a device of type cpu, found cuda"),
        ):
            LoneRank(plan, 0, "cuda:0", kernel)
    plan = planned("zigzag", FEW)
    assert run_rank(plan, 0, kernel="torch:tiles")[0].rank.kernel == "torch:tiles"


def test_the_checks_of_these_tests_find_what_they_look_for():
    with FakeTensorMode():
        there = torch.zeros(3, device="cuda")
        with pytest.raises(DataDependentOutputException):
            there[0].item()
        with NoWait(), pytest.raises(AssertionError, match="leaves the GPU"):
            there.cpu()
        with NoWait(), pytest.raises(AssertionError, match="waits for a copy"):
            torch.zeros(3).to("cuda")
        with NoWait(), pytest.raises(AssertionError, match="waits for a copy"):
            torch.tensor(0.5, device="cuda")


def test_lists_of_a_captured_call_outlive_their_plan(launches, monkeypatch):
    with FakeTensorMode(), torch.no_grad():
        lone = LoneRank(PLANS["dcp"], 1, "cuda:0")
        kept = lone.forward()
        lists = weakref.ref(lone.rank._surroundings().lists)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        lone.forward()
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        lone.rank.prepare(PLANS["fcp"])
        gc.collect()
        assert lists() is not None and kept
        lone.rank._shared.captured.clear()  # as Executor.close does
        gc.collect()
        assert lists() is None


def test_lists_are_marked_once_for_each_stream(monkeypatch):
    tensors = [types.SimpleNamespace(record_stream=lambda one: seen.append(one)) for _ in range(2)]
    seen, marked, device = [], {}, torch.device("cuda:0")
    for stream in ("main", "side", "main"):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        mark_used(tensors, device, marked)
    assert seen == ["main", "main", "side", "side"]
