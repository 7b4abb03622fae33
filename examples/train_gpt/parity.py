"""Compares losses of train_gpt.py by each strategy on 4 ranks with those of one process.

  python parity.py [--steps 200] [--ranks 4] [--plot parity.svg]
                   [--strategies "zigzag dcp fcp distca auto:steps=100000"] FOLDER

Prints a table and fails if a loss is further from that of one process than rounding explains. Two
runs in fp32 that add in another order diverge slowly, so the bound grows with the step:
1e-5 + 2e-5 * step, relative.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

CAUSAL_ONLY = ("distca",)  # plan only causal documents: compared with one process with such masks

HERE = pathlib.Path(__file__).resolve().parent


def run(words: list[str], out: pathlib.Path) -> dict:
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
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--strategies",
        default="zigzag dcp fcp:block=64 distca auto:steps=100000",
        help="separated by spaces",
    )
    parser.add_argument(
        "--plot", default="", help="where a picture of the curves goes (matplotlib)"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    steps = ["--steps", str(options.steps)]
    script = str(HERE / "train_gpt.py")
    ranks = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={options.ranks}",
        script,
    ]
    runs, masks_of = {}, {}
    for strategy in options.strategies.split():
        masks = "causal" if strategy.split(":")[0] in CAUSAL_ONLY else "mixed"
        alone = f"one process, {masks}"
        if alone not in runs:
            runs[alone] = run(
                [script, "--dense", "--masks", masks, *steps],
                options.folder / f"dense_{masks}.json",
            )
        file = "".join(c if c.isalnum() else "_" for c in strategy) + ".json"
        runs[strategy] = run(
            [*ranks, "--strategy", strategy, "--masks", masks, *steps], options.folder / file
        )
        masks_of[strategy] = masks
    ok = True
    print(f"{'':20}  first loss  last loss  largest difference  of its bound  tokens/s")
    for name, found in runs.items():
        expected = runs[f"one process, {masks_of[name]}" if name in masks_of else name]["losses"]
        differences = [abs(a - b) / b for a, b in zip(found["losses"], expected, strict=True)]
        shares = [difference / (1e-5 + 2e-5 * step) for step, difference in enumerate(differences)]
        ok = ok and max(shares) <= 1
        print(
            f"{name:20}  {found['losses'][0]:10.5f}  {found['losses'][-1]:9.5f}  "
            f"{max(differences):18.1e}  {100 * max(shares):11.1f}%  {found['tokens_per_s']:8.0f}"
        )
    if options.plot:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(7, 4))
        for name, found in runs.items():
            axes.plot(
                found["losses"], label=name, linewidth=3 if name.startswith("one process") else 1
            )
        axes.set_xlabel("step")
        axes.set_ylabel("loss, nats a byte")
        axes.legend()
        figure.savefig(options.plot, bbox_inches="tight")
    print("the same" if ok else "different")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
