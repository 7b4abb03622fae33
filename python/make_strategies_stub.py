"""Writes the type stub of contextile.strategies, whose functions come from the library's table.

PYTHONPATH=… python make_strategies_stub.py OUTPUT
"""

import inspect
import pathlib
import sys

from contextile import strategies


def main() -> None:
    lines = [
        "from typing import Literal",
        "",
        "from contextile._core import StrategyChoice",
        "",
        "def names() -> list[str]: ...",
        "def parse(text: str) -> list[StrategyChoice]: ...",
    ]
    for name in strategies.__all__:
        if name in ("names", "parse"):
            continue
        options = [
            f"{option.name}: {option.annotation} = ..."
            for option in inspect.signature(getattr(strategies, name)).parameters.values()
        ]
        lines.append(
            f"def {name}({', '.join(['*', *options]) if options else ''}) -> StrategyChoice: ..."
        )
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
