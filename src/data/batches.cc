#include <algorithm>
#include <cmath>
#include <optional>

#include "contextile/data.h"
#include "data/datasets.h"
#include "data/length_formats.h"

namespace contextile {
namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

void check_options(const BatchOptions& options) {
  constexpr std::int64_t kMaxBatches = std::int64_t{1} << 20;
  CONTEXTILE_CHECK(options.tokens >= 0 && options.tokens <= kMaxTokens,
                   "tokens: expected 1 to {} in a batch, found {}", kMaxTokens, options.tokens);
  CONTEXTILE_CHECK(options.batches >= 1 && options.batches <= kMaxBatches,
                   "batches: expected 1 to {}, found {}", kMaxBatches, options.batches);
  CONTEXTILE_CHECK(options.max_length >= 0,
                   "max length: expected a number of tokens or 0 for no limit, found {}",
                   options.max_length);
  CONTEXTILE_CHECK(std::isfinite(options.scale) && options.scale > 0,
                   "scale: expected a positive number, found {}", options.scale);
}

// Scaled first, so that max_length is what it says.
std::int64_t adjusted(std::int64_t length, const BatchOptions& options) {
  const double scaled = std::floor(static_cast<double>(length) * options.scale);
  const double most = static_cast<double>(
      options.max_length == 0 ? kMaxLength : std::min(options.max_length, kMaxLength));
  return static_cast<std::int64_t>(std::clamp(scaled, 1.0, most));
}

// `next` returns one length after the other, and nothing when there are no more.
template <typename Next>
Batches fill(const BatchOptions& options, Next next) {
  Batches batches(static_cast<std::size_t>(options.batches));
  std::int64_t num_documents = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    for (std::int64_t missing = options.tokens; missing > 0; ++num_documents) {
      const std::optional<std::int64_t> length = next();
      CONTEXTILE_CHECK(length.has_value(),
                       "lengths: expected {} tokens for {} batches of {}, found {} in {} documents "
                       "(the rest of a batch's last document is not used)",
                       options.batches * options.tokens, options.batches, options.tokens,
                       static_cast<std::int64_t>(b + 1) * options.tokens - missing, num_documents);
      batches[b].push_back(std::min(adjusted(*length, options), missing));
      missing -= batches[b].back();
    }
  }
  return batches;
}

}  // namespace

Batches batches_from_lengths(std::span<const std::int64_t> lengths, const BatchOptions& options) {
  check_options(options);
  CONTEXTILE_CHECK(!lengths.empty(), "lengths: expected at least one, found none");
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    static_cast<void>(checked_length(lengths[i], "lengths", "index", i));
  }
  if (options.tokens == 0) {
    CONTEXTILE_CHECK(options.batches == 1,
                     "batches: expected 1 when no tokens per batch are given, found {}",
                     options.batches);
    Batches all(1);
    for (const std::int64_t length : lengths) all[0].push_back(adjusted(length, options));
    return all;
  }
  std::size_t used = 0;
  return fill(options, [&]() -> std::optional<std::int64_t> {
    if (used == lengths.size()) return std::nullopt;
    return lengths[used++];
  });
}

Batches batches_from_dataset(std::string_view name, const BatchOptions& options) {
  check_options(options);
  LengthSampler sampler(name, options.seed);
  CONTEXTILE_CHECK(options.tokens > 0, "tokens: expected 1 to {} in a batch of dataset {}, found 0",
                   kMaxTokens, name);
  return fill(options, [&] { return std::optional(sampler.next()); });
}

}  // namespace contextile
