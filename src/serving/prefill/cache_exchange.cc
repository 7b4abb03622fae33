#include "serving/prefill/cache_exchange.h"

#include <utility>

#include "base/check.h"
#include "kernel/tensor.h"
#include "serving/prefill/algorithm.h"

namespace contextile {
namespace {

void copy_row(const TensorView& to, std::int64_t to_row, const TensorView& from,
              std::int64_t from_row) {
  std::vector<float> row(static_cast<std::size_t>(from.dim));
  for (std::int32_t h = 0; h < from.heads; ++h) {
    read_row(from, from_row, h, std::span(row));
    write_row(to, to_row, h, row);
  }
}

}  // namespace

CacheExchange::CacheExchange(const PrefillGeometry& geometry, Rank rank, const PrefillBatch& batch)
    : rows_for_(static_cast<std::size_t>(batch.layout.num_ranks)), slots_from_(rows_for_.size()) {
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto& [cached, fresh, table] = batch.sequences[i];
    const std::int64_t blocks = batch.layout.num_blocks(cached + fresh);
    if (std::ssize(table) >= blocks) continue;
    short_table_ =
        fmt::format("prefill: table of sequence {}: expected at least {} pages, found {}", i,
                    blocks, table.size());
    return;
  }
  for (std::int32_t source = 0; source < batch.layout.num_ranks; ++source) {
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      for (const std::size_t chunk : {0, 1}) {
        const Range positions = geometry.new_positions(Rank(source), i)[chunk];
        std::int64_t row = geometry.q_rows(Rank(source), i, chunk).begin;
        for (std::int64_t at = positions.begin; at < positions.end; ++at, ++row) {
          const Rank owner = batch.layout.owner(at);
          if (Rank(source) == rank) rows_for_[owner.index()].push_back(row);
          if (owner != rank) continue;
          slots_from_[static_cast<std::size_t>(source)].push_back(
              batch.layout.slot(batch.sequences[i].table, rank, at));
        }
      }
    }
  }
}

void CacheExchange::check_tables() const { CONTEXTILE_CHECK(!short_table_, "{}", *short_table_); }

NewKv CacheExchange::run(Transport& transport, const AttentionShape& shape, const TensorView& k_THD,
                         const TensorView& v_THD, Dtype wire) const {
  std::int64_t rows = 0;
  NewKv kept;
  for (const auto& slots : slots_from_) {
    rows += std::ssize(slots);
    kept.slots.insert(kept.slots.end(), slots.begin(), slots.end());
  }
  kept.k_THD = HostTensor(shape.dtype, rows, shape.kv_heads, shape.head_dim);
  kept.v_THD = HostTensor(shape.dtype, rows, shape.kv_heads, shape.value_dim);
  KvBuffer arriving(shape, wire == shape.dtype ? 0 : rows, shape.kv_heads, wire);
  const auto kept_rows = [&](std::int64_t first, std::int64_t count) -> KvRows {
    return {slice(kept.k_THD.view(), first, count, 0, shape.kv_heads),
            slice(kept.v_THD.view(), first, count, 0, shape.kv_heads)};
  };
  std::vector<KvBuffer> packed;
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<Range> arrivals;  // rows of other ranks
  std::int64_t first = 0;
  for (std::int32_t peer = 0; peer < transport.size(); ++peer) {
    const std::vector<std::int64_t>& mine = rows_for_[static_cast<std::size_t>(peer)];
    const std::int64_t theirs = std::ssize(slots_from_[static_cast<std::size_t>(peer)]);
    const bool is_me = Rank(peer) == transport.rank();
    if (!is_me) packed.emplace_back(shape, std::ssize(mine), shape.kv_heads, wire);
    const KvRows from = is_me ? kept_rows(first, theirs) : packed.back().rows(0, std::ssize(mine));
    for (std::size_t n = 0; n < mine.size(); ++n) {
      copy_row(from.k_MHD, static_cast<std::int64_t>(n), k_THD, mine[n]);
      copy_row(from.v_MHD, static_cast<std::int64_t>(n), v_THD, mine[n]);
    }
    if (!is_me) {
      sends.push_back(message_of(Rank(peer), from));
      receives.push_back(message_of(Rank(peer), wire == shape.dtype
                                                    ? kept_rows(first, theirs)
                                                    : arriving.rows(first, theirs)));
      arrivals.push_back({first, first + theirs});
    }
    first += theirs;
  }
  transport.wait(transport.launch(sends, receives));
  if (wire == shape.dtype) return kept;
  for (const Range& range : arrivals) {
    const KvRows to = kept_rows(range.begin, range.size());
    const KvRows from = arriving.rows(range.begin, range.size());
    for (std::int64_t n = 0; n < range.size(); ++n) {
      copy_row(to.k_MHD, n, from.k_MHD, n);
      copy_row(to.v_MHD, n, from.v_MHD, n);
    }
  }
  return kept;
}

}  // namespace contextile
