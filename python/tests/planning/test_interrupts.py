"""Ctrl-C during long calls, the interpreter's end during planning, and calls of two threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError, Future

import pytest

import contextile as ct
from contextile import _core
from contextile._waits import result_of

pytestmark = [pytest.mark.timing, pytest.mark.long]

SMALL = {"heads": (4, 2), "head_dim": 32, "dtype": "f32"}
LIMIT_S = 240  # for a process that ends in a second on an idle machine

# Its main thread says where it is before each call; a handler is set because a parent may have
# SIGINT ignored.
PRELUDE = """
import os, signal, sys, threading
import contextile as ct
from contextile import _core

signal.signal(signal.SIGINT, signal.default_int_handler)
HOUR = 3600.0

def begins():
    print("begins", flush=True)

def plan_of(ranks=2):
    sizes = {"heads": (4, 2), "head_dim": 32, "dtype": "f32"}
    return ct.plan([256], cluster=f"local:1x{ranks}", strategy="zigzag", **sizes)

def error_of(call):
    try:
        call()
    except ct.TransportError as error:
        return str(error)
    return "no error"
"""


def run(code: str, *, interrupt: bool = False, **more) -> subprocess.CompletedProcess[str]:
    """Runs a program, and sends it Ctrl-C when it says that a call begins."""
    program = PRELUDE + textwrap.dedent(code)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    ) as process:
        killer = threading.Timer(LIMIT_S, process.kill)
        killer.start()
        try:
            if interrupt:
                for line in process.stdout:
                    if line == "begins\n":
                        break
                wait_until_it_is_in_the_call(process.pid)
                process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        finally:
            killer.cancel()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until_it_is_in_the_call(pid: int) -> None:
    """Returns when the main thread sleeps, has slept since now, or has computed for a while.

    It has then left the few instructions before the call. A signal that comes earlier would end the
    program as well, so this only makes the test sharper.
    """

    def numbers() -> tuple[str, int, int]:
        with open(f"/proc/{pid}/task/{pid}/status", encoding="ascii") as file:
            switches = next(
                int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches")
            )
        with open(f"/proc/{pid}/task/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        return fields[0], switches, int(fields[11])

    _, first_switches, first_ticks = numbers()
    num_asleep = 0
    while num_asleep < 100:
        state, switches, ticks = numbers()
        num_asleep = num_asleep + 1 if state == "S" else 0
        if switches > first_switches + 2 or ticks > first_ticks + 20:
            return
        os.sched_yield()


WAITS = {
    "a store's pull": """
        store = ct.open_store(f"{kind}:" if kind == "memory" else f"file://{folder}")
        begins()
        try:
            store.pull("key", timeout=HOUR)
        except KeyboardInterrupt:
            store.put("key", b"value", expiry=60)
            print(store.get("key"))
    """,
    "a barrier": """
        here, there = ct.inproc_group(2, timeout=HOUR)
        begins()
        try:
            here.barrier()
        except KeyboardInterrupt:
            print(error_of(there.barrier))
            print(error_of(here.barrier))
    """,
    "prepare": """
        here, there = ct.inproc_group(2, timeout=HOUR)
        executor, plan = ct.NumpyExecutor(here), plan_of()
        begins()
        try:
            executor.prepare(plan)
        except KeyboardInterrupt:
            print(error_of(there.barrier))
            print(error_of(lambda: executor.prepare(plan)))
    """,
    "forward": """
        import numpy as np

        plan = plan_of()
        executors = [ct.NumpyExecutor(end) for end in ct.inproc_group(2, timeout=HOUR)]
        other = threading.Thread(target=executors[1].prepare, args=(plan,))
        other.start()
        executors[0].prepare(plan)
        other.join()
        rows = plan.num_local_tokens(0)
        q, k, v = (np.zeros((rows, heads, 32), np.float32) for heads in (4, 2, 2))
        begins()
        try:
            executors[0].forward(q, k, v)
        except KeyboardInterrupt:
            print(error_of(lambda: executors[1].forward(q, k, v)))
            print(error_of(lambda: executors[0].forward(q, k, v)))
    """,
    "a wait for plans": """
        from contextile._planning import choice_of, options_of, cluster_of, make_workload

        workload = make_workload([100], mask="causal", heads=(4, 2), head_dim=32)
        store = ct.open_store("memory:")
        job = _core.PlanJob(
            sampler=ct.BatchSampler([100], tokens=100), shape=workload.shape,
            cluster=cluster_of("local:1x2"),
            choice=choice_of("zigzag"), workload=lambda step: workload,
            options=options_of({}, shape=workload.shape, cluster=cluster_of("local:1x2")),
        )
        feed = _core.PlanFeed(store, job, rank=0, run_id="r", first_step=0, timeout=HOUR)
        begins()
        try:
            feed.take(0)
        except KeyboardInterrupt:
            print(store.put("key", b"value", expiry=60))
    """,
}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_ctrl_c_ends_a_stores_pull(kind, tmp_path):
    done = run(
        f"kind, folder = {kind!r}, {str(tmp_path)!r}\n" + textwrap.dedent(WAITS["a store's pull"]),
        interrupt=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'value'\n", "")


@pytest.mark.parametrize("wait", ["a barrier", "prepare", "forward"])
def test_ctrl_c_ends_a_wait_for_peers_who_hear_of_it(wait):
    done = run(WAITS[wait], interrupt=True)
    assert (done.returncode, done.stderr) == (0, "")
    there, here = done.stdout.splitlines()
    assert there.startswith("rank 1, ") and there.endswith("rank 0 gave up: KeyboardInterrupt")
    assert here.startswith("rank 0, ") and here.endswith("rank 0 gave up: KeyboardInterrupt")


def test_ctrl_c_ends_a_wait_for_plans():
    done = run(WAITS["a wait for plans"], interrupt=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


needs_gloo = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")


@needs_gloo
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_ctrl_c_ends_connecting(scheme, rank, tmp_path, unused_port):
    rendezvous = f"file://{tmp_path}" if scheme == "file" else f"tcp://127.0.0.1:{unused_port}"
    done = run(
        f"""
        begins()
        ct.gloo_transport(
            rank={rank}, size=2, rendezvous={rendezvous!r}, run_id="r", connect_timeout=HOUR
        )
        """,
        interrupt=True,
    )
    assert done.returncode == -signal.SIGINT  # Python raises the signal again at its end
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


@needs_gloo
def test_ctrl_c_ends_a_wait_for_a_peer_over_tcp(tmp_path):
    done = run(
        f"""
        ends = [None, None]

        def connect(rank):
            ends[rank] = ct.gloo_transport(
                rank=rank, size=2, rendezvous="file://{tmp_path}", run_id="r", timeout=HOUR
            )

        other = threading.Thread(target=connect, args=(1,))
        other.start()
        connect(0)
        other.join()
        begins()
        try:
            ends[0].barrier()
        except KeyboardInterrupt:
            print(error_of(ends[1].barrier))
            print(error_of(ends[0].barrier))
        """,
        interrupt=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(
        line.endswith("rank 0 gave up: KeyboardInterrupt") for line in done.stdout.splitlines()
    )


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    "strategy",
    ["dcp:effort=1000", "dcp:partitioner=hypergraph,effort=1000", "auto:steps=1000000000"],
)
def test_ctrl_c_ends_planning(strategy):
    """These would take hours."""
    done = run(
        f"""
        begins()
        ct.plan([65536] * 8, cluster="dgx-h200:4x8", strategy={strategy!r}, mask="causal")
        """,
        interrupt=True,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_ctrl_c_ends_a_validation(tmp_path):
    """Its plan would take hours."""
    (tmp_path / "rows.csv").write_text(
        "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
        "direction,ms\n"
        "me,judged,dgx-h200:4x8,m,auto:steps=1000000000,8*64K,causal,8,8,128,bf16,forward,1\n"
    )
    done = run("begins()\nct.validate('rows.csv')\n", interrupt=True, cwd=tmp_path)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "shapes",
    [
        "heads=(4, 2), head_dim=32",
        "heads={'full': (4, 2), 'sliding': (4, 4)}, head_dim={'full': 32, 'sliding': 16}",
    ],
)
def test_ctrl_c_ends_a_data_loader_and_its_threads(shapes):
    """Whose first plan would take hours, made in this process."""
    pytest.importorskip("torch")
    mask = (
        "mask={'full': ('causal', 1), 'sliding': ('sliding_window:64', 2)}, "
        if "sliding" in shapes
        else ""
    )
    done = run(
        f"""
        import torch
        from contextile.torch import DataLoader

        class Text:
            lengths = [65536] * 40

            def __len__(self):
                return len(self.lengths)

            def __getitem__(self, index):
                return {{"input_ids": torch.zeros(65536, dtype=torch.int64)}}

        loader = DataLoader(
            Text(), cluster="dgx-h200:4x8", rank=0, strategy="dcp:effort=1000", tokens=8 * 65536,
            {mask}{shapes}, timeout=HOUR,
        )
        begins()
        next(iter(loader))
        """,
        interrupt=True,
    )
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_a_handler_that_raises_another_error_ends_a_wait_with_it():
    done = run(
        """
        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop("enough")

        signal.signal(signal.SIGINT, stop)
        begins()
        try:
            ct.open_store("memory:").pull("key", timeout=HOUR)
        except Stop as error:
            print(error)
        """,
        interrupt=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "enough\n", "")


def test_a_handler_that_returns_lets_a_wait_go_on():
    done = run(
        """
        store = ct.open_store("memory:")
        signal.signal(signal.SIGINT, lambda *_: store.put("key", b"by the handler", expiry=60))
        begins()
        print(store.pull("key", timeout=HOUR))
        """,
        interrupt=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'by the handler'\n", "")


# ------------------------------------------------------------------------- the interpreter's end

PLANNERS = """
import time
from contextile._planning import choice_of, options_of, cluster_of, make_workload

