#include "strategy/dcp_hypergraph.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "contextile/hypergraph.h"

namespace contextile {
namespace {

// (1 + eps) · mean, or the heaviest tile.
std::int64_t work_limit(const Hypergraph& graph, std::int32_t parts, double eps) {
  std::int64_t work = 0;
  std::int64_t heaviest = 0;
  for (const HyperWeight& weight : graph.vertex_weights) {
    work += weight.compute;
    heaviest = std::max(heaviest, weight.compute);
  }
  const double allowed = (1 + eps) * static_cast<double>(work) / parts;
  const double sensible = std::min(allowed, static_cast<double>(work));  // eps may be anything
  return std::max(static_cast<std::int64_t>(sensible), heaviest);
}

// The most bytes of a part where longest-first packing balances the blocks.
std::int64_t least_data(const Hypergraph& graph, std::int32_t parts) {
  std::vector<std::int64_t> sizes;
  for (const HyperWeight& weight : graph.vertex_weights) {
    if (weight.data > 0) sizes.push_back(weight.data);
  }
  return longest_first_max(std::move(sizes), parts);
}

std::int64_t heaviest_block(const Hypergraph& graph) {
  std::int64_t heaviest = 0;
  for (const HyperWeight& weight : graph.vertex_weights) heaviest = std::max(heaviest, weight.data);
  return heaviest;
}

}  // namespace

Hypergraph hypergraph_of(const AttentionGrid& grid) {
  Hypergraph graph;
  const IdRange<GroupId> groups(grid.head_groups);
  const std::int64_t bytes_per_token =
      (grid.row_bytes_per_token + grid.column_bytes_per_token) * grid.head_groups;
  using Pins = IdVector<GroupId, std::vector<VertexId>>;
  IdVector<BlockId, Pins> rows;
  IdVector<BlockId, Pins> columns;
  for (const GridBlock& block : grid.blocks) {
    const Pins owned(groups, {graph.add_vertex({0, block.tokens * bytes_per_token})});
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
      // Q and O have the same pins: the paper's two nets are one of both's bytes.
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

GridPartition partition_as_hypergraph(const AttentionGrid& grid, const DcpHypergraphSpec& spec) {
  const Hypergraph graph = hypergraph_of(grid);
  check_hypergraph(graph, "dcp");
  const auto split = [&spec](const Hypergraph& whole, std::int32_t parts, HyperWeight capacity) {
    HypergraphSpec problem;
    problem.num_parts = parts;
    problem.capacities.assign(IdRange<PartId>(parts), capacity);
    problem.effort = spec.effort;
    problem.seed = spec.seed;
    problem.num_starts = 1;  // more gain a few percent of bytes for twice the time
    return partition_hypergraph(whole, problem);
  };
  const std::int64_t block = heaviest_block(graph);
  const HypergraphPartition nodes =
      split(graph, spec.nodes,
            {work_limit(graph, spec.nodes, spec.eps_node), least_data(graph, spec.nodes) + block});
  const std::int32_t per_node = spec.devices_per_node;
  const std::int64_t device_data = least_data(graph, spec.nodes * per_node) + block;
  IdVector<VertexId, Rank> device_of(graph.vertices());
  for (const PartId node : IdRange<PartId>(spec.nodes)) {
    const HypergraphShare share = share_of(graph, nodes.part, node);
    // What the node was given must fit, even if it is more than its share.
    const std::int64_t data = std::max(device_data, least_data(share.graph, per_node));
    const HypergraphPartition inside =
        split(share.graph, per_node, {work_limit(share.graph, per_node, spec.eps_device), data});
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
  return placed;
}

}  // namespace contextile
