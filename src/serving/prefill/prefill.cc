#include "contextile/serving/prefill.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "serving/prefill/algorithm.h"
#include "serving/prefill/cache_exchange.h"
#include "serving/prefill/cached_rows.h"
#include "serving/prefill/check_prefill.h"
#include "transport/agreement.h"

namespace contextile {
namespace {

using MakeAlgorithm = std::unique_ptr<PrefillAlgorithm> (*)(const PrefillContext&);

struct ModeEntry {
  PrefillMode mode;
  std::string_view name;
  MakeAlgorithm make;
};
constexpr std::array<ModeEntry, 4> kModes = {
    {{PrefillMode::kPassKv, "pass_kv", make_pass_kv},
     {PrefillMode::kPassQ, "pass_q", make_pass_q},
     {PrefillMode::kAllGather, "all_gather", make_all_gather},
     {PrefillMode::kUlysses, "ulysses", make_ulysses}}};

const ModeEntry& entry_of(PrefillMode mode) {
  return *std::ranges::find(kModes, mode, &ModeEntry::mode);
}

std::string text_of(const KvLayout& layout) {
  return fmt::format("ranks {}, interleave {}, pages of {}", layout.num_ranks, layout.interleave,
                     layout.page_size);
}

std::string text_of(const AttentionShape& shape) {
  return fmt::format("heads {}/{}, dims {}/{}, {}, scale {}, softcap {}, {}", shape.q_heads,
                     shape.kv_heads, shape.head_dim, shape.value_dim, to_string(shape.dtype),
                     shape.scale, shape.softcap, shape.sink ? "sink" : "no sink");
}

std::string text_of(std::span<const PrefillSequence> sequences) {
  std::uint64_t digest = 0;
  const auto add = [&](const auto& numbers) {
    digest =
        XXH3_64bits_withSeed(std::data(numbers), std::size(numbers) * sizeof(numbers[0]), digest);
  };
  for (const PrefillSequence& sequence : sequences) {
    add(std::array{sequence.cached_tokens, sequence.new_tokens, std::ssize(sequence.table)});
    add(sequence.table);
  }
  return fmt::format("{} of digest {:016x}", sequences.size(), digest);
}

void check_same_calls(Transport& transport, const PrefillBatch& batch, const AttentionShape& shape,
                      const PrefillOptions& options) {
  const Dtype kv_wire = options.kv_wire.value_or(shape.dtype);
  const std::array<Setting, 8> settings = {{{"layout", text_of(batch.layout)},
                                            {"sequences", text_of(batch.sequences)},
                                            {"chunks", std::string(to_string(batch.chunks))},
                                            {"mask", to_string(batch.mask)},
                                            {"shape", text_of(shape)},
                                            {"mode", std::string(to_string(options.mode))},
                                            {"wire", std::string(to_string(options.wire))},
                                            {"kv_wire", std::string(to_string(kv_wire))}}};
  check_same_settings(transport, "prefill", settings);
}

void check_arguments(const PrefillBatch& batch, const AttentionShape& shape,
                     const PrefillOptions& options, std::int32_t ranks) {
  check_kv_layout(batch.layout);
  check_shape(shape);
  CONTEXTILE_CHECK(batch.layout.num_ranks == ranks,
                   "prefill: layout: expected {} ranks, as the group has, found {}", ranks,
                   batch.layout.num_ranks);
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const PrefillSequence& sequence = batch.sequences[i];
    const std::int64_t blocks = batch.layout.num_blocks(sequence.cached_tokens);
    CONTEXTILE_CHECK(std::ssize(sequence.table) >= blocks,
                     "prefill: table of sequence {}: expected at least {} pages, found {}", i,
                     blocks, sequence.table.size());
    // Pages behind a window need not be there.
    for (std::int64_t block = sequence.cached_tokens / batch.layout.block_tokens();
         block < std::ssize(sequence.table); ++block) {
      const PageId page = sequence.table[static_cast<std::size_t>(block)];
      CONTEXTILE_CHECK(page.valid(),
                       "prefill: table of sequence {}: expected pages of 0 and more, found {}", i,
                       page.value);
    }
  }
  if (options.mode == PrefillMode::kUlysses) check_ulysses(shape, ranks);
}

}  // namespace

