// Lengths of real batches: files, built-in distributions, and packing into batches of a given size.
//
//   const std::vector<std::int64_t> lengths = read_lengths("lengths.txt");
//   for (const auto& batch : batches_from_lengths(lengths, {.tokens = 131072, .batches = 4})) {}
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
// Packing of the documents of every training step into micro-batches of about equal work, as
// WLB-LLM does it: very long documents wait until every micro-batch can have one.

// A document that is to be packed into a micro-batch.
struct Document {
  std::int64_t id = 0;  // the caller's; carried along, never used
  std::int64_t length_tokens = 0;

  friend constexpr auto operator<=>(const Document&, const Document&) = default;
};

struct WlbPackingOptions {
  std::int32_t micro_batches = 4;  // N, micro-batches of one step
  std::int64_t max_tokens = 0;     // Lmax, tokens of one micro-batch
  // T1 < T2 < …: a document of at least T1 tokens waits in the queue of the highest level it
  // reaches. Unset: one level at max_tokens / 4. Empty: nothing waits.
  std::optional<std::vector<std::int64_t>> outlier_levels_tokens{};
  // B: a document of this many tokens costs as much in attention as in everything else.
  std::int64_t balance_tokens = 131072;
};

// Returns the work of a document, attention and everything else: (L/B)² + L/B.
[[nodiscard]] double packing_workload(std::int64_t length_tokens, std::int64_t balance_tokens);

// The documents of a micro-batch, in the order in which they were placed.
using MicroBatch = std::vector<Document>;

// The documents that wait from one step to the next. A default-constructed state is the beginning.
struct WlbPackingState {
  std::vector<std::vector<Document>> queues;  // of each level, oldest first
  std::vector<Document> remained;             // found no room in the last step, in order of arrival

  [[nodiscard]] std::size_t num_waiting() const;
};

struct WlbPackingStep {
  std::vector<MicroBatch> micro_batches;  // N of them; those that got no document are empty
  WlbPackingState state;                  // for the next step
};

enum class OutlierRelease : std::uint8_t {
  kFullQueues,  // the N oldest documents of every queue that holds at least N
  kAll,         // everything, because the data is at its end
};

// One step of WLB-LLM's Algorithm 1 (Wang et al., OSDI 2025; as two public implementations read
// it). Outliers join their queue and queues release documents. New and released documents are
// sorted by length, longest first (ties: new before released, in their order). After the documents
// that remained from the last step, each goes to the micro-batch with the least work if it fits,
// otherwise to the one with the fewest tokens if it fits (ties: the first), otherwise it remains.
//
// No document is lost, duplicated or cut, and no micro-batch exceeds max_tokens. Remaining
// documents are served first: the n-th of `remained` (from 0) is placed within n / N + 1 steps. The
// n-th of a queue is released at the latest when n / N steps have passed and the queue holds N
// documents. At the end of the data, call with kAll (and nothing new) until nothing waits.
//
// Throws InvalidArgument on bad options, a state that does not fit them, and a document that is
// empty or longer than max_tokens (naming it). O(D log D + D·N) for D documents.
[[nodiscard]] WlbPackingStep pack_wlb(WlbPackingState state, std::span<const Document> arriving,
                                      const WlbPackingOptions& options,
                                      OutlierRelease release = OutlierRelease::kFullQueues);

// The same for one step by itself, as DistCA's baseline does it: nothing waits. Documents that fit
// nowhere go, in their order and after all others, to the micro-batch with the least work, even
// beyond max_tokens. Levels are ignored. An empty micro-batch stays empty (DistCA's holds a
// document of padding). Throws InvalidArgument on bad options and empty documents.
[[nodiscard]] std::vector<MicroBatch> pack_wlb_without_defer(std::span<const Document> documents,
                                                             const WlbPackingOptions& options);

struct DpBalancedPackingOptions {
  std::int64_t max_tokens = 0;     // tokens of one micro-batch
  std::int64_t multiple = 1;       // the number of micro-batches is a multiple of it
  std::int32_t max_documents = 0;  // in a micro-batch; 0: no limit
};

// Packing of Megatron-LM dev, data_schedule.py (DpBalancedScheduler). Documents fill micro-batches
// in the order they come (next fit). While the number of micro-batches is not a multiple, the last
// document of the last micro-batch with several documents gets a micro-batch of its own. Throws
// InvalidArgument on bad options, on a document that is empty or longer than max_tokens, and when
// there are too few documents for a multiple. O(documents).
[[nodiscard]] std::vector<MicroBatch> pack_dp_balanced(std::span<const Document> documents,
                                                       const DpBalancedPackingOptions& options);

