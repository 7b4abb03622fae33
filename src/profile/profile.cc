#include "contextile/profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "contextile/arrangement.h"
#include "contextile/kernel.h"
#include "contextile/transport.h"
#include "kernel/host_tensor.h"
#include "kernel/tensor.h"
#include "profile/timed_ranks.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostRanks = 256;
constexpr std::int64_t kMergedRows = 512;
constexpr std::int64_t kSmallMessageBytes = 64;
// A tile costs at least this share of its call: call_us is measured on other calls.
constexpr double kLeastTileShare = 0.1;
// A call on small tiles has at most so many.
constexpr std::int64_t kMostTiles = 4;
constexpr std::int64_t kCallTokens = 1024;
constexpr std::int64_t kManyLaunches = 16;
constexpr std::int64_t kTileRows[] = {0, 16, 32, 64, 128, 256};

// One causal tile on every rank at once.
struct CausalSample {
  std::int64_t tokens = 0;
  Direction direction = Direction::kForward;
  double seconds = 0;  // of a call
};

struct Settings {
  std::vector<std::int64_t> sizes;  // of tiles, ascending
  std::vector<std::int64_t> message_bytes;
  TimingEffort effort;
  double longest_call_s = 0;  // the grid ends where a forward call on one tile takes longer
  std::int32_t passes = 1;    // over the grid
};

