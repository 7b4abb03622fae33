// The contents of a store: a value's file, planners' values, addresses. Any bytes are refused in
// the one allowed way, or come back from their own bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "planner/ahead/step_value.h"
#include "store/redis_address.h"
#include "store/value_file.h"

namespace {

void check_value_file(std::span<const std::uint8_t> bytes) {
  try {
    const auto first = bytes.first(std::min(bytes.size(), contextile::ValueHeader::kBytes));
    const contextile::ValueHeader header =
        contextile::decode_value_header(first, bytes.size(), "fuzz");
    if (header.value_bytes != bytes.size() - contextile::ValueHeader::kBytes) std::abort();
    if (!std::ranges::equal(contextile::encode_value_header(header), first)) std::abort();
  } catch (const contextile::IoError&) {
  }
}

void check_step_value(std::span<const std::uint8_t> bytes) {
  for (const std::int64_t step : {0, 7}) {
    try {
      const contextile::StepValue value = contextile::decode_step_value(bytes, step, "fuzz");
      if (!std::ranges::equal(contextile::encode_step_value(value), bytes)) std::abort();
    } catch (const contextile::InvalidPlan&) {
    }
  }
}

void check_address(std::string_view text) {
  try {
    static_cast<void>(contextile::parse_redis_address(text).text());
  } catch (const contextile::InvalidArgument&) {
  }
  try {
    static_cast<void>(contextile::parse_redis_socket(text).text());
  } catch (const contextile::InvalidArgument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  check_value_file(bytes);
  check_step_value(bytes);
  check_address({reinterpret_cast<const char*>(data), size});
  return 0;
}
