// Flight records: accepted ones are judged, and come back from their JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "contextile/advanced/flight_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace contextile;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const FlightRecord record = parse_flight_record(text, "fuzz");
    const FlightRecord again = parse_flight_record(to_json(record), "again");
    if (to_json(again) != to_json(record)) std::abort();
    if (record.num_ranks <= 4096) {  // one line per rank
      if (judge_flight({&record, 1}).summary.empty()) std::abort();
    }
  } catch (const InvalidArgument&) {
  }
  return 0;
}
