"""Real plans in given blocks: from a placement with stages, by simulated annealing."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import dataclass, replace

import contextile as ct

AHEAD = (1, 2, 9, 99)


@dataclass
class Placement:
    """Owner of every block; device and stage of every tile of every head group, by tile · groups +
    group."""

    owners: list[int]
    devices: list[int]
    stages: list[int]
    ahead: int = 1  # stages between the launch of an input and its first use
    relay: bool = False  # an input may come from a device that received it


def _inputs(costs, placement):
    """Stage of the first use of every input that a device does not own, by (kind, block, group,
    device). Raises no stage."""
    first = {}
    for index, tile in enumerate(costs.tiles):
        for group in range(costs.groups):
            at = index * costs.groups + group
            device, stage = placement.devices[at], placement.stages[at]
            for kind, block in (("q", tile.q_block), ("kv", tile.kv_block)):
                if placement.owners[block] != device:
                    key = (kind, block, group, device)
                    first[key] = min(first.get(key, stage), stage)
    return first


def repair(costs, placement):
    """Raises the stages of tiles that need an input of another device to at least 1."""
    for index, tile in enumerate(costs.tiles):
        for group in range(costs.groups):
            at = index * costs.groups + group
            owners = (placement.owners[tile.q_block], placement.owners[tile.kv_block])
            if any(owner != placement.devices[at] for owner in owners):
                placement.stages[at] = max(1, placement.stages[at])


def _transfer(kind, block, group, src, dst, launch, need):
    return ct.Transfer(
        kind=kind, block=block, group=group, src=src, dst=dst, launch_stage=launch, need_stage=need
    )


def _input_transfers(costs, placement):
    """Transfers of inputs. Tiles run at even stages, so a relay has the odd stage before a use."""
    width, rows = costs.cluster.devices_per_node, []
    uses = sorted(_inputs(costs, placement).items(), key=lambda item: (item[1], item[0]))
    sent, holders, gateway = {}, {}, {}
    several = {}
    for (kind, block, group, device), _ in uses:
        several.setdefault((kind, block, group, device // width), []).append(device)
    for (kind, block, group, device), stage in uses:
        owner, need, unit = placement.owners[block], 2 * stage, (kind, block, group)
        src, launch = owner, max(0, 2 * (stage - placement.ahead))
        node = (*unit, device // width)
        if placement.relay and device // width != owner // width and len(several[node]) > 1:
            if node in gateway:
                src, launch = gateway[node], holders[unit][gateway[node]]
            else:
                gateway[node], need = device, need - 1
                launch = min(launch, need - 1)
        elif placement.relay:
            known = [
                d
                for d, since in holders.get(unit, {}).items()
                if since <= launch and d // width == device // width
            ]
            src = min([owner, *known], key=lambda d: (sent.get(d, 0), d))
        size = costs.kv_bytes[block] if kind == "kv" else costs.q_bytes[block]
        sent[src] = sent.get(src, 0) + size
        holders.setdefault(unit, {})[device] = need
        rows.append(_transfer(kind, block, group, src, device, launch, need))
    return rows


def _result_transfers(costs, placement):
    last, end = {}, {}
    for index, tile in enumerate(costs.tiles):
        for group in range(costs.groups):
            at = index * costs.groups + group
            device, stage = placement.devices[at], placement.stages[at]
            end[device] = max(end.get(device, 0), stage)
            if device != placement.owners[tile.q_block]:
                key = (tile.q_block, group, device)
                last[key] = max(last.get(key, 0), stage)
    moves = []
    for (block, group, device), stage in sorted(last.items()):
        owner = placement.owners[block]
        need = max(2 * stage + 2, 2 * end.get(owner, 0) + 1)
        moves.append(_transfer("o", block, group, device, owner, 2 * stage + 1, need))
    return moves


def build(costs, placement):
    """The verified plan of a placement; raises what the library raises if there is none."""
    placed = [
        ct.PlacedTile(
            q_block=tile.q_block,
            kv_block=tile.kv_block,
            pairs=tile.pairs,
            group=group,
            device=placement.devices[index * costs.groups + group],
            stage=2 * placement.stages[index * costs.groups + group],
        )
        for index, tile in enumerate(costs.tiles)
        for group in range(costs.groups)
    ]
    placed.sort(key=lambda tile: tile.stage)
    transfers = _input_transfers(costs, placement) + _result_transfers(costs, placement)
    forward = ct.ArrangedDirection(tiles=placed, transfers=transfers)
    arranged = ct.ArrangedRound(
        blocks=costs.blocks,
        owners=placement.owners,
        masks=[costs.workload.mask()],
        programs=[ct.ArrangedMask(forward=forward)],
        head_groups=costs.groups,
    )
    wire = costs.workload.shape.dtype
    arrangement = ct.Arrangement(strategy="optimum", rounds=[arranged], partial_wire=wire)
    return ct.plan(
        costs.workload,
        cluster=costs.cluster,
        strategy=lambda *_: arrangement,
        backward=False,
        token_limit=costs.token_limit,
    )


def time_of(costs, placement):
    """Predicted time in µs; infinity if the placement has no valid plan."""
    try:
        return build(costs, placement).simulate().forward.time_us
    except (ct.CheckFailed, ct.InvalidPlan, ct.InvalidArgument):
        return math.inf


def placement_like(costs, plan):
    """A placement that follows a plan: every block and tile is where the plan has its middle.

    None if the plan splits heads further.
    """
    rounds = json.loads(plan.to_json())["rounds"]
    groups = math.lcm(*(one["head_groups"] for one in rounds))
    if costs.groups % groups != 0:
        return None
    of_token = {}
    for r, one in enumerate(rounds):
        for b, block in enumerate(one["blocks"]):
            of_token.update({tuple(part): (r, b, block["owner"]) for part in block["ranges"]})
    middles = [sum(costs.blocks.ranges(b)[0]) // 2 for b in range(len(costs.tokens))]
    parents = [
        next(found for (begin, end), found in of_token.items() if begin <= middle < end)
        for middle in middles
    ]
    done = _work_of(costs, plan, rounds)
    placement = Placement([owner for _, _, owner in parents], [], [])
    for tile in costs.tiles:
        (r, q, owner), (_, k, _) = parents[tile.q_block], parents[tile.kv_block]
        for group in range(costs.groups):
            device, stage = done.get((r, q, k, group), (owner, 1))
            placement.devices.append(device)
            placement.stages.append(stage)
    return min(_schedules(costs, placement), key=lambda one: time_of(costs, one))


def _schedules(costs, placement):
    """The placement with fewer stages, and with earlier transfers."""
    last = max(placement.stages)
    for most in (2, 3, 4, 6, last):
        stages = [-(-stage * min(most, last) // max(1, last)) for stage in placement.stages]
        for ahead in AHEAD:
            for relay in (False, True):
                one = replace(placement, stages=stages[:], ahead=ahead, relay=relay)
                repair(costs, one)
                yield one


def _work_of(costs, plan, rounds):
    """Device and stage of every tile: (round, q_block, kv_block, group of the finest split).

    Stages count the starts of all devices' calls, so that equal stages are equal times.
    """
    programs = plan.simulate(timeline=True).forward.programs
    starts = {}
    for program in programs:
        for device, activity, instruction, start, _ in program.activities:
            if activity == "attention":
                starts[program.round, device, instruction] = (program.round, round(start, 3))
    stage_of = {start: stage for stage, start in enumerate(sorted(set(starts.values())))}
    work = {}
    for r, one in enumerate(rounds):
        for device in one["devices"]:
            rank = device["rank"]
            for number, instruction in enumerate(device["programs"][0]["forward"]["instructions"]):
                for tile in instruction["tiles"] if instruction["op"] == "attention" else ():
                    q, k, first = tile["q_block"], tile["kv_block"], tile["group"]
                    split = costs.groups // one["blocks"][q].get("head_groups", one["head_groups"])
                    stage = stage_of[starts[r, rank, number]]
                    for group in range(first * split, (first + 1) * split):
                        work[r, q, k, group] = (rank, stage)
    return work


def blocks_of(plan):
    """The ranges of a plan's blocks as blocks: composite blocks are taken apart."""
    rounds = json.loads(plan.to_json())["rounds"]
    ranges = [tuple(part) for one in rounds for block in one["blocks"] for part in block["ranges"]]
    blocks = ct.Blocking()
    for part in sorted(ranges):
        blocks.add([part])
    return blocks


