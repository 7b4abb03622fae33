// Hypergraph files: any text is a valid hypergraph or an InvalidArgument. Hypergraphs survive being
// written out, and small ones are partitioned with the reported quality.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "contextile/extend/hypergraph.h"

namespace {

constexpr std::int32_t kPartitionedVertices = 64;
constexpr std::size_t kPartitionedPins = 512;

void check_partition(const contextile::Hypergraph& hypergraph) {
  const contextile::HypergraphSpec spec = {
      .num_parts = 3, .traffic_weight = 0.5, .effort = 0.01, .num_starts = 1, .max_threads = 1};
  const contextile::HypergraphPartition partition =
      contextile::partition_hypergraph(hypergraph, spec);
  const contextile::HypergraphQuality quality =
      contextile::evaluate_hypergraph(hypergraph, spec, partition);
  if (quality.connectivity != contextile::connectivity(hypergraph, 3, partition)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const contextile::Hypergraph hypergraph = contextile::parse_hgr(text, "fuzz");
    contextile::check_hypergraph(hypergraph);
    if (contextile::parse_hgr(contextile::format_hgr(hypergraph), "fuzz") != hypergraph) {
      std::abort();
    }
    if (hypergraph.num_vertices() <= kPartitionedVertices &&
        hypergraph.pins.size() <= kPartitionedPins) {
      check_partition(hypergraph);
    }
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
  try {
    static_cast<void>(contextile::parse_partition(text, 4, 3, "fuzz"));
  } catch (const contextile::InvalidArgument&) {
  }
  try {
    static_cast<void>(contextile::parse_fixed(text, 4, 3, "fuzz"));
  } catch (const contextile::InvalidArgument&) {
  }
  return 0;
}
