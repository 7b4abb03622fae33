// The page of a group that failed.
//
//   const std::vector<FlightRecord> records = load_flight_records("flight");
//   std::ofstream page("flight.html");
//   write_flight_report(records, judge_flight(records), page);
#pragma once

#include <iosfwd>
#include <span>

#include "contextile/advanced/flight_record.h"
#include "contextile/report.h"

namespace contextile {

// Writes one HTML page about a group that failed: the ranks that stopped it (`verdict` is
// judge_flight's of the records), the last steps of every rank, and which rank waited for which. It
// has no script. Beyond max_bytes it shows fewer steps and ranks, and says so. Throws IoError when
// the stream fails.
void write_flight_report(std::span<const FlightRecord> records, const FlightVerdict& verdict,
                         std::ostream& out, const ReportOptions& options = {});

}  // namespace contextile
