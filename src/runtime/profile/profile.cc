#include "contextile/advanced/profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "kernel/host_tensor.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "runtime/profile/link_measurement.h"
#include "runtime/profile/tile_bench.h"
#include "runtime/profile/timed_ranks.h"
#include "runtime/profile/transfer_bench.h"
#include "transport/agreement.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostRanks = 256;
constexpr std::int64_t kMergedRows = 512;
// More than caches hold, as the rows of a rank are.
constexpr std::int64_t kMergedRowsOfProcesses = 8192;
constexpr std::int64_t kSmallMessageBytes = 64;
// A tile costs at least this share of its call, because call_us is measured on other calls.
constexpr double kLeastTileShare = 0.1;
// Most tiles of a call on small tiles.
constexpr std::int64_t kMostTiles = 4;
constexpr std::int64_t kCallTokens = 1024;
constexpr std::int64_t kManyLaunches = 16;
constexpr std::int64_t kBusyRows = 256;  // of a tile, in calls while messages move
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

Settings settings_of(const ProfileOptions& options, const Transport* rank) {
  constexpr std::int64_t kKilo = 1024;
  if (rank != nullptr && options.effort == ProfileEffort::kThorough) {
    // Samples are long compared with the periods in which machines share out their cores.
    return {{16, 64, 256, 1024, 4096},
            {kSmallMessageBytes, 4 * kKilo, 64 * kKilo, kKilo * kKilo, 4 * kKilo * kKilo},
            {.sample_s = 0.2, .samples = 4, .settle_s = 0.03},
            0.3,
            1};
  }
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

// Small tiles come several per call, as in plans.
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

class MachineMeasurement {
 public:
  // `rank`: this process's end of a group; null for ranks as threads of this process.
  MachineMeasurement(const ProfileOptions& options, Transport* rank,
                     const std::function<void(std::string_view)>& on_step)
      : options_(options),
        rank_(rank),
        nodes_(rank == nullptr      ? 1
               : options.nodes == 0 ? options.ranks
                                    : options.nodes),
        devices_per_node_(options.ranks / nodes_),
        on_step_(on_step),
        settings_(settings_of(options, rank)),
        kernel_(find_kernel(options.kernel, options.shape.dtype)) {}

  MachineProfile run() {
    profile_.kernel = kernel_.name();
    measure_grid();
    measure_overheads();
    measure_memory();
    if (rank_ == nullptr) {
      measure_transport();
    } else {
      measure_links();
    }
    fill_cluster();
    return std::move(profile_);
  }

 private:
  void step(const std::string& what) const {
    if (on_step_) on_step_(what);
  }

  [[nodiscard]] double timed_s(
      std::int32_t ranks, const std::function<std::function<void()>(Transport&)>& prepare) const {
    if (rank_ == nullptr) return seconds_per_call(ranks, settings_.effort, prepare);
    TimingEffort effort = settings_.effort;
    effort.time = TimeOfRanks::kMean;
    return seconds_per_call(*rank_, ranks, effort, prepare);
  }

  // Measures a call on that many tiles, on that many ranks at once.
  [[nodiscard]] double call_of_s(std::int32_t ranks, Direction direction, const Band& band,
                                 std::int64_t tiles) const {
    return timed_s(ranks, [&](Transport&) {
      const auto bench = std::make_shared<TileBench>(kernel_, options_.shape, band, tiles);
      return direction == Direction::kForward
                 ? std::function<void()>([bench] { bench->forward(); })
                 : std::function<void()>([bench] { bench->backward(); });
    });
  }

  [[nodiscard]] double call_s(Direction direction, const Band& band, std::int64_t tiles) const {
    return call_of_s(options_.ranks, direction, band, tiles);
  }

  // Keeps the fastest of this measurement and earlier ones.
  void measure_tile(KernelSample& sample) const {
    step(fmt::format("{} x {} tokens", sample.q_rows, sample.kv_rows));
    const Band band = full_band(sample.q_rows, sample.kv_rows);
    const double forward_s = call_s(Direction::kForward, band, sample.tiles);
    const double backward_s = call_s(Direction::kBackward, band, sample.tiles);
    const bool is_first = sample.forward_s == 0;
    sample.forward_s = is_first ? forward_s : std::min(sample.forward_s, forward_s);
    sample.backward_s = is_first ? backward_s : std::min(sample.backward_s, backward_s);
  }

  // The diagonal decides where the grid ends. There are several passes, because a disturbance of
  // one measurement often affects the next ones, too.
  void measure_grid() {
    for (const std::int64_t size : settings_.sizes) {
      KernelSample sample{size, size, tiles_of_call(size, size)};
      const double scale = grid_.empty() ? 1 : static_cast<double>(size) / grid_.back();
      if (scale * scale * last_diagonal_s_ > settings_.longest_call_s) break;
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

  // Measures the cost of a call apart from its tiles, and of a partial tile apart from its pairs.
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

  // Measures the largest tile on one rank that has the machine to itself; keeps the fastest of this
  // measurement and earlier ones.
  void measure_alone() {
    if (devices_per_node_ == 1) return;
    step("one rank");
    const KernelSample& largest = profile_.kernel_samples.back();
    const double seconds = call_of_s(1, Direction::kForward,
                                     full_band(largest.q_rows, largest.kv_rows), largest.tiles);
    alone_s_ = alone_s_ == 0 ? seconds : std::min(alone_s_, seconds);
  }

  // All ranks at once compute as fast as this many ranks that each have the machine to themselves.
  [[nodiscard]] double measured_slots() const {
    if (devices_per_node_ == 1) return options_.ranks;  // nodes share nothing
    return std::clamp(options_.ranks * alone_s_ / profile_.kernel_samples.back().forward_s, 1.0,
                      static_cast<double>(options_.ranks));
  }

  // The time that a rank alone would take for work that takes all ranks at once `seconds`.
  [[nodiscard]] double at_full_speed(double seconds) const {
    return seconds * slots_ / options_.ranks;
  }

  void measure_memory() {
    step("merging");
    const std::int64_t num_rows = rank_ == nullptr ? kMergedRows : kMergedRowsOfProcesses;
    const AttentionShape& shape = options_.shape;
    const double seconds = timed_s(options_.ranks, [&](Transport&) {
      struct Slots {
        HostTensor o[2];
        HostTensor lse[2];
      };
      const auto slots = std::make_shared<Slots>();
      Rng rng(1);
      for (std::size_t i = 0; i < 2; ++i) {
        slots->o[i] = normal_tensor(rng, Dtype::kF32, num_rows, shape.q_heads, shape.value_dim);
        slots->lse[i] = normal_tensor(rng, Dtype::kF32, num_rows, shape.q_heads, 1);
      }
      return std::function<void()>([slots, &rows = kernel_.row_ops()] {
        const PartialOutput dst{slots->o[0].view(), slots->lse[0].stats()};
        const PartialOutput src{slots->o[1].view(), slots->lse[1].stats()};
        const std::array<PartialOutput, 2> srcs = {dst, src};
        rows.merge(dst, srcs);
      });
    });
    // Counts bytes as the cost model does: the result and both sources.
    const double bytes =
        3.0 * static_cast<double>(num_rows) * shape.q_heads * (shape.value_dim + 1) * sizeof(float);
    profile_.cluster.memory_gbytes_per_s = bytes / at_full_speed(seconds) * 1e-9;
  }

  // Seconds from the first launch to the end of the last wait; each rank launches `launches` times.
  [[nodiscard]] double exchange_s(TransferPattern pattern, std::int32_t ranks, std::int64_t bytes,
                                  std::int64_t launches = 1) const {
    const std::int32_t devices = rank_ == nullptr ? ranks : devices_per_node_;
    return timed_s(ranks, [&, devices](Transport& transport) {
      const auto bench = std::make_shared<TransferBench>(transport, pattern, ranks, devices, bytes);
      return std::function<void()>([bench, launches] { bench->exchange(launches); });
    });
  }

  void measure_pattern(TransferPattern pattern, std::int32_t ranks) {
    for (const std::int64_t bytes : settings_.message_bytes) {
      step(fmt::format("{} of {} ranks, {} bytes", to_string(pattern), ranks, bytes));
      profile_.transfers.push_back({ranks, bytes, exchange_s(pattern, ranks, bytes), pattern});
    }
  }

  void measure_transport() {
    for (const std::int32_t ranks : group_sizes(options_.ranks)) {
      measure_pattern(TransferPattern::kRing, ranks);
    }
    step("launches");
    const double many_s = exchange_s(TransferPattern::kRing, profile_.transfers.back().ranks,
                                     kSmallMessageBytes, kManyLaunches);
    const double one_s = last_group().front().seconds;
    launch_s_ = std::clamp((many_s - one_s) / (kManyLaunches - 1), 0.0, one_s);
  }

  void measure_links() {
    const LinkSettings settings{nodes_, devices_per_node_, settings_.message_bytes,
                                settings_.effort};
    TileBench bench(kernel_, options_.shape, full_band(kBusyRows, kBusyRows), 1);
    LinkMeasurement(*rank_, settings, on_step_).run(bench, profile_);
  }

  // The transfers of all ranks, by bytes.
  [[nodiscard]] std::span<const TransferSample> last_group() const {
    return std::span<const TransferSample>(profile_.transfers).last(settings_.message_bytes.size());
  }

  // The time of one tile of a call at full speed.
  [[nodiscard]] double tile_s(double call_s, std::int64_t tiles) const {
    return at_full_speed(std::max(call_s - call_s_, kLeastTileShare * call_s) /
                         static_cast<double>(tiles));
  }

  // The rows of kernel tiles for which the profile predicts the causal calls best.
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
    cluster.nodes = nodes_;
    cluster.devices_per_node = devices_per_node_;
    fill_attention();
    cluster.nics_per_node = 1;
    cluster.memory_bytes = 0;
    cluster.compute_slots_per_node = slots_ < options_.ranks ? slots_ / nodes_ : 0;
    if (rank_ == nullptr) fill_transport();
    check_cluster(cluster);
  }

  void fill_transport() {
    Cluster& cluster = profile_.cluster;
    const LinkRate rate = rate_of(last_group(), launch_s_);
    cluster.intra_gbytes_per_s = rate.gbytes_per_s;
    cluster.launch_us = 1e6 * at_full_speed(launch_s_);
    cluster.intra_latency_us = 1e6 * rate.latency_s;
    // One node: nothing reads these.
    cluster.inter_gbytes_per_s_per_node = cluster.intra_gbytes_per_s;
    cluster.inter_latency_us = cluster.intra_latency_us;
  }

  const ProfileOptions& options_;
  Transport* const rank_;
  const std::int32_t nodes_;
  const std::int32_t devices_per_node_;
  const std::function<void(std::string_view)>& on_step_;
  Settings settings_;
  const AttentionKernel& kernel_;
  MachineProfile profile_;
  std::vector<std::int64_t> grid_;  // sizes of the measured tiles
  std::vector<CausalSample> causal_;
  double last_diagonal_s_ = 0;
  double call_s_ = 0;   // of an attention call, apart from its tiles
  double alone_s_ = 0;  // of a call on the largest tile
  double slots_ = 1;
  double launch_s_ = 0;
};

}  // namespace

std::int64_t profile_steps(const ProfileOptions& options) {
  // The larger of the counts for threads and for processes.
  const Settings settings = settings_of(options, nullptr);
  const auto sizes = static_cast<std::int64_t>(settings.sizes.size());
  const auto groups = static_cast<std::int64_t>(group_sizes(options.ranks).size());
  return sizes + settings.passes * (sizes * sizes + 1) +
         std::max(groups * static_cast<std::int64_t>(settings.message_bytes.size()),
                  LinkMeasurement::steps({.message_bytes = settings.message_bytes, .effort = {}})) +
         5;
}

void check_profile_options(const ProfileOptions& options) {
  CONTEXTILE_CHECK(options.ranks >= 1 && options.ranks <= kMostRanks,
                   "profile: expected 1 to {} ranks, found {}", kMostRanks, options.ranks);
  CONTEXTILE_CHECK(options.nodes >= 0 && (options.nodes == 0 || options.ranks % options.nodes == 0),
                   "profile: expected nodes that divide the {} ranks, found {}", options.ranks,
                   options.nodes);
  check_shape(options.shape);
  static_cast<void>(find_kernel(options.kernel));
}

namespace {

// Checks that all ranks take the same measurements.
void check_same_options(const ProfileOptions& options, Transport& rank) {
  const AttentionShape& shape = options.shape;
  const Setting settings[] = {
      {"kernel", options.kernel.empty() ? "the preferred one" : options.kernel},
      {"nodes", fmt::format("{}", options.nodes)},
      {"heads", fmt::format("{}", shape.q_heads)},
      {"kv-heads", fmt::format("{}", shape.kv_heads)},
      {"head-dim", fmt::format("{}", shape.head_dim)},
      {"value dim", fmt::format("{}", shape.value_dim)},
      {"dtype", std::string(to_string(shape.dtype))},
      {"effort", options.effort == ProfileEffort::kQuick ? "quick" : "thorough"}};
  check_same_settings(rank, "profile", settings);
}

}  // namespace

MachineProfile measure_machine(const ProfileOptions& options,
                               const std::function<void(std::string_view)>& on_step) {
  check_profile_options(options);
  return MachineMeasurement(options, nullptr, on_step).run();
}

MachineProfile measure_machine(const ProfileOptions& options, Transport& rank,
                               const std::function<void(std::string_view)>& on_step) {
  check_profile_options(options);
  CONTEXTILE_CHECK(rank.size() == options.ranks && rank.size() > 1,
                   "profile: expected a group of {} ranks, at least 2, found {}", options.ranks,
                   rank.size());
  check_same_options(options, rank);
  return MachineMeasurement(options, &rank, on_step).run();
}

}  // namespace contextile
