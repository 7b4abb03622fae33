#include "predict/bounds/participation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace contextile {
namespace {

constexpr double kRounding = 1e-9;

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

// The most work on the component, in units of cost, of devices that compute pairs of their own
// tokens only and do at most `most_cost` each.
double most_cost_of_owners(const ComponentLoad& load, double owned, double most_cost) {
  const MaskComponent& component = load.component;
  const double whole = load.cost.of(component);
  if (component.future_pairs > 0 || whole <= 0) return whole;
  const auto tokens = static_cast<double>(component.tokens.size());
  const auto degree = static_cast<double>(component.max_degree);
  const double of_row =
      load.cost.row + load.cost.diagonal + load.cost.piece / static_cast<double>(component.rows);
  const auto worth = [&](double n) {
    const double rising = std::min(n, degree);
    return load.cost.pair * (0.5 * rising * (rising + 1) + (n - rising) * degree) + of_row * n;
  };
  double most = std::min(owned, tokens);  // tokens that are worth at most most_cost
  if (worth(most) > most_cost) {
    if (worth(degree) < most_cost) {
      most = degree + (most_cost - worth(degree)) / (load.cost.pair * degree + of_row);
    } else {
      const double slope = of_row + 0.5 * load.cost.pair;
      most = (std::sqrt(slope * slope + 2 * load.cost.pair * most_cost) - slope) / load.cost.pair;
    }
  }
  if (most <= 0) return 0;
  const double devices = std::floor(tokens / most * (1 + kRounding));
  return std::min(whole, devices * worth(most) + worth(std::max(0.0, tokens - devices * most)));
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
      : loads_(loads),
        pace_(pace),
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
    const OwnersWork owners = owners_work(alone_us);
    const std::size_t devices = local_worth_us_.size() - 1;
    const auto of_local = [&](std::size_t m) {
      return std::min(static_cast<double>(m) * local_us, local_worth_us_[m]);
    };
    const auto of_alone = [&](std::size_t m) {
      return std::min({static_cast<double>(m) * alone_us, alone_worth_us_[m], owners.alone_us});
    };
    // Both are concave in m, so the best split of more devices adds to one of the two.
    double most = pace_.devices * foreign_us;
    std::size_t local = 0;
    std::size_t alone = 0;
    while (local + alone < devices) {
      const double local_gain = of_local(local + 1) - of_local(local);
      const double alone_gain = of_alone(alone + 1) - of_alone(alone);
      (alone_gain > local_gain ? alone : local) += 1;
      const auto others = static_cast<double>(devices - local - alone);
      const double own_us = std::min(owners.all_us, of_local(local) + of_alone(alone));
      most = std::max(most, others * foreign_us + own_us);
    }
    return most;
  }

 private:
  // Most work of all devices that compute pairs of their own tokens only.
  struct OwnersWork {
    double all_us = 0;    // S
    double alone_us = 0;  // A
  };

  [[nodiscard]] OwnersWork owners_work(double most_us) const {
    const double most_cost = most_us / pace_.us_per_cost;
    OwnersWork work;
    for (const ComponentLoad& load : loads_) {
      const double own = most_cost_of_owners(load, pace_.owned_tokens, most_cost);
      const double whole = load.cost.of(load.component);
      const auto tokens = static_cast<double>(load.component.tokens.size());
      const bool is_connected = load.component.connected_tokens == load.component.tokens.size();
      const bool fits = tokens <= pace_.owned_tokens && whole <= most_cost * (1 + kRounding);
      work.all_us += load.count * own * pace_.us_per_cost;
      if (!is_connected || fits) work.alone_us += load.count * own * pace_.us_per_cost;
    }
    return work;
  }

  std::span<const ComponentLoad> loads_;
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
