// Suffixes as in contextile/extend/kernel.h: N query rows, M key rows, D head dim, C keys of one
// chunk.

#include "kernel/cpu/reference_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/parallel_for.h"
#include "kernel/cpu/logaddexp.h"
#include "kernel/cpu/reference_rows.h"
#include "kernel/cpu/reference_terms.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr std::int64_t kChunkKeys =
    64;  // K and V of a chunk, in fp64 and both ways round, stay in L2
constexpr double kEmpty = -std::numeric_limits<double>::infinity();
// Below this many multiply-adds a call runs on the calling thread.
constexpr double kSerialFlops = 4e6;

// Adds Σ_i a[i] · x[i·stride + (0, n)) to y[0, n). The sum over i is in order for every y, so the
// compiler may vectorise over y without changing a bit.
void add_weighted(double* __restrict y, const double* __restrict a, std::int64_t count,
                  const double* __restrict x, std::int64_t stride, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const double* __restrict x0 = x + i * stride;
    const double* __restrict x1 = x0 + stride;
    const double* __restrict x2 = x1 + stride;
    const double* __restrict x3 = x2 + stride;
    for (std::int64_t j = 0; j < n; ++j) {
      y[j] = (((y[j] + a[i] * x0[j]) + a[i + 1] * x1[j]) + a[i + 2] * x2[j]) + a[i + 3] * x3[j];
    }
  }
  for (; i < count; ++i) {
    const double* __restrict xi = x + i * stride;
    for (std::int64_t j = 0; j < n; ++j) y[j] += a[i] * xi[j];
  }
}

// Reads rows [first, first + count) of one head, in fp64, row after row.
void read_rows(const TensorView& view, std::int64_t first, std::int64_t count, std::int32_t head,
               std::vector<double>& rows) {
  rows.resize(static_cast<std::size_t>(count * view.dim));
  for (std::int64_t n = 0; n < count; ++n) {
    read_row(view, first + n, head,
             std::span<double>(rows).subspan(static_cast<std::size_t>(n * view.dim),
                                             static_cast<std::size_t>(view.dim)));
  }
}

// Transposes [rows][dim] to [dim][kChunkKeys], so that the keys of a chunk that a query meets are
// contiguous.
void transpose(const std::vector<double>& rows_CD, std::int64_t dim, std::vector<double>& cols_DC) {
  cols_DC.resize(static_cast<std::size_t>(dim * kChunkKeys));
  const auto count = static_cast<std::int64_t>(rows_CD.size()) / dim;
  for (std::int64_t c = 0; c < count; ++c) {
    for (std::int64_t d = 0; d < dim; ++d) {
      cols_DC[static_cast<std::size_t>(d * kChunkKeys + c)] =
          rows_CD[static_cast<std::size_t>(c * dim + d)];
    }
  }
}

// Calls visit(row, first key, end key) for every query row of every band that attends keys of the
// chunk [begin, end), bands in listed order.
template <typename Visit>
void for_each_row(std::span<const LocalBand> bands, Range chunk, const Visit& visit) {
  for (const LocalBand& band : bands) {
    const Band part = clip(band, band.q, chunk);
    for (std::int64_t n = part.q.begin; n < part.q.end; ++n) {
      const std::int64_t first = std::max(part.k.begin, n + part.lo);
      const std::int64_t end = std::min(part.k.end, n + part.hi + 1);
      if (first < end) visit(n, first, end);
    }
  }
}

// Computes the capped scores scale · q·k of one query with keys [first, first + count) of the
// chunk.
void scores_of_row(const KernelParams& params, const double* q, const double* k_DC,
                   std::int64_t first, std::int64_t count, double* s) {
  std::fill(s, s + count, 0.0);
  add_weighted(s, q, params.head_dim, k_DC + first, kChunkKeys, count);
  for (std::int64_t j = 0; j < count; ++j) s[j] *= params.scale;
  if (params.softcap == 0) return;
  for (std::int64_t j = 0; j < count; ++j) {
    s[j] = params.softcap * std::tanh(s[j] / params.softcap);
  }
}

// ---------------------------------------------------------------------------------- forward

