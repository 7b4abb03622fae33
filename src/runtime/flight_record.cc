#include "contextile/advanced/flight_record.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/replaced_file.h"

namespace contextile {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int32_t kFormat = 1;
constexpr std::size_t kMaxListed = 1 << 12;   // steps, transfers, peers; a rank keeps 512 steps
constexpr std::int32_t kMostRanks = 1 << 16;  // of a group
constexpr std::size_t kMaxErrorBytes = 4000;  // of an error text
constexpr std::int64_t kMostClockSkewUs = 1'000'000;

std::int64_t number_in(const json& found, const std::string& where, std::int64_t least,
                       std::int64_t most) {
  const std::optional<std::int64_t> number = json_integer(found, least, most);
  CONTEXTILE_CHECK(number, "{}: expected a whole number from {} to {}, found {}", where, least,
                   most, quote(found.dump(-1, ' ', false, json::error_handler_t::replace)));
  return *number;
}

// The values of one object, each read once by its key.
class ObjectReader {
 public:
  ObjectReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    CONTEXTILE_CHECK(object.is_object(), "{}: expected an object, found {}", where_,
                     object.type_name());
  }
  // Call this after all keys have been read.
  void check_no_more() const {
    CONTEXTILE_CHECK(num_read_ == object_.size(), "{}: expected {} keys, found {}", where_,
                     num_read_, object_.size());
  }

  [[nodiscard]] const json& value(const char* key) {
    const auto found = object_.find(key);
    CONTEXTILE_CHECK(found != object_.end(), "{}: expected a key '{}', found none", where_, key);
    ++num_read_;
    return *found;
  }
  [[nodiscard]] std::int64_t number(const char* key, std::int64_t least, std::int64_t most) {
    return number_in(value(key), fmt::format("{}, {}", where_, key), least, most);
  }
  [[nodiscard]] std::int64_t number(const char* key, std::int64_t least) {
    return number(key, least, INT64_MAX);
  }
  // Returns 0 if the key is missing: records of earlier versions lack it.
  [[nodiscard]] std::int64_t number_if_any(const char* key) {
    return object_.contains(key) ? number(key, 0) : 0;
  }
  [[nodiscard]] std::string text(const char* key) {
    const json& found = value(key);
    CONTEXTILE_CHECK(found.is_string(), "{}, {}: expected text, found {}", where_, key,
                     found.type_name());
    return found.get<std::string>();
  }
  [[nodiscard]] bool flag(const char* key) {
    const json& found = value(key);
    CONTEXTILE_CHECK(found.is_boolean(), "{}, {}: expected true or false, found {}", where_, key,
                     found.type_name());
    return found.get<bool>();
  }
  // Reads the items of a list, each with its place for messages.
  template <typename Read>
  void list(const char* key, const Read& read) {
    const json& found = value(key);
    CONTEXTILE_CHECK(found.is_array() && found.size() <= kMaxListed,
                     "{}, {}: expected a list of at most {} items, found {}", where_, key,
                     kMaxListed,
                     found.is_array() ? fmt::format("{}", found.size()) : found.type_name());
    for (std::size_t i = 0; i < found.size(); ++i) {
      read(found[i], fmt::format("{}, {}[{}]", where_, key, i));
    }
  }

 private:
  const json& object_;
  const std::string where_;
  std::size_t num_read_ = 0;
};

ordered_json json_of(const FlightStep& step) {
  return {{"op", step.op},
          {"call", step.call},
          {"direction", step.direction ? ordered_json(to_string(*step.direction)) : ordered_json()},
          {"mask", step.mask},
          {"round", step.round},
          {"instruction", step.instruction},
          {"ticket", step.ticket},
          {"began_us", step.began_us},
          {"ended_us", step.ended_us}};
}

ordered_json json_of(const FlightTransfer& transfer) {
  return {{"ticket", transfer.ticket}, {"peer", transfer.peer.value},
          {"send", transfer.is_send},  {"bytes", transfer.size_bytes},
          {"units", transfer.units},   {"num_units", transfer.num_units}};
}

std::optional<Direction> direction_of(const json& found, const std::string& where) {
  if (found.is_null()) return std::nullopt;
  for (const Direction direction : kDirections) {
    if (found == to_string(direction)) return direction;
  }
  fail_argument("{}, direction: expected forward, backward or null, found {}", where,
                quote(found.dump(-1, ' ', false, json::error_handler_t::replace)));
}

FlightStep step_of(const json& found, const std::string& where) {
  ObjectReader object(found, where);
  FlightStep step;
  step.op = object.text("op");
  step.call = object.number("call", 0);
  step.direction = direction_of(object.value("direction"), where);
  step.mask = static_cast<std::int32_t>(object.number("mask", 0, INT32_MAX));
  step.round = static_cast<std::int32_t>(object.number("round", 0, INT32_MAX));
  step.instruction = object.number("instruction", -1);
  step.ticket = object.number("ticket", -1);
  step.began_us = object.number("began_us", 0);
  step.ended_us = object.number("ended_us", -1);
  object.check_no_more();
  CONTEXTILE_CHECK(step.ended_us == -1 || step.ended_us >= step.began_us,
                   "{}: expected an end after {}, found {}", where, step.began_us, step.ended_us);
  return step;
}

