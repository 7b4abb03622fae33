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
#include "contextile/kernel.h"
#include "contextile/runtime.h"
#include "contextile/transport.h"
#include "runtime/host_tensor.h"
#include "runtime/merge.h"
#include "runtime/tensor.h"
#include "runtime/timed_ranks.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostRanks = 256;
constexpr std::int64_t kMergedRows = 512;
constexpr std::int64_t kSmallMessageBytes = 64;
// A tile costs at least this share of its call: call_us is measured on other calls.
constexpr double kLeastTileShare = 0.1;
// Tiles of the calls from which the cost of a call and that of a tile are told apart.
constexpr std::int64_t kManyTiles = 9;
constexpr std::int64_t kManyLaunches = 16;
constexpr std::int64_t kTileRows[] = {0, 16, 32, 64, 128, 256};

struct Settings {
  std::vector<std::int64_t> sizes;  // of tiles, ascending
  std::vector<std::int64_t> message_bytes;
  TimingEffort effort;
  double longest_call_s = 0;  // the grid ends where a forward call takes longer
};

Settings settings_of(const ProfileOptions& options) {
  constexpr std::int64_t kKilo = 1024;
  if (options.effort == ProfileEffort::kQuick) {
    return {{16, 64, 256, 1024},
            {kSmallMessageBytes, 64 * kKilo, kKilo * kKilo},
            {.sample_s = 0.004, .samples = 3},
            0.05};
  }
  return {{16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
          {kSmallMessageBytes, 4 * kKilo, 64 * kKilo, kKilo * kKilo, 4 * kKilo * kKilo},
          {.sample_s = 0.01, .samples = 7},
          0.3};
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

HostTensor random_tensor(Rng& rng, Dtype dtype, std::int64_t tokens, std::int32_t heads,
                         std::int32_t dim) {
  HostTensor tensor(dtype, tokens, heads, dim);
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int32_t h = 0; h < heads; ++h) {
      for (float& value : row) value = static_cast<float>(rng.normal());
      write_row(tensor.view(), n, h, row);
    }
  }
  return tensor;
}

// The tensors of one tile and calls of the kernel on it.
class TileBench {
 public:
  TileBench(const AttentionKernel& kernel, const AttentionShape& shape, const Band& band)
      : kernel_(kernel),
        band_(band),
        params_{.q_heads = shape.q_heads,
                .kv_heads = shape.kv_heads,
                .head_dim = shape.head_dim,
                .value_dim = shape.value_dim,
                .scale = static_cast<float>(shape.effective_scale()),
                .softcap = static_cast<float>(shape.softcap)} {
    Rng rng(1);
    const std::int64_t rows = band.q.end;
    const std::int64_t keys = band.k.end;
    q_ = random_tensor(rng, shape.dtype, rows, shape.q_heads, shape.head_dim);
    k_ = random_tensor(rng, shape.dtype, keys, shape.kv_heads, shape.head_dim);
    v_ = random_tensor(rng, shape.dtype, keys, shape.kv_heads, shape.value_dim);
    dout_ = random_tensor(rng, shape.dtype, rows, shape.q_heads, shape.value_dim);
    delta_ = random_tensor(rng, Dtype::kF32, rows, shape.q_heads, 1);
    o_ = HostTensor(Dtype::kF32, rows, shape.q_heads, shape.value_dim);
    lse_ = HostTensor(Dtype::kF32, rows, shape.q_heads, 1);
    dq_ = HostTensor(Dtype::kF32, rows, shape.q_heads, shape.head_dim);
    dk_ = HostTensor(Dtype::kF32, keys, shape.kv_heads, shape.head_dim);
    dv_ = HostTensor(Dtype::kF32, keys, shape.kv_heads, shape.value_dim);
    forward(1);  // backward needs the LSE
  }

  // One call on so many copies of the tile, into one result.
  void forward(std::int64_t tiles) {
    std::vector<ForwardTile> list;
    for (std::int64_t i = 0; i < tiles; ++i) {
      list.push_back({q_.view(),
                      k_.view(),
                      v_.view(),
                      o_.view(),
                      lse_.stats(),
                      {&band_, 1},
                      /*init=*/i == 0});
    }
    kernel_.forward(params_, list);
  }

