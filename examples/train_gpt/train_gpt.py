"""Trains a small GPT on the text of Python's own library, each batch shared out by a strategy.

  torchrun --nproc-per-node=4 train_gpt.py --strategy dcp --out dcp.json
  python train_gpt.py --dense --out dense.json          # one process, plain PyTorch, for comparison

RoPE, grouped query heads, RMSNorm, gated feed-forward; every second layer has a sliding window.
Documents are packed; every third one is a question with several answers that do not see each other,
the others are causal. Whatever the strategy, losses are those of one process: parity.py compares
them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sysconfig
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import contextile as ct
from contextile.torch import DataLoader, Executor, attention

HEADS, KV_HEADS, DIM = 4, 2, 16
HIDDEN, FEED_FORWARD, LAYERS, WINDOW = HEADS * DIM, 192, 4, 64
VOCABULARY = 256  # bytes


class Text:
    """Source files as documents of bytes."""

    def __init__(self, count: int) -> None:
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
        files = sorted(folder.glob("*.py"))[:count]
        self.documents = [path.read_bytes()[:4096] for path in files]
        self.documents = [document for document in self.documents if len(document) >= 32]
        self.lengths = [len(document) for document in self.documents]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> list[int]:
        return list(self.documents[index])


def masks_of(pieces):
    """Every third document is a question with three answers, in layers without a window."""
    long = [
        ct.masks.shared_question(0.3, 3)
        if piece.document % 3 == 0 and piece.end - piece.begin >= 32
        else "causal"
        for piece in pieces
    ]
    return {"long": (long, LAYERS // 2), "short": (ct.masks.sliding_window(WINDOW), LAYERS // 2)}


def causal_masks_of(pieces):
    """Masks for strategies that plan only causal documents."""
    return {"long": ("causal", LAYERS // 2), "short": ("causal", LAYERS // 2)}


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """RoPE: x [tokens, heads, dim] at positions [tokens]."""
    frequencies = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    angles = positions[:, None, None] * frequencies
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], dim=-1
    ).flatten(-2)


class Layer(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask
        self.norm = nn.RMSNorm(HIDDEN)
        self.project = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.feed_norm = nn.RMSNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x, positions, attend):
        q, k, v = (
            self.project(self.norm(x))
            .unflatten(1, (-1, DIM))
            .split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        )
        x = x + self.out(
            attend(rotated(q, positions), rotated(k, positions), v, self.mask).flatten(1)
        )
        gate, up = self.up(self.feed_norm(x)).chunk(2, dim=1)
        return x + self.down(functional.silu(gate) * up)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer("short" if i % 2 else "long") for i in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens, positions, attend):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, positions, attend)
        return self.head(self.norm(x))


def dense_attend(pieces, plan, masks):
    """Attention of one process on dense masks, with PyTorch alone."""
    lengths = [piece.end - piece.begin for piece in pieces]
    workload = ct.make_workload(lengths, mask=masks(pieces), heads=(HEADS, KV_HEADS), head_dim=DIM)
    order = torch.from_numpy(plan.local_tokens(0))
    dense = {
        name: torch.from_numpy(workload.mask(i).dense(workload.num_tokens))[order][:, order]
        for i, name in enumerate(workload.mask_names)
    }

    def attend(q, k, v, mask):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=dense[mask], enable_gqa=True
        )
        return out[0].transpose(0, 1)

    return attend


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--strategy", default="auto:steps=100000", help="as contextile.plan takes it"
    )
    parser.add_argument("--block-size", type=int, default=64, help="tokens of a block")
    parser.add_argument("--tokens", type=int, default=1024, help="of a batch")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--documents", type=int, default=200, help="source files, at most")
    parser.add_argument(
        "--masks",
        choices=["mixed", "causal"],
        default="mixed",
        help="mixed: as above; causal: all layers",
    )
    parser.add_argument("--dense", action="store_true", help="one process, plain PyTorch")
    parser.add_argument("--out", default="", help="where losses and times go, as JSON")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if not options.dense:
        dist.init_process_group("gloo")
    executor = None if options.dense else Executor()
    masks = masks_of if options.masks == "mixed" else causal_masks_of
    loader = DataLoader(
        Text(options.documents),
        cluster="local:1x1" if options.dense else ct.Cluster.from_torch(),
        rank=executor.rank if executor else 0,
        mask=masks,
        strategy="zigzag" if options.dense else options.strategy,
        tokens=options.tokens,
        block_size=options.block_size,
        end_step=options.steps,
        heads=(HEADS, KV_HEADS),
        head_dim=DIM,
        dtype="f32",
    )
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    begun = time.perf_counter()
    for step in loader:
        if executor:
            executor.prepare(step.plan)
            attend = lambda q, k, v, mask: attention(q, k, v, executor=executor, mask=mask)
        else:
            attend = dense_attend(step.pieces, step.plan, masks)
        local = step.local
        logits = model(local.tokens, local.positions, attend)
        rows, _, labels, weights = local.targets  # a question's last token predicts all answers
        loss = (functional.cross_entropy(logits[rows], labels, reduction="none") * weights).sum()
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        if executor:
            # One message for all gradients and the loss.
            shares = torch.cat([loss.view(1), *(p.grad.flatten() for p in model.parameters())])
            dist.all_reduce(shares)
            loss, *grads = shares.split([1, *(p.numel() for p in model.parameters())])
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad.copy_(grad.view_as(parameter))
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - begun
    if executor is None or executor.rank == 0:
        rate = options.steps * options.tokens / seconds
        print(
            f"{'dense' if options.dense else options.strategy}: loss {losses[0]:.4f} → "
            f"{losses[-1]:.4f}, {rate:.0f} tokens/s"
        )
        if options.out:
            result = {
                "losses": losses,
                "tokens_per_s": rate,
                "strategy": None if options.dense else options.strategy,
            }
            pathlib.Path(options.out).write_text(json.dumps(result))
    if not options.dense:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
