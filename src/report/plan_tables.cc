#include "report/plan_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "report/json.h"

namespace contextile {
namespace {

std::string options_text(const std::map<std::string, std::string>& options) {
  std::string text;
  for (const auto& [key, value] : options) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", printable(key), printable(value));
  }
  return text.empty() ? "" : fmt::format(" ({})", text);
}

std::int32_t num_blocks(const Plan& plan) {
  std::int32_t blocks = 0;
  for (const PlanRound& round : plan.rounds) blocks += round.blocks.num_blocks();
  return blocks;
}

std::int64_t longest_sequence(const Plan& plan) {
  std::int64_t longest = 0;
  for (const Range& sequence : plan.sequences) longest = std::max(longest, sequence.size());
  return longest;
}

std::string masks_text(const Plan& plan) {
  std::string text;
  if (plan.rounds.empty()) return text;
  for (const NamedMask& mask : plan.rounds.front().masks) {
    text += text.empty() ? "" : ", ";
    text += fmt::format("{} ({})", printable(mask.name), count(mask.layers, "layer"));
  }
  return text;
}

Json direction_json(const DirectionStats& stats) {
  Json by_kind = Json::object();
  for (int k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    by_kind[std::string(to_string(kind))] = stats.bytes_by_kind[static_cast<std::size_t>(k)];
  }
  Json devices = Json::array();
  for (const DeviceStats& device : stats.devices) {
    devices.push_back({{"sent_bytes", device.sent_bytes},
                       {"received_bytes", device.received_bytes},
                       {"inter_sent_bytes", device.inter_sent_bytes},
                       {"inter_received_bytes", device.inter_received_bytes},
                       {"flops", device.flops},
                       {"memory_bytes", device.memory_bytes}});
  }
  return {{"tiles", stats.tiles},
          {"pairs", stats.pairs},
          {"transfers", stats.transfers},
          {"messages", stats.messages},
          {"launches", stats.launches},
          {"inter_bytes", stats.inter_bytes},
          {"intra_bytes", stats.intra_bytes},
          {"bytes_by_kind", std::move(by_kind)},
          {"max_device_bytes", stats.max_device_bytes},
          {"max_node_uplink_bytes", stats.max_node_uplink_bytes},
          {"flops", stats.flops},
          {"compute_imbalance", stats.compute_imbalance},
          {"compute_overload", stats.compute_overload},
          {"peak_memory_bytes", stats.peak_memory_bytes},
          {"retained_bytes", stats.retained_bytes},
          {"devices", std::move(devices)}};
}

Json movement_json(const DataMovement& movement) {
  return {{"transfers", movement.transfers},
          {"redundant_transfers", movement.redundant_transfers},
          {"redundant_bytes", movement.redundant_bytes},
          {"unused_by_receiver_transfers", movement.unused_by_receiver_transfers},
          {"unused_by_receiver_bytes", movement.unused_by_receiver_bytes}};
}

}  // namespace

std::string describe_plan(const Plan& plan) {
  std::string text;
  text += fmt::format("strategy  {}\n", wrap(printable(plan.strategy) + options_text(plan.options),
                                             kTextColumns, {.first = 10, .others = 10}));
  text += fmt::format("cluster   {}, {} x {} = {}\n", printable(plan.cluster_name),
                      count(plan.nodes, "node"), plan.devices_per_node,
                      count(plan.num_devices(), "device"));
  text += fmt::format("batch     {}, {}, longest {}\n", count(plan.num_tokens(), "token"),
                      count(static_cast<std::int64_t>(plan.sequences.size()), "sequence"),
                      longest_sequence(plan));
  text += fmt::format("masks     {}\n", masks_text(plan));
  text += fmt::format("shape     {}/{} heads of {}, {}, partial results as {}\n",
                      plan.shape.q_heads, plan.shape.kv_heads, plan.shape.head_dim,
                      to_string(plan.shape.dtype), to_string(plan.partial_wire));
  text += fmt::format("blocks    {} in {}\n", num_blocks(plan),
                      count(static_cast<std::int64_t>(plan.rounds.size()), "round"));
  text += fmt::format("digest    {}\n", digest_text(plan.digest));
  return text;
}

