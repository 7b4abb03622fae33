#include "serving/prefill/prefill_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/rng.h"
#include "kernel/host_tensor.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

void copy_token(const TensorView& to, std::int64_t to_row, const TensorView& from,
                std::int64_t from_row) {
  std::vector<float> row(static_cast<std::size_t>(from.dim));
  for (std::int32_t h = 0; h < from.heads; ++h) {
    read_row(from, from_row, h, std::span(row));
    write_row(to, to_row, h, row);
  }
}

std::vector<double> row_of(const HostTensor& tensor, std::int64_t row, std::int32_t head) {
  std::vector<double> values(static_cast<std::size_t>(tensor.dim()));
  read_row(tensor.view(), row, head, std::span(values));
  return values;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

double largest(std::span<const double> values) {
  double most = 1;
  for (const double x : values) {
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  }
  return most;
}

}  // namespace

PagedKv RankPages::kv() const {
  const auto describe = [&](const HostTensor& tensor) {
    PagedTensor pages;
    pages.data = tensor.bytes().data();
    pages.dim = tensor.dim();
    pages.head_stride = tensor.dim();
    pages.token_stride = std::int64_t{tensor.heads()} * tensor.dim();
    pages.page_stride = pages.token_stride * page_size;
    return pages;
  };
  PagedKv kv;
  kv.k = describe(k);
  kv.v = describe(v);
  kv.dtype = parse_kv_dtype(to_string(k.dtype()));
  kv.kv_heads = k.heads();
  kv.page_size = page_size;
  return kv;
}

void RankPages::write(const NewKv& rows) {
  for (std::size_t n = 0; n < rows.slots.size(); ++n) {
    copy_token(k.view(), rows.slots[n], rows.k_THD.view(), static_cast<std::int64_t>(n));
    copy_token(v.view(), rows.slots[n], rows.v_THD.view(), static_cast<std::int64_t>(n));
  }
}

TestBatch::TestBatch(const KvLayout& layout, const AttentionShape& shape,
                     std::vector<CachedAndNew> lengths, const std::string& mask,
                     PrefillChunks chunks)
    : layout_(layout), shape_(shape), mask_(parse_mask_spec(mask)), chunks_(chunks) {
  Rng rng(7);
  std::mt19937_64 random(3);
  for (const auto& [cached, fresh] : lengths) {
    const std::int64_t tokens = cached + fresh;
    q_.push_back(normal_tensor(rng, shape.dtype, tokens, shape.q_heads, shape.head_dim));
    k_.push_back(normal_tensor(rng, shape.dtype, tokens, shape.kv_heads, shape.head_dim));
    v_.push_back(normal_tensor(rng, shape.dtype, tokens, shape.kv_heads, shape.value_dim));
    std::vector<PageId> table;
    for (std::int64_t b = 0; b < layout.num_blocks(tokens); ++b) table.emplace_back(num_pages_++);
    std::ranges::shuffle(table, random);
    tables_.push_back(table);
  }
  for (std::int32_t h = 0; shape.sink && h < shape.q_heads; ++h) {
    sinks_.push_back(0.25F * static_cast<float>(h) - 1);
  }
  deal(std::move(lengths));
}

void TestBatch::deal(std::vector<CachedAndNew> lengths) {
  lengths_ = std::move(lengths);
  sequences_.clear();
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    sequences_.push_back({lengths_[i].cached, lengths_[i].fresh, tables_[i]});
  }
}

TestBatch TestBatch::with_lengths(std::vector<CachedAndNew> lengths) const {
  TestBatch other = *this;
  other.deal(std::move(lengths));
  for (std::size_t i = 0; i < lengths_.size(); ++i) other.sequences_[i].table = tables_[i];
  return other;
}

PrefillBatch TestBatch::batch() const {
  return {.layout = layout_, .sequences = sequences_, .chunks = chunks_, .mask = mask_};
}

std::int64_t TestBatch::num_new() const {
  std::int64_t tokens = 0;
  for (const CachedAndNew& length : lengths_) tokens += length.fresh;
  return tokens;
}

RankInputs TestBatch::inputs(Rank rank) const {
  const std::int64_t slots = std::int64_t{num_pages_} * layout_.page_size;
  const PrefillRows rows = prefill_rows(batch())[rank.index()];
  const std::vector<std::int64_t> positions = rows.positions(sequences_);
  const auto count = std::ssize(positions);
  RankInputs inputs = {
      HostTensor(shape_.dtype, count, shape_.q_heads, shape_.head_dim),
      HostTensor(shape_.dtype, count, shape_.kv_heads, shape_.head_dim),
      HostTensor(shape_.dtype, count, shape_.kv_heads, shape_.value_dim),
      {HostTensor(shape_.dtype, slots, shape_.kv_heads, shape_.head_dim),
       HostTensor(shape_.dtype, slots, shape_.kv_heads, shape_.value_dim), layout_.page_size}};
  std::int64_t row = 0;
  for (const PrefillSegment& segment : rows.segments) {
    const auto i = static_cast<std::size_t>(segment.sequence);
    for (std::int64_t t = 0; t < segment.tokens.size(); ++t, ++row) {
      const std::int64_t position = positions[static_cast<std::size_t>(row)];
      copy_token(inputs.q.view(), row, q_[i].view(), position);
      copy_token(inputs.k.view(), row, k_[i].view(), position);
      copy_token(inputs.v.view(), row, v_[i].view(), position);
    }
  }
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    for (std::int64_t p = 0; p < lengths_[i].cached; ++p) {
      const std::int64_t slot = layout_.slot(tables_[i], rank, p);
      if (slot < 0) continue;
      copy_token(inputs.pages.k.view(), slot, k_[i].view(), p);
      copy_token(inputs.pages.v.view(), slot, v_[i].view(), p);
    }
  }
  return inputs;
}

