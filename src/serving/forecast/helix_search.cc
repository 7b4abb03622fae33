#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/check.h"
#include "contextile/serving/helix.h"

namespace contextile {
namespace {

using Accepts = std::function<bool(const HelixLayout&)>;

// The fastest layout that is accepted.
std::optional<HelixPoint> fastest_of(const HelixModel& model, const HelixHardware& hardware,
                                     std::int32_t devices, const HelixLoad& load, const HopB& hop_b,
                                     const Accepts& accepts) {
  std::optional<HelixPoint> best;
  for (const HelixLayout& layout : helix_layouts(model, devices)) {
    if (!accepts(layout)) continue;
    const HelixStep step = helix_step(model, hardware, layout, load, hop_b);
    if (!best || step.total_us() < best->step.total_us()) best = {layout, load, step};
  }
  return best;
}

bool fits(const HelixModel& model, const HelixHardware& hardware, const HelixLayout& layout,
          const HelixLoad& load) {
  return helix_max_context(model, hardware, layout, load.batch) >= load.context;
}

void check_search(const HelixSearch& search) {
  CONTEXTILE_CHECK(!search.devices.empty(), "search: expected numbers of devices, found none");
  CONTEXTILE_CHECK(!search.batches.empty(), "search: expected batches, found none");
}

// The fastest layout of a family for every number of devices and batch that the memory can hold.
std::vector<HelixPoint> points_of(const HelixModel& model, const HelixHardware& hardware,
                                  const HelixSearch& search, HelixFamily family) {
  std::vector<HelixPoint> points;
  for (const std::int32_t devices : search.devices) {
    for (const std::int32_t batch : search.batches) {
      const HelixLoad load = {batch, search.context};
      const auto point = fastest_helix(model, hardware, devices, load, search.hop_b, family);
      if (point) points.push_back(*point);
    }
  }
  return points;
}

// The most requests that one of the points serves within `us` per step.
std::int32_t most_requests(std::span<const HelixPoint> points, double us) {
  std::int32_t most = 0;
  for (const HelixPoint& point : points) {
    if (point.step.total_us() <= us) most = std::max(most, point.load.batch);
  }
  return most;
}

double least_us(std::span<const HelixPoint> points, std::int32_t batch) {
  double least = std::numeric_limits<double>::infinity();
  for (const HelixPoint& point : points) {
    if (point.load.batch == batch) least = std::min(least, point.step.total_us());
  }
  return least;
}

// The most tokens/s per device at that many per user; 0: no point has as many.
double most_per_device(std::span<const HelixPoint> points, double tokens_per_s_user) {
  double most = 0;
  for (const HelixPoint& point : points) {
    if (point.tokens_per_s_user() >= tokens_per_s_user) {
      most = std::max(most, point.tokens_per_s_device());
    }
  }
  return most;
}

double most_per_user(std::span<const HelixPoint> points) {
  double most = 0;
  for (const HelixPoint& point : points) most = std::max(most, point.tokens_per_s_user());
  return most;
}

}  // namespace

std::optional<HelixPoint> fastest_helix(const HelixModel& model, const HelixHardware& hardware,
                                        std::int32_t devices, const HelixLoad& load,
                                        const HopB& hop_b, HelixFamily family) {
  return fastest_of(model, hardware, devices, load, hop_b, [&](const HelixLayout& layout) {
    return family_of(layout) == family && fits(model, hardware, layout, load);
  });
}

std::optional<std::int64_t> helix_crossover(const HelixModel& model, const HelixHardware& hardware,
                                            std::int32_t devices, std::int32_t batch,
                                            const HopB& hop_b, std::int64_t longest) {
  const auto us = [&](std::int64_t context, const Accepts& accepts) {
    const auto best = fastest_of(model, hardware, devices, {batch, context}, hop_b, accepts);
    return best ? best->step.total_us() : std::numeric_limits<double>::infinity();
  };
  const auto shared_is_faster = [&](std::int64_t context) {
    return us(context, [](const HelixLayout& layout) { return layout.kvp > 1; }) <
           us(
               context, [](const HelixLayout& layout) { return layout.kvp == 1; });
  };
  if (!shared_is_faster(longest)) return std::nullopt;
  std::int64_t slower = 0;
  std::int64_t faster = longest;
  while (faster - slower > 1) {
    const std::int64_t middle = slower + (faster - slower) / 2;
    (shared_is_faster(middle) ? faster : slower) = middle;
  }
  return faster;
}

std::vector<HelixPoint> helix_front(const HelixModel& model, const HelixHardware& hardware,
                                    const HelixSearch& search) {
  check_search(search);
  std::vector<HelixPoint> points;
  for (const HelixFamily family : search.families) {
    const std::vector<HelixPoint> more = points_of(model, hardware, search, family);
    points.insert(points.end(), more.begin(), more.end());
  }
  std::ranges::stable_sort(points, [](const HelixPoint& a, const HelixPoint& b) {
    return a.tokens_per_s_user() != b.tokens_per_s_user()
               ? a.tokens_per_s_user() > b.tokens_per_s_user()
               : a.tokens_per_s_device() > b.tokens_per_s_device();
  });
  std::vector<HelixPoint> front;
  for (const HelixPoint& point : points) {
    if (front.empty() || point.tokens_per_s_device() > front.back().tokens_per_s_device()) {
      front.push_back(point);
    }
  }
  return front;
}

HelixGain helix_gain(const HelixModel& model, const HelixHardware& hardware,
                     const HelixSearch& search) {
  check_search(search);
  const std::vector<HelixPoint> helix = points_of(model, hardware, search, HelixFamily::kHelix);
  std::vector<HelixPoint> others;
  for (const HelixFamily family : search.families) {
    if (family == HelixFamily::kHelix) continue;
    const std::vector<HelixPoint> more = points_of(model, hardware, search, family);
    others.insert(others.end(), more.begin(), more.end());
  }
  HelixGain gain;
  for (const HelixPoint& point : others) {
    const double us = point.step.total_us();
    gain.latency = std::max(gain.latency,
                            least_us(others, point.load.batch) / least_us(helix, point.load.batch));
    gain.batch = std::max(
        gain.batch, static_cast<double>(most_requests(helix, us)) / most_requests(others, us));
  }
  const auto compare_at = [&](std::span<const HelixPoint> points) {
    for (const HelixPoint& point : points) {
      const double most = most_per_device(others, point.tokens_per_s_user());
      if (most == 0) continue;
      gain.throughput =
          std::max(gain.throughput, most_per_device(helix, point.tokens_per_s_user()) / most);
    }
  };
  compare_at(helix);  // each side changes only at its points
  compare_at(others);
  if (!others.empty()) gain.interactivity = most_per_user(helix) / most_per_user(others);
  return gain;
}

}  // namespace contextile
