#include "cluster/collectives_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/suggest.h"

namespace contextile {
namespace {

using nlohmann::json;

Collective read_op(const json& entry) {
  std::vector<std::string> names;
  for (const Collective op : kCollectives) names.emplace_back(to_string(op));
  const json found = entry.value("op", json());
  const auto name = std::ranges::find_if(names, [&](const auto& one) { return found == one; });
  CONTEXTILE_CHECK(name != names.end(), "collectives: op: expected one of {}, found {}",
                   fmt::join(names, ", "), quote(found.dump()));
  return kCollectives[name - names.begin()];
}

void read_group_size(const json& entry, const char* key, std::int32_t& result) {
  if (!entry.contains(key)) return;
  const auto size = json_integer(entry[key], 2, std::numeric_limits<std::int32_t>::max());
  CONTEXTILE_CHECK(size, "collectives: {}: expected an integer of at least 2, found {}", key,
                   quote(entry[key].dump()));
  result = static_cast<std::int32_t>(*size);
}

void read_number(const json& entry, const char* key, double& result) {
  const json number = entry.value(key, json());
  CONTEXTILE_CHECK(number.is_number(), "collectives: {}: expected a number, found {}", key,
                   quote(number.dump()));
  result = number.get<double>();
}

CollectiveCost read_collective(const json& entry) {
  static const std::vector<std::string> kKeys = {"op",       "devices", "nodes",
                                                 "start_us", "ramp_us", "gbytes_per_s"};
  CONTEXTILE_CHECK(entry.is_object(), "collectives: expected an array of objects, found {} in it",
                   quote(entry.dump()));
  for (const auto& [key, value] : entry.items()) {
    CONTEXTILE_CHECK(std::ranges::find(kKeys, key) != kKeys.end(),
                     "collectives: expected the keys {}, found {}{}", fmt::join(kKeys, ", "),
                     quote(key), did_you_mean(key, kKeys));
  }
  CollectiveCost cost{.op = read_op(entry)};
  read_group_size(entry, "devices", cost.devices);
  read_group_size(entry, "nodes", cost.nodes);
  read_number(entry, "start_us", cost.start_us);
  if (entry.contains("ramp_us")) read_number(entry, "ramp_us", cost.ramp_us);
  read_number(entry, "gbytes_per_s", cost.gbytes_per_s);
  return cost;
}

}  // namespace

std::vector<CollectiveCost> read_collectives(const json& entries) {
  CONTEXTILE_CHECK(entries.is_array(), "collectives: expected an array of objects, found {}",
                   quote(entries.dump()));
  constexpr std::size_t kMostCosts = 256;
  CONTEXTILE_CHECK(entries.size() <= kMostCosts, "collectives: expected up to {} costs, found {}",
                   kMostCosts, entries.size());
  std::vector<CollectiveCost> costs;
  std::ranges::transform(entries, std::back_inserter(costs), read_collective);
  return costs;
}

nlohmann::ordered_json collectives_json(const std::vector<CollectiveCost>& costs) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const CollectiveCost& cost : costs) {
    nlohmann::ordered_json entry = {{"op", to_string(cost.op)}};
    if (cost.devices != 0) entry["devices"] = cost.devices;
    if (cost.nodes != 0) entry["nodes"] = cost.nodes;
    entry["start_us"] = cost.start_us;
    entry["ramp_us"] = cost.ramp_us;
    entry["gbytes_per_s"] = cost.gbytes_per_s;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace contextile
