#include "report/flight_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "report/json.h"

namespace contextile {
namespace {

constexpr std::size_t kMostListed = 4;

void append_transfers(const FlightRecord& record, bool sends, std::string& text) {
  std::size_t listed = 0;
  for (const FlightTransfer& transfer : record.transfers) {
    if (transfer.is_send != sends) continue;
    if (listed++ == kMostListed) {
      text += ", …";
      return;
    }
    text += fmt::format("{}{} rank {}: {} bytes", text.empty() ? "" : ", ", sends ? "to" : "from",
                        transfer.peer.value, transfer.size_bytes);
    if (transfer.units.empty()) continue;
    text += fmt::format(
        " ({}{})", printable(transfer.units.front()),
        transfer.num_units > 1 ? fmt::format(" and {} more", transfer.num_units - 1) : "");
  }
}

// Adds the ranks in [first, end), one per row or, if there are many, all in one row.
void add_ranks_without_record(std::int32_t first, std::int32_t end, Table& table) {
  constexpr std::int32_t kMostRows = 8;
  const auto add = [&](std::string ranks) {
    table.add_row({std::move(ranks), {}, {}, {}, {}, {}, {}}, "no record");
  };
  if (end - first > kMostRows) return add(fmt::format("{}-{}", first, end - 1));
  for (std::int32_t r = first; r < end; ++r) add(fmt::format("{}", r));
}

// Seconds that the rank spent in its last step.
Cell seconds_in(const FlightRecord& record) {
  const FlightStep* step = last_step(record);
  if (step == nullptr) return std::monostate();
  return 1e-6 * static_cast<double>(record.failed_us - step->began_us);
}

}  // namespace

std::string step_text(const FlightStep& step) {
  std::string text = printable(step.op);
  if (step.direction) {
    text +=
        fmt::format(", {} of mask {}, round {}", to_string(*step.direction), step.mask, step.round);
  }
  if (step.instruction >= 0) text += fmt::format(", instruction {}", step.instruction);
  return text;
}

const FlightStep* last_step(const FlightRecord& record) {
  if (record.steps.empty() || record.steps.back().ended_us != -1) return nullptr;
  return &record.steps.back();
}

std::string waits_for_text(const FlightRecord& record) {
  std::string text;
  append_transfers(record, false, text);
  append_transfers(record, true, text);
  return text;
}

Table flight_table(std::span<const FlightRecord> records) {
  Table table({{"rank", "rank"},
               {"host", "host"},
               {"process", "process"},
               {"was_in", "was in"},
               {"seconds", "for, s"},
               {"waits_for", ""},
               {"error", ""}},
              60);
  std::int32_t next = 0;  // the first rank that no row speaks of
  for (const FlightRecord& record : records) {
    add_ranks_without_record(next, record.rank.value, table);
    next = record.rank.value + 1;
    const FlightStep* step = last_step(record);
    table.add_row({fmt::format("{}", record.rank.value), printable(record.host), record.process,
                   step == nullptr ? std::string("no call") : step_text(*step), seconds_in(record),
                   waits_for_text(record), without_orders(record.error)});
  }
  add_ranks_without_record(next, records.front().num_ranks, table);
  return table;
}

std::string flight_text(std::span<const FlightRecord> records, const FlightVerdict& verdict) {
  const FlightRecord& first = records.front();
  std::string text = fmt::format(
      "group     {} ranks over {}, contextile {}\nplan      {}\n", first.num_ranks,
      printable(first.transport), printable(first.version),
      first.plan.empty()
          ? std::string("none yet")
          : fmt::format("{}, strategy {}", printable(first.plan), printable(first.strategy)));
  text += "verdict   " + wrap(verdict.summary, kTextColumns, {10, 10}) + "\n\n";
  text += flight_table(records).text() + "\n";
  for (const FlightRecord& record : records) {
    const std::string label = fmt::format("rank {:<5}", record.rank.value);
    const std::string waits = waits_for_text(record);
    text += label + wrap(without_orders(record.error), kTextColumns, {10, 10}) + "\n";
    if (!waits.empty()) {
      text += std::string(10, ' ') + wrap("open: " + waits, kTextColumns, {10, 10}) + "\n";
    }
  }
  return text;
}

Json flight_json(std::span<const FlightRecord> records, const FlightVerdict& verdict) {
  constexpr std::size_t kMostCulprits = 256;
  Json culprits = Json::array();
  for (std::size_t i = 0; i < std::min(verdict.culprits.size(), kMostCulprits); ++i) {
    culprits.push_back(
        {{"rank", verdict.culprits[i].rank.value}, {"why", verdict.culprits[i].why}});
  }
  Json listed = Json::array();
  for (const FlightRecord& record : records) listed.push_back(Json::parse(to_json(record)));
  return {{"num_ranks", records.front().num_ranks},  {"culprits", std::move(culprits)},
          {"num_culprits", verdict.culprits.size()}, {"summary", verdict.summary},
          {"ranks", flight_table(records).json()},   {"records", std::move(listed)}};
}

}  // namespace contextile
