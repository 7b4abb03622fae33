// Dense attention in fp64, written row by row from the definition: nothing here is shared with
// kernels.
//
// Suffixes: T tokens, H query heads, K KV heads, D head dim, V value dim.

#include "contextile/advanced/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/rng.h"
#include "contextile/advanced/executor.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();
// Rows are processed together and keys in chunks, so that K, V and their gradients are read from
// cache.
constexpr std::int64_t kRowsPerTask = 32;
constexpr std::int64_t kChunkKeys = 32;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::vector<double> random_tensor(Rng& rng, std::int64_t elements, Dtype dtype) {
  std::vector<double> values(at(elements));
  for (double& value : values) value = round_to(dtype, rng.normal());
  return values;
}

// Keeps eight independent partial sums, so that the compiler may use vector registers.
double dot(const double* a, const double* b, std::int64_t n) {
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  double total =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

void axpy(double* __restrict y, double a, const double* __restrict x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// The key ranges of every row of a mask, found by walking the bands once.
class RowsOfMask {
 public:
  RowsOfMask(const Mask& mask, std::int64_t tokens) : mask_(mask), bands_of_row_(at(tokens)) {
    for (std::size_t b = 0; b < mask.bands.size(); ++b) {
      const Band& band = mask.bands[b];
      for (std::int64_t q = std::max<std::int64_t>(band.q.begin, 0);
           q < std::min(band.q.end, tokens); ++q) {
        bands_of_row_[at(q)].push_back(static_cast<std::uint32_t>(b));
      }
    }
  }

  // Calls visit(k) for the keys of row q inside `keys`, bands in order, ascending in a band.
  template <typename Visit>
  void for_each_key(std::int64_t q, Range keys, const Visit& visit) const {
    for (const std::uint32_t b : bands_of_row_[at(q)]) {
      const Band& band = mask_.bands[b];
      const std::int64_t end = std::min({band.k.end, q + band.hi + 1, keys.end});
      for (std::int64_t k = std::max({band.k.begin, q + band.lo, keys.begin}); k < end; ++k) {
        visit(k);
      }
    }
  }

  // Calls visit(chunk) for every chunk of keys that any of the rows may attend, ascending.
  template <typename Visit>
  void for_each_chunk(Range rows, const Visit& visit) const {
    Range keys{std::numeric_limits<std::int64_t>::max(), 0};
    for (std::int64_t q = rows.begin; q < rows.end; ++q) {
      for (const std::uint32_t b : bands_of_row_[at(q)]) {
        keys.begin = std::min(keys.begin, mask_.bands[b].k.begin);
        keys.end = std::max(keys.end, mask_.bands[b].k.end);
      }
    }
    for (std::int64_t begin = keys.begin; begin < keys.end; begin += kChunkKeys) {
      visit(Range{begin, std::min(begin + kChunkKeys, keys.end)});
    }
  }

 private:
  const Mask& mask_;
  std::vector<std::vector<std::uint32_t>> bands_of_row_;
};

class Oracle {
 public:
  Oracle(const BatchTensors& batch, const AttentionShape& shape, const Mask& mask,
         OracleResult& result)
      : batch_(batch),
        shape_(shape),
        rows_(mask, batch.tokens),
        scale_(shape.effective_scale()),
        heads_per_kv_(shape.q_heads / shape.kv_heads),
        result_(result) {}

  void forward() {
    const std::int64_t rows = batch_.tokens * shape_.q_heads;
    result_.out.assign(at(rows * shape_.value_dim), 0.0);
    result_.lse.assign(at(rows), kEmpty);
    const std::int64_t tasks = (batch_.tokens + kRowsPerTask - 1) / kRowsPerTask;
    parallel_for(std::int64_t{0}, tasks, [&](std::int64_t task) {
      const Range tokens = rows_of_task(task);
      for (std::int32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
        forward_rows(tokens, kv_head);
      }
    });
  }

  void backward() {
    result_.dq.assign(batch_.q.size(), 0.0);
    result_.dk.assign(batch_.k.size(), 0.0);
    result_.dv.assign(batch_.v.size(), 0.0);
    if (shape_.sink) result_.dsink.assign(at(shape_.q_heads), 0.0);
    const std::int64_t tasks = (batch_.tokens + kRowsPerTask - 1) / kRowsPerTask;
    parallel_for(std::int32_t{0}, shape_.kv_heads, [&](std::int32_t kv_head) {
      for (std::int64_t task = 0; task < tasks; ++task) {
        backward_rows(rows_of_task(task), kv_head);
      }
    });
  }

 private:
  const double* q_row(std::int64_t t, std::int32_t h) const {
    return batch_.q.data() + (t * shape_.q_heads + h) * shape_.head_dim;
  }
  std::int64_t k_offset(std::int64_t t, std::int32_t h) const {
    return (t * shape_.kv_heads + h) * shape_.head_dim;
  }
  std::int64_t v_offset(std::int64_t t, std::int32_t h) const {
    return (t * shape_.kv_heads + h) * shape_.value_dim;
  }
  std::int64_t o_offset(std::int64_t t, std::int32_t h) const {
    return (t * shape_.q_heads + h) * shape_.value_dim;
  }
  double score(const double* q, std::int64_t key, std::int32_t kv_head) const {
    const double s = scale_ * dot(q, batch_.k.data() + k_offset(key, kv_head), shape_.head_dim);
    return shape_.softcap == 0 ? s : shape_.softcap * std::tanh(s / shape_.softcap);
  }

  Range rows_of_task(std::int64_t task) const {
    return {task * kRowsPerTask, std::min((task + 1) * kRowsPerTask, batch_.tokens)};
  }

  // Calls visit(t, h, index) for every row of the tokens and every query head that reads the KV
  // head.
  template <typename Visit>
  void for_each_row(Range tokens, std::int32_t kv_head, const Visit& visit) const {
    std::size_t index = 0;
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      for (std::int32_t i = 0; i < heads_per_kv_; ++i) {
        visit(t, kv_head * heads_per_kv_ + i, index++);
      }
    }
  }

  // Computes the scores of all rows, their LSE, then the values under the weights.
  void forward_rows(Range tokens, std::int32_t kv_head) {
    std::vector<std::vector<double>> scores(at(tokens.size() * heads_per_kv_));
    rows_.for_each_chunk(tokens, [&](Range chunk) {
      for_each_row(tokens, kv_head, [&](std::int64_t t, std::int32_t h, std::size_t row) {
        rows_.for_each_key(t, chunk, [&](std::int64_t k) {
          scores[row].push_back(score(q_row(t, h), k, kv_head));
        });
      });
    });
    for_each_row(tokens, kv_head, [&](std::int64_t t, std::int32_t h, std::size_t row) {
      result_.lse[at(t * shape_.q_heads + h)] = lse_of(scores[row], h);
    });
    std::vector<std::size_t> used(scores.size());
    rows_.for_each_chunk(tokens, [&](Range chunk) {
      for_each_row(tokens, kv_head, [&](std::int64_t t, std::int32_t h, std::size_t row) {
        const double lse = result_.lse[at(t * shape_.q_heads + h)];
        double* out = result_.out.data() + o_offset(t, h);
        rows_.for_each_key(t, chunk, [&](std::int64_t k) {
          axpy(out, std::exp(scores[row][used[row]++] - lse),
               batch_.v.data() + v_offset(k, kv_head), shape_.value_dim);
        });
      });
    });
  }

  // The sink takes part as a key with that score (and the value 0).
  double lse_of(const std::vector<double>& scores, std::int32_t h) const {
    double largest = shape_.sink ? batch_.sink[at(h)] : kEmpty;
    for (const double s : scores) largest = std::max(largest, s);
    if (largest == kEmpty) return kEmpty;
    double sum = shape_.sink ? std::exp(batch_.sink[at(h)] - largest) : 0.0;
    for (const double s : scores) sum += std::exp(s - largest);
    return largest + std::log(sum);
  }

  void backward_rows(Range tokens, std::int32_t kv_head) {
    std::vector<double> deltas(at(tokens.size() * heads_per_kv_));
    for_each_row(tokens, kv_head, [&](std::int64_t t, std::int32_t h, std::size_t row) {
      deltas[row] = dot(batch_.dout.data() + o_offset(t, h), result_.out.data() + o_offset(t, h),
                        shape_.value_dim);
      const double lse = result_.lse[at(t * shape_.q_heads + h)];
      if (shape_.sink) {
        result_.dsink[at(h)] -= std::exp(batch_.sink[at(h)] - lse) * deltas[row];
      }
    });
    rows_.for_each_chunk(tokens, [&](Range chunk) {
      for_each_row(tokens, kv_head, [&](std::int64_t t, std::int32_t h, std::size_t row) {
        backward_row(t, h, kv_head, chunk, deltas[row]);
      });
    });
  }

  void backward_row(std::int64_t t, std::int32_t h, std::int32_t kv_head, Range chunk,
                    double delta) {
    const double lse = result_.lse[at(t * shape_.q_heads + h)];
    const double* d_o = batch_.dout.data() + o_offset(t, h);
    const double* q = q_row(t, h);
    double* dq = result_.dq.data() + (q - batch_.q.data());
    rows_.for_each_key(t, chunk, [&](std::int64_t k) {
      const double s = score(q, k, kv_head);
      const double p = std::exp(s - lse);
      const double dp = dot(d_o, batch_.v.data() + v_offset(k, kv_head), shape_.value_dim);
      double ds = p * (dp - delta) * scale_;
      if (shape_.softcap != 0) ds *= 1 - (s / shape_.softcap) * (s / shape_.softcap);
      axpy(dq, ds, batch_.k.data() + k_offset(k, kv_head), shape_.head_dim);
      axpy(result_.dk.data() + k_offset(k, kv_head), ds, q, shape_.head_dim);
      axpy(result_.dv.data() + v_offset(k, kv_head), p, d_o, shape_.value_dim);
    });
  }

  const BatchTensors& batch_;
  const AttentionShape& shape_;
  const RowsOfMask rows_;
  const double scale_;
  const std::int32_t heads_per_kv_;
  OracleResult& result_;
};

void check_sizes(const BatchTensors& batch, const AttentionShape& shape) {
  const auto check = [](std::string_view name, std::size_t found, std::int64_t expected) {
    CONTEXTILE_CHECK(found == at(expected), "oracle: expected {} elements of {}, found {}",
                     expected, name, found);
  };
  check("q", batch.q.size(), batch.tokens * shape.q_heads * shape.head_dim);
  check("k", batch.k.size(), batch.tokens * shape.kv_heads * shape.head_dim);
  check("v", batch.v.size(), batch.tokens * shape.kv_heads * shape.value_dim);
  check("dout", batch.dout.size(), batch.tokens * shape.q_heads * shape.value_dim);
  check("sink", batch.sink.size(), shape.sink ? shape.q_heads : 0);
}

}  // namespace

BatchTensors random_batch(const Workload& workload, std::uint64_t seed) {
  const AttentionShape& shape = workload.shape;
  Rng rng(seed);
  BatchTensors batch;
  batch.tokens = workload.num_tokens();
  batch.q = random_tensor(rng, batch.tokens * shape.q_heads * shape.head_dim, shape.dtype);
  batch.k = random_tensor(rng, batch.tokens * shape.kv_heads * shape.head_dim, shape.dtype);
  batch.v = random_tensor(rng, batch.tokens * shape.kv_heads * shape.value_dim, shape.dtype);
  batch.dout = random_tensor(rng, batch.tokens * shape.q_heads * shape.value_dim, shape.dtype);
  if (shape.sink) batch.sink = random_tensor(rng, shape.q_heads, Dtype::kF32);
  return batch;
}

OracleResult oracle(const BatchTensors& batch, const AttentionShape& shape, const Mask& mask,
                    Passes passes) {
  check_shape(shape);
  check_sizes(batch, shape);
  check_mask(mask, batch.tokens);
  OracleResult result;
  Oracle work(batch, shape, mask, result);
  work.forward();
  if (passes == Passes::kForwardBackward) work.backward();
  return result;
}

}  // namespace contextile
