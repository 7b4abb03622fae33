// The job of a search of set-ups, and the steps that are drawn from its documents.
#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <span>

#include "base/check.h"
#include "contextile/data.h"
#include "training/advise/candidates.h"

namespace contextile {
namespace {

constexpr std::int64_t kLeastTokens = 8192;
constexpr std::int64_t kDefaultStepTokens = std::int64_t{4} << 20;
// Micro-batches of all steps together, at least, and steps at most.
constexpr std::int64_t kDrawnMicroBatches = 8;
constexpr std::int64_t kMaxSteps = 4;
// More in a step are a slip of the tokens given, and would fill the memory.
constexpr std::int64_t kMaxMicroBatches = 1 << 16;
constexpr std::int64_t kMaxDocuments = 1 << 22;

// The same order everywhere: std::shuffle may differ between libraries.
void shuffle(std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t left = lengths.size(); left > 1; --left) {
    std::swap(lengths[left - 1], lengths[random() % left]);
  }
}

// The documents of a step in as many micro-batches of about equal work. Nothing waits for a later
// step, so that every packing has the same documents.
std::vector<BatchLengths> packed_by_work(const std::vector<BatchLengths>& sequential,
                                         std::int64_t tokens) {
  std::vector<Document> documents;
  for (const BatchLengths& batch : sequential) {
    for (const std::int64_t length : batch) documents.push_back({.length_tokens = length});
  }
  WlbPackingOptions options;
  options.micro_batches = checked_cast<std::int32_t>(sequential.size(), "micro-batches of a step");
  options.max_tokens = 2 * tokens;
  std::vector<BatchLengths> packed;
  for (const MicroBatch& micro_batch : pack_wlb_without_defer(documents, options)) {
    // Fewer documents than micro-batches: an empty one cannot be planned.
    if (micro_batch.empty()) return sequential;
    BatchLengths& lengths = packed.emplace_back();
    for (const Document& document : micro_batch) lengths.push_back(document.length_tokens);
  }
  return packed;
}

// A circle of documents that fills micro-batches.
struct Circle {
  std::span<const std::int64_t> lengths;
  std::size_t next = 0;   // document
  std::int64_t rest = 0;  // of the document that the last micro-batch cut
  std::int64_t cut = 0;   // documents so far
};

// The next documents of a circle, so many tokens. The last one is cut to fit, and the next
// micro-batch begins with its rest, as a document of its own.
BatchLengths fill(Circle& circle, std::int64_t tokens) {
  BatchLengths lengths;
  for (std::int64_t left = tokens; left > 0; left -= lengths.back()) {
    const bool continued = circle.rest > 0;
    const std::int64_t length =
        continued ? circle.rest : circle.lengths[circle.next++ % circle.lengths.size()];
    lengths.push_back(std::min(length, left));
    circle.rest = length - lengths.back();
    if (circle.rest > 0 && !continued) ++circle.cut;
  }
  return lengths;
}

}  // namespace

std::int64_t default_tokens(const std::vector<std::int64_t>& lengths) {
  const std::int64_t longest = lengths.empty() ? 1 : std::ranges::max(lengths);
  return std::max(kLeastTokens,
                  static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(longest))));
}

std::int64_t default_step_tokens(std::int64_t tokens) {
  return std::max(tokens, kDefaultStepTokens / tokens * tokens);
}

AdviseJob complete_job(const AdviseJob& job) {
  AdviseJob complete = job;
  check_model(job.model);
  check_cluster(job.cluster);
  check_iteration_options(job.options);
  if (job.lengths.empty()) fail_argument("advise: expected lengths of documents, found none");
  for (const std::int64_t length : job.lengths) {
    if (length < 1) fail_argument("advise: expected lengths of at least 1 token, found {}", length);
  }
  if (complete.tokens == 0) complete.tokens = default_tokens(job.lengths);
  if (complete.tokens < 1) {
    fail_argument("advise: expected at least 1 token a micro-batch, found {}", complete.tokens);
  }
  if (complete.step_tokens == 0) complete.step_tokens = default_step_tokens(complete.tokens);
  if (complete.step_tokens < 1 || complete.step_tokens % complete.tokens != 0) {
    fail_argument(
        "advise: expected the tokens of a step as a multiple of {} (one micro-batch), "
        "found {}",
        complete.tokens, complete.step_tokens);
  }
  if (complete.step_tokens / complete.tokens > kMaxMicroBatches) {
    fail_argument(
        "advise: expected at most {} micro-batches a step, found {}: micro-batches of {} tokens in "
        "a step of {}",
        kMaxMicroBatches, complete.step_tokens / complete.tokens, complete.tokens,
        complete.step_tokens);
  }
  const double mean = std::reduce(job.lengths.begin(), job.lengths.end(), 0.0) /
                      static_cast<double>(job.lengths.size());
  if (static_cast<double>(complete.step_tokens) > kMaxDocuments * mean) {
    fail_argument(
        "advise: expected a step of at most {} documents, found {} tokens of documents of {:.0f} "
        "on average",
        kMaxDocuments, complete.step_tokens, mean);
  }
  return complete;
}

DrawnSteps::DrawnSteps(const AdviseJob& job) {
  const std::int64_t micro_batches = job.step_tokens / job.tokens;
  const std::int64_t steps = std::clamp<std::int64_t>(
      (kDrawnMicroBatches + micro_batches - 1) / micro_batches, 1, kMaxSteps);
  std::vector<std::int64_t> shuffled = job.lengths;
  shuffle(shuffled, job.seed);
  const TrainingJob whole{.model = job.model,
                          .cluster = job.cluster,
                          .masks = job.masks,
                          .plan = {},
                          .options = job.options,
                          .micro_batches = {}};
  Circle circle{.lengths = shuffled};
  for (std::int64_t i = 0; i < steps; ++i) {
    std::array<TrainingJob, 2> packed = {whole, whole};
    for (std::int64_t k = 0; k < micro_batches; ++k) {
      packed[0].micro_batches.push_back(fill(circle, job.tokens));
    }
    packed[1].micro_batches = packed_by_work(packed[0].micro_batches, job.tokens);
    steps_.push_back(std::move(packed));
  }
  repeats_ = circle.next > shuffled.size();
  cut_ = circle.cut;
}

std::int64_t DrawnSteps::tokens(DocumentPacking packing) const {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    for (const BatchLengths& batch : step(i, packing).micro_batches) {
      tokens += std::reduce(batch.begin(), batch.end());
    }
  }
  return tokens;
}

}  // namespace contextile
