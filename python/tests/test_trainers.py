"""The examples of trainers on ranks, compared with one process without Contextile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import contextile as ct
import pytest

torch = pytest.importorskip("torch")

from contextile.torch import DataLoader  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
sys.path.append(str(EXAMPLES))


def run_example(name, num_ranks, out, *words):
    """Runs an example with torchrun. Returns the losses and parameters that it saves."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", EXAMPLES / f"{name}.py",
         out, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(out)


def check_same(found, losses, parameters):
    """Fails unless losses and parameters are equal within 1e-5 of the largest value."""
    assert len(found["losses"]) == len(losses)
    for step, (mine, one) in enumerate(zip(found["losses"], losses, strict=True)):
        assert abs(mine - one) < 1e-5 * abs(one), f"step {step}: loss {mine}, in one process {one}"
    assert found["parameters"].keys() == parameters.keys()
    for name, one in parameters.items():
        error = (found["parameters"][name] - one).abs().max() / one.abs().max().clamp(min=1e-8)
        assert error < 1e-5, f"{name} is off by {error:.2e}"


def alone(*, rows_per_step, steps):
    """Losses and parameters of one process: each step takes batches of 128 tokens of Text."""
    import gpt

    def attend(q, k, v):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    torch.manual_seed(0)
    model = gpt.Gpt(attend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = gpt.Text()
    loader = DataLoader(
        text, cluster="local:1x1", rank=0, strategy="zigzag", tokens=128, end_step=steps * rows_per_step, **gpt.BATCH
    )
    losses = []
    for step in range(steps):
        sums, count = [], 0
        for batch in range(step * rows_per_step, (step + 1) * rows_per_step):
            for piece in loader.pieces(batch):
                tokens = torch.tensor(text[piece.document])[piece.begin : piece.end]
                logits = model(tokens, torch.arange(len(tokens)))
                sums.append(functional.cross_entropy(logits[:-1], tokens[1:], reduction="sum"))
                count += len(tokens) - 1
        loss = sum(sums) / count
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "num_ranks", "batches_per_step"), [("fsdp", 4, 2), ("ddp", 4, 4), ("tensor_parallel", 4, 1)]
)
def test_plain_pytorch_is_one_process(name, num_ranks, batches_per_step, tmp_path):
    found = run_example(name, num_ranks, tmp_path / "out.pt")
    check_same(found, *alone(rows_per_step=batches_per_step, steps=3))


def test_examples_are_short():
    for example in sorted(EXAMPLES.glob("*.py")):
        assert len(example.read_text().splitlines()) <= 60, f"{example.name}: expected at most 60 lines"
