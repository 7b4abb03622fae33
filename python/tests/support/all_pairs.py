"""Cases in which every pair of values of two parameters occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any


def all_pairs(
    parameters: Sequence[Sequence[Hashable]], is_possible: Callable[[tuple[Any, ...]], bool]
) -> Iterator[tuple[Any, ...]]:
    """Yields cases, a value of each parameter, until every pair that is possible has occurred.

    A pair counts as impossible where no drawn case with it is possible.
    """
    chance = random.Random(1)
    left = {
        (i, x, j, y)
        for i, j in itertools.combinations(range(len(parameters)), 2)
        for x in parameters[i]
        for y in parameters[j]
    }

    def pairs_of(case: tuple[Any, ...]) -> set[tuple[int, Any, int, Any]]:
        return {
            (i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(parameters)), 2)
        }

    while left:
        i, x, j, y = min(left, key=repr)
        candidates = []
        for _ in range(40):
            case = [chance.choice(list(values)) for values in parameters]
            case[i], case[j] = x, y
            candidates.append(tuple(case))
        candidates.sort(key=lambda case: -len(pairs_of(case) & left))
        found = next((case for case in candidates if is_possible(case)), None)
        if found is None:
            left.remove((i, x, j, y))
            continue
        left -= pairs_of(found)
        yield found
