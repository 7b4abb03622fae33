// Lengths of real batches: files, built-in distributions, and filling batches of a given size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// ----------------------------------------------------------------------------------------- packing
//
// Packing the documents of every training step into micro-batches of about equal work, as WLB-LLM
// does: very long documents wait until every micro-batch can have one.

// A document on its way into a micro-batch.
struct Document {
  std::int64_t id = 0;  // the caller's; carried along, never looked at
  std::int64_t length_tokens = 0;

  friend constexpr auto operator<=>(const Document&, const Document&) = default;
};

struct WlbPackingOptions {
  std::int32_t micro_batches = 4;  // N, of one step
  std::int64_t max_tokens = 0;     // Lmax of one micro-batch
  // T1 < T2 < …: a document of at least T1 tokens waits in the queue of the highest level it
  // reaches. Unset: one level at max_tokens / 4. Empty: nothing waits.
  std::optional<std::vector<std::int64_t>> outlier_levels_tokens{};
  // B: a document of this many tokens costs as much in attention as in everything else.
  std::int64_t balance_tokens = 131072;
};

// Work of a document, attention and everything else: (L/B)² + L/B.
[[nodiscard]] double packing_workload(std::int64_t length_tokens, std::int64_t balance_tokens);

// Documents in the order in which they were placed.
using MicroBatch = std::vector<Document>;

// What waits from one step to the next. A default-constructed state is the beginning.
struct WlbPackingState {
  std::vector<std::vector<Document>> queues;  // of each level, oldest first
  std::vector<Document> remained;             // found no room in the last step, first come first

  [[nodiscard]] std::size_t num_waiting() const;
};

struct WlbPackingStep {
  std::vector<MicroBatch> micro_batches;  // N; those that got nothing are empty
  WlbPackingState state;                  // for the next step
};

enum class OutlierRelease : std::uint8_t {
  kFullQueues,  // the N oldest of every queue that holds at least N
  kAll,         // everything: the data is at its end
};

// One step of WLB-LLM's Algorithm 1 (Wang et al., OSDI 2025; as two public implementations read
// it). Outliers join their queue, queues release, and what is new or released is sorted by length,
// longest first (ties: new before released, in their order). After those that remained, each goes
// to the micro-batch with the least work if it fits, else to the one with the fewest tokens if it
// fits (ties: the first), else it remains.
//
// No document is lost, doubled or cut, and no micro-batch exceeds max_tokens. What remains is
// served first: the n-th of `remained` (from 0) is placed within n / N + 1 steps. The n-th of a
// queue is released at the latest when n / N steps have passed and the queue holds N documents; at
// the end of the data call with kAll (and nothing new) until nothing waits.
//
// Throws InvalidArgument on bad options, a state that does not fit them, and a document that is
// empty or longer than max_tokens (naming it). O(D log D + D·N) for D documents.
[[nodiscard]] WlbPackingStep pack_wlb(WlbPackingState state, std::span<const Document> arriving,
                                      const WlbPackingOptions& options,
                                      OutlierRelease release = OutlierRelease::kFullQueues);

// The same for one step on its own, as DistCA's baseline does it: nothing waits; what fits nowhere
// goes, in its order and after all others, to the micro-batch with the least work, max_tokens
// notwithstanding. Levels are ignored. An empty micro-batch stays empty (DistCA's holds a document
// of padding). Throws InvalidArgument on bad options and empty documents.
[[nodiscard]] std::vector<MicroBatch> pack_wlb_without_defer(std::span<const Document> documents,
                                                             const WlbPackingOptions& options);

// -------------------------------------------------------------------------------------------- data

// Reads sequence lengths: one per line (.txt or anything else), a JSON array (.json or text that
// starts with '['), JSONL with `length_field` in every object, .npy (1-d integers) or a Megatron-LM
// .idx (its sequence lengths). Throws IoError when it cannot be read and InvalidArgument (file,
// line or index, expected, found) when it is not what it claims; zero and negative lengths are
// errors.
[[nodiscard]] std::vector<std::int64_t> read_lengths(const std::string& path,
                                                     std::string_view length_field = "length");

// The formats themselves; `where` names the source in messages.
[[nodiscard]] std::vector<std::int64_t> parse_lengths_text(std::string_view text,
                                                           std::string_view length_field,
                                                           std::string_view where);
[[nodiscard]] std::vector<std::int64_t> parse_lengths_npy(std::span<const std::uint8_t> bytes,
                                                          std::string_view where);
[[nodiscard]] std::vector<std::int64_t> parse_lengths_idx(std::span<const std::uint8_t> bytes,
                                                          std::string_view where);

