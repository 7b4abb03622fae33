// Placement by the general hypergraph partitioner, as DCP publishes it.
#pragma once

#include "contextile/extend/hypergraph.h"
#include "contextile/extend/partition.h"

namespace contextile {

// Returns the hypergraph of a grid. Its vertices are the blocks in order, which weigh their bytes,
// then the tiles, which weigh their work. Every head group of a block has one net for the queries
// and outputs (the paper has one for each, with the same pins) and one for the keys and values. A
// net connects the block with the tiles that read or feed it.
[[nodiscard]] Hypergraph hypergraph_of(const AttentionGrid& grid);

// The vertices of one part and the pins that nets have among them. Nets of one pin are left out.
struct HypergraphShare {
  Hypergraph graph;
  IdVector<VertexId, VertexId> vertices;  // ids in the whole graph
};
[[nodiscard]] HypergraphShare share_of(const Hypergraph& graph,
                                       const IdVector<VertexId, PartId>& part_of, PartId part);

// Places the blocks and tiles of a grid as the hypergraph hypergraph_of(grid), in which minimal
// connectivity is minimal bytes (Jiang et al., DCP, SOSP 2025, §4.2). The vertices are split over
// nodes first, then those of each node over its devices. The nested bounds of the spec hold.
// `spec.effort` is in multiples of HypergraphSpec's. Deterministic by effort and seed on any number
// of threads. Throws InvalidArgument when weights exceed kMaxTotalWeight. Takes up to 0.5 ms per
// tile and head group, which is up to fifteen times as long as partition_grid.
[[nodiscard]] GridPartition partition_as_hypergraph(const AttentionGrid& grid,
                                                    const GridSpec& spec);

}  // namespace contextile