// -------------------------------------------------------------------------------------------- data

// Reads sequence lengths: one per line (.txt or anything else), a JSON array (.json or text that
// starts with '['), JSONL with `length_field` in every object, .npy (1-d integers) or a Megatron-LM
// .idx (its sequence lengths). Throws IoError when the file cannot be read, and InvalidArgument
// (file, line or index, expected, found) when its content is malformed. Zero and negative lengths
// are errors.
[[nodiscard]] std::vector<std::int64_t> read_lengths(const std::string& path,
                                                     std::string_view length_field = "length");

// Parsers of the formats. `where` names the source in messages.
[[nodiscard]] std::vector<std::int64_t> parse_lengths_text(std::string_view text,
                                                           std::string_view length_field,
                                                           std::string_view where);
[[nodiscard]] std::vector<std::int64_t> parse_lengths_npy(std::span<const std::uint8_t> bytes,
                                                          std::string_view where);
[[nodiscard]] std::vector<std::int64_t> parse_lengths_idx(std::span<const std::uint8_t> bytes,
                                                          std::string_view where);

// Reads a mask file: {"bands": [[q0, q1, k0, k1, lo, hi], …]}, null for infinite. The bands are
// checked against the batch (range and disjointness). Throws IoError or InvalidArgument.
[[nodiscard]] Mask read_mask_file(const std::string& path, std::int64_t num_tokens);
[[nodiscard]] Mask parse_mask_json(std::string_view text, std::int64_t num_tokens,
                                   std::string_view where);

struct Dataset {
  std::string_view name;
  std::string_view description;  // its shape and the source of its parameters
};
[[nodiscard]] std::span<const Dataset> datasets();

// How documents are packed into batches.
enum class Packing : std::uint8_t {
  kSequential,  // in order; the last document of a batch is cut to fit
  kWlb,         // N sequential batches at a time are packed again by pack_wlb, step by step
  kWlbNoDefer,  // the same by pack_wlb_without_defer
};

// The treatment of documents that are too long, and of those that cross the end of a batch.
enum class LongDocuments : std::uint8_t {
  kSplit,  // they are cut; BatchOptions and BatchSamplerOptions say what becomes of the rest
  // Documents that are too long are left out. A document that no longer fits begins the next batch.
  // Batches have at most `tokens`; no document is cut.
  kDrop,
};

// Options of making batches of documents.
struct BatchOptions {
  std::int64_t tokens = 0;  // per batch; 0: a lengths file is one batch (a dataset needs a number)
  std::int64_t batches = 1;
  std::int64_t max_length = 0;  // longer documents are cut to this, or left out; 0: no limit
  LongDocuments long_documents = LongDocuments::kSplit;  // kSplit: what is cut off is not used
  double scale = 1;        // every length is multiplied by this (at least 1 token remains)
  std::uint64_t seed = 0;  // of a dataset's samples
  Packing packing = Packing::kSequential;
  WlbPackingOptions wlb{};  // of the packings with steps; max_tokens 0: twice `tokens`
};

// Parses "sequential" or "wlb[:key=value,…]" with the keys micro_batches, max_tokens, levels
// (T1:T2:… or none), balance and defer (on, off) into `options`. Throws InvalidArgument.
void parse_packing(std::string_view text, BatchOptions& options);

// Makes batches of documents. Sequential: documents fill batches in order; the last document of a
// batch is cut to fit, or begins the next batch if long documents are dropped. Packings with steps:
// each step takes the documents of `wlb.micro_batches` sequential batches and packs them again.
// Every micro-batch that is not empty is a batch, until there are `batches` of them. Documents that
// still wait then are not used. Throws InvalidArgument when the lengths run out before the batches
// are full, and as the packings do.
[[nodiscard]] std::vector<std::vector<std::int64_t>> batches_from_lengths(
    std::span<const std::int64_t> lengths, const BatchOptions& options);
// The same over samples of a built-in distribution. An unknown name throws with a list of the known
// ones.
[[nodiscard]] std::vector<std::vector<std::int64_t>> batches_from_dataset(
    std::string_view name, const BatchOptions& options);

// Home layouts: the rank that already holds each token. `text` is
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
// Batches of a training run. A step always has the same batch, whichever process requests it and in
// whatever order.