// Forward for one head of one tile at a time; the vectors are reused from tile to tile.
class ForwardHead {
 public:
  ForwardHead(const KernelParams& params, std::int32_t head)
      : params_(params),
        head_(head),
        kv_head_(head / (params.q_heads / params.kv_heads)),
        s_(static_cast<std::size_t>(kChunkKeys)) {}

  void run(const ForwardTile& tile) {
    const std::int64_t num_rows = tile.q_NHD.tokens;
    read_rows(tile.q_NHD, 0, num_rows, head_, q_ND_);
    max_N_.assign(static_cast<std::size_t>(num_rows), kEmpty);
    sum_N_.assign(static_cast<std::size_t>(num_rows), 0.0);
    o_ND_.assign(static_cast<std::size_t>(num_rows * params_.value_dim), 0.0);
    for (std::int64_t begin = 0; begin < tile.k_MHD.tokens; begin += kChunkKeys) {
      add_chunk(tile, {begin, std::min(begin + kChunkKeys, tile.k_MHD.tokens)});
    }
    for (std::int64_t n = 0; n < num_rows; ++n) write(tile, n);
  }

 private:
  void add_chunk(const ForwardTile& tile, Range chunk) {
    read_rows(tile.k_MHD, chunk.begin, chunk.size(), kv_head_, k_CD_);
    transpose(k_CD_, params_.head_dim, k_DC_);
    read_rows(tile.v_MHD, chunk.begin, chunk.size(), kv_head_, v_CD_);
    const HeadTerms terms(params_, tile.places, head_);
    for_each_row(tile.bands, chunk, [&](std::int64_t n, std::int64_t first, std::int64_t end) {
      add_keys(static_cast<std::size_t>(n), chunk.begin, first - chunk.begin, end - first, terms);
    });
  }

  // Adds keys to a row by online softmax: its results so far are rescaled when a larger score
  // comes.
  void add_keys(std::size_t n, std::int64_t chunk_begin, std::int64_t first, std::int64_t count,
                const HeadTerms& terms) {
    const auto row = static_cast<std::int64_t>(n);
    const std::int64_t first_key = chunk_begin + first;
    double* s = s_.data();
    const double* q = q_ND_.data() + n * static_cast<std::size_t>(params_.head_dim);
    double* o = o_ND_.data() + n * static_cast<std::size_t>(params_.value_dim);
    scores_of_row(params_, q, k_DC_.data(), first, count, s);
    if (terms.has_any()) {
      for (std::int64_t j = 0; j < count; ++j) s[j] += terms.bias(row, first_key + j);
    }
    const double largest = std::max(max_N_[n], *std::max_element(s, s + count));
    if (largest > max_N_[n]) {
      const double keep = std::exp(max_N_[n] - largest);  // 0 at first
      sum_N_[n] *= keep;
      for (std::int32_t d = 0; d < params_.value_dim; ++d) o[d] *= keep;
      max_N_[n] = largest;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      s[j] = std::exp(s[j] - largest);
      sum_N_[n] += s[j];
    }
    if (terms.has_any()) {
      for (std::int64_t j = 0; j < count; ++j) s[j] *= terms.factor(row, first_key + j);
    }
    add_weighted(o, s, count, v_CD_.data() + first * params_.value_dim, params_.value_dim,
                 params_.value_dim);
  }

  void write(const ForwardTile& tile, std::int64_t row) {
    const auto n = static_cast<std::size_t>(row);
    const double* o = o_ND_.data() + n * static_cast<std::size_t>(params_.value_dim);
    float* out = row_at<float>(tile.o_NHD, row, head_);
    float& out_lse = stat_at(tile.lse_NH, row, head_);
    const bool is_empty = max_N_[n] == kEmpty && sum_N_[n] == 0;
    const double lse = is_empty ? kEmpty : max_N_[n] + std::log(sum_N_[n]);
    const double held_lse = tile.init ? kEmpty : static_cast<double>(out_lse);
    if (held_lse == kEmpty) {  // the rows of the slot are never multiplied
      if (!tile.init && is_empty) return;
      for (std::int32_t d = 0; d < params_.value_dim; ++d) {
        out[d] = is_empty ? 0.0F : static_cast<float>(o[d] / sum_N_[n]);
      }
      out_lse = static_cast<float>(lse);
      return;
    }
    if (is_empty) return;
    const double merged = logaddexp(held_lse, lse);
    const double keep = std::exp(held_lse - merged);
    const double weight = std::exp(lse - merged) / sum_N_[n];
    for (std::int32_t d = 0; d < params_.value_dim; ++d) {
      out[d] = static_cast<float>(keep * out[d] + weight * o[d]);
    }
    out_lse = static_cast<float>(merged);
  }

