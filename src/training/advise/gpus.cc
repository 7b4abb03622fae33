// Clusters by their number of GPUs.
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/parse_number.h"
#include "contextile/advanced/advise.h"

namespace contextile {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kPresetsOfGpus = {
    {{"a100", "p4de"},
     {"h100", "dgx-h100"},
     {"h200", "dgx-h200"},
     {"h20", "h20"},
     {"b200", "b200"},
     {"gb200", "gb200-nvl72"},
     {"gb300", "gb300-nvl72"}}};

}  // namespace

Cluster with_gpus(Cluster cluster, std::int32_t gpus, const std::string& where) {
  if (gpus > cluster.devices_per_node && gpus % cluster.devices_per_node != 0) {
    fail_argument("{}: expected whole nodes of {} devices, or a part of one, found {}", where,
                  cluster.devices_per_node, gpus);
  }
  cluster.nodes = std::max(1, gpus / cluster.devices_per_node);
  if (gpus < cluster.devices_per_node) {
    // Part of a node has part of its NICs.
    const double share = static_cast<double>(gpus) / cluster.devices_per_node;
    cluster.inter_gbytes_per_s_per_node *= share;
    cluster.nics_per_node = std::max(1, static_cast<std::int32_t>(cluster.nics_per_node * share));
    cluster.devices_per_node = gpus;
  }
  check_cluster(cluster);
  return cluster;
}

Cluster load_gpus(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos || text[digits] != 'x') {
    return load_cluster(text);
  }
  const auto gpus = checked_cast<std::int32_t>(
      parse_size("--gpus", text.substr(0, digits), std::int64_t{1}), "--gpus");
  std::string kind = text.substr(digits + 1);
  std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto known = std::ranges::find(kPresetsOfGpus, kind,
                                       &std::pair<std::string_view, std::string_view>::first);
  return with_gpus(load_cluster(known == kPresetsOfGpus.end() ? kind : std::string(known->second)),
                   gpus, "--gpus");
}

}  // namespace contextile
