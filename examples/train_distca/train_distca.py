"""Trains a small GPT whose ranks compute each other's attention, across replicas and stages.

  torchrun --nproc-per-node=8 train_distca.py --out pooled.json
  torchrun --nproc-per-node=8 train_distca.py --megatron --out megatron.json
  python train_distca.py --dense --out dense.json       # one process, plain PyTorch, for comparison

Eight ranks are PP 2 x DP 2 x CP 2. Documents are skewed: some micro-batches are one long document,
others many short ones. Stages run in ticks of one phase, and layers over two nano-batches that
alternate (DistCA, section 4). Losses are those of one process: parity.py compares them. With
--megatron, layers and pipeline are Megatron's, and every stage pools its replicas.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import sysconfig
import time

import torch
import torch.distributed as dist
from tables import print_tables
from torch import nn
from torch.nn import functional

from contextile.torch import Executor, Pool, SamePhasePipeline

STAGES, REPLICAS, CONTEXT = 2, 2, 2
HEADS, KV_HEADS, DIM = 4, 2, 16
HIDDEN, FEED_FORWARD, LAYERS = HEADS * DIM, 192, 4
VOCABULARY = 256  # bytes
STRATEGY = "distca:nano_batches=1,resend=on,backward=own,granularity=8,tolerance=0.05,cost=pairs"


class Text:
    """Source files of Python's own library, cut into documents as they are asked for."""

    def __init__(self) -> None:
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
        self.bytes = b"".join(
            path.read_bytes()[:8192] for path in sorted(folder.glob("*.py"))[:100]
        )

    def micro_batch(
        self, step: int, i: int, replica: int, num_tokens: int
    ) -> tuple[list[int], torch.Tensor]:
        """Returns lengths of documents, and their tokens end to end."""
        random = torch.Generator().manual_seed(1000 * step + 10 * i + replica)
        draw = lambda end: int(torch.randint(end, (1,), generator=random))
        lengths: list[int] = []
        longest = num_tokens if draw(3) == 0 else num_tokens // 8
        while (rest := num_tokens - sum(lengths)) > 0:
            lengths.append(min(rest, 16 + draw(longest)))
        starts = [draw(len(self.bytes) - length) for length in lengths]
        text = b"".join(
            self.bytes[start : start + length]
            for start, length in zip(starts, lengths, strict=True)
        )
        return lengths, torch.tensor(list(text))


def labels_of(lengths: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """The next token of the document; -100 at its end."""
    labels = tokens.roll(-1)
    labels[torch.tensor(lengths).cumsum(0) - 1] = -100
    return labels


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """RoPE: x [tokens, heads, dim] at positions [tokens]."""
    angles = positions[:, None, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], dim=-1
    ).flatten(-2)


class Pause(torch.autograd.Function):
    """Stands for the work of a GPU: it takes time, and no processor."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Layer(nn.Module):
    pause_s_per_row = 0.0  # for the table of exposed communication

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.feed_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.project = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def pre_attention(self, x, positions):
        q, k, v = (
            self.project(self.norm(x))
            .unflatten(1, (-1, DIM))
            .split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        )
        return rotated(q, positions), rotated(k, positions), v

    def post_attention(self, attended, x, positions):
        x = x + self.out(attended.flatten(1))
        gate, up = self.up(self.feed_norm(x)).chunk(2, dim=1)
        x = x + self.down(functional.silu(gate) * up)
        return Pause.apply(x, self.pause_s_per_row * len(x)) if self.pause_s_per_row > 0 else x


class Gpt(nn.Module):
    """The whole model. A rank uses and trains the layers of its stage."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def stage(self, stage: int) -> nn.ModuleList:
        count = LAYERS // STAGES
        parts: list[nn.Module] = list(self.layers[stage * count : (stage + 1) * count])
        parts += [self.embed] if stage == 0 else []
        parts += [self.norm, self.head] if stage == STAGES - 1 else []
        return nn.ModuleList(parts)

    def loss(self, x, labels, num_labels):
        """These rows' share of the mean loss, over `num_labels` labels."""
        return (
            functional.cross_entropy(self.head(self.norm(x)), labels, reduction="sum") / num_labels
        )


def dense_loss(
    model: Gpt, lengths: list[int], tokens: torch.Tensor, num_labels: int
) -> torch.Tensor:
    """The share of a micro-batch in one process, with PyTorch alone."""
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    order = torch.arange(len(tokens))
    mask = (documents[:, None] == documents) & (order[:, None] >= order)
    x = model.embed(tokens)
    for layer in model.layers:
        q, k, v = (t.transpose(0, 1)[None] for t in layer.pre_attention(x, positions))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = layer.post_attention(attended[0].transpose(0, 1), x, positions)
    return model.loss(x, labels_of(lengths, tokens), num_labels)