  void backward() {
    const BackwardTile tile{q_.view(),    k_.view(),      v_.view(),  dout_.view(),
                            lse_.stats(), delta_.stats(), dq_.view(), dk_.view(),
                            dv_.view(),   {&band_, 1},    true,       true};
    kernel_.backward(params_, {&tile, 1});
  }

 private:
  const AttentionKernel& kernel_;
  Band band_;
  KernelParams params_;
  HostTensor q_, k_, v_, dout_, delta_, o_, lse_, dq_, dk_, dv_;
};

class MachineMeasurement {
 public:
  MachineMeasurement(const ProfileOptions& options,
                     const std::function<void(std::string_view)>& on_step)
      : options_(options),
        on_step_(on_step),
        settings_(settings_of(options)),
        kernel_(options.kernel.empty() ? *kernels().front() : find_kernel(options.kernel)) {}

  MachineProfile run() {
    profile_.kernel = kernel_.name();
    measure_grid();
    measure_overheads();
    measure_slots();
    measure_memory();
    measure_transport();
    fill_cluster();
    return std::move(profile_);
  }

 private:
  void step(const std::string& what) const {
    if (on_step_) on_step_(what);
  }

  // Of a call on `tiles` copies of a tile, on so many ranks at once; backward: one tile.
  [[nodiscard]] double call_of_s(std::int32_t ranks, Direction direction, const Band& band,
                                 std::int64_t tiles = 1) const {
    return seconds_per_call(ranks, settings_.effort, [&](Transport&) {
      const auto bench = std::make_shared<TileBench>(kernel_, options_.shape, band);
      return std::function<void()>([bench, direction, tiles] {
        if (direction == Direction::kForward) {
          bench->forward(tiles);
        } else {
          bench->backward();
        }
      });
    });
  }

  [[nodiscard]] double call_s(Direction direction, const Band& band, std::int64_t tiles = 1) const {
    return call_of_s(options_.ranks, direction, band, tiles);
  }

  [[nodiscard]] KernelSample measure_tile(std::int64_t rows, std::int64_t keys) const {
    step(fmt::format("{} x {} tokens", rows, keys));
    const Band band = full_band(rows, keys);
    return {rows, keys, call_s(Direction::kForward, band), call_s(Direction::kBackward, band)};
  }

  // The diagonal first: it says where the grid ends.
  void measure_grid() {
    std::vector<KernelSample> diagonal;
    for (const std::int64_t size : settings_.sizes) {
      if (!diagonal.empty() && 4 * diagonal.back().forward_s > settings_.longest_call_s) break;
      diagonal.push_back(measure_tile(size, size));
    }
    for (std::size_t i = 0; i < diagonal.size(); ++i) {
      for (std::size_t j = 0; j < diagonal.size(); ++j) {
        profile_.kernel_samples.push_back(
            i == j ? diagonal[i] : measure_tile(settings_.sizes[i], settings_.sizes[j]));
      }
    }
    grid_.assign(settings_.sizes.begin(),
                 settings_.sizes.begin() + static_cast<std::ptrdiff_t>(diagonal.size()));
  }

  // What a call costs beside its tiles, and what a partial tile costs beside its pairs.
  void measure_overheads() {
    step("calls");
    const Band smallest = full_band(grid_.front(), grid_.front());
    const double one_s = call_s(Direction::kForward, smallest);
    const double many_s = call_s(Direction::kForward, smallest, kManyTiles);
    const double tile_s = std::max(0.0, (many_s - one_s) / (kManyTiles - 1));
    call_s_ = std::clamp(one_s - tile_s, 0.0, (1 - kLeastTileShare) * one_s);
    for (std::size_t i = grid_.size() - std::min<std::size_t>(2, grid_.size()); i < grid_.size();
         ++i) {
      step(fmt::format("causal, {} tokens", grid_[i]));
      causal_.emplace_back(grid_[i], call_s(Direction::kForward, causal_band(grid_[i])));
    }
  }

