"""Compares losses of train_distca.py on 8 ranks with those of one process.

  python parity.py [--quick] [--megatron] [--steps 100] FOLDER

Prints what the ranks print, and fails if a loss is further from that of one process than rounding
explains. Runs in fp32 that add in another order diverge slowly, so the bound grows with the step:
1e-5 + 2e-5 * step, relative.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def run(words: list[str], out: pathlib.Path) -> list[float]:
    if not out.exists():
        subprocess.run(
            [sys.executable, *words, "--out", str(out)],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return json.loads(out.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=pathlib.Path, help="for losses; what is there is not made again"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="3 small steps")
    parser.add_argument(
        "--megatron", action="store_true", help="compare the run through Megatron's layers"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    size = (
        ["--steps", "3", "--tokens", "128", "--micro-batches", "2"]
        if options.quick
        else ["--steps", str(options.steps)]
    )
    tables = ["--timed-steps", "1"] if options.quick else []
    script = str(HERE / "train_distca.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=8", script]
    expected = run([script, "--dense", *size], options.folder / "dense.json")
    if options.megatron:
        found = run([*torchrun, *size, "--megatron"], options.folder / "megatron.json")
    else:
        found = run([*torchrun, *size, *tables], options.folder / "pooled.json")
    differences = [abs(a - b) / b for a, b in zip(found, expected, strict=True)]
    share = max(difference / (1e-5 + 2e-5 * step) for step, difference in enumerate(differences))
    print(
        f"\nlargest difference of {len(found)} losses: {max(differences):.1e}, {100 * share:.1f}% "
        "of its bound"
    )
    print("the same" if share <= 1 else "different")
    return 0 if share <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
