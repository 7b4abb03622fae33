"""scripts/triton-kernels compiles kernels for GPUs, without one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Neither is imported here, because the script does it without the interpreter.
for package in ("torch", "triton"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"there is no {package}", allow_module_level=True)

SCRIPT = Path(__file__).parents[3] / "scripts/triton-kernels"
TARGETS = ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950"]
# A module whose kernel needs more shared memory than some targets have, and one without a type.
KERNELS = """
import triton
import triton.language as tl


@triton.jit
def kernel(x, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + at)
    tl.store(x + at, tl.dot(value, value).to(tl.bfloat16))


def variants(is_amd):
    yield "large", kernel, {"x": "*bf16:16"}, {"N": 256}, {"num_warps": 8}
    yield "untyped", kernel, {}, {"N": 16}, {}
"""


def run(*arguments):
    # conftest.py sets it for the kernels that run in this process.
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_kernel_compiles_for_every_target(tmp_path):
    file = tmp_path / "table.md"

    done = run("--kernels", "merge_rows_bf16", "--times", "--output", str(file))

    assert done.returncode == 0, done.stderr
    assert file.read_text() == done.stdout
    head, ruler, *rows = done.stdout.splitlines()
    assert cells(head) == [
        *("kernel", "target", "registers", "spills (bytes)", "shared memory (bytes)", "seconds")
    ]
    assert ruler == "|---" * 6 + "|"
    assert [cells(row)[:2] for row in rows] == [["merge_rows_bf16", target] for target in TARGETS]
    for row in rows:
        registers, spills, shared, seconds = cells(row)[2:]
        assert 8 <= int(registers.split()[0]) <= 128
        assert int(spills) == 0
        assert 0 <= int(shared) <= 16384
        assert float(seconds) > 0.0


def test_attention_compiles_within_the_shared_memory_of_its_target():
    done = run("--kernels", "forward_bf16_128,fused_bf16_128", "--targets", "sm_90,gfx942")

    assert done.returncode == 0, done.stderr
    found = [cells(row) for row in done.stdout.splitlines()[2:]]
    names = ["forward", "fused"]
    assert [row[:2] for row in found] == [
        [f"{name}_bf16_128", target] for name in names for target in ("sm_90", "gfx942")
    ]
    assert all(int(row[3]) <= 512 for row in found), found  # bytes of spills


def test_names_are_listed():
    done = run("--list", "--kernels", "take_rows_*,sum_rows_2")

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        *("take_rows_fp32_bf16", "take_rows_bf16_bf16", "take_rows_fp32_fp32", "sum_rows_2")
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--targets", "sm_80,sm_70"], f"expected targets among {', '.join(TARGETS)}, found sm_70"),
        (["--kernels", "merge_columns"], "found merge_columns"),
        (["--modules", "/no/kernels.py"], "expected a file with kernels, found none at /no/"),
    ],
)
def test_unknown_names_are_refused(arguments, message):
    done = run(*arguments)

    assert done.returncode == 1
    assert done.stderr.startswith("triton-kernels: expected ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_kernels_that_do_not_fit_or_compile_are_errors(tmp_path):
    module = tmp_path / "kernels.py"
    module.write_text(KERNELS)

    done = run("--modules", str(module), "--targets", "sm_120", "--jobs", "1")

    assert done.returncode == 1
    large, untyped = (cells(row) for row in done.stdout.splitlines()[2:])
    assert int(large[4]) > 99 * 1024
    assert untyped == ["untyped", "sm_120", "failed", "–", "–"]
    assert done.stderr.splitlines() == [
        "triton-kernels: large, sm_120: expected at most 101376 bytes of shared memory, "
        f"found {large[4]}",
        "triton-kernels: untyped, sm_120: expected a kernel that compiles, found ValueError: "
        "expected a type or a constant for argument x, found none",
    ]


def test_a_module_that_imports_more_than_kernels_is_refused(tmp_path):
    module = tmp_path / "kernels.py"
    module.write_text("from contextile import _core\n")

    done = run("--modules", str(module), "--list")

    assert done.returncode == 1
    assert done.stderr.startswith(f"triton-kernels: {module}: expected imports of torch, triton")
    assert done.stderr.count("\n") == 1


def test_a_package_that_is_missing_is_an_error(tmp_path):
    # Without site-packages there is neither torch nor triton, except what stands in its place.
    for package in ("torch", "triton"):
        done = subprocess.run(
            [sys.executable, "-S", str(SCRIPT), "--list"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PYTHONPATH": str(tmp_path)},
            check=False,
        )
        (tmp_path / f"{package}.py").touch()

        assert done.returncode == 1
        assert done.stderr.startswith(f"triton-kernels: expected the package {package}, found none")
        assert done.stderr.count("\n") == 1
