#include "predict/bounds/participation.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace contextile {
namespace {

// Tokens that are worth `us_per_token` of work each.
struct TokenWorth {
  double us_per_token = 0;
  double tokens = 0;
};

// The most work per token on `owned` tokens of the component.
double most_cost_per_token(const ComponentLoad& load, double owned) {
  const MaskComponent& component = load.component;
  const double n = std::min(owned, static_cast<double>(component.tokens.size()));
  const double among = component.future_pairs == 0 ? 0.5 * (n + 1) : n;
  const double keys = std::min(static_cast<double>(component.max_degree), among);
  return load.cost.pair * keys + load.cost.row + load.cost.diagonal +
         load.cost.piece / static_cast<double>(component.rows);
}

// The same for a device that takes part in no transfer.
double most_cost_alone(const ComponentLoad& load, double owned) {
  const auto tokens = static_cast<double>(load.component.tokens.size());
  const bool is_connected = load.component.connected_tokens == load.component.tokens.size();
  if (!is_connected) return most_cost_per_token(load, owned);
  return tokens <= owned ? load.cost.of(load.component) / tokens : 0;
}

// M(m) for m = 0, 1, …, `devices`.
std::vector<double> worth_of_devices(std::vector<TokenWorth> worths, const DevicePace& pace) {
  std::ranges::sort(worths, std::greater<>(), &TokenWorth::us_per_token);
  std::vector<double> sums = {0};
  std::size_t next = 0;
  for (double device = 0; device < pace.devices; ++device) {
    double left = pace.owned_tokens;
    double worth = 0;
    while (left > 0 && next < worths.size()) {
      const double taken = std::min(left, worths[next].tokens);
      worth += taken * worths[next].us_per_token;
      left -= taken;
      worths[next].tokens -= taken;
      if (worths[next].tokens <= 0) ++next;
    }
    sums.push_back(sums.back() + worth);
  }
  return sums;
}

class Participation {
 public:
  Participation(std::span<const ComponentLoad> loads, const DevicePace& pace)
      : pace_(pace),
        foreign_us_(pace.call_us + pace.launch_us + std::min(pace.call_us, pace.latency_us)) {
    std::vector<TokenWorth> local;
    std::vector<TokenWorth> alone;
    for (const ComponentLoad& load : loads) {
      const double tokens = load.count * static_cast<double>(load.component.tokens.size());
      work_us_ += load.count * load.cost.of(load.component) * pace.us_per_cost;
      local.push_back({most_cost_per_token(load, pace.owned_tokens) * pace.us_per_cost, tokens});
      alone.push_back({most_cost_alone(load, pace.owned_tokens) * pace.us_per_cost, tokens});
    }
    local_worth_us_ = worth_of_devices(std::move(local), pace);
    alone_worth_us_ = worth_of_devices(std::move(alone), pace);
  }

  [[nodiscard]] double work_us() const { return work_us_; }
  // Time that a foreign device loses.
  [[nodiscard]] double foreign_us() const { return foreign_us_; }

  // The right side of the inequality, for the best m and m'.
  [[nodiscard]] double most_work_us(double time_us) const {
    const double foreign_us = std::max(0.0, time_us - foreign_us_);
    const double local_us = std::max(0.0, time_us - pace_.call_us - pace_.launch_us);
    const double alone_us = std::max(0.0, time_us - pace_.call_us);
    double most = 0;
    double best_local_gain = 0;  // of at most as many local devices as remain
    for (std::size_t alone = local_worth_us_.size(); alone-- > 0;) {
      const std::size_t others = local_worth_us_.size() - 1 - alone;
      const auto local = static_cast<double>(others);
      const double local_gain =
          std::min(local * local_us, local_worth_us_[others]) - local * foreign_us;
      best_local_gain = std::max(best_local_gain, local_gain);
      const auto count = static_cast<double>(alone);
      const double alone_gain =
          std::min(count * alone_us, alone_worth_us_[alone]) - count * foreign_us;
      most = std::max(most, pace_.devices * foreign_us + alone_gain + best_local_gain);
    }
    return most;
  }

 private:
  const DevicePace& pace_;
  double foreign_us_;
  double work_us_ = 0;
  std::vector<double> local_worth_us_;  // by number of devices
  std::vector<double> alone_worth_us_;
};

}  // namespace

double participation_us(std::span<const ComponentLoad> loads, const DevicePace& pace,
                        double even_us) {
  constexpr double kClose = 1e-4;
  constexpr double kRounding = 1e-9;
  const Participation participation(loads, pace);
  const double work_us = participation.work_us() * (1 - kRounding);
  double low = even_us;
  double high = std::max(even_us, work_us / pace.devices + participation.foreign_us());
  if (participation.most_work_us(low) >= work_us) return even_us;
  while (high - low > kClose * low) {
    const double middle = 0.5 * (low + high);
    (participation.most_work_us(middle) < work_us ? low : high) = middle;
  }
  return low;
}

}  // namespace contextile
