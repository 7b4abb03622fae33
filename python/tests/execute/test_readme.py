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


def run_example(folder: str) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL).group(1)
    for readers, ours in (
        ("tokens=131_072", "tokens=300"),
        ("file:///shared/plans", f"file://{folder}"),
        ("rank=executor.rank,", "rank=executor.rank, end_step=2,"),
    ):
        assert code.count(readers) == 1, readers
        code = code.replace(readers, ours)
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randn(500, heads, 128, generator=generator).bfloat16() for heads in (32, 8, 8)]
    steps = []

    def model(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        executor, plan = names["executor"], names["step"].plan
        assert len(positions) == len(tokens)
        out = names["attention"](*(table[tokens] for table in tables), executor=executor)
        own = torch.from_numpy(plan.local_tokens(executor.rank))
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (own, tokens))
        whole = torch.empty(sum(len(ids) for ids, _ in parts), dtype=torch.long)
        for ids, part in parts:
            whole[ids] = part
        expected = dense_attention(*(table[whole] for table in tables), dense_mask(plan))[own]
        assert relative_error(out, expected) <= 2**-6
        steps.append(plan.digest)
        return out

    documents = [torch.arange(length) for length in (100, 37, 9, 72, 54, 21)]
    names = {"documents": documents, "model": model}
    exec(code, names)
    assert len(steps) == 2
    if dist.get_rank() == 0:
        print(names["executor"].describe())


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_example_is_exact(engine, monkeypatch, tmp_path):
    monkeypatch.setenv(ENGINE, engine)
    assert f"engine {engine} on cpu, rank 0 of 8" in run_ranks(run_example, 8, str(tmp_path)).stdout