FlightTransfer transfer_of(const json& found, const std::string& where, std::int32_t num_ranks) {
  ObjectReader object(found, where);
  FlightTransfer transfer;
  transfer.ticket = object.number("ticket", 0);
  transfer.peer = Rank{static_cast<std::int32_t>(object.number("peer", 0, num_ranks - 1))};
  transfer.is_send = object.flag("send");
  transfer.size_bytes = object.number("bytes", 0);
  object.list("units", [&](const json& unit, const std::string& place) {
    CONTEXTILE_CHECK(unit.is_string(), "{}: expected text, found {}", place, unit.type_name());
    transfer.units.push_back(unit.get<std::string>());
  });
  transfer.num_units = object.number("num_units", 0);
  object.check_no_more();
  return transfer;
}

// Keeps the records of the newest run: a rank that does not come to a run leaves a record of an
// earlier one in the folder.
void leave_newest_run(std::vector<FlightRecord>& records) {
  const auto newest = std::ranges::max_element(records, {}, &FlightRecord::failed_us);
  const std::int32_t size = newest->num_ranks;
  const std::int64_t since_us = newest->started_us - kMostClockSkewUs;
  std::erase_if(records, [&](const FlightRecord& other) {
    return other.num_ranks != size || other.failed_us < since_us;
  });
}

}  // namespace

bool FlightStep::is_wait() const {
  return op == "wait" || op == "barrier" || op == "exchange" || op == "rendezvous";
}

std::string flight_path(const std::string& folder, Rank rank) {
  return fmt::format("{}/rank-{}.json", folder, rank.value);
}

std::string to_json(const FlightRecord& record) {
  ordered_json document = {{"contextile_flight", kFormat},   {"rank", record.rank.value},
                           {"num_ranks", record.num_ranks},  {"transport", record.transport},
                           {"version", record.version},      {"host", record.host},
                           {"process", record.process},      {"plan", record.plan},
                           {"strategy", record.strategy},    {"error", record.error},
                           {"is_cause", record.is_cause},    {"started_us", record.started_us},
                           {"failed_us", record.failed_us},  {"num_steps", record.num_steps},
                           {"steps", ordered_json::array()}, {"transfers", ordered_json::array()},
                           {"silent", ordered_json::array()}};
  for (const FlightStep& step : record.steps) document["steps"].push_back(json_of(step));
  for (const FlightTransfer& transfer : record.transfers) {
    document["transfers"].push_back(json_of(transfer));
  }
  for (const Rank peer : record.silent) document["silent"].push_back(peer.value);
  return with_escaped_controls(
             document.dump(1, ' ', false, ordered_json::error_handler_t::replace)) +
         "\n";
}

FlightRecord parse_flight_record(std::string_view text, std::string_view where) {
  const json document = parse_json(text, where);
  ObjectReader object(document, std::string(where));
  static_cast<void>(object.number("contextile_flight", kFormat, kFormat));
  FlightRecord record;
  record.num_ranks = static_cast<std::int32_t>(object.number("num_ranks", 1, kMostRanks));
  record.rank = Rank{static_cast<std::int32_t>(object.number("rank", 0, record.num_ranks - 1))};
  record.transport = object.text("transport");
  record.version = object.text("version");
  record.host = object.text("host");
  record.process = object.number("process", 0);
  record.plan = object.text("plan");
  record.strategy = object.text("strategy");
  record.error = object.text("error").substr(0, kMaxErrorBytes);
  record.is_cause = object.flag("is_cause");
  record.started_us = object.number_if_any("started_us");
  record.failed_us = object.number("failed_us", 0);
  record.num_steps = object.number("num_steps", 0);
  object.list("steps", [&](const json& step, const std::string& place) {
    record.steps.push_back(step_of(step, place));
  });
  object.list("transfers", [&](const json& transfer, const std::string& place) {
    record.transfers.push_back(transfer_of(transfer, place, record.num_ranks));
  });
  object.list("silent", [&](const json& peer, const std::string& place) {
    const std::int32_t least = record.silent.empty() ? 0 : record.silent.back().value + 1;
    record.silent.emplace_back(
        static_cast<std::int32_t>(number_in(peer, place, least, record.num_ranks - 1)));
    CONTEXTILE_CHECK(record.silent.back() != record.rank, "{}: expected another rank than {}",
                     place, record.rank.value);
  });
  object.check_no_more();
  return record;
}

void save_flight_record(const FlightRecord& record, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_io("{}: cannot make the folder: {}", printable(folder), error.message());
  ReplacedFile file(flight_path(folder, record.rank));
  file.write(to_json(record));
  file.commit();
}

void remove_flight_record(const std::string& folder, Rank rank) noexcept {
  try {
    std::error_code ignored;
    std::filesystem::remove(flight_path(folder, rank), ignored);
  } catch (const std::exception&) {  // no memory for a path
  }
}

std::vector<FlightRecord> load_flight_records(const std::string& folder) {
  std::error_code error;
  std::vector<FlightRecord> records;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".json")) continue;
    CONTEXTILE_CHECK(entry->is_regular_file(), "{}: expected a regular file",
                     printable(entry->path().string()));
    const FileBytes file(entry->path().string(), expect_text("a flight record"));
    records.push_back(parse_flight_record(file.text(), file.name()));
  }
  if (error) fail_io("{}: {}", printable(folder), error.message());
  if (records.empty()) {
    fail_io("{}: expected flight records (rank-0.json and so on), found none", printable(folder));
  }
  leave_newest_run(records);
  std::ranges::sort(records, {}, &FlightRecord::rank);
  const auto twice = std::ranges::adjacent_find(records, {}, &FlightRecord::rank);
  if (twice != records.end()) {
    fail_argument("{}: expected one record of each rank, found two of rank {}", printable(folder),
                  twice->rank.value);
  }
  return records;
}

}  // namespace contextile
