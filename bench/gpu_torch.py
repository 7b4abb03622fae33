#!/usr/bin/env python3
"""Times on this GPU what PyTorch gives a plan: attention that takes and returns log-sum-exp, row
operators, products of linear layers.

  bench/gpu_torch.py [--seconds 0.02] [--parts documents,rows,...] [--budget 600] [--json FILE]

Attention is FlashAttention-2 of packed sequences (`fa2`, aten._flash_attention_forward and
_backward) and cuDNN (`cudnn`), bf16. Each is first compared with fp64, forward and backward. So is
backward with the log-sum-exp and gradients that a merge of two parts needs. Only what passes is
timed.

  documents  Causal documents of equal length, by length, total and heads.
  rows       One full tile by query rows and keys.
  decode     One query row per request, by requests and keys.
  operators  Copies, gathers, additions and merges of rows, and the host's time of a call.
  linear     bf16 products of tokens and a weight.

A time is that of the device: the median of five replays of a graph of as many calls as fill
--seconds. Operators that cannot be captured are timed by events. TFLOP/s count attended pairs, 4 x
heads x head dim for each in forward and 2.5 times that in backward. No part begins after --budget
seconds.
"""

import argparse
import json
import math
import statistics
import sys
import time

PARTS = ("documents", "rows", "decode", "operators", "linear")
HEADS = (32, 8)
DIM = 128


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--budget", type=float, default=600)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts.split(",")) - set(PARTS))
    if unknown:
        parser.error(f"--parts: expected some of {','.join(PARTS)}, found {unknown[0]!r}")
    return arguments


class Clock:
    """Seconds of one call on the device."""

    def __init__(self, torch, seconds):
        self.torch = torch
        self.seconds = seconds

    def _once(self, run):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    def _graph(self, work, count):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(count):
                work()
        return graph.replay

    def of(self, work):
        for _ in range(2):
            work()
        once = max(self._once(work), 1e-6)
        count = max(1, min(200, int(self.seconds / once)))

        def loop():
            for _ in range(count):
                work()

        try:
            run = self._graph(work, count)
        except RuntimeError:
            self.torch.cuda.synchronize()
            run = loop
        run()
        return statistics.median(self._once(run) for _ in range(5)) / count

    def host(self, work, count=200):
        """Seconds that the host needs to issue one call."""
        for _ in range(3):
            work()
        self.torch.cuda.synchronize()
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(count):
                work()
            times.append((time.perf_counter() - begin) / count)
            self.torch.cuda.synchronize()
        return statistics.median(times)


class Kernel:
    """Attention of sequences of these lengths. `lay_out` makes what depends on the lengths."""

    def __init__(self, torch, q_lengths, k_lengths, causal, scale):
        self.torch = torch
        self.causal = causal
        self.scale = scale
        self.lay_out(q_lengths, k_lengths)


class Flash(Kernel):
    """FlashAttention-2 over packed sequences: q [tokens, heads, dim], lse [heads, tokens]."""

    name = "fa2"

    def lay_out(self, q_lengths, k_lengths):
        self.starts = [
            self.torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
            for lengths in (q_lengths, k_lengths)
        ]
        self.longest = (max(q_lengths), max(k_lengths))

    def forward(self, q, k, v):
        out, lse, *self.rest = self.torch.ops.aten._flash_attention_forward(  # noqa: SLF001
            q, k, v, *self.starts, *self.longest, 0.0, self.causal, False, scale=self.scale
        )
        return out, lse

    def backward(self, dout, q, k, v, out, lse):
        return self.torch.ops.aten._flash_attention_backward(  # noqa: SLF001
            dout,
            q,
            k,
            v,
            out,
            lse,
            *self.starts,
            *self.longest,
            0.0,
            self.causal,
            self.rest[0],
            self.rest[1],
            scale=self.scale,
        )[:3]