Json plan_json(const Plan& plan) {
  Json masks = Json::array();
  if (!plan.rounds.empty()) {
    for (const NamedMask& mask : plan.rounds.front().masks) {
      masks.push_back({{"name", mask.name}, {"layers", mask.layers}});
    }
  }
  return {{"strategy", plan.strategy},
          {"options", plan.options},
          {"digest", digest_text(plan.digest)},
          {"cluster",
           {{"name", plan.cluster_name},
            {"nodes", plan.nodes},
            {"devices_per_node", plan.devices_per_node}}},
          {"tokens", plan.num_tokens()},
          {"sequences", plan.sequences.size()},
          {"longest_sequence", longest_sequence(plan)},
          {"masks", std::move(masks)},
          {"partial_wire", to_string(plan.partial_wire)},
          {"rounds", plan.rounds.size()},
          {"blocks", num_blocks(plan)}};
}

Json cluster_json(const Cluster& cluster) {
  return {{"name", cluster.name},
          {"nodes", cluster.nodes},
          {"devices_per_node", cluster.devices_per_node}};
}

std::string statistics_text(const PlanStats& statistics) {
  Table table(
      {{"quantity", "one layer of every mask"}, {"forward", "forward"}, {"backward", "backward"}});
  const auto row = [&](std::string name, auto value) {
    std::vector<Cell> cells{std::move(name)};
    for (const auto& direction : {statistics.forward, statistics.backward}) {
      cells.push_back(direction ? Cell{std::string(value(*direction))} : Cell{});
    }
    table.add_row(std::move(cells));
  };
  using Stats = DirectionStats;
  row("tiles", [](const Stats& s) { return fmt::format("{}", s.tiles); });
  row("attended pairs", [](const Stats& s) { return fmt::format("{}", s.pairs); });
  row("TFLOPs", [](const Stats& s) { return format_number(s.flops / 1e12); });
  row("between nodes", [](const Stats& s) { return megabytes(s.inter_bytes); });
  row("inside nodes", [](const Stats& s) { return megabytes(s.intra_bytes); });
  row("busiest device", [](const Stats& s) { return megabytes(s.max_device_bytes); });
  row("busiest uplink", [](const Stats& s) { return megabytes(s.max_node_uplink_bytes); });
  row("messages", [](const Stats& s) { return fmt::format("{}", s.messages); });
  row("launches", [](const Stats& s) { return fmt::format("{}", s.launches); });
  row("compute imbalance", [](const Stats& s) { return percent(s.compute_imbalance); });
  row("compute overload", [](const Stats& s) { return percent(s.compute_overload); });
  row("peak memory", [](const Stats& s) { return megabytes(s.peak_memory_bytes); });
  row("retained", [](const Stats& s) { return megabytes(s.retained_bytes); });
  return table.text() +
         fmt::format("token imbalance {}, overload {}; bytes count once, LSE and delta included\n",
                     percent(statistics.token_imbalance), percent(statistics.token_overload));
}

Json statistics_json(const PlanStats& statistics) {
  Json document = {{"tokens", statistics.tokens},
                   {"token_imbalance", statistics.token_imbalance},
                   {"token_overload", statistics.token_overload}};
  if (statistics.forward) document["forward"] = direction_json(*statistics.forward);
  if (statistics.backward) document["backward"] = direction_json(*statistics.backward);
  return document;
}

std::string verify_text(const VerifyReport& report, bool colour) {
  std::string text;
  for (const std::string& violation : report.violations)
    text += fmt::format("violation: {}\n", violation);
  const auto shown = static_cast<std::int64_t>(report.violations.size());
  if (report.num_violations > shown) {
    text += fmt::format("... and {} more\n", report.num_violations - shown);
  }
  for (const std::string& warning : report.warnings) text += fmt::format("warning: {}\n", warning);
  const bool ok = report.ok();
  text += fmt::format("verified: {}{}{} ({}, {}{})\n",
                      !colour ? ""
                      : ok    ? "\x1b[32m"
                              : "\x1b[31m",
                      ok ? "ok" : "BROKEN", colour ? "\x1b[0m" : "",
                      count(report.num_violations, "violation"),
                      count(static_cast<std::int64_t>(report.warnings.size()), "warning"),
                      report.grouped_launches_ok ? "" : "; grouped launches deadlock");
  return text;
}

Json verify_json(const VerifyReport& report) {
  Json document = {{"ok", report.ok()},
                   {"num_violations", report.num_violations},
                   {"violations", report.violations},
                   {"warnings", report.warnings},
                   {"grouped_launches_ok", report.grouped_launches_ok}};
  if (report.ok()) {
    for (const Direction direction : kDirections) {
      document["movement"][std::string(to_string(direction))] =
          movement_json(report.movement[static_cast<std::size_t>(direction)]);
    }
  }
  return document;
}

}  // namespace contextile
