#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "batch/input/datasets.h"
#include "batch/input/length_formats.h"
#include "contextile/data.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

constexpr std::int64_t kMaxStreamTokens = std::int64_t{1} << 62;
constexpr std::int64_t kMaxDocuments = std::int64_t{1} << 30;

}  // namespace

BatchSampler::BatchSampler(std::vector<std::int64_t> documents_tokens,
                           const BatchSamplerOptions& options)
    : options_(options) {
  CONTEXTILE_CHECK(options.tokens >= 1 && options.tokens <= kMaxTokens,
                   "tokens: expected 1 to {} in a batch, found {}", kMaxTokens, options.tokens);
  CONTEXTILE_CHECK(options.max_document_tokens >= 0,
                   "max document tokens: expected a number or 0 for the batch's, found {}",
                   options.max_document_tokens);
  const std::int64_t most = options.max_document_tokens;
  options_.max_document_tokens = most == 0 ? options.tokens : std::min(most, options.tokens);
  CONTEXTILE_CHECK(!documents_tokens.empty(), "documents: expected at least one, found none");
  documents_.reserve(documents_tokens.size());
  for (std::size_t i = 0; i < documents_tokens.size(); ++i) {
    const std::int64_t length = checked_length(documents_tokens[i], "documents", "index", i);
    if (options.long_documents == LongDocuments::kDrop && length > options_.max_document_tokens) {
      ++num_dropped_;
    } else {
      documents_.push_back({static_cast<std::int64_t>(i), {0, length}});
    }
  }
  CONTEXTILE_CHECK(!documents_.empty(),
                   "documents: expected at least one of at most {} tokens, found {}, all longer",
                   options_.max_document_tokens, num_dropped_);
  for (const DocumentPiece& document : documents_) {
    epoch_tokens_ += document.tokens.size();
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
  std::vector<std::int64_t> lengths;
  for (const DocumentPiece& piece : pieces(step)) lengths.push_back(piece.tokens.size());
  return lengths;
}

std::vector<DocumentPiece> BatchSampler::pieces(std::int64_t step) const {
  return std::move(pieces_of(step, 1).front());
}

std::vector<std::vector<DocumentPiece>> BatchSampler::pieces_of(std::int64_t first,
                                                                std::int64_t count) const {
  const std::int64_t end = kMaxStreamTokens / options_.tokens;
  CONTEXTILE_CHECK(first >= 0 && first < end, "batch: expected a step of 0 to {}, found {}",
                   end - 1, first);
  CONTEXTILE_CHECK(count >= 1 && count <= end - first, "batch: expected 1 to {} steps, found {}",
                   end - first, count);
  return options_.long_documents == LongDocuments::kSplit ? pieces_cut(first, count)
                                                          : pieces_whole(first, count);
}

// The documents in the order of that epoch (Fisher-Yates).
std::vector<DocumentPiece> BatchSampler::order(std::int64_t epoch) const {
  constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15ULL;  // seeds of epochs are far apart
  Rng rng(options_.seed + kSpread * (static_cast<std::uint64_t>(epoch) + 1));
  std::vector<DocumentPiece> documents = documents_;
  for (std::size_t i = documents.size() - 1; i > 0; --i) {
    std::swap(documents[i], documents[rng.next() % (i + 1)]);
  }
  return documents;
}

// Cuts the stream of tokens that consecutive epochs form where batches end.
std::vector<std::vector<DocumentPiece>> BatchSampler::pieces_cut(std::int64_t first,
                                                                 std::int64_t count) const {
  std::vector<std::vector<DocumentPiece>> batches(1);
  std::int64_t missing = options_.tokens;
  std::int64_t skip = first * options_.tokens % epoch_tokens_;
  for (std::int64_t epoch = first * options_.tokens / epoch_tokens_;; ++epoch) {
    for (const DocumentPiece& document : order(epoch)) {
      for (std::int64_t at = 0; at < document.tokens.end;) {
        // The piece's end may lie in a later batch; then the loop comes back for the rest of it.
        const std::int64_t length =
            std::min(document.tokens.end - at,
                     options_.max_document_tokens - at % options_.max_document_tokens);
        const std::int64_t skipped = std::min(skip, length);
        skip -= skipped;
        const std::int64_t taken = std::min(length - skipped, missing);
        if (taken > 0) {
          batches.back().push_back({document.document, {at + skipped, at + skipped + taken}});
          missing -= taken;
        }
        at += skipped + taken;
        if (missing > 0) continue;
        if (std::ssize(batches) == count) return batches;
        batches.emplace_back();
        missing = options_.tokens;
      }
    }
  }
}

std::vector<std::vector<DocumentPiece>> BatchSampler::pieces_whole(std::int64_t first,
                                                                   std::int64_t count) const {
  std::vector<std::vector<DocumentPiece>> batches;
  std::int64_t at = 0;
  std::vector<DocumentPiece> batch;
  // Ends a batch. Returns true if it was the last one requested.
  const auto end_batch = [&] {
    if (at++ >= first) batches.push_back(std::move(batch));
    batch.clear();
    return std::ssize(batches) == count;
  };
  for (std::int64_t epoch = 0;; ++epoch) {
    std::int64_t tokens = 0;
    for (const DocumentPiece& document : order(epoch)) {
      if (tokens + document.tokens.end > options_.tokens) {
        if (end_batch()) return batches;
        tokens = 0;
      }
      batch.push_back(document);
      tokens += document.tokens.end;
    }
    if (end_batch()) return batches;
  }
}

}  // namespace contextile
