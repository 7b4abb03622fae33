#include "contextile/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "contextile/mask.h"
#include "data/datasets.h"
#include "data/length_formats.h"

namespace contextile {
namespace {

constexpr std::int64_t kMaxStreamTokens = std::int64_t{1} << 62;
constexpr std::int64_t kMaxDocuments = std::int64_t{1} << 30;

}  // namespace

BatchSampler::BatchSampler(std::vector<std::int64_t> documents_tokens,
                           const BatchSamplerOptions& options)
    : options_(options), documents_(std::move(documents_tokens)) {
  CONTEXTILE_CHECK(options.tokens >= 1 && options.tokens <= kMaxTokens,
                   "tokens: expected 1 to {} in a batch, found {}", kMaxTokens, options.tokens);
  CONTEXTILE_CHECK(options.max_document_tokens >= 0,
                   "max document tokens: expected a number or 0 for the batch's, found {}",
                   options.max_document_tokens);
  const std::int64_t most = options.max_document_tokens;
  options_.max_document_tokens = most == 0 ? options.tokens : std::min(most, options.tokens);
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    static_cast<void>(checked_length(documents_[i], "documents", "index", i));
  }
  if (options.long_documents == LongDocuments::kDrop) {
    num_dropped_ = static_cast<std::int64_t>(std::erase_if(
        documents_, [&](std::int64_t l) { return l > options_.max_document_tokens; }));
  }
  CONTEXTILE_CHECK(!documents_.empty(),
                   "documents: expected at least one of at most {} tokens, found {}, all longer",
                   options_.max_document_tokens, num_dropped_);
  for (const std::int64_t length : documents_) {
    epoch_tokens_ += length;
    CONTEXTILE_CHECK(epoch_tokens_ <= kMaxStreamTokens,
                     "documents: expected at most 2^62 tokens in all, found more");
  }
}

BatchSampler BatchSampler::of_dataset(std::string_view name, std::int64_t num_documents,
                                      const BatchSamplerOptions& options) {
  CONTEXTILE_CHECK(num_documents >= 1 && num_documents <= kMaxDocuments,
                   "documents: expected 1 to {} of dataset {}, found {}", kMaxDocuments, name,
                   num_documents);
  LengthSampler sampler(name, options.seed);
  std::vector<std::int64_t> documents(static_cast<std::size_t>(num_documents));
  for (std::int64_t& length : documents) length = sampler.next();
  return {std::move(documents), options};
}

std::int64_t BatchSampler::num_documents() const { return std::ssize(documents_); }

std::vector<std::int64_t> BatchSampler::batch(std::int64_t step) const {
  CONTEXTILE_CHECK(step >= 0 && step < kMaxStreamTokens / options_.tokens,
                   "batch: expected a step of 0 to {}, found {}",
                   kMaxStreamTokens / options_.tokens - 1, step);
  return options_.long_documents == LongDocuments::kSplit ? batch_of_pieces(step)
                                                          : batch_of_whole(step);
}

// Lengths in the order of that epoch (Fisher and Yates).
std::vector<std::int64_t> BatchSampler::order(std::int64_t epoch) const {
  constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15ULL;  // seeds of epochs are far apart
  Rng rng(options_.seed + kSpread * (static_cast<std::uint64_t>(epoch) + 1));
  std::vector<std::int64_t> lengths = documents_;
  for (std::size_t i = lengths.size() - 1; i > 0; --i) {
    std::swap(lengths[i], lengths[rng.next() % (i + 1)]);
  }
  return lengths;
}

// Epochs one after another are one stream of tokens, cut where batches end.
std::vector<std::int64_t> BatchSampler::batch_of_pieces(std::int64_t step) const {
  std::vector<std::int64_t> batch;
  std::int64_t missing = options_.tokens;
  std::int64_t skip = step * options_.tokens % epoch_tokens_;
  for (std::int64_t epoch = step * options_.tokens / epoch_tokens_;; ++epoch) {
    for (const std::int64_t length : order(epoch)) {
      for (std::int64_t left = length; left > 0;) {
        std::int64_t piece = std::min(left, options_.max_document_tokens);
        left -= piece;
        const std::int64_t skipped = std::min(skip, piece);
        skip -= skipped;
        piece = std::min(piece - skipped, missing);
        if (piece == 0) continue;
        batch.push_back(piece);
        missing -= piece;
        if (missing == 0) return batch;
      }
    }
  }
}

std::vector<std::int64_t> BatchSampler::batch_of_whole(std::int64_t step) const {
  std::int64_t at = 0;
  for (std::int64_t epoch = 0;; ++epoch) {
    std::vector<std::int64_t> batch;
    std::int64_t tokens = 0;
    for (const std::int64_t length : order(epoch)) {
      if (tokens + length > options_.tokens) {
        if (at++ == step) return batch;
        batch.clear();
        tokens = 0;
      }
      batch.push_back(length);
      tokens += length;
    }
    if (at++ == step) return batch;
  }
}

}  // namespace contextile