struct BatchSamplerOptions {
  std::int64_t tokens = 131072;          // of a batch
  std::int64_t max_document_tokens = 0;  // 0: `tokens`
  // kSplit: long documents are split into pieces of at most max_document_tokens. The last piece of
  // a batch is cut at the batch's end, and the rest begins the next batch. Every batch has exactly
  // `tokens`; no token is left out.
  LongDocuments long_documents = LongDocuments::kSplit;
  std::uint64_t seed = 0;  // of the order of documents, which differs in every epoch
};

// A part of a document, or all of it.
struct DocumentPiece {
  std::int64_t document = 0;  // index in the lengths that the sampler was given
  Range tokens;               // range within the document

  friend bool operator==(const DocumentPiece&, const DocumentPiece&) = default;
};

// Serves all documents once per epoch, in an order that is drawn newly for each epoch. It has no
// state: any thread may request any step, and a run continues from any step.
class BatchSampler {
 public:
  // Takes the documents' lengths. Throws InvalidArgument on bad options, on lengths that are not
  // positive, and if no document remains.
  BatchSampler(std::vector<std::int64_t> documents_tokens, const BatchSamplerOptions& options);
  // The same over `num_documents` lengths of a built-in distribution, drawn by the seed.
  [[nodiscard]] static BatchSampler of_dataset(std::string_view name, std::int64_t num_documents,
                                               const BatchSamplerOptions& options);

  // Returns the pieces of a step's batch, in order. Throws InvalidArgument on a step below 0 or
  // beyond 2^62 tokens. kSplit: O(documents); kDrop: O(documents · epochs so far).
  [[nodiscard]] std::vector<DocumentPiece> pieces(std::int64_t step) const;
  // Returns those of each of `count` steps from `first` on, in one pass over the documents.
  [[nodiscard]] std::vector<std::vector<DocumentPiece>> pieces_of(std::int64_t first,
                                                                  std::int64_t count) const;
  // Returns the lengths of the pieces, in tokens.
  [[nodiscard]] std::vector<std::int64_t> batch(std::int64_t step) const;

  [[nodiscard]] const BatchSamplerOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t num_documents() const;  // documents that are used
  [[nodiscard]] std::int64_t num_dropped() const { return num_dropped_; }
  [[nodiscard]] std::int64_t epoch_tokens() const { return epoch_tokens_; }

 private:
  [[nodiscard]] std::vector<DocumentPiece> order(std::int64_t epoch) const;
  [[nodiscard]] std::vector<std::vector<DocumentPiece>> pieces_cut(std::int64_t first,
                                                                   std::int64_t count) const;
  [[nodiscard]] std::vector<std::vector<DocumentPiece>> pieces_whole(std::int64_t first,
                                                                     std::int64_t count) const;

  BatchSamplerOptions options_;
  std::vector<DocumentPiece> documents_;  // whole documents that are used
  std::int64_t num_dropped_ = 0;
  std::int64_t epoch_tokens_ = 0;
};

// ---------------------------------------------------------------------------------- workload input
//
// A batch as users describe it, turned into the workload that one context-parallel rank sees: the
// part that every front end needs between lengths and plan_batch.

// The properties of all batches of a job, whatever their lengths.
struct WorkloadInput {
  AttentionShape shape;        // heads of the whole model
  std::int32_t tp = 1;         // tensor-parallel ranks that divide the heads among them
  std::vector<MaskUse> masks;  // empty: causal
  std::string mask_path;       // a file for read_mask_file instead of `masks`; empty: none
  std::string layout;          // as for load_layout; empty: the plan chooses owners
};

// Returns the shape with the heads of one of `tp` tensor-parallel ranks. Throws InvalidArgument on
// a shape that is not valid, or whose query and KV heads `tp` does not divide.
[[nodiscard]] AttentionShape shape_of_rank(AttentionShape shape, std::int32_t tp);

// Throws InvalidArgument when the shape cannot be divided or masks are given both ways.
void check_workload_input(const WorkloadInput& input);

// Returns the batch of `lengths` on `num_ranks` context-parallel ranks: sequences, the shape of one
// tensor-parallel rank, masks (a mask file is read for this batch's tokens) and home layout, all
// checked. Throws InvalidArgument or IoError. O(bands + home ranges).
[[nodiscard]] Workload load_workload(std::span<const std::int64_t> lengths,
                                     const WorkloadInput& input, std::int32_t num_ranks);

}  // namespace contextile