class Cudnn(Kernel):
    """cuDNN over sequences of one length: tensors [sequences, heads, tokens, dim]."""

    name = "cudnn"

    def lay_out(self, q_lengths, k_lengths):
        self.shape = (len(q_lengths), q_lengths[0], k_lengths[0])

    def _dense(self, x):
        return x.unflatten(0, (self.shape[0], -1)).transpose(1, 2)

    def _packed(self, x):
        return x.transpose(1, 2).flatten(0, 1)

    def forward(self, q, k, v):
        attention = self.torch.ops.aten._scaled_dot_product_cudnn_attention  # noqa: SLF001
        out, lse, *self.rest = attention(
            *(self._dense(x) for x in (q, k, v)),
            None,
            True,
            0.0,
            self.causal,
            False,
            scale=self.scale,
        )
        return self._packed(out), lse

    def backward(self, dout, q, k, v, out, lse):
        cum_q, cum_k, max_q, max_k, seed, offset, _ = self.rest
        dout, q, k, v, out = (self._dense(x) for x in (dout, q, k, v, out))
        grads = self.torch.ops.aten._scaled_dot_product_cudnn_attention_backward(  # noqa: SLF001
            dout,
            q,
            k,
            v,
            out,
            lse,
            seed,
            offset,
            None,
            cum_q,
            cum_k,
            max_q,
            max_k,
            0.0,
            self.causal,
            scale=self.scale,
        )
        return tuple(self._packed(x) for x in grads[:3])


METHODS = (Flash, Cudnn)


def drawn(torch, tokens, keys, heads, dim):
    shapes = ((tokens, heads[0]), (keys, heads[1]), (keys, heads[1]), (tokens, heads[0]))
    return [torch.randn(*shape, dim, device="cuda", dtype=torch.bfloat16) for shape in shapes]


