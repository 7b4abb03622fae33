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
                         const TensorView& v_THD) const {
  std::int64_t rows = 0;
  NewKv kept;
  for (const auto& slots : slots_from_) {
    rows += std::ssize(slots);
    kept.slots.insert(kept.slots.end(), slots.begin(), slots.end());
  }
  kept.k_THD = HostTensor(shape.dtype, rows, shape.kv_heads, shape.head_dim);
  kept.v_THD = HostTensor(shape.dtype, rows, shape.kv_heads, shape.value_dim);
  std::vector<KvBuffer> packed;
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::int64_t first = 0;
  for (std::int32_t peer = 0; peer < transport.size(); ++peer) {
    const std::vector<std::int64_t>& mine = rows_for_[static_cast<std::size_t>(peer)];
    const std::int64_t theirs = std::ssize(slots_from_[static_cast<std::size_t>(peer)]);
    const KvRows into = {slice(kept.k_THD.view(), first, theirs, 0, shape.kv_heads),
                         slice(kept.v_THD.view(), first, theirs, 0, shape.kv_heads)};
    const bool is_me = Rank(peer) == transport.rank();
    if (!is_me) packed.emplace_back(shape, std::ssize(mine), shape.kv_heads);
    const KvRows from = is_me ? into : packed.back().rows(0, std::ssize(mine));
    for (std::size_t n = 0; n < mine.size(); ++n) {
      copy_row(from.k_MHD, static_cast<std::int64_t>(n), k_THD, mine[n]);
      copy_row(from.v_MHD, static_cast<std::int64_t>(n), v_THD, mine[n]);
    }
    if (!is_me) {
      sends.push_back(message_of(Rank(peer), from));
      receives.push_back(message_of(Rank(peer), into));
    }
    first += theirs;
  }
  transport.wait(transport.launch(sends, receives));
  return kept;
}

}  // namespace contextile