TestBatch::Result TestBatch::expected() const {
  Result result;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    const auto& [cached, fresh] = lengths_[i];
    if (fresh == 0) continue;
    const Range all = {0, cached + fresh};
    const Mask mask = build_mask(mask_, {&all, 1});
    for (std::int64_t p = cached; p < all.end; ++p) attend_row(i, p, mask, result);
  }
  return result;
}

void TestBatch::attend_row(std::size_t sequence, std::int64_t position, const Mask& mask,
                           Result& result) const {
  std::vector<std::int64_t> keys;
  for (const Band& band : mask.bands) {
    const Band row = clip(band, {position, position + 1}, band.k);
    for (std::int64_t key = row.k.begin; key < row.k.end; ++key) keys.push_back(key);
  }
  const std::int32_t group = shape_.q_heads / shape_.kv_heads;
  for (std::int32_t h = 0; h < shape_.q_heads; ++h) {
    const std::vector<double> q = row_of(q_[sequence], position, h);
    std::vector<double> scores;
    double top = shape_.sink ? sinks_[static_cast<std::size_t>(h)] : kNone;
    for (const std::int64_t key : keys) {
      const double score = shape_.effective_scale() * dot(q, row_of(k_[sequence], key, h / group));
      scores.push_back(shape_.softcap > 0 ? shape_.softcap * std::tanh(score / shape_.softcap)
                                          : score);
      top = std::max(top, scores.back());
    }
    double total = shape_.sink ? std::exp(sinks_[static_cast<std::size_t>(h)] - top) : 0;
    std::vector<double> o(static_cast<std::size_t>(shape_.value_dim), 0);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const double weight = std::exp(scores[n] - top);
      total += weight;
      const std::vector<double> v = row_of(v_[sequence], keys[n], h / group);
      for (std::size_t d = 0; d < o.size(); ++d) o[d] += weight * v[d];
    }
    for (const double x : o) result.o.push_back(total > 0 ? x / total : 0);
    result.lse.push_back(total > 0 ? top + std::log(total) : kNone);
  }
}

TestBatch::Result empty_result(const TestBatch& test) {
  const auto rows = static_cast<std::size_t>(test.num_new() * test.shape().q_heads);
  const double unwritten = std::numeric_limits<double>::quiet_NaN();
  return {std::vector<double>(rows * static_cast<std::size_t>(test.shape().value_dim), unwritten),
          std::vector<double>(rows, unwritten)};
}

void put_result(const TestBatch& test, Rank rank, const HostTensor& out, const HostTensor& lse,
                TestBatch::Result& result) {
  const PrefillBatch batch = test.batch();
  const auto tokens = prefill_rows(batch)[rank.index()].tokens(batch.sequences);
  put_rows(out.view(), result.o, tokens);
  put_rows(lse.view(), result.lse, tokens);
}

PrefillFound prefill(const TestBatch& test, const PrefillOptions& options,
                     const InprocOptions& timing) {
  const std::int32_t ranks = test.batch().layout.num_ranks;
  PrefillFound found = {empty_result(test), std::vector<std::int64_t>(ranks)};
  run_inproc(
      ranks,
      [&](Transport& transport) {
        const Rank rank = transport.rank();
        const RankInputs in = test.inputs(rank);
        const AttentionShape& shape = test.shape();
        HostTensor out(Dtype::kF32, in.q.tokens(), shape.q_heads, shape.value_dim);
        HostTensor lse(Dtype::kF32, in.q.tokens(), shape.q_heads, 1);
        PrefillGroup group(transport, preferred_kernel(shape.dtype));
        group.prepare(test.batch(), shape, options);
        const std::int64_t before = transport.sent_bytes();
        group.attend(in.q.view(), in.k.view(), in.v.view(), in.pages.kv(),
                     {out.view(), lse.stats()}, test.sinks());
        found.sent_bytes[rank.index()] = transport.sent_bytes() - before;
        put_result(test, rank, out, lse, found.result);
      },
      timing);
  return found;
}

double difference(const TestBatch::Result& a, const TestBatch::Result& b) {
  const auto of = [](std::span<const double> x, std::span<const double> y) {
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = x[i] == y[i] ? 0 : std::abs(x[i] - y[i]);
      if (std::isnan(error)) return error;
      worst = std::max(worst, error);
    }
    return worst / largest(y);
  };
  if (a.o.size() != b.o.size() || a.lse.size() != b.lse.size()) return kUnbounded;
  const double o = of(a.o, b.o);
  const double lse = of(a.lse, b.lse);
  return std::isnan(o) || lse <= o ? o : lse;
}

}  // namespace contextile
