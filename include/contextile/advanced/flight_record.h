// Flight records: the activities of the ranks of a group when it failed. Every rank that still can
// writes its own record, and the records together tell which rank stopped the others.
//
//   const std::vector<FlightRecord> records = load_flight_records("flight");
//   std::printf("%s\n", judge_flight(records).summary.c_str());
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/workload.h"

namespace contextile {

class Transport;
struct Plan;

// A step of a rank: an instruction of a program, or an activity around programs.
struct FlightStep {
  std::string op;  // an instruction's name, "prepare", "rows", "barrier", "exchange", "rendezvous"
  std::int64_t call = 0;               // number of the executor's call, in the order in which they
                                       // began, from 1; 0: prepare
  std::optional<Direction> direction;  // none in prepare
  std::int32_t mask = 0;
  std::int32_t round = 0;
  std::int64_t instruction = -1;  // in the program; -1: none
  std::int64_t ticket = -1;       // of a launch, and of the wait for it; -1: none
  std::int64_t began_us = 0;      // since the Unix epoch, as all times here
  std::int64_t ended_us = -1;     // -1: never, the rank was in it

  // Returns true if the rank waits for others in it: a wait, a barrier, an exchange, or a
  // rendezvous.
  [[nodiscard]] bool is_wait() const;
  friend bool operator==(const FlightStep&, const FlightStep&) = default;
};

// A message that this rank had launched and that had not fully moved when the group failed.
struct FlightTransfer {
  std::int64_t ticket = 0;
  Rank peer;
  bool is_send = false;
  std::int64_t size_bytes = 0;
  std::vector<std::string> units;  // the first ones in it, such as "kv of block 3, group 0"
  std::int64_t num_units = 0;      // in all; 0: not of a program
  friend bool operator==(const FlightTransfer&, const FlightTransfer&) = default;
};

struct FlightRecord {
  Rank rank;
  std::int32_t num_ranks = 0;
  std::string transport;
  std::string version;       // of the library
  std::string host;          // machine on which the rank ran
  std::int64_t process = 0;  // process id on that machine
  std::string plan;          // digest, 16 hex digits; empty before a plan
  std::string strategy;
  std::string error;
  bool is_cause = false;  // the error is this rank's own, not one it learned of or saw in others
  std::int64_t started_us = 0;  // when the process began; 0: not known
  std::int64_t failed_us = 0;
  std::int64_t num_steps = 0;     // since the executor was made; `steps` has the last ones
  std::vector<FlightStep> steps;  // oldest first
  std::vector<FlightTransfer> transfers;
  std::vector<Rank> silent;  // peers that had not answered for a while, ascending
  friend bool operator==(const FlightRecord&, const FlightRecord&) = default;
};

// Returns FOLDER/rank-R.json, the path of a rank's record.
[[nodiscard]] std::string flight_path(const std::string& folder, Rank rank);
// Writes a record. Makes the folder unless it exists, and replaces the file atomically. Throws
// IoError.
void save_flight_record(const FlightRecord& record, const std::string& folder);
[[nodiscard]] std::string to_json(const FlightRecord& record);
// Parses a record. `where` names the source in messages. Throws InvalidArgument on text that is not
// JSON, unknown or missing keys, and impossible values.
[[nodiscard]] FlightRecord parse_flight_record(std::string_view text, std::string_view where);

// Removes the record of a rank that joins again, which has none yet. Never throws: a record that
// cannot be removed is recognized by its time.
void remove_flight_record(const std::string& folder, Rank rank) noexcept;
// Returns the record of a rank that found no group for its plan: since `began` it was in a
// rendezvous. The error is not its own.
[[nodiscard]] FlightRecord rendezvous_record(Rank rank, std::string_view transport,
                                             const Plan& plan,
                                             std::chrono::system_clock::time_point began,
                                             const std::exception& error);
// Returns the record of a rank that exchanged data with its peers without a plan's executor: since
// `began` it was in an exchange. The error is not its own.
[[nodiscard]] FlightRecord exchange_record(const Transport& transport,
                                           std::chrono::system_clock::time_point began,
                                           const std::exception& error);

// Returns the records of one failure, by rank: all records of a folder that save_flight_record
// wrote. It omits records of an earlier run than the newest: those of groups of another size, and
// of failures more than a second before the process of the newest began. Throws IoError when there
// is no folder or no record in it, InvalidArgument as parse_flight_record does.
[[nodiscard]] std::vector<FlightRecord> load_flight_records(const std::string& folder);

// The ranks that stopped the group, as far as records can tell.
struct FlightVerdict {
  struct Culprit {
    Rank rank;
    std::string why;  // "wrote no record: …", "was in attention for 12.3 s …"
  };
  std::vector<Culprit> culprits;  // by rank; empty: the records do not tell
  std::string summary;            // one sentence, or more
};
// Judges the records of a failure. The culprits are the first of these that apply:
// * ranks with an error of their own;
// * ranks that wrote no record (killed, stopped or cut off);
// * the rank that most others found silent;
// * ranks that were at work, or outside of any call, while others waited for the whole timeout;
// * pairs of which both ends were posted and nothing moved (the connection);
// * a message that one end never posted.
// Clocks of machines must agree to well below the timeout. `records` must be by rank, at least one,
// of one group.
[[nodiscard]] FlightVerdict judge_flight(std::span<const FlightRecord> records);

}  // namespace contextile
