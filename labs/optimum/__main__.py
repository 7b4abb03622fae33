"""Measures how far `auto` and the lower bound are from the best plan of small batches.

  python labs/optimum                     all instances, as a table
  python labs/optimum --only p4de,lambda  those whose names hold every word
  python labs/optimum --json out.json     also the numbers, for each instance as soon as it is done

Needs the Python package contextile and the solver: pip install ortools
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from optimum import bound, instances, study


def chosen(words):
    """The instances whose names hold every word."""
    every = instances.all_instances()
    names = {one: f"{one.cluster} {one.documents} {one.heads} {one.mask}" for one in every}
    return [one for one in every if all(word in names[one] for word in words)]


def summary(rows):
    """Geometric means of the table's ratios."""
    lines = ["geometric means:"]
    for name in study.RATIOS:
        values = [row[name] for row in rows if row[name] > 0]
        mean = math.exp(statistics.fmean(math.log(value) for value in values))
        lines.append(f"  {name:18} {mean:.3f}  least {min(values):.3f}  most {max(values):.3f}")
    optimal = sum(row["status"] == "optimal" for row in rows)
    lines.append(f"  solved to optimality: {optimal} of {len(rows)}")
    return "\n".join(lines)


def measured(one, arguments):
    return study.measure(
        one, arguments.equal_blocks, arguments.solve_s, arguments.plans, arguments.threads
    )


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="words of names, comma-separated"
    )
    parser.add_argument(
        "--equal-blocks", action="store_true", help="not in the blocks of auto's plan"
    )
    parser.add_argument(
        "--solve-s", type=float, default=60, help="most seconds for the solver (60)"
    )
    parser.add_argument(
        "--plans", type=int, default=9000, help="plans that the search simulates (9000)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of the solver (2)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where the numbers go")
    arguments = parser.parse_args()
    if bound.cp_model is None:
        print(f"optimum: {bound.INSTALL}", file=sys.stderr)
        return 3
    todo = chosen([word for word in arguments.only.split(",") if word])
    if not todo:
        only = arguments.only
        print(
            f"optimum: --only: expected words of an instance's name, found '{only}'",
            file=sys.stderr,
        )
        return 2
    rows = []
    print(study.HEADER, flush=True)
    for one in todo:
        rows.append(measured(one, arguments))
        print(study.line(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
