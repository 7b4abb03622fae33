#include "planner/ahead/step_value.h"

#include <algorithm>

#include "base/check.h"
#include "base/little_endian.h"
#include "plan/file/frame_header.h"
#include "plan/file/plan_file.h"

namespace contextile {
namespace {

constexpr std::string_view kMagic{"CTXSTEP\0", 8};
constexpr std::uint64_t kVersion = 1;

constexpr std::size_t kKindAt = 12;
constexpr std::size_t kStepAt = 16;
constexpr std::size_t kPlanningAt = 24;
constexpr std::size_t kChecksumAt = 32;
constexpr std::size_t kHeaderBytes = 40;

constexpr FrameFormat kFormat{.magic = kMagic,
                              .version = kVersion,
                              .header_bytes = kHeaderBytes,
                              .name = "a step's plan of a planner",
                              .noun = "value"};

// XXH3-64 of everything except the checksum itself.
std::uint64_t checksum_of_value(std::span<const std::uint8_t> bytes) {
  const std::uint64_t header = identify(bytes.first(kChecksumAt)).hash;
  const std::uint64_t payload = identify(bytes.subspan(kHeaderBytes)).hash;
  return header ^ (payload << 1 | payload >> 63);
}

}  // namespace

std::vector<std::uint8_t> encode_step_value(const StepValue& value) {
  std::vector<std::uint8_t> bytes(kHeaderBytes + value.payload.size());
  std::ranges::copy(kMagic, bytes.begin());
  put(bytes, FrameFormat::kVersionAt, kVersion, 4);
  put(bytes, kKindAt, static_cast<std::uint64_t>(value.kind), 4);
  put(bytes, kStepAt, static_cast<std::uint64_t>(value.step));
  put(bytes, kPlanningAt, static_cast<std::uint64_t>(value.planning_us));
  std::ranges::copy(value.payload, bytes.begin() + kHeaderBytes);
  put(bytes, kChecksumAt, checksum_of_value(bytes));
  return bytes;
}

StepValue decode_step_value(std::span<const std::uint8_t> bytes, std::int64_t step,
                            std::string_view where) {
  check_frame_header(bytes, kFormat, where);
  check_frame_checksum(checksum_of_value(bytes), get(bytes, kChecksumAt), kFormat, where);
  const std::uint64_t kind = get(bytes, kKindAt, 4);
  StepValue value;
  value.step = static_cast<std::int64_t>(get(bytes, kStepAt));
  value.planning_us = static_cast<std::int64_t>(get(bytes, kPlanningAt));
  value.kind = static_cast<StepValueKind>(kind);
  value.payload = bytes.subspan(kHeaderBytes);
  if (kind > 1 || value.step != step || value.planning_us < 0) {
    fail_plan("{}: expected a plan of step {} or why there is none, found kind {} of step {}",
              where, step, kind, value.step);
  }
  return value;
}

}  // namespace contextile
