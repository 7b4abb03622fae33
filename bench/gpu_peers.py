#!/usr/bin/env python3
"""Times other kernels on this GPU for gpu_bench: PyTorch's cuDNN, FlexAttention and bf16 matmul,
and FlashAttention 2 and 3 where flash_attn and flash_attn_interface are installed.

  bench/gpu_peers.py [--longest 16384] [--shortest 1024] [--dims 64,96,128,256] [--seconds 0.05]
                     [--json FILE]

bf16, 32 query and 8 KV heads, lengths by powers of two. FlexAttention is compiled for each row,
which takes ten seconds. TFLOP/s of
attended pairs, backward at 2.5 times forward's FLOPs. Every figure is the fastest of three runs of
at least --seconds. A peer that cannot do a mask, or is not installed, has no figure, but a reason.
Backward is the libraries' own mode, which need not be deterministic.
"""

import argparse
import importlib
import json
import sys

MASKS = ("full", "causal", "lambda:64,4096", "causal_blockwise:256,2,1", "varlen")


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--shortest", type=int, default=1024)
    parser.add_argument("--dims", default="64,96,128,256")
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--json")
    return parser.parse_args()


def documents(tokens):
    """The document of every token under `varlen`: a half, a quarter, … and the rest."""
    lengths = []
    left = tokens
    while left > 0:
        lengths.append(left // 2 if left > 256 else left)
        left -= lengths[-1]
    return lengths


def rule_of(torch, mask, tokens):
    """The rule attends(q, k) in FlexAttention's form, and its number of pairs."""
    if mask == "full":
        return None, tokens * tokens
    causal = tokens * (tokens + 1) // 2
    if mask == "causal":
        return (lambda b, h, q, k: q >= k), causal
    if mask.startswith("lambda"):
        sink, window = (int(n) for n in mask.split(":")[1].split(","))

        def rule(b, h, q, k):
            return (q >= k) & ((k < sink) | (q - k < window))

        pairs = sum(min(q + 1, window) + min(sink, max(0, q + 1 - window)) for q in range(tokens))
        return rule, pairs
    if mask.startswith("causal_blockwise"):
        block, window, sink = (int(n) for n in mask.split(":")[1].split(","))
        last = (tokens - 1) // block * block

        def rule(b, h, q, k):
            everything = (q < block) | (q >= last)
            return (q >= k) & (everything | (k < sink * block) | (k >= q - window * block))

        pairs = 0
        for q in range(tokens):
            if q < block or q >= last:
                pairs += q + 1
            else:
                first = max(sink * block, q - window * block)
                pairs += min(sink * block, q + 1) + max(0, q + 1 - first)
        return rule, pairs
    lengths = documents(tokens)
    of_token = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).cuda()

    def rule(b, h, q, k):
        return (q >= k) & (of_token[q] == of_token[k])

    return rule, sum(n * (n + 1) // 2 for n in lengths)


class Clock:
    def __init__(self, torch, seconds):
        self.torch = torch
        self.seconds = seconds

    def turns(self, work, count):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    def of(self, work):
        for _ in range(3):
            work()
        count = max(1, int(self.seconds / max(self.turns(work, 1), 1e-6)))
        return min(self.turns(work, count) for _ in range(3)) / count


def attention_of(torch, peer, mask, tokens, q, k, v):
    """A call that returns the output, or the reason why the peer has none."""
    rule, pairs = rule_of(torch, mask, tokens)
    if peer == "cudnn":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if mask not in ("full", "causal"):
            return None, pairs, "takes no such mask"

        def call():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=mask == "causal", enable_gqa=True
                )
    elif peer in ("fa2", "fa3"):
        module = {"fa2": "flash_attn", "fa3": "flash_attn_interface"}[peer]
        if mask not in ("full", "causal"):
            return None, pairs, "takes no such mask"
        try:
            function = importlib.import_module(module).flash_attn_func
        except ImportError:
            return None, pairs, f"{module} is not installed"
        # They take [batch, tokens, heads, dim].
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))

        def call():
            out = function(q, k, v, causal=mask == "causal")
            return out[0] if isinstance(out, tuple) else out
    else:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        # Without a reset, the ninth shape reaches the recompile limit and runs unfused.
        torch._dynamo.reset()  # noqa: SLF001  # no public name does this
        compiled = torch.compile(flex_attention)
        blocks = None
        if rule is not None:
            blocks = torch.compile(create_block_mask)(
                rule, None, None, tokens, tokens, device="cuda"
            )

        def call():
            return compiled(q, k, v, block_mask=blocks, enable_gqa=True)

    return call, pairs, None


def rows_of(torch, clock, longest, shortest=1024, dims=(64, 96, 128, 256)):
    for dim in dims:
        tokens = shortest
        while tokens <= longest:
            q, k, v = (
                torch.randn(
                    1, heads, tokens, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True
                )
                for heads in (32, 8, 8)
            )
            for mask in MASKS:
                for peer in ("cudnn", "flex", "fa2", "fa3"):
                    row = {"peer": peer, "mask": mask, "head_dim": dim, "tokens": tokens}
                    try:
                        call, pairs, reason = attention_of(torch, peer, mask, tokens, q, k, v)
                        if call is None:
                            yield row | {"reason": reason}
                            continue
                        out = call()
                        dout = torch.randn_like(out)
                        flops = 4 * pairs * 32 * dim
                        row["forward_tflops"] = flops / clock.of(call) / 1e12
                        # Not backward(), which also adds to .grad.
                        backward = clock.of(
                            lambda o=out, d=dout, x=(q, k, v): torch.autograd.grad(
                                o, x, d, retain_graph=True
                            )
                        )
                        row["backward_tflops"] = 2.5 * flops / backward / 1e12
                    except Exception as error:  # a failure is a row, not the end
                        row["reason"] = str(error).splitlines()[0][:120]
                    yield row
            tokens *= 2


def main():
    arguments = parsed()
    try:
        import torch
    except ImportError:
        sys.exit("gpu_peers: expected PyTorch, found none: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("gpu_peers: expected a GPU that PyTorch can use, found none")
    clock = Clock(torch, arguments.seconds)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    matmul = 2 * 8192**3 / clock.of(lambda: a @ a) / 1e12
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "matmul_tflops": matmul,
        "rows": [],
    }
    print(
        f"{found['device']}, torch {torch.__version__}: bf16 matmul {matmul:.0f} TFLOP/s",
        flush=True,
    )
    dims = [int(dim) for dim in arguments.dims.split(",")]
    for row in rows_of(torch, clock, arguments.longest, arguments.shortest, dims):
        found["rows"].append(row)
        figures = row.get("reason") or f"{row['forward_tflops']:9.1f}{row['backward_tflops']:10.1f}"
        print(
            f"{row['peer']:6} D {row['head_dim']:3} {row['tokens']:6} tokens {row['mask']:26} "
            f"{figures}",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
