"""The example of README.md, on eight ranks, by each engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

from ranks import ENGINE, run_ranks
from reference import dense_attention, dense_mask, relative_error

README = Path(__file__).resolve().parents[3] / "README.md"


def run_example() -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL).group(1)
    before, call = code.split("out = ")
    lengths = [100, 37, 9, 72, 54, 21]
    names = {"lengths": lengths, "tokens": torch.arange(sum(lengths))}
    exec(before, names)
    plan, executor = names["plan"], names["executor"]
    generator = torch.Generator().manual_seed(1)
    whole = [
        torch.randn(sum(lengths), heads, 128, generator=generator).bfloat16()
        for heads in (32, 8, 8)
    ]
    own = torch.from_numpy(plan.local_tokens(executor.rank))
    names |= {name: x[own] for name, x in zip("qkv", whole, strict=True)}
    exec("out = " + call, names)
    expected = dense_attention(*whole, dense_mask(plan))[own]
    assert relative_error(names["out"], expected) <= 2**-6
    if dist.get_rank() == 0:
        print(executor.describe())


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_example_is_exact(engine, monkeypatch):
    monkeypatch.setenv(ENGINE, engine)
    assert f"engine {engine} on cpu, rank 0 of 8" in run_ranks(run_example, 8).stdout