called = threading.Event()
num_calls = 0

def workload(step):
    global num_calls
    num_calls += 1
    called.set()
    sum(range(2000))  # in Python most of the time
    return shape

shape = make_workload([100], mask="causal", heads=(4, 2), head_dim=32)

def planner(run_id):
    job = _core.PlanJob(
        sampler=ct.BatchSampler([100], tokens=100), shape=shape.shape,
        cluster=cluster_of("local:1x2"), choice=choice_of("zigzag"),
        options=options_of({}, shape=shape.shape, cluster=cluster_of("local:1x2")),
        workload=workload, lengths=lambda step: [100],
    )
    return _core.LookaheadPlanner(
        job, ct.open_store("memory:"), run_id=run_id, first_step=0, end_step=None,
        steps_ahead=65536, threads=2, store_patience=HOUR,
    )

planners = [planner(f"r{i}") for i in range(2)]
called.wait()
while num_calls < moment:
    time.sleep(0)
"""


@pytest.mark.parametrize("moment", [1, 40, 400])
@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("pass", 0, ""),
        ("raise RuntimeError('of the user')", 1, "RuntimeError: of the user"),
        ("sys.exit(5)", 5, ""),
        ("os._exit(6)", 6, ""),
        ("planners.clear()", 0, ""),
        (
            "threading.Thread(target=planners[0].wait_for, kwargs={'timeout': HOUR}, "
            "daemon=True).start()",
            0,
            "",
        ),
    ],
)
def test_a_program_ends_while_planners_call_python(end, code, error, moment):
    done = run(f"moment = {moment}\n{PLANNERS}\n{end}\n")
    assert done.returncode == code, done.stderr
    assert (done.stderr.splitlines() or [""])[-1] == error


def test_a_program_ends_while_daemon_threads_are_in_calls():
    """They come back from their calls when the interpreter takes no thread any more."""
    done = run(
        """
        store = ct.open_store("memory:")
        entered = threading.Barrier(5)

        def call():
            entered.wait()
            while True:
                store.pull("key", timeout=0.001)

        for _ in range(4):
            threading.Thread(target=call, daemon=True).start()
        entered.wait()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_planner_needs_an_interpreter_that_goes_on():
    done = run(
        "moment = 1\n" + PLANNERS + "\nimport atexit\natexit._run_exitfuncs()\nplanner('late')\n"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "planner: expected a running interpreter, found one that ends"
    )


