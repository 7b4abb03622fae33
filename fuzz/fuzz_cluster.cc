// Cluster files and names: accepted ones are valid and come back from their JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "contextile/cluster.h"

namespace {

void check(const contextile::Cluster& cluster) {
  contextile::check_cluster(cluster);
  const std::string json = contextile::to_json(cluster);
  if (contextile::to_json(contextile::parse_cluster_json(json, "again")) != json) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check(contextile::parse_cluster_json(text, "fuzz"));
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
  // Paths are left out: the fuzzer opens no files.
  if (text.find('/') != std::string_view::npos || text.ends_with(".json")) return 0;
  try {
    check(contextile::load_cluster(text));
  } catch (const contextile::InvalidArgument&) {
  }
  return 0;
}
