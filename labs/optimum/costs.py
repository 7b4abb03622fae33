"""The simulator's costs of one small batch: its blocks, tiles, runs and bytes.

Times are nanoseconds and bandwidths bytes per nanosecond, which are GB/s. Every cost is that of one
head group of the finest split, because a coarser group costs exactly as much as its parts.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass

import contextile as ct

FAR = 1 << 40  # a band without a bound on one side
MOST_SUMS = 50_000  # of pairs that one run may compute


@dataclass(frozen=True)
class Piece:
    """The part of a tile that adds `pairs` computed pairs to the run of the rows [begin, end)."""

    begin: int
    end: int
    pairs: float


def _clip(band, q, k):
    """The band within queries q and keys k, as tight as the library's; None if it is empty."""
    q0, q1 = max(band[0], q[0]), min(band[1], q[1])
    k0, k1 = max(band[2], k[0]), min(band[3], k[1])
    lo = -FAR if band[4] is None else band[4]
    hi = FAR if band[5] is None else band[5]
    if q0 >= q1 or k0 >= k1 or lo > hi:
        return None
    q0, q1 = max(q0, k0 - hi), min(q1, k1 - lo)
    k0, k1 = max(k0, q0 + lo), min(k1, q1 + hi)
    return (q0, q1, k0, k1, lo, hi) if q0 < q1 and k0 < k1 else None


def _pairs(band):
    q0, q1, k0, k1, lo, hi = band
    return sum(max(0, min(k1, q + hi + 1) - max(k0, q + lo)) for q in range(q0, q1))


class Profile:
    """Attention time of a device as the simulator computes it (AttentionProfile)."""

    def __init__(self, constants, shape):
        self.attention = constants["attention"]
        self.rows = self.attention["q_rows"]
        self.keys = self.attention["kv_rows"]
        heads = shape.q_heads / shape.kv_heads
        self.flops = 2 * (shape.head_dim + shape.value_dim) * heads
        self.flops_per_ns = 1e3 * constants["attention_tflops"]

    @staticmethod
    def _place(points, x):
        if x <= points[0]:
            return 0, 0.0
        if x >= points[-1]:
            return len(points) - 1, 0.0
        upper = next(i for i, point in enumerate(points) if point >= x)
        low, high = math.log(points[upper - 1]), math.log(points[upper])
        return upper - 1, (math.log(x) - low) / (high - low)

    def run_ns(self, rows, pairs):
        """Time of a run of `rows` queries that computes `pairs` pairs."""
        keys = pairs / rows
        q, q_weight = self._place(self.rows, rows)
        k, k_weight = self._place(self.keys, keys)

        def log_share(i, j):
            i, j = min(i, len(self.rows) - 1), min(j, len(self.keys) - 1)
            return math.log(self.attention["forward"][i * len(self.keys) + j])

        low = log_share(q, k) * (1 - k_weight) + log_share(q, k + 1) * k_weight
        high = log_share(q + 1, k) * (1 - k_weight) + log_share(q + 1, k + 1) * k_weight
        shrink = min(1.0, rows / self.rows[0]) * min(1.0, keys / self.keys[0])
        share = math.exp(low * (1 - q_weight) + high * q_weight) * shrink
        return pairs * self.flops / (self.flops_per_ns * share)

    def computed_pairs(self, rows, keys, pairs):
        if pairs == rows * keys:
            return float(pairs)
        wasted = 0.5 * self.attention["kernel_tile_rows"] * min(rows, keys)
        return min(float(rows * keys), pairs + wasted)