  const KernelParams& params_;
  const std::int32_t head_;
  const std::int32_t kv_head_;
  std::vector<double> s_;
  std::vector<double> q_ND_;
  std::vector<double> max_N_;
  std::vector<double> sum_N_;
  std::vector<double> o_ND_;  // not yet divided by sum_N_
  std::vector<double> k_CD_, k_DC_, v_CD_;
};

// --------------------------------------------------------------------------------- backward

// Backward for one KV head of one tile at a time, with all query heads that read it.
class BackwardHead {
 public:
  BackwardHead(const KernelParams& params, std::int32_t kv_head)
      : params_(params),
        kv_head_(kv_head),
        heads_per_kv_(params.q_heads / params.kv_heads),
        p_(static_cast<std::size_t>(kChunkKeys)),
        dp_(static_cast<std::size_t>(kChunkKeys)) {}

  void run(const BackwardTile& tile) {
    const auto num_keys = static_cast<std::size_t>(tile.k_MHD.tokens);
    dk_MD_.assign(num_keys * static_cast<std::size_t>(params_.head_dim), 0.0);
    dv_MD_.assign(num_keys * static_cast<std::size_t>(params_.value_dim), 0.0);
    for (std::int32_t h = kv_head_ * heads_per_kv_; h < (kv_head_ + 1) * heads_per_kv_; ++h) {
      read_rows(tile.q_NHD, 0, tile.q_NHD.tokens, h, q_ND_);
      read_rows(tile.do_NHD, 0, tile.q_NHD.tokens, h, do_ND_);
      dq_ND_.assign(q_ND_.size(), 0.0);
      for (std::int64_t begin = 0; begin < tile.k_MHD.tokens; begin += kChunkKeys) {
        add_chunk(tile, h, {begin, std::min(begin + kChunkKeys, tile.k_MHD.tokens)});
      }
      write(tile.dq_NHD, h, dq_ND_, tile.init_dq);
    }
    write(tile.dk_MHD, kv_head_, dk_MD_, tile.init_dkv);
    write(tile.dv_MHD, kv_head_, dv_MD_, tile.init_dkv);
  }

 private:
  void add_chunk(const BackwardTile& tile, std::int32_t h, Range chunk) {
    read_rows(tile.k_MHD, chunk.begin, chunk.size(), kv_head_, k_CD_);
    transpose(k_CD_, params_.head_dim, k_DC_);
    read_rows(tile.v_MHD, chunk.begin, chunk.size(), kv_head_, v_CD_);
    transpose(v_CD_, params_.value_dim, v_DC_);
    const HeadTerms terms(params_, tile.places, h);
    for_each_row(tile.bands, chunk, [&](std::int64_t n, std::int64_t first, std::int64_t end) {
      const double lse = stat_at(tile.lse_NH, n, h);
      if (lse == kEmpty) return;
      add_keys({n, lse, stat_at(tile.delta_NH, n, h)}, chunk.begin, first - chunk.begin,
               end - first, terms);
    });
  }

  // Returns the weight of a score, at most 1: the LSE of large scores is rounded to fp32.
  static double weight_of(double score, double lse) { return std::exp(std::min(score - lse, 0.0)); }

  struct Row {
    std::int64_t n = 0;
    double lse = 0;
    double delta = 0;
  };

