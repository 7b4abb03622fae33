#!/usr/bin/env python3
"""Checks and times the engine torch on one GPU, with whole plans of several ranks.

  bench/gpu_engine.py [--device cuda] [--kernels torch:flash,torch:triton]
                      [--strategies zigzag,magi,dcp,distca,auto] [--ranks 8] [--tokens 8192,32768]
                      [--heads 32,8] [--dim 128] [--parts results,times] [--repeats 5]
                      [--budget 240] [--json FILE]

  results  All ranks of a plan are threads here, and messages are copies. Output, log-sum-exp and
           gradients are held against float64: strategies, masks, dtypes, softcap, bias, dropout.
  times    One rank of a plan, the one with most FLOPs, whose messages go nowhere. Milliseconds of
           a call, TFLOP/s of attended pairs (backward at 2.5 times forward), and the share of the
           time inside of attention kernels. Medians of --repeats.

Tokens are those of a rank: prolong, causal, bf16. A kernel that is wrong is not timed. Nothing
begins after --budget seconds. Exit 1 if a result is wrong. --device cpu rehearses it.
"""

import argparse
import json
import math
import queue
import statistics
import sys
import threading
import time
from collections import defaultdict

import torch

import contextile as ct
from contextile.torch._attention.bias import Terms
from contextile.torch._attention.operators import _new_gradients, _new_output
from contextile.torch._engine.buffers import DTYPES
from contextile.torch._engine.launches import Messages, UnderWay
from contextile.torch._engine.rank import TorchRank
from contextile.torch._kernels.choice import KERNELS
from contextile.torch._kernels.kernel import RowKernel
from contextile.torch._kernels.score_terms import ScoreTerms

PARTS = ("results", "times")
LENGTHS = (700, 333, 90, 1, 600, 324)
# Name, strategy, mask, options of the plan, terms.
CASES = (
    ("zigzag, causal", "zigzag", "causal", {}, ""),
    ("dcp, causal", "dcp", "causal", {}, ""),
    ("distca, causal", "distca", "causal", {}, ""),
    ("auto, causal", "auto:steps=3000", "causal", {}, ""),
    ("ulysses, sink", "ulysses", "causal", {"sink": True}, ""),
    ("magi, sliding window", "magi", "sliding_window:150", {}, ""),
    ("fcp, blockwise causal", "fcp", "causal_blockwise:64,2,1", {}, ""),
    ("magi, shared question", "magi", "shared_question:0.3,3", {}, ""),
    ("dcp, narrow values", "dcp", "causal", {"value_dim": 64}, ""),
    ("dcp, f16", "dcp", "causal", {"dtype": "f16"}, ""),
    ("dcp, f32", "dcp", "causal", {"dtype": "f32"}, ""),
    ("zigzag, softcap", "zigzag", "causal", {"softcap": 20.0}, ""),
    ("zigzag, wide values", "zigzag", "causal", {"value_dim": 192}, ""),
    ("dcp, ALiBi", "dcp", "causal", {}, "slopes"),
    ("dcp, table of bias", "dcp", "causal", {"dtype": "f32"}, "table"),
    ("auto, dropout", "auto:steps=3000", "causal", {}, "dropout"),
)
BOUNDS = {"f32": 1e-4, "bf16": 4 * 2**-8, "f16": 2**-8}


class PeerFailed(Exception):
    """Another rank has failed, and says why."""


class LocalMessages(Messages):
    """Messages between threads: a send leaves a copy, a wait takes it."""

    def __init__(self, device, rank, mail):
        super().__init__(None, device, timeout=60.0)
        self._rank, self._mail = rank, mail

    def _op(self, function, peer, tensor):
        return function is torch.distributed.isend, peer, tensor

    def start(self, ops):
        for is_sent, peer, tensor in ops:
            if is_sent:
                self._mail[self._rank, peer].put(tensor.clone())
        return []

    def wait(self, launch: UnderWay):
        for is_sent, peer, tensor in launch.ops:
            if not is_sent:
                arrived = self._mail[peer, self._rank].get(timeout=120)
                if arrived is None:
                    raise PeerFailed(f"rank {peer} failed")
                tensor.copy_(arrived)
        super().wait(launch)


class NoMessages(LocalMessages):
    """Messages that go nowhere: what would arrive stays as it is."""

    def start(self, ops):
        return []

    def wait(self, launch):
        launch.ops.clear()
        Messages.wait(self, launch)


