// Mask rules and mask files: accepted ones are valid masks of a small batch.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/data.h"
#include "contextile/mask.h"

namespace {

constexpr std::int64_t kNumTokens = 1 + 7 + 64 + 100;

void check_rule(std::string_view text) {
  const contextile::MaskSpec spec = contextile::parse_mask_spec(text);
  const std::string printed = contextile::to_string(spec);
  try {
    if (contextile::to_string(contextile::parse_mask_spec(printed)) != printed) std::abort();
  } catch (const contextile::InvalidArgument&) {
    std::abort();  // printed something it cannot read
  }
  std::vector<contextile::Range> sequences = {{0, 1}, {1, 8}, {8, 72}, {72, kNumTokens}};
  if (spec.rule == contextile::MaskSpec::Rule::kTree) {  // fits one length only
    sequences = {{0, std::accumulate(spec.lengths.begin(), spec.lengths.end(), std::int64_t{0})}};
  }
  const contextile::Mask mask = contextile::build_mask(spec, sequences);
  try {
    contextile::check_mask(mask, sequences.back().end);
  } catch (const contextile::InvalidArgument&) {
    std::abort();  // a builder made an invalid mask
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check_rule(text);
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
  try {
    const contextile::Mask mask = contextile::parse_mask_json(text, kNumTokens, "fuzz");
    if (mask.num_pairs() > kNumTokens * kNumTokens) std::abort();
  } catch (const contextile::InvalidArgument&) {
  }
  return 0;
}