Settings settings_of(const ProfileOptions& options) {
  constexpr std::int64_t kKilo = 1024;
  if (options.effort == ProfileEffort::kQuick) {
    return {{16, 64, 256},
            {kSmallMessageBytes, 64 * kKilo, kKilo * kKilo},
            {.sample_s = 0.002, .samples = 3},
            0.02,
            1};
  }
  return {{16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
          {kSmallMessageBytes, 4 * kKilo, 64 * kKilo, kKilo * kKilo, 4 * kKilo * kKilo},
          {.sample_s = 0.004, .samples = 3},
          0.1,
          5};
}

// Small tiles come several in a call, as in plans.
std::int64_t tiles_of_call(std::int64_t rows, std::int64_t keys) {
  return std::clamp<std::int64_t>(kCallTokens / std::max(rows, keys), 1, kMostTiles);
}

// 2, 4, 8, … and all ranks.
std::vector<std::int32_t> group_sizes(std::int32_t ranks) {
  std::vector<std::int32_t> sizes;
  for (std::int32_t size = 2; size < ranks; size *= 2) sizes.push_back(size);
  sizes.push_back(std::max(ranks, 2));
  return sizes;
}

Band full_band(std::int64_t rows, std::int64_t keys) { return {{0, rows}, {0, keys}}; }
Band causal_band(std::int64_t rows) { return {{0, rows}, {0, rows}, -kUnbounded, 0}; }

// What belongs to the queries of some tiles, and to their keys.
struct QueryTensors {
  QueryTensors(Rng& rng, const AttentionShape& shape, std::int64_t rows)
      : q(normal_tensor(rng, shape.dtype, rows, shape.q_heads, shape.head_dim)),
        dout(normal_tensor(rng, shape.dtype, rows, shape.q_heads, shape.value_dim)),
        delta(normal_tensor(rng, Dtype::kF32, rows, shape.q_heads, 1)),
        o(Dtype::kF32, rows, shape.q_heads, shape.value_dim),
        lse(Dtype::kF32, rows, shape.q_heads, 1),
        dq(Dtype::kF32, rows, shape.q_heads, shape.head_dim) {}
  HostTensor q, dout, delta, o, lse, dq;
};
struct KeyTensors {
  KeyTensors(Rng& rng, const AttentionShape& shape, std::int64_t keys)
      : k(normal_tensor(rng, shape.dtype, keys, shape.kv_heads, shape.head_dim)),
        v(normal_tensor(rng, shape.dtype, keys, shape.kv_heads, shape.value_dim)),
        dk(Dtype::kF32, keys, shape.kv_heads, shape.head_dim),
        dv(Dtype::kF32, keys, shape.kv_heads, shape.value_dim) {}
  HostTensor k, v, dk, dv;
};

// Calls of the kernel on some tiles, as plans make them: so many query blocks with one key block,
// the same band in each. (Several key blocks of a query block are one run of the cost model.)
class TileBench {
 public:
  TileBench(const AttentionKernel& kernel, const AttentionShape& shape, const Band& band,
            std::int64_t num_tiles)
      : kernel_(kernel),
        band_(band),
        params_{.q_heads = shape.q_heads,
                .kv_heads = shape.kv_heads,
                .head_dim = shape.head_dim,
                .value_dim = shape.value_dim,
                .scale = static_cast<float>(shape.effective_scale()),
                .softcap = static_cast<float>(shape.softcap)},
        rng_(1),
        keys_(rng_, shape, band.k.end) {
    for (std::int64_t i = 0; i < num_tiles; ++i) queries_.emplace_back(rng_, shape, band.q.end);
    forward();  // backward needs the LSE
  }

  void forward() {
    std::vector<ForwardTile> list;
    for (QueryTensors& q : queries_) {
      list.push_back({q.q.view(),
                      keys_.k.view(),
                      keys_.v.view(),
                      q.o.view(),
                      q.lse.stats(),
                      {&band_, 1},
                      /*init=*/true});
    }
    kernel_.forward(params_, list);
  }

  void backward() {
    std::vector<BackwardTile> list;
    for (QueryTensors& q : queries_) {
      list.push_back({q.q.view(),
                      keys_.k.view(),
                      keys_.v.view(),
                      q.dout.view(),
                      q.lse.stats(),
                      q.delta.stats(),
                      q.dq.view(),
                      keys_.dk.view(),
                      keys_.dv.view(),
                      {&band_, 1},
                      /*init_dq=*/true,
                      /*init_dkv=*/&q == queries_.data()});
    }
    kernel_.backward(params_, list);
  }

 private:
  const AttentionKernel& kernel_;
  Band band_;
  KernelParams params_;
  Rng rng_;
  KeyTensors keys_;
  std::vector<QueryTensors> queries_;
};

class MachineMeasurement {
 public:
  MachineMeasurement(const ProfileOptions& options,
                     const std::function<void(std::string_view)>& on_step)
      : options_(options),
        on_step_(on_step),
        settings_(settings_of(options)),
        kernel_(find_kernel(options.kernel, options.shape.dtype)) {}

  MachineProfile run() {
    profile_.kernel = kernel_.name();
    measure_grid();
    measure_overheads();
    measure_memory();
    measure_transport();
    fill_cluster();
    return std::move(profile_);
  }

 private:
  void step(const std::string& what) const {
    if (on_step_) on_step_(what);
  }

  // Measures a call on so many tiles, on so many ranks at once.
  [[nodiscard]] double call_of_s(std::int32_t ranks, Direction direction, const Band& band,
                                 std::int64_t tiles) const {
    return seconds_per_call(ranks, settings_.effort, [&](Transport&) {
      const auto bench = std::make_shared<TileBench>(kernel_, options_.shape, band, tiles);
      return direction == Direction::kForward
                 ? std::function<void()>([bench] { bench->forward(); })
                 : std::function<void()>([bench] { bench->backward(); });
    });
  }

  [[nodiscard]] double call_s(Direction direction, const Band& band, std::int64_t tiles) const {
    return call_of_s(options_.ranks, direction, band, tiles);
  }

  // The faster of this measurement and those before it.
  void measure_tile(KernelSample& sample) const {
    step(fmt::format("{} x {} tokens", sample.q_rows, sample.kv_rows));
    const Band band = full_band(sample.q_rows, sample.kv_rows);
    const double forward_s = call_s(Direction::kForward, band, sample.tiles);
    const double backward_s = call_s(Direction::kBackward, band, sample.tiles);
    const bool is_first = sample.forward_s == 0;
    sample.forward_s = is_first ? forward_s : std::min(sample.forward_s, forward_s);
    sample.backward_s = is_first ? backward_s : std::min(sample.backward_s, backward_s);
  }

  // The diagonal says where the grid ends. Several passes: what disturbs one measurement often
  // disturbs the next ones, too.
  void measure_grid() {
    for (const std::int64_t size : settings_.sizes) {
      KernelSample sample{size, size, tiles_of_call(size, size)};
      if (!grid_.empty() && 4 * last_diagonal_s_ > settings_.longest_call_s) break;
      measure_tile(sample);
      last_diagonal_s_ = sample.forward_s / static_cast<double>(sample.tiles);
      grid_.push_back(size);
    }
    for (const std::int64_t rows : grid_) {
      for (const std::int64_t keys : grid_) {
        profile_.kernel_samples.push_back({rows, keys, tiles_of_call(rows, keys)});
      }
    }
    for (std::int32_t pass = 0; pass < settings_.passes; ++pass) {
      for (KernelSample& sample : profile_.kernel_samples) measure_tile(sample);
      measure_alone();
    }
    slots_ = measured_slots();
  }

  // What a call costs beside its tiles, and what a partial tile costs beside its pairs.
  void measure_overheads() {
    step("calls");
    const Band smallest = full_band(grid_.front(), grid_.front());
    const double one_s = call_s(Direction::kForward, smallest, 1);
    const double many_s = call_s(Direction::kForward, smallest, kMostTiles);
    const double tile_s = std::max(0.0, (many_s - one_s) / (kMostTiles - 1));
    call_s_ = std::clamp(one_s - tile_s, 0.0, (1 - kLeastTileShare) * one_s);
    for (std::size_t i = grid_.size() - std::min<std::size_t>(2, grid_.size()); i < grid_.size();
         ++i) {
      step(fmt::format("causal, {} tokens", grid_[i]));
      for (const Direction direction : kDirections) {
        causal_.push_back({grid_[i], direction, call_s(direction, causal_band(grid_[i]), 1)});
      }
    }
  }

  // The largest tile on one rank that has the machine to itself; the faster of this measurement and
  // those before it.
  void measure_alone() {
    step("one rank");
    const KernelSample& largest = profile_.kernel_samples.back();
    const double seconds = call_of_s(1, Direction::kForward,
                                     full_band(largest.q_rows, largest.kv_rows), largest.tiles);
    alone_s_ = alone_s_ == 0 ? seconds : std::min(alone_s_, seconds);
  }

  // All ranks at once compute as fast as so many would that each have the machine to themselves.
  [[nodiscard]] double measured_slots() const {
    return std::clamp(options_.ranks * alone_s_ / profile_.kernel_samples.back().forward_s, 1.0,
                      static_cast<double>(options_.ranks));
  }

  // What would take a rank alone as long as all ranks at once take for it.
  [[nodiscard]] double at_full_speed(double seconds) const {
    return seconds * slots_ / options_.ranks;
  }

  void measure_memory() {
    step("merging");
    const AttentionShape& shape = options_.shape;
    const double seconds = seconds_per_call(options_.ranks, settings_.effort, [&](Transport&) {
      struct Slots {
        HostTensor o[2];
        HostTensor lse[2];
      };
      const auto slots = std::make_shared<Slots>();
      Rng rng(1);
      for (std::size_t i = 0; i < 2; ++i) {
        slots->o[i] = normal_tensor(rng, Dtype::kF32, kMergedRows, shape.q_heads, shape.value_dim);
        slots->lse[i] = normal_tensor(rng, Dtype::kF32, kMergedRows, shape.q_heads, 1);
      }
      return std::function<void()>([slots, &rows = kernel_.row_ops()] {
        const PartialOutput dst{slots->o[0].view(), slots->lse[0].stats()};
        const PartialOutput src{slots->o[1].view(), slots->lse[1].stats()};
        const std::array<PartialOutput, 2> srcs = {dst, src};
        rows.merge(dst, srcs);
      });
    });
    // As the cost model counts: the result and both sources.
    const double bytes = 3.0 * static_cast<double>(kMergedRows) * shape.q_heads *
                         (shape.value_dim + 1) * sizeof(float);
    profile_.cluster.memory_gbytes_per_s = bytes / at_full_speed(seconds) * 1e-9;
  }

  // When every rank of a group sends so many messages to the next one, each a launch of its own:
  // from the first launch to the end of the last wait.
  [[nodiscard]] double exchange_s(std::int32_t ranks, std::int64_t bytes,
                                  std::int64_t launches = 1) const {
    return seconds_per_call(ranks, settings_.effort, [&](Transport& transport) {
      const auto size = static_cast<std::size_t>(bytes * launches);
      const auto sent = std::make_shared<std::vector<std::byte>>(size);
      const auto received = std::make_shared<std::vector<std::byte>>(size);
      return std::function<void()>([&transport, sent, received, bytes, launches] {
        const std::int32_t group = transport.size();
        const Rank next{(transport.rank().value + 1) % group};
        const Rank last{(transport.rank().value + group - 1) % group};
        std::vector<std::int64_t> tickets;
        for (std::int64_t i = 0; i < launches; ++i) {
          const Message send{next, {{sent->data() + i * bytes, bytes, 1, bytes}}};
          const Message receive{last, {{received->data() + i * bytes, bytes, 1, bytes}}};
          tickets.push_back(transport.launch({&send, 1}, {&receive, 1}));
        }
        for (const std::int64_t ticket : tickets) transport.wait(ticket);
      });
    });
  }

  void measure_transport() {
    for (const std::int32_t ranks : group_sizes(options_.ranks)) {
      for (const std::int64_t bytes : settings_.message_bytes) {
        step(fmt::format("{} ranks, {} bytes", ranks, bytes));
        profile_.transfers.push_back({ranks, bytes, exchange_s(ranks, bytes)});
      }
    }
    step("launches");
    const double many_s =
        exchange_s(profile_.transfers.back().ranks, kSmallMessageBytes, kManyLaunches);
    const double one_s = last_group().front().seconds;
    launch_s_ = std::clamp((many_s - one_s) / (kManyLaunches - 1), 0.0, one_s);
  }

  // The transfers of all ranks, by bytes.
  [[nodiscard]] std::span<const TransferSample> last_group() const {
    return std::span<const TransferSample>(profile_.transfers).last(settings_.message_bytes.size());
  }

  // What one tile of a call takes at full speed.
  [[nodiscard]] double tile_s(double call_s, std::int64_t tiles) const {
    return at_full_speed(std::max(call_s - call_s_, kLeastTileShare * call_s) /
                         static_cast<double>(tiles));
  }

  // The rows of kernel tiles with which the profile predicts the causal calls best.
  [[nodiscard]] std::int64_t best_tile_rows(AttentionProfile profile, double peak_flops) const {
    std::int64_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const std::int64_t rows : kTileRows) {
      profile.kernel_tile_rows = rows;
      double error = 0;
      for (const CausalSample& sample : causal_) {
        const double computed = profile.computed_pairs(sample.tokens, sample.tokens,
                                                       num_pairs(causal_band(sample.tokens)));
        const auto tokens = static_cast<double>(sample.tokens);
        const bool forward = sample.direction == Direction::kForward;
        const double share = forward ? profile.forward_share(tokens, computed / tokens)
                                     : profile.backward_share(tokens, computed / tokens);
        const double flops = computed * flops_of_pair(sample.direction);
        error += std::abs(std::log(flops / (peak_flops * share) / tile_s(sample.seconds, 1)));
      }
      if (error < least) {
        least = error;
        best = rows;
      }
    }
    return best;
  }

  [[nodiscard]] double flops_of_pair(Direction direction) const {
    const AttentionShape& shape = options_.shape;
    return direction == Direction::kForward ? forward_flops(1, shape.q_heads, shape)
                                            : backward_flops(1, shape.q_heads, shape);
  }

  void fill_attention() {
    AttentionProfile profile;
    profile.q_rows = profile.kv_rows = grid_;
    profile.call_us = 1e6 * at_full_speed(call_s_);
    double peak = 0;
    std::vector<std::array<double, 2>> rates;  // FLOP/s, by direction
    for (const KernelSample& sample : profile_.kernel_samples) {
      const auto pairs = static_cast<double>(sample.q_rows * sample.kv_rows);
      rates.push_back(
          {pairs * flops_of_pair(Direction::kForward) / tile_s(sample.forward_s, sample.tiles),
           pairs * flops_of_pair(Direction::kBackward) / tile_s(sample.backward_s, sample.tiles)});
      peak = std::max(peak, rates.back()[0]);
    }
    for (const auto& [forward, backward] : rates) {
      profile.forward.push_back(forward / peak);
      profile.backward.push_back(std::min(2.0, backward / peak));
    }
    profile.kernel_tile_rows = best_tile_rows(profile, peak);
    profile_.cluster.attention_tflops = peak * 1e-12;
    profile_.cluster.attention = std::move(profile);
  }

  void fill_cluster() {
    Cluster& cluster = profile_.cluster;
    cluster.name = fmt::format("local-{}-{}", profile_.kernel, options_.ranks);
    cluster.nodes = 1;
    cluster.devices_per_node = options_.ranks;
    fill_attention();
    // Latency from the smallest message, bandwidth from what the largest ones add.
    const std::span<const TransferSample> last = last_group();
    const TransferSample& large = last[last.size() - 1];
    const TransferSample& medium = last[last.size() - 2];
    const double added_s = std::max(large.seconds - medium.seconds, 0.1 * large.seconds);
    cluster.intra_gbytes_per_s = static_cast<double>(large.bytes - medium.bytes) / added_s * 1e-9;
    cluster.launch_us = 1e6 * at_full_speed(launch_s_);
    cluster.intra_latency_us = 1e6 * (last.front().seconds - launch_s_);
    // One node: never asked for.
    cluster.inter_gbytes_per_s_per_node = cluster.intra_gbytes_per_s;
    cluster.inter_latency_us = cluster.intra_latency_us;
    cluster.nics_per_node = 1;
    cluster.memory_bytes = 0;
    cluster.compute_slots_per_node = slots_ < options_.ranks ? slots_ : 0;
    check_cluster(cluster);
  }

  const ProfileOptions& options_;
  const std::function<void(std::string_view)>& on_step_;
  Settings settings_;
  const AttentionKernel& kernel_;
  MachineProfile profile_;
  std::vector<std::int64_t> grid_;  // sizes of the measured tiles
  std::vector<CausalSample> causal_;
  double last_diagonal_s_ = 0;
  double call_s_ = 0;   // of an attention call, beside its tiles
  double alone_s_ = 0;  // of a call on the largest tile
  double slots_ = 1;
  double launch_s_ = 0;
};

}  // namespace

std::int64_t profile_steps(const ProfileOptions& options) {
  const Settings settings = settings_of(options);
  const auto sizes = static_cast<std::int64_t>(settings.sizes.size());
  const auto groups = static_cast<std::int64_t>(group_sizes(options.ranks).size());
  return sizes + settings.passes * (sizes * sizes + 1) +
         groups * static_cast<std::int64_t>(settings.message_bytes.size()) + 5;
}

void check_profile_options(const ProfileOptions& options) {
  CONTEXTILE_CHECK(options.ranks >= 1 && options.ranks <= kMostRanks,
                   "profile: expected 1 to {} ranks, found {}", kMostRanks, options.ranks);
  check_shape(options.shape);
  static_cast<void>(find_kernel(options.kernel));
}

MachineProfile measure_machine(const ProfileOptions& options,
                               const std::function<void(std::string_view)>& on_step) {
  check_profile_options(options);
  return MachineMeasurement(options, on_step).run();
}

}  // namespace contextile
