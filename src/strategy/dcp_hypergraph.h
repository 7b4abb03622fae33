// Placement by the general hypergraph partitioner, as DCP publishes it.
#pragma once

#include <cstdint>

#include "contextile/hypergraph.h"
#include "contextile/partition.h"

namespace contextile {

struct DcpHypergraphSpec {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  double eps_node = 0.4;    // a node's work <= (1 + eps_node) · mean of the nodes
  double eps_device = 0.1;  // a device's <= (1 + eps_device) · mean of its own node
  double effort = 1;        // annealing steps, in multiples of HypergraphSpec's
  std::uint64_t seed = 1;
};

// Vertices: the blocks in order, which weigh their bytes, then the tiles, which weigh their work.
// For every head group of a block a net of the queries and outputs (the paper has one of each, with
// the same pins) and one of the keys and values.
[[nodiscard]] Hypergraph hypergraph_of(const AttentionGrid& grid);

// The vertices of one part with what their nets have among them; nets of one pin are left out.
struct HypergraphShare {
  Hypergraph graph;
  IdVector<VertexId, VertexId> vertices;  // of the whole graph
};
[[nodiscard]] HypergraphShare share_of(const Hypergraph& graph,
                                       const IdVector<VertexId, PartId>& part_of, PartId part);

// Owners of blocks and devices of tiles (Jiang et al., DCP, SOSP 2025, §4.2). A vertex for every
// token block, which weighs its bytes, and for every tile, which weighs its work; for every head
// group of a block a net of the queries and outputs and one of the keys and values, which connect
// the block with the tiles that read or feed them. Minimal connectivity is minimal bytes. The
// vertices are split over nodes first, then each node's over its devices. No part holds more data
// than longest-first packing of the blocks needs, plus one block. A tile heavier than the bound of
// a part is the bound. Deterministic by effort and seed on any number of threads; throws
// InvalidArgument when weights exceed kMaxTotalWeight. Up to 0.5 ms a tile and head group: up to
// fifteen times what partition_grid takes.
[[nodiscard]] GridPartition partition_as_hypergraph(const AttentionGrid& grid,
                                                    const DcpHypergraphSpec& spec);

}  // namespace contextile
