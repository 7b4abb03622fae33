"""A small model as PingPong and SamePhasePipeline take it, and its run in one process."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

HEADS, KV_HEADS, DIM, HIDDEN, VOCABULARY = 4, 2, 8, 16, 50
SHAPE = {"heads": (HEADS, KV_HEADS), "head_dim": DIM, "dtype": "f32"}
STRATEGY = "distca:nano_batches=1,resend=on,backward=own,granularity=8,tolerance=0.02,cost=pairs"


def rotated(x, positions):
    angles = positions[:, None, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1
    ).flatten(-2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.feed_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.project = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM)
        self.out, self.up, self.down = (
            nn.Linear(HEADS * DIM, HIDDEN),
            nn.Linear(HIDDEN, 32),
            nn.Linear(32, HIDDEN),
        )

    def pre_attention(self, x, positions):
        q, k, v = (
            self.project(self.norm(x))
            .unflatten(1, (-1, DIM))
            .split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        )
        return rotated(q, positions), rotated(k, positions), v

    def post_attention(self, attended, x, positions):
        x = x + self.out(attended.flatten(1))
        return x + self.down(silu(self.up(self.feed_norm(x))))


class Gpt(nn.Module):
    def __init__(self, num_layers):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))


_one_at_a_time = threading.Lock()  # threads share the generator of random numbers


def make_model(num_layers):
    with _one_at_a_time:
        torch.manual_seed(0)
        return Gpt(num_layers)


def make_tokens(lengths, seed):
    return torch.randint(VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def loss_of(logits, tokens, rows, num_tokens):
    """This rank's share of the mean loss over `num_tokens` tokens: of copying the token."""
    return cross_entropy(logits, tokens[rows], reduction="sum") / num_tokens


def dense_loss(model, lengths, tokens, num_tokens):
    """The same of a whole micro-batch in one process, without Contextile."""
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    order = torch.arange(len(tokens))
    mask = (documents[:, None] == documents) & (order[:, None] >= order)
    x = model.embed(tokens)
    for layer in model.layers:
        q, k, v = (t.transpose(0, 1)[None] for t in layer.pre_attention(x, positions))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = layer.post_attention(out[0].transpose(0, 1), x, positions)
    return loss_of(model.head(x), tokens, order, num_tokens)


def gradients_of(model):
    """Gradients by name; of parameters that this rank does not use, zeros."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }


def assert_same(found, expected, tolerance=1e-5):
    for name, value in expected.items():
        difference = (found[name] - value).abs().max() / value.abs().max().clamp(min=1e-3)
        assert difference < tolerance, (
            f"{name}: expected at most {tolerance}, found {difference:.1e}"
        )
