#include "strategy/dcp_hypergraph.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "contextile/extend/hypergraph.h"

namespace contextile {
namespace {

// Bytes of a token in all head groups.
std::int64_t bytes_per_token(const AttentionGrid& grid) {
  return (grid.row_bytes_per_token + grid.column_bytes_per_token) * grid.head_groups;
}

// Returns the most tile work that one part may have, if the tiles among the vertices are split.
std::int64_t work_bound_of(const Hypergraph& graph, std::int32_t parts, double eps) {
  std::vector<std::int64_t> work;
  for (const HyperWeight& weight : graph.vertex_weights) {
    if (weight.compute > 0) work.push_back(weight.compute);
  }
  return work_bound(std::move(work), parts, eps);
}

}  // namespace

Hypergraph hypergraph_of(const AttentionGrid& grid) {
  Hypergraph graph;
  const IdRange<GroupId> groups(grid.head_groups);
  const std::int64_t token_bytes = bytes_per_token(grid);
  using Pins = IdVector<GroupId, std::vector<VertexId>>;
  IdVector<BlockId, Pins> rows;
  IdVector<BlockId, Pins> columns;
  for (const GridBlock& block : grid.blocks) {
    const Pins owned(groups, {graph.add_vertex({0, block.tokens * token_bytes})});
    rows.push_back(owned);
    columns.push_back(owned);
  }
  for (const GridTile& tile : grid.tiles) {
    const VertexId vertex = graph.add_vertex({tile.work, 0});
    rows[tile.row][tile.group].push_back(vertex);
    columns[tile.column][tile.group].push_back(vertex);
  }
  for (const BlockId b : grid.blocks.ids()) {
    const std::int64_t tokens = grid.blocks[b].tokens;
    for (const GroupId g : groups) {
      // Q and O have the same pins, so one net with the bytes of both replaces the paper's two.
      graph.add_net(rows[b][g], tokens * grid.row_bytes_per_token);
      graph.add_net(columns[b][g], tokens * grid.column_bytes_per_token);
    }
  }
  return graph;
}

HypergraphShare share_of(const Hypergraph& graph, const IdVector<VertexId, PartId>& part_of,
                         PartId part) {
  HypergraphShare share;
  IdVector<VertexId, VertexId> inside(graph.vertices());
  for (const VertexId v : graph.vertices()) {
    if (part_of[v] != part) continue;
    share.vertices.push_back(v);
    inside[v] = share.graph.add_vertex(graph.vertex_weights[v]);
  }
  std::vector<VertexId> pins;
  for (const NetId e : graph.nets()) {
    pins.clear();
    for (const VertexId v : graph.pins_of(e)) {
      if (inside[v].valid()) pins.push_back(inside[v]);
    }
    if (pins.size() > 1) share.graph.add_net(pins, graph.net_weights[e]);
  }
  return share;
}

GridPartition partition_as_hypergraph(const AttentionGrid& grid, const GridSpec& spec) {
  const Hypergraph graph = hypergraph_of(grid);
  check_hypergraph(graph, "dcp");
  const auto split = [&spec](const Hypergraph& whole, std::int32_t parts, HyperWeight capacity) {
    HypergraphSpec problem;
    problem.num_parts = parts;
    problem.capacities.assign(IdRange<PartId>(parts), capacity);
    problem.effort = spec.effort;
    problem.seed = spec.seed;
    return partition_hypergraph(whole, problem);
  };
  const NestedBounds bounds = nested_bounds(grid, spec);
  const std::int64_t token_bytes = bytes_per_token(grid);
  const HypergraphPartition nodes =
      split(graph, spec.nodes, {bounds.node_work, bounds.node_tokens * token_bytes});
  const std::int32_t per_node = spec.devices_per_node;
  IdVector<VertexId, Rank> device_of(graph.vertices());
  for (const PartId node : IdRange<PartId>(spec.nodes)) {
    const HypergraphShare share = share_of(graph, nodes.part, node);
    const HypergraphPartition inside =
        split(share.graph, per_node,
              {work_bound_of(share.graph, per_node, spec.eps_compute),
               bounds.device_tokens * token_bytes});
    for (const VertexId v : share.vertices.ids()) {
      device_of[share.vertices[v]] = Rank{node.value * per_node + inside.part[v].value};
    }
  }
  GridPartition placed;
  for (const Rank device : device_of) {
    if (placed.owner.size() < grid.blocks.size()) {
      placed.owner.push_back(device);
    } else {
      placed.device.push_back(device);
    }
  }
  hold_nested_bounds(grid, spec, bounds, placed);
  return placed;
}

}  // namespace contextile