def dense(torch, q, k, v, dout, lengths, causal, scale):
    """out, lse [heads, tokens] and gradients of q, k, v in fp64."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    document = torch.arange(len(lengths), device="cuda").repeat_interleave(
        torch.tensor(lengths, device="cuda")
    )
    seen = document[:, None] == document[None]
    if causal:
        seen &= torch.ones_like(seen).tril()
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * scale
    scores = scores.masked_fill(~seen, -math.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(group, 1))
    grads = torch.autograd.grad(out, (q, k, v), dout.double())
    return (out.detach(), scores.logsumexp(-1).detach(), *grads)


def error(found, expected):
    """||found - expected|| / ||expected||; what is not finite is infinitely wrong."""
    if not found.isfinite().all():
        return math.inf
    return ((found.double() - expected).norm() / expected.norm()).item()


def projected(torch, dout, delta):
    """An `out` whose product with dout is delta: what a rank without out gives a backward."""
    squares = dout.float().square().sum(-1)
    return (dout.float() * (delta / squares.clamp_min(1e-38)).unsqueeze(-1)).to(dout.dtype)


def verify(torch, method, dim):
    """The largest errors: (name, error, bound) of what is compared."""
    lengths, scale = [384] * 3, dim**-0.5
    q, k, v, dout = drawn(torch, sum(lengths), sum(lengths), (8, 2), dim)
    found = []
    for causal in (False, True):
        want = dense(torch, q, k, v, dout, lengths, causal, scale)
        kernel = method(torch, lengths, lengths, causal, scale)
        out, lse = kernel.forward(q, k, v)
        grads = kernel.backward(dout, q, k, v, out, lse)
        rows = lse.squeeze(-1).float()
        if rows.dim() == 3:
            rows = rows.transpose(0, 1).flatten(1)
        mark = "causal" if causal else "full"
        for name, mine, theirs in zip(
            ("out", "lse", "dq", "dk", "dv"), (out, rows, *grads), want, strict=True
        ):
            found.append((f"{mark} {name}", error(mine, theirs), 1e-5 if name == "lse" else 1e-2))
        # As on a rank that got dout, lse and delta of others: out is not there.
        delta = (want[0] * dout.double()).sum(-1).float()
        grads = kernel.backward(dout, q, k, v, projected(torch, dout, delta), lse)
        for name, mine, theirs in zip(("dq", "dk", "dv"), grads, want[2:], strict=True):
            found.append((f"{mark} {name} without out", error(mine, theirs), 1e-2))
    # Half of the keys with the log-sum-exp of all: what merged backward passes rest on.
    half = lengths[0] // 2
    q, k, v, dout = drawn(torch, lengths[0], lengths[0], (8, 2), dim)
    want = dense(torch, q, k, v, dout, lengths[:1], False, scale)
    _, lse = method(torch, lengths[:1], lengths[:1], False, scale).forward(q, k, v)
    delta = (want[0] * dout.double()).sum(-1).float()
    out = projected(torch, dout, delta)
    total = torch.zeros_like(q, dtype=torch.float32)
    for part in (slice(0, half), slice(half, None)):
        kernel = method(torch, lengths[:1], [half], False, scale)
        kernel.forward(q, k[part].contiguous(), v[part].contiguous())
        dq, dk, dv = kernel.backward(dout, q, k[part].contiguous(), v[part].contiguous(), out, lse)
        total += dq.float()
        found.append(("merged dk", error(dk, want[3][part]), 1e-2))
        found.append(("merged dv", error(dv, want[4][part]), 1e-2))
    found.append(("merged dq", error(total, want[2]), 1e-2))
    return found


class Bench:
    def __init__(self, torch, arguments):
        self.torch = torch
        self.clock = Clock(torch, arguments.seconds)
        self.arguments = arguments
        self.begin = time.monotonic()
        self.found = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "verified": {},
        }

    def late(self):
        return time.monotonic() - self.begin > self.arguments.budget

    def write(self):
        if self.arguments.json:
            with open(self.arguments.json, "w", encoding="utf-8") as file:
                json.dump(self.found, file, indent=1)

    def timed(self, method, q_lengths, k_lengths, causal, heads, dim):
        """A row of forward and backward, or the reason why there is none."""
        torch = self.torch
        tokens, keys = sum(q_lengths), sum(k_lengths)
        pairs = sum(
            q * (q + 1) // 2 if causal else q * k for q, k in zip(q_lengths, k_lengths, strict=True)
        )
        flops = 4 * pairs * heads[0] * dim
        row = {"method": method.name, "q_heads": heads[0], "kv_heads": heads[1], "head_dim": dim}
        try:
            q, k, v, dout = drawn(torch, tokens, keys, heads, dim)
            kernel = method(torch, q_lengths, k_lengths, causal, dim**-0.5)
            out, lse = kernel.forward(q, k, v)
            forward = self.clock.of(lambda: kernel.forward(q, k, v))
            backward = self.clock.of(lambda: kernel.backward(dout, q, k, v, out, lse))
        except RuntimeError as problem:  # out of memory, or a shape that the kernel refuses
            torch.cuda.synchronize()
            return row | {"reason": str(problem).splitlines()[0][:120]}
        return row | {
            "forward_us": 1e6 * forward,
            "backward_us": 1e6 * backward,
            "forward_tflops": 1e-12 * flops / forward,
            "backward_tflops": 2.5e-12 * flops / backward,
        }

    def methods(self):
        for method in METHODS:
            if self.found["verified"].get(method.name, {}).get("ok"):
                yield method

    def show(self, title, row):
        if "reason" in row:
            print(f"{title:44}{row['reason']}", flush=True)
            return
        print(
            f"{title:44}{row['forward_us']:11.1f}{row['backward_us']:11.1f} us"
            f"{row['forward_tflops']:8.0f}{row['backward_tflops']:6.0f} TFLOP/s",
            flush=True,
        )

    def verified(self):
        for method in METHODS:
            errors = {}
            ok = True
            for dim in (64, 128):
                try:
                    results = verify(self.torch, method, dim)
                except RuntimeError as problem:
                    results = []
                    ok = False
                    print(f"{method.name} D {dim}: {str(problem).splitlines()[0][:160]}")
                for name, value, bound in results:
                    errors[f"D {dim} {name}"] = value
                    if not value <= bound:
                        ok = False
                        print(f"WRONG {method.name} D {dim} {name}: {value:.1e}, bound {bound:.0e}")
            worst = max(errors.values(), default=math.inf)
            print(f"{method.name}: {'verified' if ok else 'wrong'}, largest error {worst:.1e}")
            self.found["verified"][method.name] = {"ok": ok, "errors": errors}

    def documents(self):
        rows = self.found["documents"] = []
        cases = [
            (total, length, HEADS, DIM)
            for total in (2048, 8192, 32768)
            for length in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
            if length <= total
        ]
        cases += [
            (n, n, heads, DIM)
            for n in (1024, 4096, 16384)
            for heads in ((4, 1), (8, 1), (8, 8), (16, 2), (32, 32), (64, 8))
        ]
        cases += [(n, n, HEADS, 64) for n in (1024, 4096, 16384)]
        cases += [(65536, 65536, (8, 1), DIM)]
        for total, length, heads, dim in cases:
            for method in self.methods():
                lengths = [length] * (total // length)
                row = self.timed(method, lengths, lengths, True, heads, dim)
                rows.append({"tokens": total, "length": length} | row)
                self.show(
                    f"{method.name:6}{len(lengths):4} x {length:5} causal, {heads[0]}/{heads[1]} "
                    f"heads of {dim}",
                    row,
                )

    def rows(self):
        rows = self.found["rows"] = []
        sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
        for q in sizes:
            for k in sizes:
                for method in self.methods():
                    row = self.timed(method, [q], [k], False, HEADS, DIM)
                    rows.append({"rows": q, "keys": k} | row)
                    self.show(f"{method.name:6}{q:6} rows x {k:6} keys", row)

    def decoded(self, method, requests, keys):
        q, k, v, _ = drawn(self.torch, requests, requests * keys, HEADS, DIM)
        kernel = method(self.torch, [1] * requests, [keys] * requests, False, DIM**-0.5)
        seconds = self.clock.of(lambda: kernel.forward(q, k, v))
        return {"us": 1e6 * seconds, "gbytes_per_s": 1e-9 * 2 * k.nbytes / seconds}

    def decode(self):
        rows = self.found["decode"] = []
        torch = self.torch
        for requests, keys in (
            (1, 4096),
            (1, 32768),
            (1, 262144),
            (8, 4096),
            (8, 32768),
            (64, 1024),
            (64, 4096),
            (64, 16384),
            (256, 1024),
            (256, 4096),
        ):
            for method in self.methods():
                row = {"method": method.name, "requests": requests, "keys": keys}
                try:
                    row |= self.decoded(method, requests, keys)
                    print(
                        f"{method.name:6}{requests:4} requests x {keys:6} keys"
                        f"{row['us']:11.1f} us{row['gbytes_per_s']:8.0f} GB/s",
                        flush=True,
                    )
                except RuntimeError as problem:
                    torch.cuda.synchronize()
                    row["reason"] = str(problem).splitlines()[0][:120]
                    print(f"{method.name} {requests} x {keys}: {row['reason']}", flush=True)
                rows.append(row)

    def operators(self):
        rows = self.found["operators"] = []
        torch = self.torch

        def merge(o, lse, out, new):
            both = torch.logaddexp(lse, new)
            weight = torch.exp(new - both).nan_to_num(0.0)
            return o.lerp(out.float(), weight.unsqueeze(-1)), both

        compiled = torch.compile(merge, dynamic=True)
        for tokens in (1024, 8192, 65536):
            wide = torch.randn(tokens, HEADS[0], DIM, device="cuda", dtype=torch.bfloat16)
            kv = torch.randn(tokens, HEADS[1], DIM, device="cuda", dtype=torch.bfloat16)
            o, lse = wide.float(), torch.randn(tokens, HEADS[0], device="cuda")
            new = torch.randn_like(lse)
            shuffled = torch.randperm(tokens, device="cuda")
            # Runs of 128 rows in random order, as a plan's blocks are.
            runs = torch.randperm(tokens // 128, device="cuda")
            blocks = (runs[:, None] * 128 + torch.arange(128, device="cuda")).flatten()
            into = torch.empty_like(kv)
            grads = kv.float()
            merged = 10 * o.numel() + 16 * lse.numel()  # fp32 read and written, bf16 read
            for name, moved, work in (
                ("copy", 2 * wide.nbytes, wide.clone),
                ("zero", o.nbytes, o.zero_),
                ("round to bf16", o.nbytes + wide.nbytes, o.bfloat16),
                ("gather kv, rows", 2 * kv.nbytes, lambda k=kv, i=shuffled: k.index_select(0, i)),
                ("gather kv, runs", 2 * kv.nbytes, lambda k=kv, i=blocks: k.index_select(0, i)),
                ("gather q, runs", 2 * wide.nbytes, lambda k=wide, i=blocks: k.index_select(0, i)),
                ("copy kv in place", 2 * kv.nbytes, lambda k=kv, t=into: t.copy_(k)),
                (
                    "add kv gradients",
                    10 * kv.numel(),
                    lambda g=grads, k=kv, i=blocks: g.index_add_(0, i, k.float()),
                ),
                ("merge, eager", merged, lambda a=(o, lse, wide, new): merge(*a)),
                ("merge, compiled", merged, lambda a=(o, lse, wide, new): compiled(*a)),
            ):
                seconds = self.clock.of(work)
                row = {
                    "operator": name,
                    "tokens": tokens,
                    "us": 1e6 * seconds,
                    "gbytes_per_s": 1e-9 * moved / seconds,
                }
                if tokens == 1024:
                    row["host_us"] = 1e6 * self.clock.host(work)
                rows.append(row)
                print(
                    f"{name:24}{tokens:7} tokens{row['us']:10.1f} us{row['gbytes_per_s']:8.0f} "
                    f"GB/s  host {row.get('host_us', math.nan):.1f} us",
                    flush=True,
                )
        for method in self.methods():
            for name, seconds in self.host_times(method).items():
                row = {"operator": f"{method.name} {name}", "tokens": 256, "host_us": 1e6 * seconds}
                rows.append(row)
                print(
                    f"{row['operator']:24}{256:7} tokens  host {row['host_us']:.1f} us", flush=True
                )

    def host_times(self, method):
        """Seconds that the host needs for a call of each direction, by its name."""
        q, k, v, dout = drawn(self.torch, 256, 256, HEADS, DIM)
        kernel = method(self.torch, [256], [256], True, DIM**-0.5)
        out, lse = kernel.forward(q, k, v)
        return {
            "forward": self.clock.host(lambda: kernel.forward(q, k, v)),
            "backward": self.clock.host(lambda: kernel.backward(dout, q, k, v, out, lse)),
        }

    def linear(self):
        rows = self.found["linear"] = []
        torch = self.torch
        for into, out in ((4096, 4096), (4096, 14336), (14336, 4096), (8192, 28672)):
            weight = torch.randn(into, out, device="cuda", dtype=torch.bfloat16)
            for tokens in (128, 512, 2048, 8192, 32768):
                x = torch.randn(tokens, into, device="cuda", dtype=torch.bfloat16)
                seconds = self.clock.of(lambda x=x, w=weight: x @ w)
                row = {
                    "tokens": tokens,
                    "into": into,
                    "out": out,
                    "us": 1e6 * seconds,
                    "tflops": 2e-12 * tokens * into * out / seconds,
                }
                rows.append(row)
                print(
                    f"{tokens:6} x {into} x {out}{row['us']:11.1f} us{row['tflops']:8.0f} TFLOP/s",
                    flush=True,
                )


def main():
    arguments = parsed()
    try:
        import torch
    except ImportError:
        sys.exit("gpu_torch: expected PyTorch, found none: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("gpu_torch: expected a GPU that PyTorch can use, found none")
    bench = Bench(torch, arguments)
    print(f"{bench.found['device']}, torch {torch.__version__}, cuDNN {bench.found['cudnn']}")
    bench.verified()
    bench.write()
    for part in arguments.parts.split(","):
        if bench.late():
            print(f"{part}: left out, {arguments.budget:.0f} s are over", flush=True)
            continue
        begin = time.monotonic()
        try:
            getattr(bench, part)()
        except Exception as problem:  # what was timed before stays
            bench.found.setdefault("failed", {})[part] = repr(problem)[:400]
            print(f"{part}: {problem!r}", flush=True)
        bench.write()
        print(f"# {part}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0 if all(x["ok"] for x in bench.found["verified"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