// A mask file: {"bands": [[q0, q1, k0, k1, lo, hi], …]}, null for infinite. The bands are checked
// against the batch (range and disjointness). Throws IoError, InvalidArgument.
[[nodiscard]] Mask read_mask_file(const std::string& path, std::int64_t num_tokens);
[[nodiscard]] Mask parse_mask_json(std::string_view text, std::int64_t num_tokens,
                                   std::string_view where);

struct Dataset {
  std::string_view name;
  std::string_view description;  // what it is like, and the source of its parameters
};
[[nodiscard]] std::span<const Dataset> datasets();

// How documents are put together.
enum class Packing : std::uint8_t {
  kSequential,  // in order; the last document of a batch is cut to fit
  kWlb,         // what would be N sequential batches is packed anew by pack_wlb, step by step
  kWlbNoDefer,  // the same by pack_wlb_without_defer
};

// How documents become batches.
struct BatchOptions {
  std::int64_t tokens = 0;  // per batch; 0: a lengths file is one batch (a dataset needs a number)
  std::int64_t batches = 1;
  std::int64_t max_length = 0;  // longer documents are cut to this; 0: no limit
  double scale = 1;             // every length is multiplied by this (at least 1 token remains)
  std::uint64_t seed = 0;       // of a dataset's samples
  Packing packing = Packing::kSequential;
  WlbPackingOptions wlb{};  // of the packings with steps; max_tokens 0: twice `tokens`
};

// "sequential" or "wlb[:key=value,…]" with the keys micro_batches, max_tokens, levels
// (T1:T2:… or none), balance and defer (on, off), into `options`. Throws InvalidArgument.
void parse_packing(std::string_view text, BatchOptions& options);

// Sequential: documents fill batches in order; the last document of a batch is cut to fit.
// With steps: each takes the documents of `wlb.micro_batches` sequential batches and packs them
// anew; every micro-batch that is not empty is a batch, until there are `batches` of them. What
// then still waits is not used. Throws InvalidArgument when the lengths run out before the batches
// are full, and as the packings do.
[[nodiscard]] std::vector<std::vector<std::int64_t>> batches_from_lengths(
    std::span<const std::int64_t> lengths, const BatchOptions& options);
// The same over samples of a built-in distribution. Unknown names list the known ones.
[[nodiscard]] std::vector<std::vector<std::int64_t>> batches_from_dataset(
    std::string_view name, const BatchOptions& options);

// Home layouts: which rank already holds which tokens. `text` is
//   contiguous  rank r holds [T·r/R, T·(r+1)/R) of the packed batch,
//   zigzag      rank r holds chunks r and 2R-1-r of the 2R equal chunks of every sequence,
//               clipped to it (Transformer Engine's layout without its padding),
//   anything else: a file, {"home": [[begin, end, rank], …]}.
// Throws InvalidArgument or IoError.
[[nodiscard]] std::vector<HomeRange> load_layout(const std::string& text,
                                                 std::span<const Range> sequences,
                                                 std::int32_t num_ranks);
[[nodiscard]] std::vector<HomeRange> parse_layout_json(std::string_view text,
                                                       std::int32_t num_ranks,
                                                       std::string_view where);

// ----------------------------------------------------------------------------------- batch sampler
//
// Batches of a training run: the same batch for a step, whoever asks, in whatever order.

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

// ---------------------------------------------------------------------------------- workload input
//
// A batch as users describe it, turned into the workload that one context-parallel rank sees: what
// every front end needs between lengths and plan_batch.

// What holds for all batches of a job, whatever their lengths.
struct WorkloadInput {
  AttentionShape shape;        // heads of the whole model
  std::int32_t tp = 1;         // tensor-parallel ranks that divide the heads among them
  std::vector<MaskUse> masks;  // empty: causal
  std::string mask_path;       // a file for read_mask_file instead of `masks`; empty: none
  std::string layout;          // as load_layout takes it; empty: the plan chooses owners
};

// The heads of one of `tp` tensor-parallel ranks. Throws InvalidArgument on a shape that is not
// valid, or whose query and KV heads `tp` does not divide.
[[nodiscard]] AttentionShape shape_of_rank(AttentionShape shape, std::int32_t tp);

// Throws InvalidArgument when the shape cannot be divided or masks come from two places.
void check_workload_input(const WorkloadInput& input);

// The batch of `lengths` on `num_ranks` context-parallel ranks: sequences, the shape of one
// tensor-parallel rank, masks (a mask file is read for this batch's tokens) and home layout, all
// checked. Throws InvalidArgument or IoError. O(bands + home ranges).
[[nodiscard]] Workload load_workload(std::span<const std::int64_t> lengths,
                                     const WorkloadInput& input, std::int32_t num_ranks);

}  // namespace contextile