std::string_view to_string(PrefillMode mode) { return entry_of(mode).name; }

PrefillMode parse_prefill_mode(std::string_view text) {
  const auto found = std::ranges::find(kModes, text, &ModeEntry::name);
  if (found != kModes.end()) return found->mode;
  fail_argument("prefill mode: expected one of pass_kv, pass_q, all_gather, ulysses; found {}",
                quote(text));
}

std::int64_t prefill_bytes(PrefillMode mode, const PrefillWork& work, Rank rank,
                           const AttentionShape& shape, Dtype wire, std::optional<Dtype> kv_wire) {
  const std::int64_t peers = work.num_ranks - 1;
  const std::size_t next = (rank.index() + 1) % static_cast<std::size_t>(work.num_ranks);
  const std::int64_t all_q = std::accumulate(work.q_rows.begin(), work.q_rows.end(), 0LL);
  const std::int64_t all_kv = std::accumulate(work.kv_rows.begin(), work.kv_rows.end(), 0LL);
  const std::int64_t q = work.q_rows[rank.index()];
  const std::int64_t kv = work.kv_rows[rank.index()];
  const std::int64_t element = bytes_per_element(shape.dtype);
  const std::int64_t q_bytes = shape.head_dim * element;  // of a head
  const std::int64_t kv_bytes =
      (shape.head_dim + shape.value_dim) * bytes_per_element(kv_wire.value_or(shape.dtype));
  const std::int64_t o_bytes = shape.value_dim * bytes_per_element(wire) + 4;
  switch (mode) {
    case PrefillMode::kPassKv:
      return (all_kv - work.kv_rows[next]) * shape.kv_heads * kv_bytes;
    case PrefillMode::kPassQ:
      return (all_q - work.q_rows[next]) * shape.q_heads * q_bytes +
             (all_q - q) * shape.q_heads * o_bytes;
    case PrefillMode::kAllGather:
      return peers * kv * shape.kv_heads * kv_bytes;
    case PrefillMode::kUlysses: {
      const std::int64_t q_heads = shape.q_heads / work.num_ranks;
      const std::int64_t kv_heads = std::max(1, shape.kv_heads / work.num_ranks);
      return peers * (q * q_heads * q_bytes + kv * kv_heads * kv_bytes) +
             (all_q - q) * q_heads * o_bytes;
    }
  }
  return 0;
}

// The state of one batch.
struct PreparedPrefill {
  PreparedPrefill(Transport& transport, const AttentionKernel& kernel, const PrefillBatch& batch,
                  const AttentionShape& attention, const PrefillOptions& options)
      : layout(batch.layout),
        shape(attention),
        geometry(batch),
        runs(page_runs(geometry, transport.rank(), batch)),
        block(shape, geometry.num_kv_rows(transport.rank()), shape.kv_heads),
        num_rows(geometry.num_q_rows(transport.rank())),
        cache_exchange(geometry, transport.rank(), batch),
        kv_wire(options.kv_wire.value_or(shape.dtype)),
        algorithm(entry_of(options.mode)
                      .make({transport, kernel, geometry, shape, options.wire, kv_wire})) {}

  KvLayout layout;
  AttentionShape shape;
  PrefillGeometry geometry;
  std::vector<PageRun> runs;
  KvBuffer block;  // this rank's keys and values
  std::int64_t num_rows;
  CacheExchange cache_exchange;
  Dtype kv_wire;
  std::unique_ptr<PrefillAlgorithm> algorithm;
};

