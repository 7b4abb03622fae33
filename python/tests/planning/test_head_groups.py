"""Blocks with their own head groups, from a strategy in Python to results, documents and errors."""

from __future__ import annotations

import json

import pytest

import contextile as ct

pytest.importorskip("torch")
from reference import dense_mask, inputs, relative_error, run_dense, run_plan

LENGTHS = [40, 24, 16]
HEADS = (8, 4)


def split_documents(groups_of_document, *, round_groups=4, lengths=LENGTHS):
    """Documents with these numbers of head groups; tiles where the queries are, keys sent there."""

    def strategy(workload, cluster, options):
        blocks = ct.Blocking()
        groups = []
        begin = 0
        for length, of_document in zip(lengths, groups_of_document, strict=True):
            for half in ((begin, begin + length // 2), (begin + length // 2, begin + length)):
                blocks.add([half])
                groups.append(of_document)
            begin += length
        owners = [block % cluster.num_devices for block in range(len(blocks))]
        placed, moves = [], set()
        for tile in ct.tiles(workload.mask(0), blocks):
            device, owner = owners[tile.q_block], owners[tile.kv_block]
            for group in range(groups[tile.q_block]):
                placed.append(
                    ct.PlacedTile(
                        q_block=tile.q_block,
                        kv_block=tile.kv_block,
                        group=group,
                        pairs=tile.pairs,
                        device=device,
                        stage=0 if device == owner else 1,
                    )
                )
                if device != owner:
                    moves.add((tile.kv_block, group, owner, device))
        placed.sort(key=lambda tile: tile.stage)
        keys = [
            ct.Transfer(
                kind="kv", block=block, group=group, src=src, dst=dst, launch_stage=0, need_stage=1
            )
            for block, group, src, dst in sorted(moves)
        ]
        gradients = [
            ct.Transfer(
                kind="dkv", block=block, group=group, src=dst, dst=src, launch_stage=2, need_stage=3
            )
            for block, group, src, dst in sorted(moves)
        ]
        program = ct.ArrangedMask(
            forward=ct.ArrangedDirection(tiles=placed, transfers=keys),
            backward=ct.ArrangedDirection(tiles=placed, transfers=keys + gradients),
        )
        return ct.Arrangement(
            strategy="split_documents",
            rounds=[
                ct.ArrangedRound(
                    blocks=blocks,
                    owners=owners,
                    masks=[workload.mask(0)],
                    programs=[program],
                    head_groups=round_groups,
                    block_head_groups=groups,
                )
            ],
        )

    return strategy


def plan_of(groups_of_document, **rest):
    return ct.plan(
        LENGTHS,
        cluster="local:1x2",
        strategy=split_documents(groups_of_document, **rest),
        heads=HEADS,
        head_dim=16,
        dtype="f32",
    )


def test_a_plan_of_different_head_groups_attends_as_dense_attention():
    plan = plan_of([4, 1, 2])
    assert plan.verify().ok
    assert plan.stats().forward.tiles == 3 * (4 + 1 + 2)
    tensors = inputs(sum(LENGTHS), HEADS, 16)
    for found, expected in zip(
        run_plan(plan, tensors), run_dense(tensors, dense_mask(plan)), strict=True
    ):
        assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("given", [{"tokens_multiple": 8}, {"equal_tokens": True}])
def test_blocks_of_different_head_groups_are_cut_where_tokens_are_aligned(given):
    lengths = [39, 25, 16]  # 39 and 41 tokens
    plan = ct.plan(
        lengths,
        cluster="local:1x2",
        strategy=split_documents([4, 1, 2], lengths=lengths),
        heads=HEADS,
        head_dim=16,
        dtype="f32",
        **given,
    )
    owned = [plan.num_local_tokens(rank) for rank in range(2)]
    assert owned == [40, 40]
    tensors = inputs(sum(lengths), HEADS, 16)
    for found, expected in zip(
        run_plan(plan, tensors), run_dense(tensors, dense_mask(plan)), strict=True
    ):
        assert relative_error(found, expected) < 1e-5


def test_documents_are_of_the_plan_or_of_its_even_form():
    plan = plan_of([4, 1, 2])
    document = json.loads(plan.to_json(block_head_groups=True))
    assert [block["head_groups"] for block in document["rounds"][0]["blocks"]] == [4, 4, 1, 1, 2, 2]
    assert ct.Plan.from_json(json.dumps(document)).digest == plan.digest
    assert ct.Plan.from_bytes(plan.to_bytes()).digest == plan.digest
    assert all(
        "head_groups" not in block for block in json.loads(plan.to_json())["rounds"][0]["blocks"]
    )
    even = ct.Plan.from_json(plan.to_json())
    assert even.verify().ok
    assert even.stats().forward.tiles == 3 * (4 + 4 + 4)
    assert even.stats().forward.bytes_by_kind == plan.stats().forward.bytes_by_kind


@pytest.mark.parametrize("groups", [[4, 1, 3], [4, 1, 0], [4, 1, -1], [4, 1, 8]])
def test_head_groups_divide_those_of_the_round(groups):
    with pytest.raises(ct.InvalidArgument, match=rf"divide the 4 of the round, found {groups[2]}$"):
        plan_of(groups)


@pytest.mark.parametrize("value", [0, -1, 3, 8, 1.5, "2", None, 2**40])
def test_a_document_of_wrong_head_groups_is_one_error(value):
    document = json.loads(plan_of([4, 1, 2]).to_json(block_head_groups=True))
    document["rounds"][0]["blocks"][2]["head_groups"] = value
    del document["digest"]
    with pytest.raises(
        ct.InvalidPlan, match=r"^JSON: rounds\[0\]\.blocks\[2\]\.head_groups: expected .*, found"
    ) as error:
        ct.Plan.from_json(json.dumps(document))
    assert "\n" not in str(error.value)


def test_a_document_with_a_tile_across_head_groups_is_no_valid_plan():
    document = json.loads(plan_of([4, 1, 2]).to_json(block_head_groups=True))
    document["rounds"][0]["blocks"][2]["head_groups"] = 4
    del document["digest"]
    plan = ct.Plan.from_json(json.dumps(document))
    assert not plan.verify().ok
    with pytest.raises(ct.InvalidPlan, match="blocks of equally many head groups in a tile, found"):
        plan.to_json()
