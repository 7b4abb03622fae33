// Placement by the general hypergraph partitioner, as DCP publishes it.
#pragma once

#include "contextile/extend/hypergraph.h"
#include "contextile/extend/partition.h"

namespace contextile {

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
// vertices are split over nodes first, then each node's over its devices, within the nested bounds
// of the spec, which are held. Of the spec, effort is in multiples of HypergraphSpec's.
// Deterministic by effort and seed on any number of threads; throws InvalidArgument when weights
// exceed kMaxTotalWeight. Up to 0.5 ms a tile and head group: up to fifteen times what
// partition_grid takes.
[[nodiscard]] GridPartition partition_as_hypergraph(const AttentionGrid& grid,
                                                    const GridSpec& spec);

}  // namespace contextile