def call(rank, plan, own, sink, terms):
    """Runs forward and backward of a rank. Returns out, lse, dq, dk, dv, dsink, dtable."""
    q, k, v, do = own
    out, lse, saved, _ = _new_output(q, v, rank.saved_bytes(0))
    given = {"mask": 0, "call": 1, "q": q, "k": k, "v": v, "sink": sink, "terms": terms}
    rank.forward(**given, out=out, lse=lse, saved=saved)
    table = None if terms is None else terms.table
    dq, dk, dv, dsink, dtable = _new_gradients(q, k, v, sink, table)
    rank.backward(
        **given,
        out=out,
        lse=lse,
        dout=do,
        dq=dq,
        dk=dk,
        dv=dv,
        dsink=None if sink is None else dsink,
        saved=saved,
        dtable=None if table is None else dtable,
    )
    return out, lse, dq, dk, dv, dsink, dtable


def terms_of(name, heads, device):
    if not name:
        return None
    slopes = table = buckets = seed = None
    dropout = 0.0
    if name == "slopes":
        slopes = (-torch.arange(1, heads + 1) / 100.0).to(device)
    elif name == "table":
        table = torch.linspace(-1, 1, heads * 8).view(heads, 8).to(device)
        buckets = (torch.arange(2001) // 251).to(device)
    else:
        dropout, seed = 0.2, torch.tensor([12345])
    return Terms(slopes, table, buckets, -1000, dropout, seed)


def expected_of(plan, whole, sink, terms):
    """Returns out, lse and gradients of the whole batch in float64."""
    shape = plan.shape
    q, k, v, do = (x.double().requires_grad_(number < 3) for number, x in enumerate(whole))
    group = shape.q_heads // shape.kv_heads
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * shape.effective_scale
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    inputs, factors = [q, k, v], None
    if terms is not None:
        places = torch.arange(plan.num_tokens, device=q.device)
        position = torch.cat([torch.arange(length) for length in LENGTHS]).to(q.device)
        of_terms = ScoreTerms(terms, q.device)
        factors = of_terms.factors(slice(0, shape.q_heads), places, places)
        if terms.slopes is not None:
            scores = scores + of_terms.bias(slice(0, shape.q_heads), position, position).double()
        if terms.table is not None:
            table = terms.table.double().requires_grad_()
            at = position[None, :] - position[:, None] - terms.first_offset
            scores = scores + table[:, terms.buckets[at.clamp(0, len(terms.buckets) - 1)]]
            inputs.append(table)
    seen = torch.from_numpy(plan.mask(0).dense(plan.num_tokens)).to(q.device)
    scores = scores.masked_fill(~seen, -math.inf)
    column = [] if sink is None else [sink.double()[:, None, None].expand(-1, len(q), 1)]
    lse = torch.logsumexp(torch.cat([scores, *column], -1), -1)
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1))
    if factors is not None:
        weights = weights * factors.double()
    out = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))
    grads = torch.autograd.grad((out * do).sum(), inputs)
    return [out.detach(), lse.detach().transpose(0, 1), *grads]


def error_of(found, expected):
    """Returns the largest difference over the largest number. NaN counts as infinite."""
    finite = expected[expected.isfinite()]
    scale = max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
    gap = torch.where(found.double() == expected, 0.0, (found.double() - expected).abs())
    return gap.nan_to_num(math.inf).max().item() / scale if gap.numel() else 0.0


def drawn(plan, tokens, device):
    shape = plan.shape
    generator = torch.Generator(device).manual_seed(5)
    return [
        torch.randn(tokens, heads, dim, generator=generator, device=device).to(DTYPES[shape.dtype])
        for heads, dim in (
            (shape.q_heads, shape.head_dim),
            (shape.kv_heads, shape.head_dim),
            (shape.kv_heads, shape.value_dim),
            (shape.q_heads, shape.value_dim),
        )
    ]


def run_ranks(plan, kernel, device, whole, sink, terms):
    """Runs all ranks as threads. Returns their results and the name of the kernels that ran."""
    mail, found, errors, names = defaultdict(queue.Queue), {}, [], set()
    for a in range(plan.num_devices):
        for b in range(plan.num_devices):
            mail[a, b] = queue.Queue()
    transports = ct.inproc_group(plan.num_devices)

    def work(number):
        try:
            rank = TorchRank(transports[number], None, kernel=kernel, device=device, timeout=60.0)
            rank._messages = LocalMessages(device, number, mail)
            rank.prepare(plan)
            tokens = torch.from_numpy(plan.local_tokens(number)).to(device)
            found[number] = call(rank, plan, [x[tokens] for x in whole], sink, terms)
            names.add(rank.kernel)
        except Exception as error:
            errors.append(error)
            transports[number].abort(str(error))
            for peer in range(plan.num_devices):
                mail[number, peer].put(None)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(plan.num_devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerFailed)), errors[0])
    return found, ", ".join(sorted(names))


