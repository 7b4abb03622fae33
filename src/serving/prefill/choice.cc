#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "contextile/serving/prefill.h"
#include "kernel/host_tensor.h"

namespace contextile {
namespace {

void check_rates(const PrefillRates& rates) {
  CONTEXTILE_CHECK(rates.flops_per_s > 0 && rates.bytes_per_s > 0 && rates.message_s >= 0,
                   "prefill rates: expected positive FLOP/s and bytes/s, found {} and {}",
                   rates.flops_per_s, rates.bytes_per_s);
}

// One layer of a batch, in seconds.
class LayerTimes {
 public:
  LayerTimes(const PrefillWork& work, const AttentionShape& shape, const PrefillRates& rates,
             Dtype wire, Dtype kv_wire)
      : work_(work),
        shape_(shape),
        rates_(rates),
        wire_(wire),
        kv_wire_(kv_wire),
        ranks_(work.num_ranks) {}

  // A rank starts step j when it has block j and has computed block j - 1. The rank that has a
  // block hands it on when the block before has gone.
  [[nodiscard]] double pass_kv() const {
    std::vector<double> has(ranks(), 0);   // the block of the step
    std::vector<double> free(ranks(), 0);  // computed all before
    for (std::int32_t step = 0; step < ranks_; ++step) {
      std::vector<double> next(ranks(), 0);
      for (std::int32_t r = 0; r < ranks_; ++r) {
        const std::int32_t owner = before(r, step);
        const double starts = std::max(has[at(r)], free[at(r)]);
        free[at(r)] = starts + attention(r, owner);
        next[at(before(r, -1))] = starts + sending(kv_bytes(owner), 1);
      }
      has = next;
    }
    return *std::ranges::max_element(free);
  }

  [[nodiscard]] double pass_q() const {
    std::vector<double> has(ranks(), 0);
    std::vector<double> free(ranks(), 0);
    std::vector<double> link(ranks(), 0);     // when the rank has sent all that it had to send
    std::vector<double> results(ranks(), 0);  // when all parts of its rows have come
    for (std::int32_t step = 0; step < ranks_; ++step) {
      std::vector<double> next(ranks(), 0);
      for (std::int32_t r = 0; r < ranks_; ++r) {
        const std::int32_t owner = before(r, step);
        const double starts = std::max(has[at(r)], free[at(r)]);
        if (step + 1 < ranks_) {
          link[at(r)] = std::max(link[at(r)], starts) + sending(q_bytes(owner), 1);
          next[at(before(r, -1))] = link[at(r)];
        }
        free[at(r)] = starts + attention(owner, r);
        if (step == 0) continue;
        link[at(r)] = std::max(link[at(r)], free[at(r)]) + sending(o_bytes(owner), 1);
        results[at(owner)] = std::max(results[at(owner)], link[at(r)]);
      }
      has = next;
    }
    return std::max(*std::ranges::max_element(free), *std::ranges::max_element(results));
  }

  [[nodiscard]] double all_gather() const {
    double slowest_send = 0;
    for (std::int32_t r = 0; r < ranks_ && ranks_ > 1; ++r) {
      slowest_send = std::max(slowest_send, sending(kv_bytes(r) * (ranks_ - 1), ranks_ - 1));
    }
    double end = 0;
    for (std::int32_t r = 0; r < ranks_; ++r) {
      double others = 0;
      for (std::int32_t b = 0; b < ranks_; ++b) others += b == r ? 0 : attention(r, b);
      end = std::max(end, std::max(attention(r, r), slowest_send) + others);
    }
    return end;
  }