  // All ranks at once compute as fast as so many ranks would that have the machine to themselves.
  void measure_slots() {
    step("one rank");
    const KernelSample& all = profile_.kernel_samples.back();
    const double alone_s = call_of_s(1, Direction::kForward, full_band(all.q_rows, all.kv_rows));
    slots_ = std::clamp(options_.ranks * alone_s / all.forward_s, 1.0,
                        static_cast<double>(options_.ranks));
  }

  // Of what takes so long when all ranks do it at once.
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
        slots->o[i] = random_tensor(rng, Dtype::kF32, kMergedRows, shape.q_heads, shape.value_dim);
        slots->lse[i] = random_tensor(rng, Dtype::kF32, kMergedRows, shape.q_heads, 1);
      }
      return std::function<void()>([slots] {
        const PartialOutput dst{slots->o[0].view(), slots->lse[0].stats()};
        const PartialOutput src{slots->o[1].view(), slots->lse[1].stats()};
        const std::array<PartialOutput, 2> srcs = {dst, src};
        merge_outputs(dst, srcs);
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

  [[nodiscard]] double tile_s(double call_s) const {
    return std::max(call_s - call_s_, kLeastTileShare * call_s);
  }

  // The rows of kernel tiles with which the profile predicts the causal calls best.
  [[nodiscard]] std::int64_t best_tile_rows(AttentionProfile profile, double peak_flops) const {
    const double flops = forward_flops(1, options_.shape.q_heads, options_.shape);
    std::int64_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const std::int64_t rows : kTileRows) {
      profile.kernel_tile_rows = rows;
      double error = 0;
      for (const auto& [size, seconds] : causal_) {
        const double computed = profile.computed_pairs(size, size, num_pairs(causal_band(size)));
        const double share =
            profile.forward_share(static_cast<double>(size), computed / static_cast<double>(size));
        error += std::abs(
            std::log(computed * flops / (peak_flops * share) / at_full_speed(tile_s(seconds))));
      }
      if (error < least) {
        least = error;
        best = rows;
      }
    }
    return best;
  }

  void fill_attention() {
    AttentionProfile profile;
    profile.q_rows = profile.kv_rows = grid_;
    profile.call_us = 1e6 * at_full_speed(call_s_);
    double peak = 0;
    std::vector<std::array<double, 2>> rates;  // FLOP/s, by direction
    for (const KernelSample& sample : profile_.kernel_samples) {
      const std::int64_t pairs = sample.q_rows * sample.kv_rows;
      const AttentionShape& shape = options_.shape;
      rates.push_back(
          {forward_flops(pairs, shape.q_heads, shape) / at_full_speed(tile_s(sample.forward_s)),
           backward_flops(pairs, shape.q_heads, shape) / at_full_speed(tile_s(sample.backward_s))});
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
  std::vector<std::int64_t> grid_;                       // sizes of the measured tiles
  std::vector<std::pair<std::int64_t, double>> causal_;  // tokens, seconds of a call
  double call_s_ = 0;                                    // of an attention call, beside its tiles
  double slots_ = 1;
  double launch_s_ = 0;
};

}  // namespace

std::int64_t profile_steps(const ProfileOptions& options) {
  const Settings settings = settings_of(options);
  return static_cast<std::int64_t>(settings.sizes.size() * settings.sizes.size() +
                                   group_sizes(options.ranks).size() *
                                       settings.message_bytes.size()) +
         6;
}

void check_profile_options(const ProfileOptions& options) {
  CONTEXTILE_CHECK(options.ranks >= 1 && options.ranks <= kMostRanks,
                   "profile: expected 1 to {} ranks, found {}", kMostRanks, options.ranks);
  check_shape(options.shape);
  if (!options.kernel.empty()) static_cast<void>(find_kernel(options.kernel));
}

MachineProfile measure_machine(const ProfileOptions& options,
                               const std::function<void(std::string_view)>& on_step) {
  check_profile_options(options);
  return MachineMeasurement(options, on_step).run();
}

}  // namespace contextile
