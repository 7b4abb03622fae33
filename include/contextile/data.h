// Lengths of real batches: files, built-in distributions, and filling batches of a given size.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/mask.h"
#include "contextile/packing.h"
#include "contextile/workload.h"

namespace contextile {

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

}  // namespace contextile
