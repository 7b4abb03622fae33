#include "transport/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "transport/conformance_support.h"

namespace contextile {
namespace {

std::string turn_text(const ConformanceCase& tested, std::int32_t turn, std::string_view text) {
  return tested.num_turns == 1 ? std::string(text) : fmt::format("turn {}: {}", turn, text);
}

}  // namespace

std::span<const ConformanceCase> conformance_cases() {
  static const std::vector<ConformanceCase> cases = [] {
    std::vector<ConformanceCase> all = traffic_cases();
    std::ranges::move(failure_cases(), std::back_inserter(all));
    return all;
  }();
  return cases;
}

std::string run_case(const ConformanceCase& tested, const MakeTransport& make) {
  std::string first;  // later turns still run after a failure: the peers make the next group, too
  for (std::int32_t turn = 0; turn < tested.num_turns; ++turn) {
    std::string text;
    const std::unique_ptr<Transport> transport = make(tested.timeout);
    try {
      tested.run(*transport, turn);
      continue;
    } catch (const std::exception& error) {
      text = error.what();
    }
    transport->abort(text);
    if (first.empty()) first = turn_text(tested, turn, text);
  }
  return first;
}

}  // namespace contextile
