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
  CONTEXTILE_CHECK(step >= 0 && step < kMaxStreamTokens / options_.tokens,
                   "batch: expected a step of 0 to {}, found {}",
                   kMaxStreamTokens / options_.tokens - 1, step);
  return options_.long_documents == LongDocuments::kSplit ? pieces_cut(step) : pieces_whole(step);
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
std::vector<DocumentPiece> BatchSampler::pieces_cut(std::int64_t step) const {
  std::vector<DocumentPiece> batch;
  std::int64_t missing = options_.tokens;
  std::int64_t skip = step * options_.tokens % epoch_tokens_;
  for (std::int64_t epoch = step * options_.tokens / epoch_tokens_;; ++epoch) {
    for (const DocumentPiece& document : order(epoch)) {
      for (std::int64_t at = 0; at < document.tokens.end;) {
        const std::int64_t length =
            std::min(document.tokens.end - at, options_.max_document_tokens);
        const std::int64_t skipped = std::min(skip, length);
        skip -= skipped;
        const std::int64_t taken = std::min(length - skipped, missing);
        if (taken > 0) {
          batch.push_back({document.document, {at + skipped, at + skipped + taken}});
          missing -= taken;
          if (missing == 0) return batch;
        }
        at += length;
      }
    }
  }
}

std::vector<DocumentPiece> BatchSampler::pieces_whole(std::int64_t step) const {
  std::int64_t at = 0;
  for (std::int64_t epoch = 0;; ++epoch) {
    std::vector<DocumentPiece> batch;
    std::int64_t tokens = 0;
    for (const DocumentPiece& document : order(epoch)) {
      if (tokens + document.tokens.end > options_.tokens) {
        if (at++ == step) return batch;
        batch.clear();
        tokens = 0;
      }
      batch.push_back(document);
      tokens += document.tokens.end;
    }
    if (at++ == step) return batch;
  }
}

}  // namespace contextile
