"""Runs every snippet of docs/python: the blocks of a page in order, in a job of one rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = [str(Path(__file__).parents[1] / folder) for folder in ("support", "with_megatron")]
PAGES = sorted((Path(__file__).parents[3] / "docs" / "python").glob("*.md"))
NEEDS = {
    "audit.md": ["torch"],
    "data.md": ["torch"],
    "megatron.md": ["torch", "megatron.core"],
    "pipelines.md": ["torch"],
    "plain-pytorch.md": ["torch"],
    "plots.md": ["matplotlib"],
    "pytorch.md": ["torch"],
    "trainers.md": ["torch", "transformers", "accelerate"],
    "training.md": ["torch"],
    "transformers.md": ["torch", "transformers"],
}


BEFORE = {
    # Without a GPU, which megatron-core expects.
    "megatron.md": (
        f"import sys; sys.path += {HELPERS!r}; from test_megatron import on_cpus; on_cpus()"
    ),
}


def snippets(page: Path) -> str:
    text = page.read_text()
    parts = []
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        # Empty lines before, so that errors name lines of the page.
        line = text.count("\n", 0, found.start(1))
        parts.append((line, found[1]))
    code = ""
    for line, block in parts:
        code += "\n" * (line - code.count("\n")) + block
    return code


ELSEWHERE = {"serve.md"}  # test_serve_clients.py runs its snippets, which need a server
RUN = [page for page in PAGES if page.name not in ELSEWHERE and "```python" in page.read_text()]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_snippets(page, tmp_path):
    needed = NEEDS.get(page.name, [])
    for module in needed:
        pytest.importorskip(module)
    code = snippets(page)
    assert code
    environment = dict(os.environ)
    if "torch" in needed:
        from contextile.torch._ranks.group import free_port

        environment |= {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port("127.0.0.1")),
        }
        # Threads of a process group that is never destroyed may end an exiting interpreter.
        code += "\nif dist.is_initialized():\n    dist.destroy_process_group()\n"
        begin = "; ".join(
            [
                *([BEFORE[page.name]] if page.name in BEFORE else []),
                "import torch.distributed as dist",
            ]
        )
        if "init_process_group" not in code:
            begin += "; dist.init_process_group('gloo')"
        code = code.replace("\n", begin + "\n", 1)
    (tmp_path / f"page_{page.stem}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, f"page_{page.stem}.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_strategy_in_python_computes_what_others_do(tmp_path):
    torch = pytest.importorskip("torch")
    import contextile as ct
    from reference import dense_mask, inputs, relative_error, run_dense, run_plan

    names: dict = {}
    exec(snippets(PAGES[[page.name for page in PAGES].index("strategies.md")]), names)
    tensors = inputs(1024, (4, 2), 32)
    expected = run_dense(tensors, dense_mask(ct.make_workload([700, 260, 64], mask="causal")))
    for found, one in zip(run_plan(names["plan"], tensors), expected, strict=True):
        assert relative_error(found, one) < 1e-5
    assert torch.is_tensor(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tiles, moves: (tiles[:-1], moves), "violations"),
        (lambda tiles, moves: (tiles, moves[:-1]), "never arrives|expected"),
        (lambda tiles, moves: (tiles + tiles[:1], moves), "violations|expected"),
        (
            lambda tiles, moves: (tiles, [*moves, {"kind": "kv", "block": 99, "src": 0, "dst": 1}]),
            "expected",
        ),
        (
            lambda tiles, moves: (tiles, [*moves, {"kind": "kv", "block": 0, "src": 0, "dst": 7}]),
            "expected",
        ),
        (
            lambda tiles, moves: (
                tiles,
                [*moves, {"kind": "kv", "block": 0, "src": 0, "dst": 1, "group": 5}],
            ),
            "expected",
        ),
        (
            lambda tiles, moves: (
                [*tiles, {"q_block": -3, "kv_block": 0, "device": 0, "pairs": 1}],
                moves,
            ),
            "expected",
        ),
        (
            lambda tiles, moves: (
                [*tiles, {"q_block": 0, "kv_block": 0, "device": 9, "pairs": 1}],
                moves,
            ),
            "expected",
        ),
        (
            lambda tiles, moves: (
                [*tiles, {"q_block": 0, "kv_block": 0, "device": 0, "pairs": 1, "stage": -5}],
                moves,
            ),
            "expected",
        ),
    ],
)
def test_wrong_arrangements_are_refused(change, message):
    import contextile as ct

    workload = ct.make_workload([256], heads=(4, 2), head_dim=32, dtype="f32")

    def arrange(workload, cluster, options):
        blocks = ct.cut_sequences(workload, 64)
        owners = [0, 0, 1, 1]
        tiles, moves = [], set()
        for tile in ct.tiles(workload.mask(), blocks):
            device, owner = owners[tile.q_block], owners[tile.kv_block]
            tiles.append(
                {
                    "q_block": tile.q_block,
                    "kv_block": tile.kv_block,
                    "device": device,
                    "pairs": tile.pairs,
                    "stage": int(device != owner),
                }
            )
            if device != owner:
                moves.add((tile.kv_block, owner, device))
        moves = [
            {"kind": "kv", "block": block, "src": src, "dst": dst}
            for block, src, dst in sorted(moves)
        ]
        tiles, moves = change(sorted(tiles, key=lambda tile: tile["stage"]), moves)
        forward = ct.ArrangedDirection(
            tiles=[ct.PlacedTile(**tile) for tile in tiles],
            transfers=[ct.Transfer(**move) for move in moves],
        )
        return ct.Arrangement(
            strategy="mine",
            rounds=[
                ct.ArrangedRound(
                    blocks=blocks,
                    owners=owners,
                    masks=[workload.mask()],
                    programs=[ct.ArrangedMask(forward=forward)],
                )
            ],
        )

    with pytest.raises(ct.Error, match=message):
        ct.plan(workload, cluster="local:1x2", strategy=arrange, backward=False)
