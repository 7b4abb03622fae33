#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/serving/prefill.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "serving/prefill/cache_exchange.h"
#include "serving/prefill/cached_rows.h"
#include "serving/prefill/check_prefill.h"

namespace contextile {
namespace {

void append_home(Range tokens, Rank owner, std::vector<HomeRange>& home) {
  if (tokens.empty()) return;
  if (!home.empty() && home.back().owner == owner && home.back().tokens.end == tokens.begin) {
    home.back().tokens.end = tokens.end;
  } else {
    home.push_back({tokens, owner});
  }
}

// Appends the owners of the tokens of a sequence that begins at `first`.
void append_homes(const PrefillBatch& batch, const PrefillSequence& sequence, std::int64_t first,
                  std::vector<HomeRange>& home) {
  const std::int64_t cached = sequence.cached_tokens;
  for (std::int64_t at = 0; at < cached; at += batch.layout.interleave) {
    append_home({first + at, first + std::min(cached, at + batch.layout.interleave)},
                batch.layout.owner(at), home);
  }
  const std::int32_t chunks = 2 * batch.layout.num_ranks;
  for (std::int32_t i = 0; i < chunks; ++i) {
    const Range chunk = prefill_chunk(batch.chunks, sequence.new_tokens, chunks, i);
    append_home({first + cached + chunk.begin, first + cached + chunk.end},
                Rank(std::min(i, chunks - 1 - i)), home);
  }
}

// Sequences that have tokens, by their index in the batch.
std::vector<std::size_t> filled_sequences(const PrefillBatch& batch) {
  std::vector<std::size_t> filled;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    if (batch.sequences[i].cached_tokens + batch.sequences[i].new_tokens > 0) filled.push_back(i);
  }
  return filled;
}

// Adjacent new rows in the caller's tensors and in the plan's.
struct RowRun {
  std::int64_t row = 0;
  std::int64_t local = 0;
  std::int64_t rows = 0;
};

// The source of every local row of a plan.
struct LocalRows {
  std::vector<PageRun> cached;
  std::vector<RowRun> fresh;
  std::int64_t num_rows = 0;   // of the plan
  std::int64_t num_fresh = 0;  // of the caller's tensors
};

class LocalRowsBuilder {
 public:
  LocalRowsBuilder(const PrefillBatch& batch, Rank rank)
      : batch_(batch), rank_(rank), geometry_(batch) {
    rows_.num_fresh = geometry_.num_q_rows(rank);
  }

  void append(std::size_t sequence, std::int64_t position) {
    const PrefillSequence& of = batch_.sequences[sequence];
    if (position < of.cached_tokens && is_behind_window(of, position)) {
      ++rows_.num_rows;  // of a plan, but no query of it sees the row
      return;
    }
    const std::optional<std::int64_t> place =
        position < of.cached_tokens ? slot_of(of, position) : row_of(sequence, position);
    CONTEXTILE_CHECK(place,
                     "prefill plan: position {} of sequence {}: expected it where the batch "
                     "has it, found it on rank {}",
                     position, sequence, rank_.value);
    if (position < of.cached_tokens) {
      append_cached(*place);
    } else {
      append_fresh(*place);
    }
    ++rows_.num_rows;
  }

  [[nodiscard]] LocalRows take() { return std::move(rows_); }

 private:
  [[nodiscard]] bool is_behind_window(const PrefillSequence& sequence,
                                      std::int64_t position) const {
    const std::int64_t block = position / batch_.layout.block_tokens();
    return batch_.layout.owner(position) == rank_ &&
           !sequence.table[static_cast<std::size_t>(block)].valid();
  }
  [[nodiscard]] std::optional<std::int64_t> slot_of(const PrefillSequence& sequence,
                                                    std::int64_t position) const {
    const std::int64_t slot = batch_.layout.slot(sequence.table, rank_, position);
    return slot < 0 ? std::nullopt : std::optional(slot);
  }
  [[nodiscard]] std::optional<std::int64_t> row_of(std::size_t sequence,
                                                   std::int64_t position) const {
    for (const std::size_t chunk : {0, 1}) {
      const Range at = geometry_.new_positions(rank_, sequence)[chunk];
      if (!at.contains(position)) continue;
      return geometry_.q_rows(rank_, sequence, chunk).begin + position - at.begin;
    }
    return std::nullopt;
  }