class Ranks:
    """The pipelines of this rank, with ping-pong and without, and the groups of its stage."""

    def __init__(self, model: Gpt) -> None:
        executor = Executor()
        if executor.size != STAGES * REPLICAS * CONTEXT:
            raise SystemExit(f"expected {STAGES * REPLICAS * CONTEXT} ranks, found {executor.size}")
        self.pool = Pool(
            executor,
            neighbourhoods=STAGES * REPLICAS,
            heads=(HEADS, KV_HEADS),
            head_dim=DIM,
            dtype="f32",
            strategy=STRATEGY,
            cluster=f"local:1x{executor.size}",
        )
        self.stage, self.replica = divmod(self.pool.neighbourhood, REPLICAS)
        count = LAYERS // STAGES
        layers = list(model.layers[self.stage * count : (self.stage + 1) * count])
        self.pipelines = {
            nano_batches: SamePhasePipeline(
                [layers], self.pool, stages=STAGES, hidden=HIDDEN, nano_batches=nano_batches
            )
            for nano_batches in (1, 2)
        }
        per_stage = REPLICAS * CONTEXT
        groups = [
            dist.new_group(list(range(s * per_stage, (s + 1) * per_stage))) for s in range(STAGES)
        ]
        self.group = groups[self.stage]

    def train(self, model: Gpt, batch: list, num_labels: int, nano_batches: int) -> torch.Tensor:
        """Adds the gradients of a step, and returns its loss."""
        lengths = [[lengths for lengths, _ in of_replicas] for of_replicas in batch]
        tokens = [of_replicas[self.replica][1] for of_replicas in batch]
        labels = [labels_of(lengths[i][self.replica], tokens[i]) for i in range(len(batch))]
        loss = self.pipelines[nano_batches].step(
            lengths,
            embed=lambda i, rows: model.embed(tokens[i][rows.tokens]),
            loss=lambda i, rows, x: model.loss(x, labels[i][rows.tokens], num_labels),
        )
        for parameter in model.stage(self.stage).parameters():
            dist.all_reduce(parameter.grad, group=self.group)
        dist.all_reduce(loss)
        return loss


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--micro-batches", type=int, default=4, help="of a replica in one step")
    parser.add_argument("--tokens", type=int, default=512, help="of a micro-batch")
    parser.add_argument("--nano-batches", type=int, choices=[1, 2], default=2, help="2: ping-pong")
    parser.add_argument(
        "--timed-steps", type=int, default=3, help="for the table of exposed communication"
    )
    parser.add_argument(
        "--block-ms",
        type=float,
        default=0.0,
        help=(
            "for that table: a pause of so many ms in every layer, twice as long backward, as a "
            "GPU's work would be"
        ),
    )
    parser.add_argument(
        "--megatron", action="store_true", help="Megatron's layers; no nano-batches, no tables"
    )
    parser.add_argument("--dense", action="store_true", help="one process, plain PyTorch")
    parser.add_argument("--links", default="loopback", help="a name of the network, for the table")
    parser.add_argument("--out", default="", help="where losses go, as JSON")
    options = parser.parse_args()
    for name in (
        ("dense", "nano_batches", "timed_steps", "block_ms", "links") if options.megatron else ()
    ):
        if (found := getattr(options, name)) != (expected := parser.get_default(name)):
            parser.error(
                f"--{name.replace('_', '-')}: expected {expected} with --megatron, found {found}"
            )
    return options


def main() -> None:
    options = parsed()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, text = Gpt(), Text()
    if not options.dense:
        dist.init_process_group("gloo")
    ranks: Ranks | None = None
    parameters, name = model.parameters(), "one process"
    if options.megatron:
        from megatron_layers import MegatronRanks

        megatron = MegatronRanks(model, sys.modules[__name__])
        parameters, name = megatron.parameters(), "8 ranks, Megatron's layers"
    elif not options.dense:
        ranks = Ranks(model)
        parameters, name = (
            model.stage(ranks.stage).parameters(),
            f"8 ranks, {options.nano_batches} nano-batches",
        )
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)

    def batch_of(step):
        """[micro-batch][replica] of (lengths, tokens), and the number of labels."""
        batch = [
            [text.micro_batch(step, i, d, options.tokens) for d in range(REPLICAS)]
            for i in range(options.micro_batches)
        ]
        documents = sum(len(lengths) for of_replicas in batch for lengths, _ in of_replicas)
        return batch, options.tokens * options.micro_batches * REPLICAS - documents

    losses = []
    begun = time.perf_counter()
    for step in range(options.steps):
        batch, num_labels = batch_of(step)
        if options.megatron:
            loss = megatron.train(batch, num_labels)
        elif ranks is None:
            loss = sum(
                dense_loss(model, *of_replica, num_labels)
                for of_replicas in batch
                for of_replica in of_replicas
            )
            loss.backward()
        else:
            loss = ranks.train(model, batch, num_labels, options.nano_batches)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    seconds = time.perf_counter() - begun
    if options.dense or dist.get_rank() == 0:
        print(
            f"{name}: loss {losses[0]:.4f} → {losses[-1]:.4f} in {len(losses)} steps, "
            f"{seconds:.0f} s"
        )
        if options.out:
            pathlib.Path(options.out).write_text(json.dumps(losses))
    if ranks is not None:
        print_tables(ranks, model, batch_of, options)
    if not options.dense:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # a thread of gloo may still hold the last collective's tensors (PyTorch 2.15)


if __name__ == "__main__":
    main()
