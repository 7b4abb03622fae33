"""The small batches and clusters of the table."""

from __future__ import annotations

from dataclasses import dataclass

import contextile as ct

MASKS = {
    "causal": "causal",
    "shared question": "shared_question:0.2,4",
    "lambda": "lambda:256,2048",
    "block-wise": "causal_blockwise:512,2,1",
}
# KV heads are head groups of the model, so that no plan can split further.
HEADS = {"GQA 8:1": (16, 2), "MHA": (2, 2)}
# Documents and the block size, by the number of devices. Devices own at most the mean plus 1024
# tokens: equally many blocks of 2048, or one more block of 1024.
LENGTHS = {
    4: {"16K": ([16384], 2048), "4K+3K+1K": ([4096, 3072, 1024], 1024)},
    2: {"32K": ([32768], 2048), "6K+4K+2K": ([6144, 4096, 2048], 1024)},
}
CLUSTERS = ("h20:1x4", "dgx-h200:1x2", "p4de:2x2", "ethernet:4x1")


@dataclass(frozen=True)
class Instance:
    cluster: str
    mask: str
    heads: str
    documents: str

    @property
    def num_devices(self):
        return cluster_of(self.cluster).num_devices

    @property
    def block_size(self):
        return LENGTHS[self.num_devices][self.documents][1]

    def workload(self):
        lengths, _ = LENGTHS[self.num_devices][self.documents]
        return ct.make_workload(lengths, heads=HEADS[self.heads], mask=MASKS[self.mask])


def cluster_of(name):
    """A preset, or h20 devices on a 100 Gb/s network with a latency of 30 µs ("ethernet")."""
    preset, shape = name.split(":")
    nodes, devices = map(int, shape.split("x"))
    cluster = ct.Cluster.preset("h20" if preset == "ethernet" else preset, nodes=nodes)
    if preset == "ethernet":
        cluster.inter_gbytes_per_s_per_node = 12.5 * devices
        cluster.inter_latency_us = 30
        cluster.name = "ethernet"
    else:
        # The devices that are left out take their NICs with them.
        cluster.inter_gbytes_per_s_per_node *= devices / cluster.devices_per_node
    cluster.nics_per_node = min(cluster.nics_per_node, devices)
    cluster.devices_per_node = devices
    cluster.check()
    return cluster


def all_instances():
    return [
        Instance(cluster, mask, heads, documents)
        for cluster in CLUSTERS
        for documents in LENGTHS[cluster_of(cluster).num_devices]
        for heads in HEADS
        for mask in MASKS
    ]
