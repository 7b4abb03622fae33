#include "planner/ahead/lookahead_keys.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::size_t kMaxRunIdBytes = 24;

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '_';
}

}  // namespace

LookaheadKeys::LookaheadKeys(std::string run_id) : run_id_(std::move(run_id)) {
  CONTEXTILE_CHECK(!run_id_.empty() && run_id_.size() <= kMaxRunIdBytes &&
                       std::ranges::all_of(run_id_, is_plain),
                   "run id: expected 1 to {} letters, digits, - and _, found {}", kMaxRunIdBytes,
                   quote(run_id_));
}

std::string LookaheadKeys::slice(std::int64_t step, Rank rank) const {
  return fmt::format("{}/{}/{}", run_id_, step, rank.value);
}

std::string LookaheadKeys::ready(std::int64_t step) const {
  return fmt::format("{}/{}/ready", run_id_, step);
}

std::string LookaheadKeys::claim(std::int64_t step) const {
  return fmt::format("{}/{}/claim", run_id_, step);
}

std::string LookaheadKeys::next(Rank rank) const {
  return fmt::format("{}/next/{}", run_id_, rank.value);
}

std::string LookaheadKeys::alive() const { return fmt::format("{}/planner/alive", run_id_); }

std::string LookaheadKeys::failed() const { return fmt::format("{}/planner/failed", run_id_); }

std::vector<std::uint8_t> step_as_text(std::int64_t step) {
  const std::string text = std::to_string(step);
  return {text.begin(), text.end()};
}

std::int64_t parse_step_text(std::span<const std::uint8_t> text, std::string_view where) {
  const std::string_view digits(reinterpret_cast<const char*>(text.data()), text.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) {
    fail_plan("{}: expected the step that a rank needs next, found {}", where, quote(digits));
  }
  return step;
}

}  // namespace contextile