  [[nodiscard]] double ulysses() const {
    double inputs = 0;
    double outputs = 0;
    double all = 0;
    const std::int64_t share = std::min(shape_.kv_heads, ranks_);
    for (std::int32_t r = 0; r < ranks_; ++r) {
      const std::int64_t to_each = q_bytes(r) / ranks_ + kv_bytes(r) / share;
      const std::int64_t results = (all_rows() - work_.q_rows[at(r)]) * row_bytes() / ranks_;
      for (std::int32_t b = 0; b < ranks_; ++b) all += attention(r, b);
      if (ranks_ == 1) break;
      inputs = std::max(inputs, sending(to_each * (ranks_ - 1), ranks_ - 1));
      outputs = std::max(outputs, sending(results, ranks_ - 1));
    }
    return inputs + all / ranks_ + outputs;
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(ranks_); }
  [[nodiscard]] static std::size_t at(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::int32_t before(std::int32_t rank, std::int32_t steps) const {
    return (rank - steps + ranks_) % ranks_;
  }

  [[nodiscard]] double attention(std::int32_t q_rank, std::int32_t kv_rank) const {
    return forward_flops(work_.pairs[at(q_rank * ranks_ + kv_rank)], shape_.q_heads, shape_) /
           rates_.flops_per_s;
  }
  [[nodiscard]] double sending(std::int64_t bytes, std::int32_t messages) const {
    return static_cast<double>(bytes) / rates_.bytes_per_s + messages * rates_.message_s;
  }
  [[nodiscard]] std::int64_t q_bytes(std::int32_t rank) const {
    return work_.q_rows[at(rank)] * shape_.q_heads * shape_.head_dim *
           bytes_per_element(shape_.dtype);
  }
  [[nodiscard]] std::int64_t kv_bytes(std::int32_t rank) const {
    return work_.kv_rows[at(rank)] * shape_.kv_heads * (shape_.head_dim + shape_.value_dim) *
           bytes_per_element(kv_wire_);
  }
  [[nodiscard]] std::int64_t row_bytes() const {  // of a result, all heads
    return shape_.q_heads * (shape_.value_dim * bytes_per_element(wire_) + 4);
  }
  [[nodiscard]] std::int64_t o_bytes(std::int32_t rank) const {
    return work_.q_rows[at(rank)] * row_bytes();
  }
  [[nodiscard]] std::int64_t all_rows() const {
    return std::accumulate(work_.q_rows.begin(), work_.q_rows.end(), std::int64_t{0});
  }

  const PrefillWork& work_;
  const AttentionShape& shape_;
  const PrefillRates& rates_;
  Dtype wire_;
  Dtype kv_wire_;
  std::int32_t ranks_;
};

double seconds_of(const std::function<void()>& call) {
  const auto start = Clock::now();
  call();
  return seconds_since(start);
}

// The median of a few calls that all ranks begin together, after one that is not counted.
double median_s(Transport& transport, const std::function<void()>& call) {
  constexpr int kRepeats = 5;
  call();
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    barrier(transport);
    times.push_back(seconds_of(call));
  }
  std::ranges::nth_element(times, times.begin() + kRepeats / 2);
  return times[kRepeats / 2];
}

double slowest_of(Transport& transport, double mine) {
  double slowest = 0;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&mine, 1)))) {
    double one = 0;
    std::memcpy(&one, bytes.data(), sizeof one);
    slowest = std::max(slowest, one);
  }
  return slowest;
}

double ring_s(Transport& transport, std::int64_t bytes) {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  std::vector<std::byte> in(out.size());
  const std::int32_t ranks = transport.size();
  const Message send = {Rank((transport.rank().value + 1) % ranks),
                        {{out.data(), bytes, 1, bytes}}};
  const Message receive = {Rank((transport.rank().value + ranks - 1) % ranks),
                           {{in.data(), bytes, 1, bytes}}};
  return median_s(transport, [&] { transport.wait(transport.launch({&send, 1}, {&receive, 1})); });
}

}  // namespace

