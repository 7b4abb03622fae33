// Clusters that differ from another in one constant.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "contextile/advanced/sensitivity.h"

namespace contextile {
namespace {

constexpr double kFactors[] = {0.5, 2};
constexpr double kSomeSms = 0.15;  // of a device, if no transfer took any
constexpr double kSameShare = 1e-9;
constexpr double kOverheadDigits = 1e6;  // grids carry rounding errors of a billionth

std::string number_text(double value) { return fmt::format("{:.4g}", value); }
std::string factor_text(double factor) { return fmt::format("x {}", factor); }
std::string_view name_of(LaunchOrder order) {
  return order == LaunchOrder::kGrouped ? "grouped" : "concurrent";
}

// The costs of a rectangle beyond its pairs in one direction.
struct Losses {
  double row_keys = 0;
  double call_pairs = 0;
};

// The arguments that AttentionProfile::from_overheads received for each direction.
struct Overheads {
  Losses forward;
  Losses backward;
  double backward_share = 0;
  std::int64_t kernel_tile_rows = 0;

  [[nodiscard]] AttentionProfile profile(double call_us) const {
    AttentionProfile profile = with(forward);
    profile.backward = with(backward).backward;
    profile.call_us = call_us;
    return profile;
  }

 private:
  [[nodiscard]] AttentionProfile with(const Losses& losses) const {
    return AttentionProfile::from_overheads(losses.row_keys, losses.call_pairs, backward_share,
                                            kernel_tile_rows);
  }
};

double rounded(double value) { return std::round(value * kOverheadDigits) / kOverheadDigits; }

bool same_shares(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b,
                            [](double x, double y) { return std::abs(x - y) <= kSameShare * x; });
}

// Solves points of a grid of shares for its peak and for the costs of a row and of a call. All have
// so many rows and keys that whole kernel tiles do not matter.
struct Solved {
  double peak = 0;
  Losses losses;
};
Solved solved(const AttentionProfile& profile, const std::vector<double>& shares, std::size_t few) {
  const std::size_t row = profile.q_rows.size() - 1;
  const std::size_t key = profile.kv_rows.size() - 1;
  // Pairs that the rectangle's time is worth at a share of 1: the pairs and losses over the peak.
  const auto worth = [&](std::size_t i, std::size_t k) {
    return static_cast<double>(profile.q_rows[i]) * static_cast<double>(profile.kv_rows[k]) /
           shares[i * profile.kv_rows.size() + k];
  };
  const auto few_rows = static_cast<double>(profile.q_rows[few]);
  const auto most_rows = static_cast<double>(profile.q_rows[row]);
  const auto keys = static_cast<double>(profile.kv_rows[key]);
  Solved found;
  found.peak = few_rows * (keys - static_cast<double>(profile.kv_rows[key - 1])) /
               (worth(few, key) - worth(few, key - 1));
  const auto beyond_pairs = [&](std::size_t i, double rows) {
    return found.peak * worth(i, key) - rows * keys;
  };
  const double few_beyond = beyond_pairs(few, few_rows);
  found.losses.row_keys =
      rounded((beyond_pairs(row, most_rows) - few_beyond) / (most_rows - few_rows));
  found.losses.call_pairs = rounded(few_beyond - found.losses.row_keys * few_rows);
  return found;
}

// Returns the overheads, unless they do not make the whole grid.
std::optional<Overheads> overheads_of(const AttentionProfile& profile) {
  const auto few = static_cast<std::size_t>(
      std::ranges::lower_bound(profile.q_rows, profile.kernel_tile_rows) - profile.q_rows.begin());
  if (few + 1 >= profile.q_rows.size() || profile.kv_rows.size() < 2) return std::nullopt;
  if (profile.kv_rows[profile.kv_rows.size() - 2] < profile.kernel_tile_rows) return std::nullopt;
  const Solved forward = solved(profile, profile.forward, few);
  const Solved backward = solved(profile, profile.backward, few);
  for (const Losses& losses : {forward.losses, backward.losses}) {
    if (losses.row_keys < 0 || losses.call_pairs < 0) return std::nullopt;
  }
  const Overheads found = {.forward = forward.losses,
                           .backward = backward.losses,
                           .backward_share = backward.peak,
                           .kernel_tile_rows = profile.kernel_tile_rows};
  const AttentionProfile made = found.profile(profile.call_us);
  const bool same = made.q_rows == profile.q_rows && made.kv_rows == profile.kv_rows &&
                    same_shares(made.forward, profile.forward) &&
                    same_shares(made.backward, profile.backward);
  return same ? std::optional(found) : std::nullopt;
}

// The shares if all that is lost compared with the best of them takes `factor` times as long.
std::vector<double> with_losses(const std::vector<double>& shares, double factor) {
  const double least = 1 / *std::ranges::max_element(shares);
  std::vector<double> changed;
  changed.reserve(shares.size());
  for (const double share : shares) changed.push_back(1 / (least + factor * (1 / share - least)));
  return changed;
}

class Changes {
 public:
  explicit Changes(const Cluster& cluster) : cluster_(cluster), changed_{{{}, {}, {}, cluster}} {}