def largest_error(plan, device, found, expected, sink):
    errors = []
    for number, results in found.items():
        tokens = torch.from_numpy(plan.local_tokens(number)).to(device)
        parts = zip(results[:5], expected[:5], strict=True)
        errors += [error_of(one, want[tokens]) for one, want in parts]
    if len(expected) > 5:
        table = sum(results[6].double() for results in found.values())
        errors.append(error_of(table, expected[5]))
    return max(errors)


class Bench:
    def __init__(self, arguments):
        self.arguments, self.device = arguments, torch.device(arguments.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.heads = tuple(int(word) for word in arguments.heads.split(","))
        self.rows, self.wrong = [], set()
        self.end = time.monotonic() + arguments.budget

    def is_over(self):
        return time.monotonic() > self.end

    # -------------------------------------------------------------------------------- results

    def results(self):
        for kernel in self.arguments.kernels.split(","):
            for name, strategy, mask, options, terms in CASES:
                if not self.is_over():
                    self.result(kernel, name, strategy, mask, options, terms)

    def result(self, kernel, name, strategy, mask, options, terms_name):
        shape = {"dtype": "bf16", "heads": self.heads, "head_dim": self.arguments.dim, **options}
        if "value_dim" in options:  # given for heads of 128
            shape["value_dim"] = options["value_dim"] * self.arguments.dim // 128
        row = {"part": "results", "kernel": kernel, "case": name}
        try:
            plan = ct.plan(
                list(LENGTHS),
                mask=mask,
                cluster=f"local:1x{self.arguments.ranks}",
                strategy=strategy,
                block_size=128,
                **shape,
            )
            terms = terms_of(terms_name, self.heads[0], self.device)
            sink = torch.linspace(-1, 2, self.heads[0], device=self.device)
            sink = sink if plan.shape.sink else None
            whole = drawn(plan, plan.num_tokens, self.device)
            # Alone first: threads that compile the same kernels would do it all at once.
            alone = self.alone(plan, kernel, 0)
            tokens = plan.num_local_tokens(0)
            with _without_agreements():
                call(alone, plan, [x[:tokens] for x in whole], sink, terms)
            found, ran = run_ranks(plan, kernel, self.device, whole, sink, terms)
            error = largest_error(
                plan, self.device, found, expected_of(plan, whole, sink, terms), sink
            )
            bound = BOUNDS[plan.shape.dtype]
            row |= {"ran": ran, "error": error, "bound": bound, "ok": error <= bound}
        except ct.InvalidArgument as error:  # the kernel refuses the case
            row |= {"refused": str(error)}
        except Exception as error:
            row |= {"ok": False, "failed": f"{type(error).__name__}: {error}"}
        self.rows.append(row)
        if row.get("ok") is False:
            self.wrong.add(kernel)
        text = row.get("refused") or row.get("failed") or f"error {row['error']:.1e} ({row['ran']})"
        mark = "refused" if "refused" in row else "ok" if row["ok"] else "WRONG"
        print(f"{mark:8}{kernel:14}{name:24}{text[:120]}", flush=True)

    # ---------------------------------------------------------------------------------- times

    def times(self):
        print(f"{'kernel':14}{'strategy':10}{'tokens':>8}  direction      ms  TFLOP/s  in kernels")
        for tokens in map(int, self.arguments.tokens.split(",")):
            [lengths] = ct.sample_lengths("prolong", tokens=tokens * self.arguments.ranks, seed=0)
            for strategy in self.arguments.strategies.split(","):
                if self.is_over():
                    return
                plan = ct.plan(
                    lengths,
                    mask="causal",
                    cluster=f"dgx-h100:1x{self.arguments.ranks}",
                    strategy=strategy + (":steps=20000" if strategy == "auto" else ""),
                    heads=self.heads,
                    head_dim=self.arguments.dim,
                    dtype="bf16",
                )
                for kernel in self.arguments.kernels.split(","):
                    if kernel not in self.wrong and not self.is_over():
                        self.time(plan, kernel, strategy, tokens)

    def alone(self, plan, kernel, number):
        """Returns a rank whose messages go nowhere, prepared for a plan."""
        transport = _Alone(number, plan.num_devices)
        rank = TorchRank(transport, None, kernel=kernel, device=self.device, timeout=60.0)
        rank._messages = NoMessages(self.device, number, None)
        with _without_agreements():
            rank.prepare(plan)
        return rank

    def time(self, plan, kernel, strategy, tokens):
        devices = plan.stats().forward.devices
        number = max(range(plan.num_devices), key=lambda rank: devices[rank].flops)
        rank = self.alone(plan, kernel, number)
        with _without_agreements():
            own = drawn(plan, plan.num_local_tokens(number), self.device)
            clock = _Clock(KERNELS[kernel], self.device)
            found = clock.of(lambda: call(rank, plan, own, None, None), self.arguments.repeats)
        flops = {"forward": devices[number].flops}
        flops["backward"] = 2.5 * flops["forward"]
        for direction, (total_s, inside_s) in found.items():
            row = {"part": "times", "kernel": kernel, "strategy": strategy, "tokens": tokens}
            row |= {"direction": direction, "ms": 1e3 * total_s, "share": inside_s / total_s}
            row["tflops"] = 1e-12 * flops[direction] / total_s
            self.rows.append(row)
            print(
                f"{kernel:14}{strategy:10}{tokens:8}  {direction:9}{row['ms']:8.2f}"
                f"{row['tflops']:9.1f}{row['share']:12.2f}",
                flush=True,
            )


class _Alone:
    """A transport whose peers agree to everything."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def abort(self, reason):
        pass

    def wait(self):
        pass


class _without_agreements:
    """Lets one rank of a plan run alone."""

    NAMES = ("agree_on_plan", "begin_agreement")

    def __enter__(self):
        self.kept = {name: getattr(ct._core, name) for name in self.NAMES}
        ct._core.agree_on_plan = lambda transport, plan: False
        ct._core.begin_agreement = lambda transport, *given: transport

    def __exit__(self, *_):
        for name, function in self.kept.items():
            setattr(ct._core, name, function)


class _Clock:
    """Seconds of both directions of a call, and of those inside of attention kernels."""

    def __init__(self, kernel, device):
        self.kernel, self.device, self.marks = kernel, device, []

    def mark(self):
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin, end):
        return end - begin if isinstance(end, float) else begin.elapsed_time(end) / 1e3

    def of(self, work, repeats):
        """Returns {direction: (seconds, seconds in kernels)}, medians after two calls."""
        directions = ("forward", "backward")
        is_gathered = isinstance(self.kernel, RowKernel)
        inner = {way: way if is_gathered else f"run_{way}" for way in directions}
        kept = {name: getattr(type(self.kernel), name) for name in inner.values()}
        outer = {way: getattr(TorchRank, way) for way in directions}
        inside, whole = defaultdict(list), defaultdict(list)

        def timed(function, marks):
            def run(*given, **named):
                begin = self.mark()
                result = function(*given, **named)
                marks.append((begin, self.mark()))
                return result

            return run

        try:
            for way in directions:
                setattr(type(self.kernel), inner[way], timed(kept[inner[way]], inside[way]))
                setattr(TorchRank, way, timed(outer[way], whole[way]))
            for _ in range(2 + repeats):
                work()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        finally:
            for way in directions:
                setattr(type(self.kernel), inner[way], kept[inner[way]])
                setattr(TorchRank, way, outer[way])
        found = {}
        for way in directions:
            calls = len(inside[way]) // (2 + repeats)
            times = [self.seconds(*marks) for marks in inside[way]]
            sums = [sum(times[at * calls : (at + 1) * calls]) for at in range(2, 2 + repeats)]
            totals = [self.seconds(*marks) for marks in whole[way]][2:]
            found[way] = statistics.median(totals), statistics.median(sums)
        return found


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", default="torch:flash,torch:triton")
    parser.add_argument("--strategies", default="zigzag,magi,dcp,distca,auto")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--heads", default="32,8")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=float, default=240)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    for given, known, option in (
        (arguments.parts, PARTS, "--parts"),
        (arguments.kernels, tuple(KERNELS), "--kernels"),
    ):
        unknown = sorted(set(given.split(",")) - set(known))
        if unknown:
            parser.error(f"{option}: expected some of {', '.join(known)}, found {unknown[0]!r}")
    return arguments


def main():
    arguments = parsed()
    bench = Bench(arguments)
    for part in PARTS:
        if part in arguments.parts.split(","):
            getattr(bench, part)()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(bench.rows, file, indent=1)
    if bench.is_over():
        print(f"gpu_engine: stopped after {arguments.budget:g} s, as --budget says")
    sys.exit(bool(bench.wrong))


if __name__ == "__main__":
    main()
