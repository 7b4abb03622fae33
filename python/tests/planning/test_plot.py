"""Pictures show what plans and simulations say."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import contextile as ct

matplotlib = pytest.importorskip(
    "matplotlib", reason="needs matplotlib (pip install 'contextile[plot]')"
)
matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.colors import to_hex, to_rgba

SMALL = {"heads": (4, 2), "head_dim": 32, "dtype": "f32"}
MASKS = {"long": ("causal", 3), "short": ("sliding_window:100", 2)}


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def plan():
    return ct.plan(
        [700, 260, 64], cluster="local:2x2", strategy="dcp", mask=MASKS, block_size=64, **SMALL
    )


def collection(ax, label):
    (found,) = [one for one in ax.collections if one.get_label() == label]
    return found


def extents(found):
    """(x0, x1, y0, y1) of every rectangle of a collection."""
    corners = np.array([path.vertices[:4] for path in found.get_paths()])
    x, y = corners[:, :, 0], corners[:, :, 1]
    return np.stack([x.min(1), x.max(1), y.min(1), y.max(1)], axis=1)


def inside(polygon, points):
    """True for the points that a convex polygon holds."""
    following = np.roll(polygon, -1, axis=0)
    edges = following - polygon
    from_corners = points[:, None, :] - polygon[None]
    sides = edges[:, 0] * from_corners[..., 1] - edges[:, 1] * from_corners[..., 0]
    return (sides >= 0).all(1) | (sides <= 0).all(1)


@pytest.mark.parametrize(("mask", "index"), [("long", 0), ("short", 1), (1, 1)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_tiles_are_the_plans_in_their_devices_colours(plan, mask, index, direction):
    ax = ct.plot.tiles(plan, mask=mask, direction=direction)
    rows = plan.placed_tiles(mask=index, direction=direction)
    drawn = collection(ax, "tiles")
    colours = [to_hex(colour) for colour in drawn.get_facecolors()]
    found = {
        (*map(int, extent), colour) for extent, colour in zip(extents(drawn), colours, strict=True)
    }
    shades = ct.plot.device_colours(4)
    assert found == {(k0, k1, q0, q1, shades[device]) for q0, q1, k0, k1, device in rows.tolist()}
    assert len(colours) == len(rows)
    assert [handle.get_text() for handle in ax.get_legend().get_texts()] == [
        f"device {d}" for d in range(4)
    ]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key (token)", "query (token)")
    assert ax.get_xlim() == (0, 1024) and ax.get_ylim() == (1024, 0)
    assert plan.mask_names[index] in ax.get_title() and direction in ax.get_title()


@pytest.mark.parametrize(
    "rule", ["causal", "full", "sliding_window:30", "lambda:8,20", "chunked:40"]
)
def test_outlines_of_masks_hold_what_is_attended_and_no_more_than_a_row_beside(rule):
    lengths = [70, 33, 25]
    plan = ct.plan(lengths, cluster="local:1x2", strategy="dcp", mask=rule, block_size=16, **SMALL)
    dense = ct.make_workload(lengths, mask=rule, **SMALL).mask().dense(128)
    ax = ct.plot.tiles(plan)
    q, k = np.indices(dense.shape).reshape(2, -1)
    centres = np.stack([k + 0.5, q + 0.5], axis=1)
    covered = np.zeros(dense.size, dtype=bool)
    for path in collection(ax, "mask").get_paths():
        covered |= inside(path.vertices[:-1], centres)
    assert covered[dense.ravel()].all()
    padded = np.pad(dense, 1)
    near = np.any(
        [padded[1 + a : 129 + a, 1 + b : 129 + b] for a in (-1, 0, 1) for b in (-1, 0, 1)], axis=0
    )
    assert not (covered & ~near.ravel()).any()
    lines = {tuple(map(tuple, segment)) for segment in collection(ax, "documents").get_segments()}
    assert lines == {line for b in (70, 103) for line in (((0, b), (128, b)), ((b, 0), (b, 128)))}


@pytest.mark.parametrize("strategy", ["zigzag", "ring", "dcp"])
@pytest.mark.parametrize("rule", ["causal", "sliding_window:30"])
def test_tiles_show_the_device_of_each_attended_pair_and_nothing_outside_the_mask(strategy, rule):
    plan = ct.plan([60, 45, 23], cluster="local:1x4", strategy=strategy, mask=rule, **SMALL)
    ax = ct.plot.tiles(plan)
    ax.set_position([0, 0, 1, 1])
    dense = ct.make_workload([60, 45, 23], mask=rule, **SMALL).mask().dense(128)
    images = ax.images
    drawn = images or [collection(ax, "tiles")]
    path, transform = drawn[0].get_clip_path().get_fully_transformed_path(), ax.transData
    if strategy == "dcp":  # its blocks are single ranges
        assert not images
    else:
        owner_of_query = np.full(128, -1)
        for rank in range(4):
            owner_of_query[plan.local_tokens(rank)] = rank
        expected = np.where(dense, owner_of_query[:, None], -1)
        shades = [to_rgba(c)[:3] for c in [*ct.plot.device_colours(4), "#fbfbfc"]]
        assert np.allclose(images[0].get_array(), np.array(shades)[expected])
    centre = transform.transform((100.5, 20.5))  # a key behind its query, of another document
    assert not path.contains_point(centre)
    assert path.contains_point(transform.transform((20.3, 20.6)))


def test_of_too_many_tiles_cells_have_the_colour_of_who_computes_most(plan):
    ax = ct.plot.tiles(plan, mask="long", max_tiles=10)
    assert not [one for one in ax.collections if one.get_label() in ("tiles", "mask")]
    (image,) = ax.images
    owner = np.full((1024, 1024), -1)
    for q0, q1, k0, k1, device in plan.placed_tiles(mask=0).tolist():
        owner[q0:q1, k0:k1] = device
    shades = np.array([to_rgba(colour)[:3] for colour in [*ct.plot.device_colours(4), "#fbfbfc"]])
    cells = owner[::2, ::2]  # 512 cells of 2 x 2 tokens, whose blocks begin at even tokens
    assert np.allclose(image.get_array(), shades[cells])
    assert image.get_extent() == [0, 1024, 1024, 0] or tuple(image.get_extent()) == (
        0,
        1024,
        1024,
        0,
    )
    tiles = len(plan.placed_tiles(mask=0))
    assert f"of {tiles} tiles, cells by who computes most" in ax.get_title()


def test_cells_that_no_block_fits_go_by_area():
    from contextile.plot import _owners_of_cells

    rows = np.array([[0, 7, 0, 10, 0], [7, 10, 0, 10, 1], [3, 6, 3, 5, 2]])
    owners = _owners_of_cells(rows[:2], 10, 4)  # cells of 2.5 tokens
    assert owners[:2].tolist() == [[0] * 4] * 2 and owners[3].tolist() == [1] * 4
    assert owners[2].tolist() == [0] * 4  # rows 5 to 7.5: 2 of 2.5 are device 0's
    assert (_owners_of_cells(rows[2:], 10, 10) == 2).sum() == 6 and (
        _owners_of_cells(rows[2:], 10, 10) == -1
    ).sum() == 94


def test_many_devices_have_colours_of_their_own_and_a_bar():
    shades = ct.plot.device_colours(32)
    assert len(set(shades)) == 32 and len(set(ct.plot.device_colours(8))) == 8
    ax = ct.plot.tiles(ct.plan([4096], cluster="dgx-h200:4x8", strategy="zigzag"))
    assert ax.get_legend() is None and len(ax.figure.axes) == 2


def test_slices_show_their_ranks_tiles(plan):
    part = ct.Plan.slice_from_bytes(plan.slice_to_bytes(2))
    drawn = collection(ct.plot.tiles(part, mask="long"), "tiles")
    assert {to_hex(colour) for colour in drawn.get_facecolors()} == {ct.plot.device_colours(4)[2]}
    assert len(drawn.get_paths()) == (plan.placed_tiles(mask=0)[:, 4] == 2).sum()


# ----------------------------------------------------------------------------------------- timeline


def drawn_spans(ax, name):
    (found,) = [one for one in ax.collections if one.get_gid() == name]
    return extents(found), found


@pytest.mark.parametrize("direction", ["forward", "backward", None])
def test_spans_are_the_simulations(plan, direction):
    simulation = plan.simulate(timeline=True)
    ax = ct.plot.timeline(plan if direction else simulation, direction=direction)
    directions = [
        getattr(simulation, name)
        for name in ([direction] if direction else ["forward", "backward"])
    ]
    end = sum(one.time_us for one in directions) / 1e3
    assert ax.get_xlim() == pytest.approx((0, end))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (ms)", "device")
    for name in ("attention", "merge", "launch", "exposed"):
        boxes, found = drawn_spans(ax, name)
        expected = sum(
            (span[4] - span[3]) / 1e3
            for one in directions
            for program in one.programs
            for span in program.activities
            if span[1] == name
        )
        assert (boxes[:, 1] - boxes[:, 0]).sum() == pytest.approx(expected)
        if len(boxes):
            assert to_hex(found.get_facecolors()[0]) == ct.plot.ACTIVITY_COLOURS[name]
    # A device's row: its activities add up to its time, to the last one's end, without overlap.
    everything = np.concatenate(
        [drawn_spans(ax, name)[0] for name in ("attention", "merge", "launch", "exposed")]
    )
    for device in range(4):
        mine = everything[np.round(everything[:, 2:].mean(1)) == device]
        mine = mine[np.argsort(mine[:, 0])]
        assert (mine[1:, 0] >= mine[:-1, 1] - 1e-9).all()
        idle = sum(one.devices[device].idle_us for one in directions) / 1e3
        assert (mine[:, 1] - mine[:, 0]).sum() == pytest.approx(end - idle)


def test_waiting_is_what_the_simulation_calls_exposed(plan):
    ax = ct.plot.timeline(plan)
    boxes, found = drawn_spans(ax, "exposed")
    simulation = plan.simulate()
    exposed = sum(
        device.exposed_us
        for one in (simulation.forward, simulation.backward)
        for device in one.devices
    )
    assert (boxes[:, 1] - boxes[:, 0]).sum() == pytest.approx(exposed / 1e3)
    assert found.get_label() == "waiting" and "waiting" in [
        text.get_text() for text in ax.get_legend().get_texts()
    ]


def test_messages_are_in_the_rows_of_their_ends(plan):
    simulation = plan.simulate(timeline=True)
    ax = ct.plot.timeline(simulation, direction="forward")
    first, second = simulation.forward.programs
    for name, end in (("sent", 0), ("received", 1)):
        boxes, _ = drawn_spans(ax, name)
        offsets = [0.0] * len(first.messages) + [first.time_us] * len(second.messages)
        messages = [*first.messages, *second.messages]
        assert len(boxes) == len(messages)
        for box, message, offset in zip(boxes, messages, offsets, strict=True):
            assert box[0] == pytest.approx((offset + message[3]) / 1e3)
            assert box[1] == pytest.approx((offset + message[4]) / 1e3)
            assert message[end] < box[2] < box[3] < message[end] + 0.5


def test_a_timeline_of_another_cluster(plan):
    slow = ct.Cluster.load("local:2x2")
    slow.inter_gbytes_per_s_per_node /= 100
    ax = ct.plot.timeline(plan, cluster=slow)
    assert ax.get_xlim()[1] == pytest.approx(plan.simulate(slow).time_us / 1e3)


# ------------------------------------------------------------------------------------ bars


def test_bars_of_a_comparison_are_its_times():
    rows = ct.compare(
        [900, 100], cluster="local:1x4", strategies="zigzag,dcp,distca", mask="lambda:8,64", **SMALL
    )
    ax = ct.plot.compare(rows)
    shown = [row for row in rows if row.ok]
    forward, backward = ax.containers
    for row, low, high in zip(shown, forward, backward, strict=True):
        assert low.get_height() == pytest.approx(row.simulation.forward.time_us / 1e3)
        assert high.get_y() == pytest.approx(low.get_height())
        assert high.get_y() + high.get_height() == pytest.approx(row.time_us / 1e3)
    lines = collection(ax, "lower bound").get_segments()
    for row, segment in zip(shown, lines, strict=True):
        assert segment[0][1] == pytest.approx(
            (row.forward_bound.time_us + row.backward_bound.time_us) / 1e3
        )
        assert segment[0][1] <= row.time_us / 1e3
    assert [label.get_text() for label in ax.get_xticklabels()] == [row.strategy for row in shown]
    assert (
        ax.get_title() == "without distca" and ax.get_ylabel() == "predicted time of one layer (ms)"
    )
    forward_only = ct.compare(
        [900, 100], cluster="local:1x4", strategies="zigzag", backward=False, **SMALL
    )
    assert len(ct.plot.compare(forward_only).containers) == 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_loads_are_the_plans_statistics(plan, direction):
    compute, traffic = ct.plot.loads(plan, direction=direction)
    devices = getattr(plan.stats(), direction).devices
    assert [bar.get_height() for bar in compute.containers[0]] == pytest.approx(
        [d.flops / 1e9 for d in devices]
    )
    assert [to_hex(bar.get_facecolor()) for bar in compute.containers[0]] == ct.plot.device_colours(
        4
    )
    mean = sum(d.flops for d in devices) / 4e9
    assert compute.lines[0].get_ydata()[0] == pytest.approx(mean)
    heights = {
        bars.get_label(): np.array([bar.get_height() for bar in bars])
        for bars in traffic.containers
    }
    for name, sign in (("sent", 1), ("received", -1)):
        whole = sign * (heights[f"{name}, between nodes"] + heights[f"{name}, inside"]) * 1e6
        assert whole == pytest.approx([getattr(d, f"{name}_bytes") for d in devices])
        inter = sign * heights[f"{name}, between nodes"] * 1e6
        assert inter == pytest.approx([getattr(d, f"inter_{name}_bytes") for d in devices])
    assert compute.get_ylabel() == "attention work (GFLOP)" and "(MB)" in traffic.get_ylabel()


# ---------------------------------------------------------------------------------- axes, errors


def test_axes_that_are_given_are_drawn_into_and_nothing_else_is_opened(plan):
    rows = ct.compare([900, 100], cluster="local:1x4", strategies="zigzag", **SMALL)
    figure, axes = pyplot.subplots(1, 5)
    assert ct.plot.tiles(plan, mask="long", ax=axes[0]) is axes[0]
    assert ct.plot.timeline(plan, ax=axes[1]) is axes[1]
    assert ct.plot.compare(rows, ax=axes[2]) is axes[2]
    assert ct.plot.loads(plan, ax=axes[3:]) == tuple(axes[3:])
    assert pyplot.get_fignums() == [figure.number]
    figure.canvas.draw()


def test_what_cannot_be_drawn_is_said(plan):
    forward = ct.plan([64], cluster="local:1x2", strategy="zigzag", backward=False, **SMALL)
    part = ct.Plan.slice_from_bytes(plan.slice_to_bytes(0))
    none = ct.compare([900], cluster="local:1x4", strategies="distca", mask="full", **SMALL)
    for call, message in (
        (lambda: ct.plot.tiles(plan), r"expected one of the plan's \(long, short\), found None"),
        (lambda: ct.plot.tiles(plan, mask=2), "found 2"),
        (
            lambda: ct.plot.tiles(plan, mask="long", direction="up"),
            "expected forward or backward, found 'up'",
        ),
        (lambda: ct.plot.tiles(forward, direction="backward"), "for the plan has no backward"),
        (lambda: ct.plot.timeline(plan.simulate()), "expected one with spans"),
        (lambda: ct.plot.timeline(forward, direction="backward"), "found 'backward'"),
        (lambda: ct.plot.loads(part), "expected a whole plan, found the slice of rank 0"),
        (lambda: ct.plot.compare(none), "expected a strategy that applies, found none"),
    ):
        with pytest.raises(ct.InvalidArgument, match=message):
            call()
    assert not pyplot.get_fignums()


def test_without_matplotlib_one_error_names_the_extra():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import contextile as ct\n"
        "try:\n    ct.plot.tiles(ct.plan([64], cluster='local:1x2', strategy='zigzag'))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'contextile[plot]'" in done.stdout