  std::vector<ChangedConstant> all() {
    add_attention();
    scale("call_us", cluster_.attention.call_us,
          [](Cluster& changed, double value) { changed.attention.call_us = value; });
    scale("attention_tflops", &Cluster::attention_tflops);
    scale("memory_gbytes_per_s", &Cluster::memory_gbytes_per_s);
    scale("launch_us", &Cluster::launch_us);
    add_latencies();
    scale("intra_gbytes_per_s", &Cluster::intra_gbytes_per_s);
    if (cluster_.nodes > 1) {
      scale("inter_gbytes_per_s_per_node", &Cluster::inter_gbytes_per_s_per_node);
      add_nics();
      add_flows();
    }
    add_engine();
    add_launch_order();
    add_stolen_compute();
    scale("compute_slots_per_node", &Cluster::compute_slots_per_node);
    return std::move(changed_);
  }

 private:
  void add(std::string_view constant, std::string was, std::string is, Cluster changed) {
    try {
      check_cluster(changed);
    } catch (const InvalidArgument&) {
      return;  // no cluster has such a value: a share beyond 2, more NICs than devices
    }
    changed_.push_back({std::string(constant), std::move(was), std::move(is), std::move(changed)});
  }

  template <typename Set>
  void scale(std::string_view constant, double value, const Set& set) {
    if (value == 0) return;
    for (const double factor : kFactors) {
      Cluster changed = cluster_;
      set(changed, factor * value);
      add(constant, number_text(value), number_text(factor * value), std::move(changed));
    }
  }
  void scale(std::string_view constant, double Cluster::*member) {
    scale(constant, cluster_.*member,
          [member](Cluster& changed, double value) { changed.*member = value; });
  }

  void add_attention() {
    const AttentionProfile& profile = cluster_.attention;
    if (const std::optional<Overheads> found = overheads_of(profile)) {
      scale_losses("row_keys", *found, &Losses::row_keys);
      scale_losses("call_pairs", *found, &Losses::call_pairs);
      const auto scale_overhead = [&](std::string_view constant, auto Overheads::*member) {
        scale(constant, static_cast<double>((*found).*member),
              [&, member](Cluster& changed, double value) {
                Overheads overheads = *found;
                overheads.*member =
                    static_cast<std::remove_cvref_t<decltype(overheads.*member)>>(value);
                changed.attention = overheads.profile(profile.call_us);
              });
      };
      scale_overhead("kernel_tile_rows", &Overheads::kernel_tile_rows);
      scale_overhead("backward_share", &Overheads::backward_share);
      return;
    }
    for (const double factor : kFactors) {
      Cluster changed = cluster_;
      changed.attention.forward = with_losses(profile.forward, factor);
      changed.attention.backward = with_losses(profile.backward, factor);
      add("kernel_overheads", "", factor_text(factor), std::move(changed));
    }
    for (const double factor : kFactors) {
      Cluster changed = cluster_;
      for (double& share : changed.attention.backward) share *= factor;
      add("backward_share", "", factor_text(factor), std::move(changed));
    }
  }