def contiguous(costs):
    """Whole rows on the devices of their blocks, and blocks in order, an equal share to each."""
    devices = costs.cluster.num_devices
    total, begin, owners = sum(costs.tokens), 0, []
    for tokens in costs.tokens:
        owners.append(min(devices - 1, int((begin + tokens / 2) * devices / total)))
        begin += tokens
    placed = [owners[tile.q_block] for tile in costs.tiles for _ in range(costs.groups)]
    placement = Placement(owners, placed, [0] * len(placed))
    repair(costs, placement)
    return placement


class Annealing:
    """Simulated annealing over owners, devices and stages, on simulated times."""

    MOVES = (
        "tile",
        "swap tiles",
        "run",
        "row",
        "column",
        "owner",
        "swap",
        "stage",
        "unit stage",
        "ahead",
        "relay",
    )

    def __init__(self, costs, seed):
        self.costs = costs
        self.random = random.Random(seed)
        self.evaluated = 0

    def improve(self, placement, plans):
        """The best of so many plans, and its time."""
        now, best = placement, placement
        now_us = best_us = self._time(now)
        for plan in range(plans):
            spent = plan / plans
            trial = copy.copy(now)
            trial.owners, trial.devices, trial.stages = now.owners[:], now.devices[:], now.stages[:]
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                self._change(trial)
            repair(self.costs, trial)
            trial_us = self._time(trial)
            heat = 0.02 * best_us * (1 - spent) ** 2 + 1e-9
            if trial_us <= now_us or self.random.random() < math.exp((now_us - trial_us) / heat):
                now, now_us = trial, trial_us
                if now_us < best_us:
                    best, best_us = now, now_us
        return best, best_us

    def _time(self, placement):
        self.evaluated += 1
        if any(tokens > self.costs.token_limit for tokens in self._owned(placement)):
            return math.inf
        return time_of(self.costs, placement)

    def _owned(self, placement):
        owned = [0] * self.costs.cluster.num_devices
        for block, owner in enumerate(placement.owners):
            owned[owner] += self.costs.tokens[block]
        return owned

    def _change(self, placement):
        costs, pick = self.costs, self.random
        move = pick.choice(self.MOVES)
        device = pick.randrange(costs.cluster.num_devices)
        at = pick.randrange(len(placement.devices))
        tile, group = costs.tiles[at // costs.groups], at % costs.groups
        if move == "tile":
            placement.devices[at] = device
        elif move == "stage":
            placement.stages[at] = max(0, placement.stages[at] + pick.choice((-1, 1)))
        elif move == "ahead":
            placement.ahead = pick.choice(AHEAD)
        elif move == "relay":
            placement.relay = not placement.relay
        elif move in ("owner", "swap"):
            self._change_owner(placement, move, tile.q_block, device)
        elif move == "swap tiles":
            self._swap_tiles(placement, at)
        else:
            self._change_many(placement, move, tile, group, placement.devices[at], device)

    def _change_owner(self, placement, move, block, device):
        """Moves a block, or swaps two, and its rows with it half of the time."""
        old = placement.owners[block]
        moved = {block: device}
        if move == "swap":
            other = self.random.randrange(len(placement.owners))
            moved = {block: placement.owners[other], other: old}
        with_rows = self.random.random() < 0.6
        for one, owner in moved.items():
            before, placement.owners[one] = placement.owners[one], owner
            for at, found in enumerate(placement.devices):
                row = self.costs.tiles[at // self.costs.groups].q_block
                if with_rows and found == before and row == one:
                    placement.devices[at] = owner

    def _swap_tiles(self, placement, at):
        """Swaps the devices of two tiles."""
        other = self.random.randrange(len(placement.devices))
        devices = placement.devices
        devices[at], devices[other] = devices[other], devices[at]

    def _change_many(self, placement, move, tile, group, old, device):
        """Moves the tiles of a row or column that a device computes, or changes their stage."""
        costs, pick = self.costs, self.random
        of_column = move == "column" or (move == "unit stage" and pick.random() < 0.5)
        all_groups = pick.random() < 0.5
        stage = pick.randrange(4)
        for at, other in enumerate(costs.tiles):
            same = other.kv_block == tile.kv_block if of_column else other.q_block == tile.q_block
            if not same:
                continue
            for g in range(costs.groups):
                index = at * costs.groups + g
                if g != group and not all_groups:
                    continue
                if placement.devices[index] != old and move != "row":
                    continue
                if move == "unit stage":
                    placement.stages[index] = stage
                else:
                    placement.devices[index] = device