def token_limit_of(workload, cluster):
    """Most tokens of a device, as `auto` and the library's bound have it."""
    return -(-workload.num_tokens // cluster.num_devices) + 1024


class Costs:
    """Everything that a plan of the workload in these blocks can be charged.

    A block is one range of tokens. `blocks` may be their size instead.
    """

    def __init__(self, workload, cluster, blocks):
        self.workload, self.cluster = workload, cluster
        constants = json.loads(cluster.to_json())
        self.launch_order = constants["launches"]
        self.profile = Profile(constants, workload.shape)
        self.call_ns = 1e3 * constants["attention"]["call_us"]
        self.launch_ns = 1e3 * cluster.launch_us
        self.blocks = ct.cut_sequences(workload, blocks) if isinstance(blocks, int) else blocks
        self.tokens = [self.blocks.num_tokens(block) for block in range(len(self.blocks))]
        self.token_limit = token_limit_of(workload, cluster)
        self.groups = workload.shape.kv_heads
        self.tiles = ct.tiles(workload.mask(), self.blocks)
        self.pieces = [self._pieces_of(tile) for tile in self.tiles]
        self._count_bytes()
        self._read_links()

    def _pieces_of(self, tile):
        q0, q1 = self.blocks.ranges(tile.q_block)[0]
        k0, k1 = self.blocks.ranges(tile.kv_block)[0]
        if tile.pairs == (q1 - q0) * (k1 - k0):
            return [Piece(q0, q1, float(tile.pairs))]
        pieces = []
        for band in self.workload.mask().bands:
            own = _clip(band, (q0, q1), (-FAR, FAR))
            if own is None or own[2] >= k1 or own[3] <= k0:
                continue
            covers = own[2] <= k0 and k1 <= own[3]
            whole = covers and k1 - 1 - own[0] <= own[5] and k0 - (own[1] - 1) >= own[4]
            cut = (*own[:2], k0, k1, *own[4:]) if whole else _clip(own, own[:2], (k0, k1))
            if cut is None:
                continue
            rows, keys = cut[1] - cut[0], cut[3] - cut[2]
            pairs = rows * keys if whole else _pairs(cut)
            pieces.append(Piece(cut[0], cut[1], self.profile.computed_pairs(rows, keys, pairs)))
        return pieces

    def _count_bytes(self):
        shape = self.workload.shape
        heads = shape.q_heads // shape.kv_heads
        element = {"f32": 4, "bf16": 2, "f16": 2}[shape.dtype]
        self.kv_bytes = [t * (shape.head_dim + shape.value_dim) * element for t in self.tokens]
        self.q_bytes = [t * heads * shape.head_dim * element for t in self.tokens]
        self.o_bytes = [t * heads * (shape.value_dim * element + 4) for t in self.tokens]
        # Converting a result between fp32 and the wire, on either end.
        per_token = heads * (shape.value_dim * (4 + element) + 8)
        rate = self.cluster.memory_gbytes_per_s
        self.convert_ns = [t * per_token / rate if element < 4 else 0.0 for t in self.tokens]

    def _read_links(self):
        cluster = self.cluster
        nic = cluster.inter_gbytes_per_s_per_node / cluster.nics_per_node
        self.node_rate = cluster.inter_gbytes_per_s_per_node
        several_nodes, several_devices = cluster.nodes > 1, cluster.devices_per_node > 1
        self.device_rate, latencies = 0.0, []
        if several_nodes:
            self.device_rate += nic
            latencies.append(cluster.inter_latency_us)
        if several_devices:
            self.device_rate += cluster.intra_gbytes_per_s
            latencies.append(cluster.intra_latency_us)
        self.latency_ns = 1e3 * min(latencies, default=0)
        self.has_nodes = several_nodes and several_devices

    def runs(self):
        """The tiles of every run of one head group: (q_block, begin, end) -> {tile: pairs}."""
        runs = {}
        for index, pieces in enumerate(self.pieces):
            for piece in pieces:
                tiles = runs.setdefault((self.tiles[index].q_block, piece.begin, piece.end), {})
                tiles[index] = tiles.get(index, 0.0) + piece.pairs
        return runs

    def attention_ns(self, tiles):
        """Time of one call of these tiles of one head group, without its fixed cost."""
        pairs = {}
        for index in tiles:
            for piece in self.pieces[index]:
                run = (self.tiles[index].q_block, piece.begin, piece.end)
                pairs[run] = pairs.get(run, 0.0) + piece.pairs
        times = (self.profile.run_ns(run[2] - run[1], count) for run, count in pairs.items())
        return sum(times)

    def lines_below(self, rows, parts):
        """Lines (fixed, per pair) that no run of some of these parts undercuts, however it is cut.

        They lie below the lower hull of the run's times. A line with a fixed cost of at least 0
        also lies below the sum of a run's calls, so it holds for a run that several calls share.
        """
        sums = {0.0}
        for pairs in parts:
            sums |= {total + pairs for total in sums}
            if len(sums) > MOST_SUMS:
                raise ValueError(
                    f"run of {rows} rows: expected at most {MOST_SUMS} sums, found more"
                )
        points = sorted((pairs, self.profile.run_ns(rows, pairs)) for pairs in sums if pairs > 0)
        hull = []
        for point in points:
            while len(hull) > 1 and _turns_right(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        through_zero = min(time / pairs for pairs, time in points)
        lines = {(0.0, through_zero)}
        for (x0, y0), (x1, y1) in itertools.pairwise(hull):
            slope = (y1 - y0) / (x1 - x0)
            if y0 - slope * x0 > 0 and slope >= 0:
                lines.add((y0 - slope * x0, slope))
        if len(points) == 1:
            lines.add((points[0][1], 0.0))
        return [
            one for one in lines if all(one[0] + one[1] * x <= y * (1 + 1e-9) for x, y in points)
        ]


def _turns_right(a, b, c):
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])
