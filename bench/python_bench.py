#!/usr/bin/env python3
"""Compares planning from Python with the program, and times importing.

  build/venv/bin/python bench/python_bench.py [--program build/contextile] [--repeats 9]

Both plan the same batch with the same library; plans are compared first. For the program it prints
the reported times of arranging, building and proving. For Python it prints the times that the same
call reports, and the share of its time outside of them. Medians of alternating runs.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import contextile as ct

CASES = [
    ("zigzag", 32768, "local:1x8"),
    ("dcp:divisions=4", 65536, "dgx-h200:1x8"),
    ("fcp:block=2048", 131072, "dgx-h200:2x8"),
    ("auto:steps=1000000", 131072, "dgx-h200:2x8"),
]


def of_program(program, lengths, strategy, cluster, folder):
    words = [
        program,
        "plan",
        "-o",
        folder / "a.plan",
        "--lengths",
        lengths,
        "--cluster",
        cluster,
        "--strategy",
        strategy,
        "--mask",
        "causal",
        "--block-size",
        "2048",
        "--json",
    ]
    plan = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)[
        "plans"
    ][0]
    return plan["arrange_s"] + plan["build_s"] + plan["verify_s"], ct.Plan.load(
        str(folder / "a.plan")
    ).digest


def of_python(tokens, strategy, cluster):
    begun = time.perf_counter()
    plan = ct.plan(tokens, mask="causal", cluster=cluster, strategy=strategy, block_size=2048)
    whole_s = time.perf_counter() - begun
    return whole_s, plan.arrange_s + plan.build_s + plan.verify_s, plan.digest


def import_s():
    code = "import time; t = time.perf_counter(); import contextile; print(time.perf_counter() - t)"
    return float(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default="build/contextile")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(
        f"{'strategy':20} {'tokens':>7} {'program ms':>11} {'Python ms':>10} {'of it outside':>13} "
        f"{'Python/program':>15}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for strategy, tokens, cluster in CASES:
            lengths = ct.sample_lengths("prolong", tokens=tokens, seed=1)[0]
            (folder / "lengths.txt").write_text("".join(f"{length}\n" for length in lengths))
            program_s, python_s, outside = [], [], []
            for _ in range(options.repeats):
                seconds, digest = of_program(
                    options.program, folder / "lengths.txt", strategy, cluster, folder
                )
                whole_s, inside_s, same = of_python(lengths, strategy, cluster)
                if digest != same:
                    raise SystemExit(
                        f"python_bench: {strategy}: expected plan {digest}, found {same}"
                    )
                program_s.append(seconds)
                python_s.append(inside_s)
                outside.append((whole_s - inside_s) / whole_s)
            program, python = statistics.median(program_s), statistics.median(python_s)
            print(
                f"{strategy:20} {tokens:7} {1e3 * program:11.2f} {1e3 * python:10.2f} "
                f"{100 * statistics.median(outside):12.2f}% {python / program:15.3f}"
            )
    print(
        f"import contextile: {statistics.median(import_s() for _ in range(options.repeats)):.3f} s"
    )


if __name__ == "__main__":
    main()
