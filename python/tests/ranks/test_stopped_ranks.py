"""A rank that is stopped while others wait for it outside of attention: their error names it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
if not ct.gloo_available():
    pytest.skip("this build has no gloo", allow_module_level=True)

from contextile.torch import (
    Executor,
    Pool,
    SamePhasePipeline,
    causal_conv,
    chunks_of,
    collect,
    dispatch,
    document_sums,
    gather_last,
    gather_lengths,
    gather_rows,
    linear_attention,
    make_transport,
    roll,
)
from contextile.torch._execute.agreement import peers_of
from pooled_model import Layer
from ranks import run_ranks

pytestmark = [pytest.mark.timing, pytest.mark.long]

SHAPE = {"heads": (2, 1), "head_dim": 8, "dtype": "f32"}
# Also for what comes before a rank stops, which takes a second on an idle machine.
TIMEOUT_S = 8.0


def rule(query, key, value, g, initial_state=None, output_final_state=False):
    """Linear attention with a decay per token."""
    state = (
        key.new_zeros(1, value.shape[2], key.shape[3], value.shape[3])
        if initial_state is None
        else initial_state
    )
    outs = []
    for t in range(query.shape[1]):
        state = state * g[:, t].exp()[..., None, None] + torch.einsum(
            "bhk,bhv->bhkv", key[:, t], value[:, t]
        )
        outs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outs, dim=1), state if output_final_state else None


class Scene:
    """The ranks with an executor for one document on all of them, and calls to make."""

    def __init__(self, folder):
        self.executor = Executor(timeout=TIMEOUT_S, flight_folder=folder)
        self.rank, self.size = self.executor.rank, self.executor.size
        self.plan = ct.plan(
            [96], cluster=f"local:1x{self.size}", strategy="zigzag", block_size=8, **SHAPE
        )
        self.prepared = self.executor.prepare(self.plan)
        rows = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
        self.rows = dispatch(rows, plan=self.plan, rank=self.rank).requires_grad_()

    def chunks(self):
        return chunks_of(self.executor)

    def heads(self):
        return torch.ones(1, self.chunks().num_tokens, 2, 4)


# Every kind of call: what comes before the rank stops, and then the call.
def gathers(name, **options):
    call = {"collect": collect, "gather_last": gather_last, "document_sums": document_sums}[name]
    return lambda scene: lambda: call(scene.rows, plan=scene.plan, **options)


def backward_of(name, **options):
    def begin(scene):
        found = gathers(name, **options)(scene)().sum()
        return found.backward

    return begin


def begin_roll_backward(scene):
    return roll(scene.rows, 1, plan=scene.plan).sum().backward


def begin_convolution(scene):
    chunks = scene.chunks()
    return lambda: causal_conv(torch.ones(1, 4, chunks.num_tokens), torch.ones(4, 3), chunks=chunks)


def begin_linear_attention(scene):
    chunks, x = scene.chunks(), scene.heads()
    return lambda: linear_attention(x, x, x, gates={"g": -x[..., 0]}, chunks=chunks, rule=rule)


def begin_layout(scene):
    chunks = scene.chunks()
    return lambda: chunks.gather(scene.rows)


def begin_pool(scene):
    pool = Pool(scene.executor, neighbourhoods=scene.size, cluster=f"local:1x{scene.size}", **SHAPE)
    return lambda: gather_lengths([20, 30], pool)


def begin_pipeline(scene):
    pool = Pool(
        scene.executor,
        neighbourhoods=scene.size,
        cluster=f"local:1x{scene.size}",
        heads=(4, 2),
        head_dim=8,
        dtype="f32",
    )
    return lambda: SamePhasePipeline([[Layer()]], pool, stages=scene.size, hidden=16)


def begin_generate(scene):
    transformers = pytest.importorskip("transformers")
    import contextile.transformers as cth

    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    return lambda: cth.generate(
        model, torch.zeros(1, 4, dtype=torch.int64), max_new_tokens=2, do_sample=False
    )


def begin_large(scene):
    """Stops inside of an exchange that has begun."""
    peers = peers_of(scene.executor)
    mine, theirs = (torch.zeros(1 << 24) for _ in range(2))
    stopped, other = scene.size - 1, 0
    if scene.rank == stopped:
        return peers.begin("large", [(other, mine)], []).wait
    if scene.rank == other:
        return peers.begin("large", [], [(stopped, theirs)]).wait
    return lambda: peers.meet("large")


CALLS = {
    "collect": gathers("collect"),
    "collect, backward": backward_of("collect", loss="share"),
    "loss": backward_of("collect"),
    "gather_rows": lambda scene: lambda: gather_rows(scene.rows, [0, 95], plan=scene.plan),
    "gather_last": gathers("gather_last"),
    "document_sums": gathers("document_sums"),
    "document_sums, backward": backward_of("document_sums", loss="share"),
    "roll by 1 with 0": lambda scene: lambda: roll(scene.rows, 1, plan=scene.plan),
    "roll by 1 with 0, backward": begin_roll_backward,
    "token layout": begin_layout,
    "convolution": begin_convolution,
    "state": begin_linear_attention,
    "gather_lengths": begin_pool,
    "pipeline": begin_pipeline,
    "generate": begin_generate,
    "large": begin_large,
    "make_transport": lambda scene: lambda: make_transport(timeout=TIMEOUT_S),
    "from_torch": lambda scene: lambda: ct.Cluster.from_torch(timeout=TIMEOUT_S),
}


def is_stopped(process):
    state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def stop_in_every_call(folder, *names):
    """In each call the last rank stops first. When the others have failed, it goes on."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    last = size - 1
    store.set(f"process/{rank}", str(os.getpid()))
    process = int(store.get(f"process/{last}"))
    for name in names:
        scene = Scene(f"{folder}/{name}")
        begun = CALLS[name](scene)

        def call(begun=begun, scene=scene, name=name):
            begun()
            # A rank that needs nothing of the stopped one waits here.
            peers_of(scene.executor).meet(name)

        store.add(f"{name}/ready", 1)
        while store.add(f"{name}/ready", 0) < size:
            time.sleep(0.01)
        if rank == last:
            os.kill(os.getpid(), signal.SIGSTOP)
            with pytest.raises(ct.TransportError):
                call()
        else:
            while not is_stopped(process):
                time.sleep(0.01)
            with pytest.raises(ct.TransportError) as caught:
                call()
            check(name, str(caught.value), rank, last, folder)
            store.set(f"{name}/failed/{rank}", "")
            store.wait([f"{name}/failed/{other}" for other in range(last)])
            if rank == 0:
                os.kill(process, signal.SIGCONT)
        # The next group begins when all have left this one.
        del call, begun, scene
        store.add(f"{name}/done", 1)
        while store.add(f"{name}/done", 0) < size:
            time.sleep(0.01)


def check(name, text, rank, last, folder):
    assert text.startswith(f"{name}"), text
    if name in ("make_transport", "from_torch"):
        assert f"rank {last} of {last + 1} did not come in {TIMEOUT_S:g} s" in text, text
        return
    assert f"no sign of life from rank {last} " in text, text
    assert f"nothing moved in the group for {1000 * TIMEOUT_S:.0f} ms" in text, text
    record = json.loads(Path(f"{folder}/{name}/rank-{rank}.json").read_text())
    assert record["error"] == text and not record["is_cause"]
    assert record["silent"] == [last] and record["num_ranks"] == last + 1
    assert record["steps"][0]["op"] == "exchange"


HALVES = {"gathers": list(CALLS)[:9], "others": list(CALLS)[9:]}


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("half", HALVES)
def test_the_others_name_a_rank_that_is_stopped(half, num_ranks, tmp_path):
    run_ranks(stop_in_every_call, num_ranks, str(tmp_path), *HALVES[half])