  void append_cached(std::int64_t slot) {
    const std::int64_t page_size = batch_.layout.page_size;
    const PageId page(static_cast<std::int32_t>(slot / page_size));
    const std::int64_t token = slot % page_size;
    PageRun* last = rows_.cached.empty() ? nullptr : &rows_.cached.back();
    if (last != nullptr && last->page == page && last->first_token + last->tokens == token &&
        last->row + last->tokens == rows_.num_rows) {
      ++last->tokens;
    } else {
      rows_.cached.push_back({page, token, 1, rows_.num_rows});
    }
  }
  void append_fresh(std::int64_t row) {
    RowRun* last = rows_.fresh.empty() ? nullptr : &rows_.fresh.back();
    if (last != nullptr && last->row + last->rows == row &&
        last->local + last->rows == rows_.num_rows) {
      ++last->rows;
    } else {
      rows_.fresh.push_back({row, rows_.num_rows, 1});
    }
  }

  const PrefillBatch& batch_;
  Rank rank_;
  PrefillGeometry geometry_;
  LocalRows rows_;
};

// All ranks find the same errors.
void check_plan(const Plan& plan, const PrefillBatch& batch) {
  const Workload workload = prefill_workload(batch, plan.shape);
  CONTEXTILE_CHECK(plan.sequences == workload.sequences,
                   "prefill plan: expected {} sequences of {} tokens, as the batch has, found {} "
                   "of {}",
                   workload.sequences.size(), workload.num_tokens(), plan.sequences.size(),
                   plan.num_tokens());
  CONTEXTILE_CHECK(std::ranges::equal(plan.home, workload.home,
                                      [](const HomeRange& a, const HomeRange& b) {
                                        return a.tokens == b.tokens && a.owner == b.owner;
                                      }),
                   "prefill plan: expected the home layout of the batch, found another one");
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto& [cached, fresh, table] = batch.sequences[i];
    CONTEXTILE_CHECK(std::ssize(table) >= batch.layout.num_blocks(cached),
                     "prefill plan: table of sequence {}: expected at least {} pages, found {}", i,
                     batch.layout.num_blocks(cached), table.size());
  }
}

LocalRows local_rows(const Plan& plan, const PrefillBatch& batch, Rank rank) {
  const std::vector<std::size_t> filled = filled_sequences(batch);
  LocalRowsBuilder rows(batch, rank);
  for (const TokenPosition& at : positions(plan, rank)) {
    rows.append(filled[static_cast<std::size_t>(at.sequence)], at.position);
  }
  return rows.take();
}

}  // namespace

Workload prefill_workload(const PrefillBatch& batch, const AttentionShape& shape) {
  static_cast<void>(prefill_rows(batch));  // checks the batch
  std::vector<std::int64_t> lengths;
  for (const std::size_t i : filled_sequences(batch)) {
    lengths.push_back(batch.sequences[i].cached_tokens + batch.sequences[i].new_tokens);
  }
  MaskUse use;
  use.spec = batch.mask;
  Workload workload = make_workload(lengths, shape, use);
  std::vector<Range> cached;
  std::size_t next = 0;
  for (const std::size_t i : filled_sequences(batch)) {
    const PrefillSequence& sequence = batch.sequences[i];
    const Range tokens = workload.sequences[next++];
    append_homes(batch, sequence, tokens.begin, workload.home);
    if (sequence.cached_tokens > 0) {
      cached.push_back({tokens.begin, tokens.begin + sequence.cached_tokens});
    }
  }
  drop_queries(workload, cached);
  return workload;
}

struct PlannedPrefill::State {
  State(Transport& over, const AttentionKernel& with)
      : transport(over), kernel(with), executor(over, with) {}

  Transport& transport;
  const AttentionKernel& kernel;
  Executor executor;
  AttentionShape shape = {};
  KvLayout layout = {};
  LocalRows rows = {};
  std::optional<CacheExchange> cache_exchange = {};
  HostTensor q = {};  // in the plan's order; cached tokens have none
  HostTensor k = {};
  HostTensor v = {};
  HostTensor out = {};
  HostTensor lse = {};

