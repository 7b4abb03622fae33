// Batches of a training run: the same batch for a step, whoever asks, in whatever order.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// What happens to documents that are too long, and to those that cross the end of a batch.
enum class LongDocuments : std::uint8_t {
  // They are cut: a document into pieces of at most max_document_tokens, a piece at the end of a
  // batch, whose rest begins the next one. Every batch has exactly `tokens`; no token is left out.
  kSplit,
  // Documents that are too long are left out; one that does not fit any more begins the next batch.
  // Batches have at most `tokens`; no document is cut.
  kDrop,
};

struct BatchSamplerOptions {
  std::int64_t tokens = 131072;          // of a batch
  std::int64_t max_document_tokens = 0;  // 0: `tokens`
  LongDocuments long_documents = LongDocuments::kSplit;
  std::uint64_t seed = 0;  // of the order of documents, another in every epoch
};

// A part of a document, or all of it.
struct DocumentPiece {
  std::int64_t document = 0;  // index in what the sampler was given
  Range tokens;               // of the document

  friend bool operator==(const DocumentPiece&, const DocumentPiece&) = default;
};

// All documents once an epoch, in an order drawn anew for each. Has no state: any thread may ask
// for any step, and a run goes on from any step.
class BatchSampler {
 public:
  // The documents' lengths. Throws InvalidArgument on bad options, lengths that are not positive,
  // and where nothing is left of them.
  BatchSampler(std::vector<std::int64_t> documents_tokens, const BatchSamplerOptions& options);
  // The same over `num_documents` lengths of a built-in distribution (data.h), drawn by the seed.
  [[nodiscard]] static BatchSampler of_dataset(std::string_view name, std::int64_t num_documents,
                                               const BatchSamplerOptions& options);

  // What that step's batch is made of, in order. Throws InvalidArgument on a step below 0 or beyond
  // 2^62 tokens. kSplit: O(documents); kDrop: O(documents · epochs so far).
  [[nodiscard]] std::vector<DocumentPiece> pieces(std::int64_t step) const;
  // Their lengths, tokens.
  [[nodiscard]] std::vector<std::int64_t> batch(std::int64_t step) const;

  [[nodiscard]] const BatchSamplerOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t num_documents() const;  // that are used
  [[nodiscard]] std::int64_t num_dropped() const { return num_dropped_; }
  [[nodiscard]] std::int64_t epoch_tokens() const { return epoch_tokens_; }

 private:
  [[nodiscard]] std::vector<DocumentPiece> order(std::int64_t epoch) const;
  [[nodiscard]] std::vector<DocumentPiece> pieces_cut(std::int64_t step) const;
  [[nodiscard]] std::vector<DocumentPiece> pieces_whole(std::int64_t step) const;

  BatchSamplerOptions options_;
  std::vector<DocumentPiece> documents_;  // whole ones, those that are used
  std::int64_t num_dropped_ = 0;
  std::int64_t epoch_tokens_ = 0;
};

}  // namespace contextile
