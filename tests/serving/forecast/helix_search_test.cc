// Layouts, fronts, crossovers: against every candidate, one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "contextile/serving/helix.h"
#include "serving/forecast/models.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr HelixFamily kFamilies[] = {HelixFamily::kTensorParallel, HelixFamily::kDataParallel,
                                     HelixFamily::kContextParallel, HelixFamily::kHelix};

// All layouts with that many devices, legal or not.
std::vector<HelixLayout> layouts_of(std::int32_t devices) {
  std::vector<HelixLayout> layouts;
  for (std::int32_t tpa = 1; tpa <= devices; ++tpa) {
    for (std::int32_t kvp = 1; kvp * tpa <= devices; ++kvp) {
      if (devices % (kvp * tpa) != 0) continue;
      for (std::int32_t tpf = 1; tpf <= devices; ++tpf) {
        for (std::int32_t ep = 1; ep <= devices; ++ep) {
          layouts.push_back({kvp, tpa, tpf, ep, devices / (kvp * tpa)});
        }
      }
    }
  }
  return layouts;
}

TEST(HelixLayouts, AreAllLegalOnesOnce) {
  for (const HelixModel& model : some_models()) {
    for (const std::int32_t devices : {1, 2, 3, 8, 12, 32}) {
      const std::vector<HelixLayout> layouts = helix_layouts(model, devices);
      std::int64_t legal = 0;
      for (const HelixLayout& layout : layouts_of(devices)) {
        const auto check = [&] { return check_helix_layout(model, layout), 0; };
        if (message_of(check) != "no error") continue;
        ++legal;
        EXPECT_THAT(layouts, Contains(layout).Times(1)) << to_string(layout);
      }
      EXPECT_EQ(static_cast<std::int64_t>(layouts.size()), legal);
    }
  }
  EXPECT_THAT(message_of([] { return helix_layouts(dense_model(), 0); }),
              HasSubstr("expected 1 to 65536 devices, found 0"));
}

TEST(HelixLayouts, HaveFamilies) {
  EXPECT_EQ(family_of({1, 64, 64, 1}), HelixFamily::kTensorParallel);
  EXPECT_EQ(family_of({1, 8, 64, 1, 8}), HelixFamily::kDataParallel);
  EXPECT_EQ(family_of({8, 8, 8, 1}), HelixFamily::kContextParallel);
  EXPECT_EQ(family_of({8, 8, 16, 4}), HelixFamily::kHelix);
  EXPECT_EQ(to_string(HelixLayout{8, 8, 16, 4}), "KVP 8 x TPA 8, TPF 16 x EP 4");
  EXPECT_EQ(to_string(HelixLayout{1, 8, 64, 1, 8}), "DP 8 x KVP 1 x TPA 8, TPF 64");
}