  // Copies between the caller's rows and the plan's.
  void to_plan(const TensorView& from, const TensorView& to) const {
    for (const auto& [row, local, count] : rows.fresh) {
      kernel.row_ops().convert(slice(to, local, count, 0, to.heads),
                               slice(from, row, count, 0, from.heads));
    }
  }
  void from_plan(const TensorView& from, const TensorView& to) const {
    for (const auto& [row, local, count] : rows.fresh) {
      kernel.row_ops().convert(slice(to, row, count, 0, to.heads),
                               slice(from, local, count, 0, from.heads));
    }
  }
};

PlannedPrefill::PlannedPrefill(Transport& transport, const AttentionKernel& kernel)
    : state_(new State(transport, kernel)) {}
PlannedPrefill::~PlannedPrefill() = default;
PlannedPrefill::PlannedPrefill(PlannedPrefill&&) noexcept = default;
PlannedPrefill& PlannedPrefill::operator=(PlannedPrefill&&) noexcept = default;

void PlannedPrefill::prepare(std::shared_ptr<const Plan> plan, const PrefillBatch& batch) {
  State& state = *state_;
  check_plan(*plan, batch);
  state.rows = local_rows(*plan, batch, state.transport.rank());
  state.cache_exchange.emplace(PrefillGeometry(batch), state.transport.rank(), batch);
  state.shape = plan->shape;
  state.layout = batch.layout;
  const AttentionShape& shape = state.shape;
  const std::int64_t rows = state.rows.num_rows;
  state.q = HostTensor(shape.dtype, rows, shape.q_heads, shape.head_dim);
  state.k = HostTensor(shape.dtype, rows, shape.kv_heads, shape.head_dim);
  state.v = HostTensor(shape.dtype, rows, shape.kv_heads, shape.value_dim);
  // Rows behind a window stay so.
  state.kernel.row_ops().fill(state.k.view(), 0);
  state.kernel.row_ops().fill(state.v.view(), 0);
  state.out = HostTensor(shape.dtype, rows, shape.q_heads, shape.value_dim);
  state.lse = HostTensor(Dtype::kF32, rows, shape.q_heads, 1);
  state.executor.prepare(std::move(plan));
}

void PlannedPrefill::attend(const TensorView& q_THD, const TensorView& k_THD,
                            const TensorView& v_THD, const PagedKv& kv, const PartialOutput& out,
                            std::span<const float> sink_H) {
  State& state = *state_;
  const std::int64_t fresh = state.rows.num_fresh;
  check_rows(state.shape, fresh, q_THD, k_THD, v_THD, out);
  check_pages(kv, state.shape, state.layout);
  state.to_plan(q_THD, state.q.view());
  state.to_plan(k_THD, state.k.view());
  state.to_plan(v_THD, state.v.view());
  const Dtype dtype = page_dtype(kv.dtype);
  copy_pages(kv.k, dtype, state.rows.cached, state.k.view());
  copy_pages(kv.v, dtype, state.rows.cached, state.v.view());
  static_cast<void>(state.executor.forward(0, {.q_THD = state.q.view(),
                                               .k_THD = state.k.view(),
                                               .v_THD = state.v.view(),
                                               .sink_H = sink_H,
                                               .out_THD = state.out.view(),
                                               .lse_TH = state.lse.stats()}));
  state.from_plan(state.out.view(), out.o_NHD);
  state.from_plan(state.lse.view(), as_tensor(out.lse_NH, fresh, state.shape.q_heads));
}

NewKv PlannedPrefill::to_cache(const TensorView& k_THD, const TensorView& v_THD) {
  State& state = *state_;
  CONTEXTILE_CHECK(state.cache_exchange, "prefill plan: expected a batch (prepare), found none");
  state.cache_exchange->check_tables();
  check_new_kv(state.shape, state.rows.num_fresh, k_THD, v_THD);
  return state.cache_exchange->run(state.transport, state.shape, k_THD, v_THD, state.shape.dtype);
}

ExecutionStats PlannedPrefill::last_stats() const { return state_->executor.last_stats(); }

}  // namespace contextile
