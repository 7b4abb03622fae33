#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention on one CPU thread, for kernel_bench.

  torch_attention.py Q_HEADS KV_HEADS DIM REPEATS TOKENS...

Causal, for fp32 and bf16 and every number of tokens; prints lines "DTYPE TOKENS FORWARD_S
BACKWARD_S": medians of the thread's CPU time. Keys and values are repeated for the query heads
before the clock starts. The result is compared with plain fp32 attention of the same inputs first;
exit 1 if it differs. The first line is "torch VERSION".
"""

import sys
import time

import torch


def median_seconds(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return sorted(times)[len(times) // 2]


def random_inputs(heads, kv_heads, tokens, dim, dtype):
    def normal(count):
        return torch.randn(1, count, tokens, dim, dtype=torch.float32).to(dtype)

    q = normal(heads)
    k, v = (normal(kv_heads).repeat_interleave(heads // kv_heads, dim=1) for _ in range(2))
    return [x.contiguous().requires_grad_() for x in (q, k, v)], normal(heads)


def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def verify(heads, kv_heads, dim, dtype):
    (q, k, v), _ = random_inputs(heads, kv_heads, 200, dim, dtype)
    with torch.no_grad():
        found = attention(q, k, v).float()
        q, k, v = (x.float() for x in (q, k, v))
        scores = (q @ k.transpose(-1, -2)) * dim**-0.5
        future = torch.ones(200, 200, dtype=torch.bool).triu(1)
        expected = torch.softmax(scores.masked_fill(future, -torch.inf), -1) @ v
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    if not error <= (1e-5 if dtype == torch.float32 else 2e-2):
        sys.exit(f"torch_attention: expected plain attention in {dtype}, found an error of {error}")


def main():
    heads, kv_heads, dim, repeats, *tokens = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print("torch", torch.__version__)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        verify(heads, kv_heads, dim, dtype)
        for count in tokens:
            inputs, dout = random_inputs(heads, kv_heads, count, dim, dtype)
            with torch.no_grad():
                forward = median_seconds(lambda x=inputs: attention(*x), repeats)
            out = attention(*inputs)
            backward = median_seconds(
                lambda o=out, x=inputs, d=dout: torch.autograd.grad(o, x, d, retain_graph=True),
                repeats,
            )
            print(name, count, forward, backward, flush=True)


if __name__ == "__main__":
    main()