  // Changes a loss of both directions by the same factor. It has a number if both have the same.
  void scale_losses(std::string_view constant, const Overheads& found, double Losses::*member) {
    const auto text = [member](const Overheads& overheads) {
      return number_text(overheads.forward.*member);
    };
    const bool is_one = text(found) == number_text(found.backward.*member);
    if (found.forward.*member == 0 && found.backward.*member == 0) return;
    for (const double factor : kFactors) {
      Overheads overheads = found;
      overheads.forward.*member *= factor;
      overheads.backward.*member *= factor;
      Cluster changed = cluster_;
      changed.attention = overheads.profile(cluster_.attention.call_us);
      add(constant, is_one ? text(found) : "", is_one ? text(overheads) : factor_text(factor),
          std::move(changed));
    }
  }

  void add_latencies() {
    const auto text = [](const Cluster& cluster) {
      return fmt::format("{}, {}", number_text(cluster.intra_latency_us),
                         number_text(cluster.inter_latency_us));
    };
    if (cluster_.intra_latency_us == 0 && cluster_.inter_latency_us == 0) return;
    for (const double factor : kFactors) {
      Cluster changed = cluster_;
      changed.intra_latency_us *= factor;
      changed.inter_latency_us *= factor;
      add("latencies_us", text(cluster_), text(changed), changed);
    }
  }

  void add_nics() {
    if (cluster_.nics_per_node % 2 == 0) add_nics(cluster_.nics_per_node / 2);
    add_nics(cluster_.nics_per_node * 2);
  }
  void add_nics(std::int32_t nics) {
    Cluster changed = cluster_;
    changed.nics_per_node = nics;
    add("nics_per_node", fmt::format("{}", cluster_.nics_per_node), fmt::format("{}", nics),
        changed);
  }

  void add_flows() {
    if (cluster_.flow_gbytes_per_s.empty()) return;
    const auto text = [](const Cluster& cluster) {
      return number_text(*cluster.flow_limit_gbytes_per_s());
    };
    for (const double factor : kFactors) {
      Cluster changed = cluster_;
      for (FlowRate& rate : changed.flow_gbytes_per_s) rate.gbytes_per_s *= factor;
      add("flow_gbytes_per_s", text(cluster_), text(changed), changed);
    }
  }

  void add_engine() {
    for (const EngineCost& cost : engine_costs()) {
      scale(fmt::format("engine.{}", cost.key), cluster_.engine.*cost.member,
            [&cost](Cluster& changed, double value) { changed.engine.*cost.member = value; });
    }
  }

  void add_launch_order() {
    Cluster changed = cluster_;
    changed.launches = cluster_.launches == LaunchOrder::kGrouped ? LaunchOrder::kConcurrent
                                                                  : LaunchOrder::kGrouped;
    add("launches", std::string(name_of(cluster_.launches)), std::string(name_of(changed.launches)),
        changed);
  }

  void add_stolen_compute() {
    if (cluster_.sm_fraction == 0) {
      Cluster changed = cluster_;
      changed.sm_fraction = kSomeSms;
      add("sm_fraction", "0", number_text(kSomeSms), changed);
    }
    if (cluster_.transfer_sms > 0) {
      add_transfer_sms(cluster_.transfer_sms / 2);
      add_transfer_sms(cluster_.transfer_sms * 2);
    }
    scale("sm_fraction", &Cluster::sm_fraction);
    scale("transfer_compute_us_per_mb", &Cluster::transfer_compute_us_per_mb);
  }

  void add_transfer_sms(std::int32_t sms) {
    Cluster changed = cluster_;
    changed.transfer_sms = sms;
    add("transfer_sms", fmt::format("{}", cluster_.transfer_sms), fmt::format("{}", sms), changed);
  }

  const Cluster& cluster_;
  std::vector<ChangedConstant> changed_;
};

}  // namespace

std::vector<ChangedConstant> changed_constants(const Cluster& cluster) {
  check_cluster(cluster);
  return Changes(cluster).all();
}

}  // namespace contextile
