#!/usr/bin/env python3
"""labs/optimum: its costs are the simulator's, its bound holds, its search finds the best plan."""

import importlib.util
import itertools
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

NEEDED = {"contextile": "make python", "ortools": "pip install ortools"}


def small(lengths, cluster="h20", nodes=1, devices=2, mask="causal", heads=(4, 2), block_size=1024):
    """The costs of a small batch."""
    workload = ct.make_workload(lengths, heads=heads, mask=mask)
    return costs.Costs(workload, instances.cluster_of(f"{cluster}:{nodes}x{devices}"), block_size)


def keeps_limit(one, owners):
    owned = [0] * one.cluster.num_devices
    for tokens, owner in zip(one.tokens, owners, strict=True):
        owned[owner] += tokens
    return max(owned) <= one.token_limit


def any_placement(one, rng):
    """A random placement within the limit of tokens."""
    devices = range(one.cluster.num_devices)
    owners = [rng.choice(devices) for _ in one.tokens]
    while not keeps_limit(one, owners):
        owners = [rng.choice(devices) for _ in one.tokens]
    count = len(one.tiles) * one.groups
    whole_rows = rng.random() < 0.5
    rows = [owners[one.tiles[at // one.groups].q_block] for at in range(count)]
    placed = rows if whole_rows else [rng.choice(devices) for _ in rows]
    stages = [rng.randrange(3) for _ in rows]
    ahead, relay = rng.choice(plans.AHEAD), rng.random() < 0.5
    placement = plans.Placement(owners, placed, stages, ahead, relay)
    plans.repair(one, placement)
    return placement


BATCHES = {
    "one node": {"lengths": [3000, 1500], "devices": 3},
    "slow links": {
        "lengths": [4096],
        "cluster": "ethernet",
        "nodes": 3,
        "devices": 1,
        "mask": "lambda:100,1500",
    },
    "nodes": {
        "lengths": [2048, 1024],
        "cluster": "p4de",
        "nodes": 2,
        "mask": "shared_question:0.2,4",
        "block_size": 512,
    },
}


class Optimum(unittest.TestCase):
    def test_attention_costs_what_the_simulator_charges(self):
        rng = random.Random(3)
        for name, batch in BATCHES.items():
            with self.subTest(name):
                one = small(**batch)
                study.check_model(one, plans.contiguous(one))
                study.check_model(one, any_placement(one, rng))

    def test_no_plan_is_faster_than_the_model_of_its_placement(self):
        rng = random.Random(5)
        for name, batch in BATCHES.items():
            with self.subTest(name):
                one, compared = small(**batch), 0
                for _ in range(30):
                    placement = any_placement(one, rng)
                    simulated_us = plans.time_of(one, placement)
                    compared += simulated_us < float("inf")
                    self.assertLessEqual(bound.least_us_of(one, placement), simulated_us)
                self.assertGreater(compared, 10)

    def test_bound_holds_for_every_placement_of_three_blocks_and_is_reached_in_the_model(self):
        one = small([3072], heads=(4, 1))
        start = plans.contiguous(one)
        solved = bound.solve(one, 0, start, plans.time_of(one, start), seconds=60)
        least = float("inf")
        for owners in itertools.product(range(2), repeat=3):
            if not keeps_limit(one, owners):
                continue
            for placed in itertools.product(range(2), repeat=len(one.tiles)):
                placement = plans.Placement(list(owners), list(placed), [0] * len(placed))
                plans.repair(one, placement)
                least = min(least, bound.least_us_of(one, placement))
                self.assertLessEqual(solved.lower_us, plans.time_of(one, placement))
        self.assertEqual(solved.status, "optimal")
        self.assertAlmostEqual(solved.model_us, least, delta=0.006 * least)

    def test_search_finds_a_faster_plan_than_a_random_one(self):
        one = small([4096, 1024], devices=3)
        start = any_placement(one, random.Random(7))
        search = plans.Annealing(one, seed=1)
        found, found_us = search.improve(start, 300)
        self.assertLess(found_us, plans.time_of(one, start))
        self.assertTrue(plans.build(one, found).verify().ok)
        self.assertEqual(found_us, plans.time_of(one, found))

    def test_a_plan_of_auto_becomes_a_placement_with_its_owners(self):
        one = small([4096], devices=4)
        limits = {"block_size": 1024, "backward": False}
        plan = ct.plan(one.workload, cluster=one.cluster, strategy="auto:steps=20000", **limits)
        placement = plans.placement_like(one, plan)
        for block, owner in enumerate(placement.owners):
            begin, end = one.blocks.ranges(block)[0]
            self.assertIn((begin + end) // 2, plan.local_tokens(owner))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    for module, install in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            print(f"no {module} for this Python ({install}): skipped")
            sys.exit(77)
    from optimum import bound, costs, instances, plans, study

    import contextile as ct

    unittest.main()
