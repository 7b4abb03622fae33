#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "batch/input/datasets.h"
#include "batch/input/length_formats.h"
#include "contextile/data.h"

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

// Scales first, so that max_length means what it says.
std::int64_t scaled(std::int64_t length, const BatchOptions& options) {
  const double tokens = std::floor(static_cast<double>(length) * options.scale);
  return static_cast<std::int64_t>(std::clamp(tokens, 1.0, static_cast<double>(kMaxLength)));
}

// Returns the longest document of a batch.
std::int64_t longest(const BatchOptions& options) {
  return options.max_length == 0 ? kMaxLength : std::min(options.max_length, kMaxLength);
}

std::string counted(std::int64_t number, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", number, number == 1 ? one : several);
}

// Batches of `options.tokens` tokens, filled with documents in order. `Next` returns one length
// after the other, and nothing when there are no more.
template <typename Next>
class SequentialBatches {
 public:
  SequentialBatches(const BatchOptions& options, Next next)
      : options_(options), next_(std::move(next)) {}

  // Returns the next batch. Fails if the lengths run out, and then says what `num_wanted` batches
  // would have taken; `what` names these batches.
  std::vector<std::int64_t> take(std::int64_t num_wanted, std::string_view what) {
    std::vector<std::int64_t> batch;
    for (std::int64_t missing = options_.tokens; missing > 0;) {
      const std::int64_t length = held_ ? *held_ : next_length(num_wanted, what, missing);
      held_.reset();
      if (options_.long_documents == LongDocuments::kSplit) {
        batch.push_back(std::min({length, longest(options_), missing}));
      } else if (length > missing) {
        held_ = length;
        break;
      } else {
        batch.push_back(length);
      }
      missing -= batch.back();
    }
    ++num_batches_;
    return batch;
  }

 private:
  // Returns the next length that is not left out.
  std::int64_t next_length(std::int64_t num_wanted, std::string_view what, std::int64_t missing) {
    // A distribution never ends, so that too short a limit would search it for ever.
    constexpr std::int64_t kMostLeftOut = std::int64_t{1} << 20;
    const std::int64_t most = std::min(longest(options_), options_.tokens);
    for (std::int64_t left_out = 0; left_out < kMostLeftOut; ++left_out) {
      const std::optional<std::int64_t> length = next_();
      CONTEXTILE_CHECK(length.has_value(),
                       "lengths: expected {} tokens for {} of {}, found {} in {} (the "
                       "rest of a batch's last document is not used)",
                       num_wanted * options_.tokens, what, options_.tokens,
                       (num_batches_ + 1) * options_.tokens - missing,
                       counted(num_documents_, "document", "documents"));
      ++num_documents_;
      const std::int64_t tokens = scaled(*length, options_);
      if (options_.long_documents == LongDocuments::kSplit || tokens <= most) return tokens;
    }
    fail_argument("lengths: expected documents of at most {} tokens, found {}, all longer", most,
                  kMostLeftOut);
  }

  const BatchOptions& options_;
  Next next_;
  std::optional<std::int64_t> held_;  // a document that begins the next batch
  std::int64_t num_batches_ = 0;
  std::int64_t num_documents_ = 0;
};

template <typename Source>
Batches fill_in_order(const BatchOptions& options, Source& source) {
  const std::string what = counted(options.batches, "batch", "batches");
  Batches batches;
  for (std::int64_t b = 0; b < options.batches; ++b) {
    batches.push_back(source.take(options.batches, what));
  }
  return batches;
}

// Packs the documents of N sequential batches into N micro-batches at every step.
template <typename Source>
Batches fill_in_steps(const BatchOptions& options, Source& source) {
  WlbPackingOptions packing = options.wlb;
  if (packing.max_tokens == 0) packing.max_tokens = std::min(2 * options.tokens, kMaxTokens);
  WlbPackingState state;
  Batches batches;
  for (std::int64_t step = 1;; ++step) {
    const std::string what = fmt::format("{} of {}", counted(step, "step", "steps"),
                                         counted(packing.micro_batches, "batch", "batches"));
    std::vector<Document> arriving;
    for (std::int32_t b = 0; b < packing.micro_batches; ++b) {
      for (const std::int64_t length : source.take(step * packing.micro_batches, what)) {
        arriving.push_back({static_cast<std::int64_t>(arriving.size()), length});
      }
    }
    std::vector<MicroBatch> packed;
    if (options.packing == Packing::kWlb) {
      WlbPackingStep next = pack_wlb(std::move(state), arriving, packing);
      packed = std::move(next.micro_batches);
      state = std::move(next.state);
    } else {
      packed = pack_wlb_without_defer(arriving, packing);
    }
    for (const MicroBatch& micro_batch : packed) {
      if (micro_batch.empty()) continue;
      std::vector<std::int64_t>& batch = batches.emplace_back();
      for (const Document& document : micro_batch) batch.push_back(document.length_tokens);
      if (std::cmp_equal(batches.size(), options.batches)) return batches;
    }
  }
}

template <typename Next>
Batches fill(const BatchOptions& options, Next next) {
  SequentialBatches<Next> source(options, std::move(next));
  return options.packing == Packing::kSequential ? fill_in_order(options, source)
                                                 : fill_in_steps(options, source);
}

}  // namespace

Batches batches_from_lengths(std::span<const std::int64_t> lengths, const BatchOptions& options) {
  check_options(options);
  CONTEXTILE_CHECK(!lengths.empty(), "lengths: expected at least one, found none");
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    static_cast<void>(checked_length(lengths[i], "lengths", "index", i));
  }
  if (options.tokens == 0) {
    CONTEXTILE_CHECK(options.packing == Packing::kSequential,
                     "tokens: expected 1 to {} in a batch to pack in steps, found 0", kMaxTokens);
    CONTEXTILE_CHECK(options.batches == 1,
                     "batches: expected 1 when no tokens per batch are given, found {}",
                     options.batches);
    Batches all(1);
    for (const std::int64_t length : lengths) {
      const std::int64_t tokens = scaled(length, options);
      const std::int64_t most = longest(options);
      if (options.long_documents == LongDocuments::kSplit) {
        all[0].push_back(std::min(tokens, most));
      } else if (tokens <= most) {
        all[0].push_back(tokens);
      }
    }
    CONTEXTILE_CHECK(!all[0].empty(),
                     "lengths: expected documents of at most {} tokens, found {}, all longer",
                     longest(options), lengths.size());
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