TEST(HelixSearch, FindsTheFastestThatFits) {
  const HelixHardware hardware = load_helix_hardware("gb200");
  for (const HelixModel& model : some_models()) {
    for (const HelixFamily family : kFamilies) {
      const HelixLoad load = {16, 400'000};
      const auto found = fastest_helix(model, hardware, 16, load, {}, family);
      double least = std::numeric_limits<double>::infinity();
      for (const HelixLayout& layout : helix_layouts(model, 16)) {
        const double room = static_cast<double>(hardware.memory_bytes - hardware.reserve_bytes);
        if (family_of(layout) == family && helix_memory(model, layout, load).total() <= room) {
          least = std::min(least, helix_step(model, hardware, layout, load).total_us());
        }
      }
      ASSERT_EQ(found.has_value(), std::isfinite(least));
      if (!found) continue;
      EXPECT_EQ(family_of(found->layout), family);
      EXPECT_EQ(found->step.total_us(), least);
      EXPECT_DOUBLE_EQ(found->tokens_per_s_user(), 1e6 / least);
      EXPECT_DOUBLE_EQ(found->tokens_per_s_device(), 16 * 1e6 / least / 16);
    }
  }
}

TEST(HelixSearch, FrontHoldsWhatNothingBeats) {
  const HelixModel model = load_helix_model("llama-3-405b");
  const HelixHardware hardware = load_helix_hardware("gb200");
  const HelixSearch search = {.devices = {8, 16, 32, 64}, .batches = {1, 4, 16, 64}};
  const std::vector<HelixPoint> front = helix_front(model, hardware, search);
  ASSERT_FALSE(front.empty());
  for (std::size_t i = 0; i + 1 < front.size(); ++i) {
    EXPECT_GT(front[i].tokens_per_s_user(), front[i + 1].tokens_per_s_user());
    EXPECT_LT(front[i].tokens_per_s_device(), front[i + 1].tokens_per_s_device());
  }
  for (const std::int32_t devices : search.devices) {
    for (const std::int32_t batch : search.batches) {
      for (const HelixFamily family : kFamilies) {
        const auto point =
            fastest_helix(model, hardware, devices, {batch, search.context}, {}, family);
        if (!point) continue;
        EXPECT_TRUE(std::ranges::any_of(front, [&](const HelixPoint& other) {
          return other.tokens_per_s_user() >= point->tokens_per_s_user() &&
                 other.tokens_per_s_device() >= point->tokens_per_s_device();
        })) << to_string(point->layout);
      }
    }
  }
}

// The fastest layouts with KVP 1 and with KVP above it, regardless of memory.
std::pair<double, double> times_of(const HelixModel& model, const HelixHardware& hardware,
                                   std::int32_t devices, const HelixLoad& load) {
  std::pair<double, double> least = {INFINITY, INFINITY};
  for (const HelixLayout& layout : helix_layouts(model, devices)) {
    double& time = layout.kvp == 1 ? least.first : least.second;
    time = std::min(time, helix_step(model, hardware, layout, load).total_us());
  }
  return least;
}

TEST(HelixSearch, CrossoverDividesContextsThatLoseFromThoseThatWin) {
  const HelixHardware hardware = load_helix_hardware("gb200");
  constexpr std::int64_t kLongest = 10'000'000;
  for (const HelixModel& model : {dense_model(), load_helix_model("deepseek-r1")}) {
    for (const std::int32_t devices : {2, 8, 16, 64}) {
      for (const std::int32_t batch : {1, 8, 64}) {
        const auto crossover = helix_crossover(model, hardware, devices, batch, {}, kLongest);
        const std::int64_t first = crossover.value_or(kLongest + 1);
        for (const std::int64_t context :
             {std::int64_t{1}, first / 7, first - 1, first, 3 * first, kLongest}) {
          if (context < 1 || context > kLongest) continue;
          const auto [tensor, shared] = times_of(model, hardware, devices, {batch, context});
          EXPECT_EQ(shared < tensor, context >= first)
              << devices << " devices, batch " << batch << ", context " << context;
        }
      }
    }
  }
}

TEST(HelixSearch, SharingTokensNeverPaysWhereHeadsAreEnough) {
  const HelixHardware hardware = load_helix_hardware("gb200");
  EXPECT_EQ(helix_crossover(dense_model(), hardware, 8, 8, {HopBReading::kOff}, 1 << 30),
            std::nullopt);
  EXPECT_TRUE(helix_crossover(dense_model(), hardware, 16, 8, {HopBReading::kOff}, 1 << 30));
}

// The least time of a family at a batch over the devices of a search; infinite if none fits.
double least_us(const HelixModel& model, const HelixHardware& hardware, const HelixSearch& search,
                HelixFamily family, std::int32_t batch) {
  double least = INFINITY;
  for (const std::int32_t devices : search.devices) {
    const auto point =
        fastest_helix(model, hardware, devices, {batch, search.context}, search.hop_b, family);
    if (point) least = std::min(least, point->step.total_us());
  }
  return least;
}

// Every point of a family.
std::vector<HelixPoint> points_of(const HelixModel& model, const HelixHardware& hardware,
                                  const HelixSearch& search, HelixFamily family) {
  std::vector<HelixPoint> all;
  for (const std::int32_t devices : search.devices) {
    for (const std::int32_t batch : search.batches) {
      const auto point =
          fastest_helix(model, hardware, devices, {batch, search.context}, search.hop_b, family);
      if (point) all.push_back(*point);
    }
  }
  return all;
}

double most_per_user(const std::vector<HelixPoint>& points) {
  double most = 0;
  for (const HelixPoint& point : points) most = std::max(most, point.tokens_per_s_user());
  return most;
}

double most_per_device(const std::vector<HelixPoint>& points, double speed) {
  double most = 0;
  for (const HelixPoint& point : points) {
    if (point.tokens_per_s_user() >= speed) most = std::max(most, point.tokens_per_s_device());
  }
  return most;
}

TEST(HelixSearch, GainsOfFrontsAreThoseOfASweepOverSpeeds) {
  const HelixModel model = load_helix_model("deepseek-r1");
  const HelixHardware hardware = load_helix_hardware("gb200");
  const HelixSearch search = {.devices = {16, 64},
                              .batches = {1, 2, 4, 8, 16, 32, 64, 128},
                              .families = {HelixFamily::kTensorParallel}};
  const auto helix = points_of(model, hardware, search, HelixFamily::kHelix);
  const auto others = points_of(model, hardware, search, HelixFamily::kTensorParallel);
  double throughput = 0;
  for (double speed = 1; speed <= most_per_user(others); speed *= 1.0001) {
    throughput =
        std::max(throughput, most_per_device(helix, speed) / most_per_device(others, speed));
  }
  const HelixGain gain = helix_gain(model, hardware, search);
  EXPECT_DOUBLE_EQ(gain.interactivity, most_per_user(helix) / most_per_user(others));
  EXPECT_NEAR(gain.throughput, throughput, 1e-9 * throughput);
  EXPECT_GT(gain.interactivity, 1);
  EXPECT_GT(gain.throughput, gain.interactivity);
}

TEST(HelixSearch, GainsAreRatiosOfTheBestPoints) {
  const HelixModel model = load_helix_model("deepseek-r1");
  const HelixHardware hardware = load_helix_hardware("gb200");
  const HelixSearch search = {.devices = {16, 64},
                              .batches = {1, 2, 4, 8, 16, 32, 64, 128},
                              .families = {HelixFamily::kTensorParallel}};
  const HelixGain gain = helix_gain(model, hardware, search);
  double latency = 0;
  double batches = 0;
  for (const std::int32_t batch : search.batches) {
    const double us = least_us(model, hardware, search, HelixFamily::kTensorParallel, batch);
    if (!std::isfinite(us)) continue;
    latency = std::max(latency, us / least_us(model, hardware, search, HelixFamily::kHelix, batch));
    std::int32_t most = 0;
    for (const std::int32_t more : search.batches) {
      const bool in_time = least_us(model, hardware, search, HelixFamily::kHelix, more) <= us;
      if (in_time) most = std::max(most, more);
    }
    batches = std::max(batches, static_cast<double>(most) / batch);
  }
  EXPECT_DOUBLE_EQ(gain.latency, latency);
  EXPECT_DOUBLE_EQ(gain.batch, batches);
  HelixSearch against_all = search;
  against_all.families = HelixSearch().families;
  EXPECT_LE(helix_gain(model, hardware, against_all).latency, gain.latency);
  EXPECT_LE(helix_gain(model, hardware, against_all).batch, gain.batch);
  EXPECT_LE(helix_gain(model, hardware, against_all).throughput, gain.throughput);
  EXPECT_THAT(message_of([&] { return helix_gain(model, hardware, {}); }),
              HasSubstr("expected numbers of devices, found none"));
  EXPECT_THAT(message_of([&] { return helix_front(model, hardware, {.devices = {8}}); }),
              HasSubstr("expected batches, found none"));
}

}  // namespace
}  // namespace contextile
