// Flight records as text and JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "contextile/advanced/flight_record.h"
#include "report/table.h"

namespace contextile {

// "wait, backward of mask 0, round 0, instruction 4"; "no step" without one.
[[nodiscard]] std::string step_text(const FlightStep& step);
// The step that the rank was in when it failed; null if it was in none.
[[nodiscard]] const FlightStep* last_step(const FlightRecord& record);
// "rank 2: 930304 bytes (dq of block 5, group 2; …)" of all open receives, then sends; "" of none.
[[nodiscard]] std::string waits_for_text(const FlightRecord& record);

// A row for every rank of the group, with or without a record. More than a few consecutive ranks
// without one share a row, "3-65535".
[[nodiscard]] Table flight_table(std::span<const FlightRecord> records);
// The subject, the rank that stopped the group, the table, and every rank's error.
[[nodiscard]] std::string flight_text(std::span<const FlightRecord> records,
                                      const FlightVerdict& verdict);
[[nodiscard]] Json flight_json(std::span<const FlightRecord> records, const FlightVerdict& verdict);

}  // namespace contextile