  void add_keys(const Row& row, std::int64_t chunk_begin, std::int64_t first, std::int64_t count,
                const HeadTerms& terms) {
    const std::int64_t n = row.n;
    const std::int64_t dim = params_.head_dim;
    const std::int64_t value_dim = params_.value_dim;
    const double* q = q_ND_.data() + n * dim;
    const double* d_o = do_ND_.data() + n * value_dim;
    double* p = p_.data();
    double* dp = dp_.data();
    scores_of_row(params_, q, k_DC_.data(), first, count, p);
    std::fill(dp, dp + count, 0.0);
    add_weighted(dp, d_o, value_dim, v_DC_.data() + first, kChunkKeys, count);
    for (std::int64_t j = 0; j < count; ++j) {
      const double s = p[j];
      double ds = 0;
      if (terms.has_any()) {
        const std::int64_t key = chunk_begin + first + j;
        const double factor = terms.factor(n, key);
        p[j] = weight_of(s + terms.bias(n, key), row.lse);
        ds = p[j] * (factor * dp[j] - row.delta);
        p[j] *= factor;
        terms.add_gradient(n, key, ds);
      } else {
        p[j] = weight_of(s, row.lse);
        ds = p[j] * (dp[j] - row.delta);
      }
      if (params_.softcap != 0) ds *= 1 - (s / params_.softcap) * (s / params_.softcap);
      dp[j] = params_.scale * ds;  // gradient of the unscaled score
    }
    add_weighted(dq_ND_.data() + n * dim, dp, count, k_CD_.data() + first * dim, dim, dim);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t key = chunk_begin + first + j;
      add_weighted(dk_MD_.data() + key * dim, dp + j, 1, q, dim, dim);
      add_weighted(dv_MD_.data() + key * value_dim, p + j, 1, d_o, value_dim, value_dim);
    }
  }

  static void write(const TensorView& slot, std::int32_t head, const std::vector<double>& rows,
                    bool init) {
    for (std::int64_t n = 0; n < slot.tokens; ++n) {
      float* out = row_at<float>(slot, n, head);
      const double* row = rows.data() + n * slot.dim;
      for (std::int32_t d = 0; d < slot.dim; ++d) {
        out[d] = static_cast<float>(init ? row[d] : out[d] + row[d]);
      }
    }
  }

  const KernelParams& params_;
  const std::int32_t kv_head_;
  const std::int32_t heads_per_kv_;
  std::vector<double> p_, dp_;
  std::vector<double> q_ND_, do_ND_, dq_ND_;
  std::vector<double> dk_MD_, dv_MD_;
  std::vector<double> k_CD_, k_DC_, v_CD_, v_DC_;
};

// -------------------------------------------------------------------------------- the kernel

template <typename Tile>
double multiply_adds(const KernelParams& params, std::span<const Tile> tiles) {
  double pairs = 0;
  for (const Tile& tile : tiles) {
    for (const LocalBand& band : tile.bands) pairs += static_cast<double>(num_pairs(band));
  }
  return pairs * params.q_heads * (params.head_dim + params.value_dim);
}

// Runs every head's list of tiles. Heads run at the same time because they share no output.
template <typename Head, typename Tile>
void run_heads(const KernelParams& params, std::span<const Tile> tiles, std::int32_t num_heads) {
  const auto run_head = [&](std::int32_t head) {
    Head work(params, head);
    for (const Tile& tile : tiles) work.run(tile);
  };
  if (num_heads == 1 || multiply_adds(params, tiles) < kSerialFlops) {
    for (std::int32_t head = 0; head < num_heads; ++head) run_head(head);
    return;
  }
  parallel_for(std::int32_t{0}, num_heads, run_head);
}

class ReferenceKernel : public AttentionKernel {
 public:
  [[nodiscard]] std::string_view name() const override { return "reference"; }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    run_heads<ForwardHead>(params, tiles, params.q_heads);
  }
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override {
    run_heads<BackwardHead>(params, tiles, params.kv_heads);
  }
  [[nodiscard]] const RowOps& row_ops() const override { return reference_rows(); }
  [[nodiscard]] bool has_terms() const override { return true; }
};

}  // namespace

const AttentionKernel& reference_kernel() {
  static const ReferenceKernel kReference;
  return kReference;
}

}  // namespace contextile
