// A study of the simulator by the chunk model: how far their times are apart over many plans, and
// how often another strategy would be fastest on a machine that is not as predicted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan_options.h"
#include "labs/network/chunk_network.h"
#include "labs/network/disturbances.h"
#include "labs/network/rankings.h"

namespace contextile {

// A batch and a cluster on which strategies are compared.
struct StudySetting {
  std::string_view name;
  std::string_view cluster;
  std::string_view dataset;
  std::int64_t tokens = 0;
  std::string_view mask;
  double flow_gbytes_per_s = 0;  // 0: flows have no limit
  bool rails = false;
};
[[nodiscard]] std::span<const StudySetting> study_settings();
// Throws InvalidArgument, with the names, if there is no such setting.
[[nodiscard]] const StudySetting& find_study_setting(std::string_view name);
// The setting's cluster with its flow limit and rails.
[[nodiscard]] Cluster study_cluster(const StudySetting& setting);
[[nodiscard]] std::string study_text(const StudySetting& setting);  // "prolong 64K, causal on …"

struct StudyOptions {
  std::vector<std::string> settings = {};  // names; empty: all
  ChunkOptions chunks = {};
  std::int32_t draws = 20;  // of constants, and of noise, for every setting
  double constants_within = 0.3;
  Noise noise = {};
  std::uint64_t seed = 1;  // of draws; batches have fixed ones
  // Times of a layer instead of attention: linear layers of the device that owns the most tokens
  // count, too, by guessed_linear_us_per_token. Draws change that price as any other constant.
  bool of_layer = false;
  // Called before each plan.
  std::function<void(const StudySetting& setting, const StrategyChoice& choice)> started = {};
};
[[nodiscard]] std::int64_t num_study_plans(const StudyOptions& options);

// Times of one verified plan, forward and backward.
struct StudiedPlan {
  StrategyChoice choice;
  double simulated_us = 0;
  double chunk_us = 0;

  [[nodiscard]] double ratio() const { return chunk_us / simulated_us; }
};

// The order that the simulator predicts, against other times of the same plans.
struct StudiedOrders {
  OrderChanges chunks;            // the chunk model
  OrderChanges constants;         // the simulator with other constants
  OrderChanges chunks_constants;  // the chunk model with the same other constants
  OrderChanges noise;             // the chunk model with a slow device and jitter

  void add(const StudiedOrders& others);
};

struct StudiedSetting {
  const StudySetting* setting = nullptr;
  std::vector<StudiedPlan> plans;  // of the strategies that apply
  StudiedOrders orders;
};

// Plans every setting with every strategy of the study and compares. Deterministic for a seed, on
// any number of threads. Throws CheckFailed if a plan does not verify.
[[nodiscard]] std::vector<StudiedSetting> study_network(const StudyOptions& options);

}  // namespace contextile