PrefillMode choose_prefill_mode(std::int64_t new_tokens, std::int64_t cached_tokens,
                                std::int32_t num_ranks, const AttentionShape& shape,
                                const PrefillRates& rates) {
  check_rates(rates);
  CONTEXTILE_CHECK(new_tokens > 0 && cached_tokens >= 0,
                   "prefill: expected new tokens and none or more cached ones, found {} and {}",
                   new_tokens, cached_tokens);
  const auto tokens = static_cast<double>(new_tokens);
  const double kv_per_q = static_cast<double>(shape.kv_heads) / shape.q_heads;
  const double hidden = num_ranks * rates.flops_per_s * kv_per_q *
                        static_cast<double>(bytes_per_element(shape.dtype)) /
                        (2 * rates.bytes_per_s);
  const double fraction = tokens / static_cast<double>(new_tokens + cached_tokens);
  return tokens >= hidden || fraction >= 2 * kv_per_q ? PrefillMode::kPassKv : PrefillMode::kPassQ;
}

double simulate_prefill_s(PrefillMode mode, const PrefillWork& work, const AttentionShape& shape,
                          const PrefillRates& rates, Dtype wire, std::optional<Dtype> kv_wire) {
  check_rates(rates);
  const LayerTimes times(work, shape, rates, wire, kv_wire.value_or(shape.dtype));
  switch (mode) {
    case PrefillMode::kPassKv:
      return times.pass_kv();
    case PrefillMode::kPassQ:
      return times.pass_q();
    case PrefillMode::kAllGather:
      return times.all_gather();
    case PrefillMode::kUlysses:
      return times.ulysses();
  }
  return 0;
}

PrefillMode simulated_prefill_mode(std::span<const PrefillMode> modes, const PrefillWork& work,
                                   const AttentionShape& shape, const PrefillRates& rates,
                                   Dtype wire, std::optional<Dtype> kv_wire) {
  CONTEXTILE_CHECK(!modes.empty(), "prefill: expected at least one mode, found none");
  return *std::ranges::min_element(modes, {}, [&](PrefillMode mode) {
    return simulate_prefill_s(mode, work, shape, rates, wire, kv_wire);
  });
}

PrefillRates measure_prefill_rates(Transport& transport, const AttentionKernel& kernel,
                                   const AttentionShape& shape) {
  check_shape(shape);
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kKeys = 1024;
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;
  Rng rng(1);
  const HostTensor q = normal_tensor(rng, shape.dtype, kRows, shape.q_heads, shape.head_dim);
  const HostTensor k = normal_tensor(rng, shape.dtype, kKeys, shape.kv_heads, shape.head_dim);
  const HostTensor v = normal_tensor(rng, shape.dtype, kKeys, shape.kv_heads, shape.value_dim);
  HostTensor o(Dtype::kF32, kRows, shape.q_heads, shape.value_dim);
  HostTensor lse(Dtype::kF32, kRows, shape.q_heads, 1);
  const LocalBand band = {{0, kRows}, {0, kKeys}};
  const ForwardTile tile = {.q_NHD = q.view(),
                            .k_MHD = k.view(),
                            .v_MHD = v.view(),
                            .o_NHD = o.view(),
                            .lse_NH = lse.stats(),
                            .bands = {&band, 1},
                            .init = true};
  const KernelParams params = {.q_heads = shape.q_heads,
                               .kv_heads = shape.kv_heads,
                               .head_dim = shape.head_dim,
                               .value_dim = shape.value_dim,
                               .scale = static_cast<float>(shape.effective_scale())};
  const double attention_s = slowest_of(transport, median_s(transport, [&] {
                                          kernel.forward(params, {&tile, 1});
                                        }));
  const double message_s = slowest_of(transport, ring_s(transport, 1));
  const double bytes_s = slowest_of(transport, ring_s(transport, kBytes));
  return {forward_flops(kRows * kKeys, shape.q_heads, shape) / attention_s,
          static_cast<double>(kBytes) / std::max(bytes_s - message_s, 1e-9), message_s};
}

}  // namespace contextile
