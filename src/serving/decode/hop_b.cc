#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/serving/decode.h"

namespace contextile {
namespace {

constexpr std::array<std::pair<HopBReading, std::string_view>, 3> kReadings = {
    {{HopBReading::kOff, "off"},
     {HopBReading::kAttention, "attention"},
     {HopBReading::kFeedForward, "feed_forward"}}};

}  // namespace

std::string_view to_string(HopBReading reading) {
  return std::ranges::find(kReadings, reading, &decltype(kReadings)::value_type::first)->second;
}

HopBReading parse_hop_b(std::string_view text) {
  for (const auto& [reading, name] : kReadings) {
    if (name == text) return reading;
  }
  fail_argument("HOP-B: expected one of off, attention, feed_forward; found {}", quote(text));
}

}  // namespace contextile