struct PrefillGroup::State {
  Transport& transport;
  const AttentionKernel& kernel;
  std::unique_ptr<PreparedPrefill> prepared = nullptr;

  [[nodiscard]] PreparedPrefill& batch() const {
    CONTEXTILE_CHECK(prepared != nullptr, "prefill: expected a batch (prepare), found none");
    return *prepared;
  }
  // This rank's block: cached tokens copied out of their pages, and new ones.
  [[nodiscard]] KvRows gather_block(const TensorView& k_THD, const TensorView& v_THD,
                                    const PagedKv& kv) const {
    const Rank me = transport.rank();
    const PrefillGeometry& geometry = prepared->geometry;
    const KvRows block = prepared->block.rows(0, geometry.num_kv_rows(me));
    const Dtype dtype = page_dtype(kv.dtype);
    copy_pages(kv.k, dtype, prepared->runs, block.k_MHD);
    copy_pages(kv.v, dtype, prepared->runs, block.v_MHD);
    for (std::size_t i = 0; i < geometry.num_sequences(); ++i) {
      std::int64_t end = geometry.kv_rows(me, i).end;
      for (const std::size_t chunk : {1, 0}) {
        const Range rows = geometry.q_rows(me, i, chunk);
        end -= rows.size();
        const auto copy = [&](const TensorView& to, const TensorView& from) {
          kernel.row_ops().convert(slice(to, end, rows.size(), 0, to.heads),
                                   slice(from, rows.begin, rows.size(), 0, from.heads));
        };
        copy(block.k_MHD, k_THD);
        copy(block.v_MHD, v_THD);
      }
    }
    return block;
  }
};

PrefillGroup::PrefillGroup(Transport& transport, const AttentionKernel& kernel)
    : state_(new State{transport, kernel}) {}
PrefillGroup::~PrefillGroup() = default;
PrefillGroup::PrefillGroup(PrefillGroup&&) noexcept = default;
PrefillGroup& PrefillGroup::operator=(PrefillGroup&&) noexcept = default;

void PrefillGroup::prepare(const PrefillBatch& batch, const AttentionShape& shape,
                           const PrefillOptions& options) {
  state_->prepared.reset();
  check_same_calls(state_->transport, batch, shape, options);
  std::unique_ptr<PreparedPrefill> prepared;
  try {
    check_arguments(batch, shape, options, state_->transport.size());
    prepared =
        std::make_unique<PreparedPrefill>(state_->transport, state_->kernel, batch, shape, options);
  } catch (const InvalidArgument&) {
    let_all_look(state_->transport);
    throw;
  }
  state_->prepared = std::move(prepared);
}

void PrefillGroup::attend(const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
                          const PagedKv& kv, const PartialOutput& out,
                          std::span<const float> sink_H) {
  PreparedPrefill& batch = state_->batch();
  const AttentionShape& shape = batch.shape;
  check_rows(shape, batch.num_rows, q_THD, k_THD, v_THD, out);
  check_pages(kv, shape, batch.layout);
  check_sinks(shape, sink_H);
  const KvRows block = state_->gather_block(k_THD, v_THD, kv);
  if (!shape.sink) {
    batch.algorithm->attend(q_THD, block, out);
    return;
  }
  PartialBuffer seen(batch.num_rows, shape.q_heads, shape.value_dim, Dtype::kF32);
  batch.algorithm->attend(q_THD, block, seen.view());
  state_->kernel.row_ops().finish(seen.view(), sink_H, out.o_NHD, out.lse_NH);
}

NewKv PrefillGroup::to_cache(const TensorView& k_THD, const TensorView& v_THD) {
  PreparedPrefill& batch = state_->batch();
  batch.cache_exchange.check_tables();
  check_new_kv(batch.shape, batch.num_rows, k_THD, v_THD);
  return batch.cache_exchange.run(state_->transport, batch.shape, k_THD, v_THD, batch.kv_wire);
}

}  // namespace contextile