def test_the_child_of_a_fork_ends_with_its_parents_planners():
    done = run(
        "moment = 1\n"
        + PLANNERS
        + textwrap.dedent("""
        child = os.fork()
        if child == 0:
            planners.clear()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


# -------------------------------------------------------------------------------------- two threads


def test_an_executor_says_that_another_thread_is_in_a_call():
    plan = ct.plan([256], cluster="local:1x2", strategy="zigzag", **SMALL)
    here, there = (ct.NumpyExecutor(end) for end in ct.inproc_group(2))
    refused = threading.Event()
    errors = []

    def prepare():
        try:
            here.prepare(plan)
        except ct.Error as error:
            errors.append(error)
            refused.set()

    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert refused.wait(LIMIT_S)  # the other one waits for its peer
    there.prepare(plan)
    for thread in threads:
        thread.join()
    [error] = errors
    assert isinstance(error, ct.InvalidArgument)
    assert str(error) == (
        "rank 0, prepare: expected one call at a time, found a call of another thread under way "
        "on this transport"
    )


def test_threads_may_take_turns():
    import numpy as np

    plan = ct.plan([256], cluster="local:1x1", strategy="zigzag", **SMALL)
    executor = ct.NumpyExecutor(ct.inproc_group(1)[0])
    executor.prepare(plan)
    q, k, v = (np.ones((256, heads, 32), np.float32) for heads in (4, 2, 2))
    results = []
    forward = threading.Thread(target=lambda: results.append(executor.forward(q, k, v)))
    forward.start()
    forward.join()
    gradients = executor.backward(results[0].out, q, k, v, results[0])
    assert np.isfinite(gradients.dq).all()


def test_a_stop_flag_ends_a_call_of_another_thread():
    flag = _core.StopFlag()
    caught = []

    def pull():
        with flag:
            try:
                ct.open_store("memory:").pull("never there", timeout=3600.0)
            except InterruptedError as error:
                caught.append(str(error))

    thread = threading.Thread(target=pull)
    thread.start()
    flag.set()
    thread.join(LIMIT_S)
    assert caught == ["the call was stopped"]


def test_the_result_of_a_future_is_its_own():
    cancelled, failed, pending = Future(), Future(), Future()
    assert cancelled.cancel()
    failed.set_exception(TimeoutError("of the work"))
    with pytest.raises(CancelledError):
        result_of(cancelled)
    with pytest.raises(TimeoutError, match="of the work"):
        result_of(failed, 60.0)
    with pytest.raises(TimeoutError):
        result_of(pending, 0.0)
