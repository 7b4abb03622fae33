#include "labs/network/network_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/quote.h"
#include "base/rng.h"
#include "base/suggest.h"
#include "contextile/advanced/model.h"
#include "contextile/data.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "labs/network/chunk_machine.h"

namespace contextile {
namespace {

constexpr std::int64_t kTokens = 1024;  // 1K
constexpr AttentionShape kStudyShape = {.q_heads = 32, .kv_heads = 8};
constexpr std::uint64_t kBatchSeed = 7;
constexpr std::uint64_t kPriceSeed = 0x6c696e656172;  // of the price of tokens, in a draw

constexpr std::array kSettings = {
    StudySetting{"h100", "dgx-h100:1x8", "prolong", 64 * kTokens, "causal"},
    StudySetting{"h100-lambda", "dgx-h100:1x8", "longalign", 32 * kTokens, "lambda:64,4096"},
    StudySetting{"h100x2", "dgx-h100:2x8", "prolong", 128 * kTokens, "causal"},
    StudySetting{"h100x2-flows", "dgx-h100:2x8", "prolong", 64 * kTokens, "causal", 26},
    StudySetting{"h100x2-torch", "dgx-h100:2x8,engine=torch", "longalign", 64 * kTokens, "causal"},
    StudySetting{"h100x4", "dgx-h100:4x8", "longdatacollections", 128 * kTokens, "causal"},
    StudySetting{.name = "h100x4-rails",
                 .cluster = "dgx-h100:4x8",
                 .dataset = "pretrain",
                 .tokens = 128 * kTokens,
                 .mask = "shared_question:0.2,4",
                 .rails = true},
    StudySetting{"p4de", "p4de:2x8", "prolong", 64 * kTokens, "causal"},
    StudySetting{"p4de-flows", "p4de:2x8", "pretrain", 64 * kTokens, "sliding_window:4096", 12.5},
    StudySetting{"gb200", "gb200-nvl72:1x16", "prolong", 128 * kTokens, "causal"},
};

constexpr const char* kChoices =
    "ring,zigzag,ulysses,hybrid,all_gather,all_gather:algorithm=nested,double_ring,"
    "megatron_dynamic,magi,dcp,fcp,distca,auto:steps=100000,objective=attention";
// For layers, those that a layer's time prefers.
constexpr const char* kLayerChoices =
    "zigzag,ulysses,hybrid,all_gather:algorithm=nested,double_ring,megatron_dynamic,magi,dcp,"
    "dcp:results=early,share=reached,relays=on,fcp,fcp:block=1024,head_parallel=8,distca,"
    "auto:steps=600000";

const char* choices_of(const StudyOptions& options) {
  return options.of_layer ? kLayerChoices : kChoices;
}

std::vector<const StudySetting*> chosen_settings(const StudyOptions& options) {
  std::vector<const StudySetting*> chosen;
  for (const std::string& name : options.settings) chosen.push_back(&find_study_setting(name));
  if (!chosen.empty()) return chosen;
  for (const StudySetting& setting : kSettings) chosen.push_back(&setting);
  return chosen;
}

// Seeds of one setting's draws: what a setting draws does not depend on which others run.
std::uint64_t seed_of(std::uint64_t seed, const StudySetting& setting, std::uint64_t draw) {
  std::uint64_t mixed = Rng(seed).next() + draw;
  for (const char letter : setting.name) {
    mixed = Rng(mixed ^ static_cast<std::uint64_t>(letter)).next();
  }
  return mixed;
}

// A plan with its programs on the cluster as it is.
struct PlannedPrograms {
  StrategyChoice choice;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<NetworkPrograms> programs;
  double linear_us = 0;  // of the linear layers that count
};

// Times of all plans of a setting in one draw, by plan.
struct DrawnTimes {
  std::vector<double> constants_us;
  std::vector<double> chunks_constants_us;
  std::vector<double> noise_us;
};

class SettingStudy {
 public:
  SettingStudy(const StudyOptions& options, const StudySetting& setting)
      : options_(options), setting_(setting), cluster_(study_cluster(setting)) {}

  StudiedSetting run() {
    StudiedSetting studied{.setting = &setting_, .plans = {}, .orders = {}};
    plan(studied.plans);
    std::vector<double> predicted_us;
    std::vector<double> chunk_us;
    for (const StudiedPlan& plan : studied.plans) {
      predicted_us.push_back(plan.simulated_us);
      chunk_us.push_back(plan.chunk_us);
    }
    studied.orders.chunks.add(predicted_us, chunk_us);
    for (const DrawnTimes& drawn : draw()) {
      studied.orders.constants.add(predicted_us, drawn.constants_us);
      studied.orders.chunks_constants.add(predicted_us, drawn.chunks_constants_us);
      studied.orders.noise.add(predicted_us, drawn.noise_us);
    }
    return studied;
  }

 private:
  // Plans the batch with all strategies that support it.
  void plan(std::vector<StudiedPlan>& studied) {
    const std::vector<std::int64_t> lengths =
        batches_from_dataset(setting_.dataset, {.tokens = setting_.tokens, .seed = kBatchSeed})[0];
    const MaskUse mask = parse_mask_use(setting_.mask);
    const Workload workload = make_workload(lengths, kStudyShape, mask);
    for (const StrategyChoice& choice : parse_strategies(choices_of(options_))) {
      if (options_.started) options_.started(setting_, choice);
      if (unsupported_reason(workload, cluster_, choice)) continue;
      const PlannedBatch batch = plan_and_check(workload, cluster_, choice);
      PlannedPrograms planned{choice, batch.plan, std::make_unique<NetworkPrograms>(*batch.plan)};
      if (options_.of_layer) planned.linear_us = linear_us_of(batch, workload);
      const double simulated_us = planned.programs->set_times(*planned.plan, cluster_);
      const double chunk_us =
          chunk_time_us(planned.programs->programs(), cluster_, options_.chunks);
      studied.push_back({choice, simulated_us + planned.linear_us, chunk_us + planned.linear_us});
      plans_.push_back(std::move(planned));
    }
  }

  double linear_us_of(const PlannedBatch& batch, const Workload& workload) const {
    const double token_us = guessed_linear_us_per_token(workload.shape, cluster_);
    return linear_times(batch, simulate(*batch.plan, cluster_), token_us).linear_us;
  }

  std::vector<DrawnTimes> draw() const {
    std::vector<DrawnTimes> draws(static_cast<std::size_t>(options_.draws));
    for (DrawnTimes& drawn : draws) {
      for (auto* times : {&drawn.constants_us, &drawn.chunks_constants_us, &drawn.noise_us}) {
        times->resize(plans_.size());
      }
    }
    parallel_for(std::size_t{0}, draws.size() * plans_.size(), [&](std::size_t job) {
      const std::size_t plan = job % plans_.size();
      DrawnTimes& drawn = draws[job / plans_.size()];
      const std::uint64_t seed = seed_of(options_.seed, setting_, job / plans_.size());
      const Cluster changed = with_wrong_constants(cluster_, options_.constants_within, seed);
      NetworkPrograms programs = *plans_[plan].programs;
      const double price_factor =
          1 + options_.constants_within * (2 * Rng(seed ^ kPriceSeed).uniform() - 1);
      const double linear_us = price_factor * plans_[plan].linear_us;
      drawn.constants_us[plan] = programs.set_times(*plans_[plan].plan, changed) + linear_us;
      drawn.chunks_constants_us[plan] =
          chunk_time_us(programs.programs(), changed, options_.chunks) + linear_us;
      std::vector<NetworkProgram> noisy = plans_[plan].programs->programs();
      add_noise(noisy, options_.noise, seed, Rng(seed + plan).next());
      drawn.noise_us[plan] =
          chunk_time_us(noisy, cluster_, options_.chunks) + plans_[plan].linear_us;
    });
    return draws;
  }

  const StudyOptions& options_;
  const StudySetting& setting_;
  Cluster cluster_;
  std::vector<PlannedPrograms> plans_;
};

}  // namespace

std::span<const StudySetting> study_settings() { return kSettings; }

const StudySetting& find_study_setting(std::string_view name) {
  std::vector<std::string> names;
  for (const StudySetting& setting : kSettings) {
    if (setting.name == name) return setting;
    names.emplace_back(setting.name);
  }
  fail_argument("network: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

Cluster study_cluster(const StudySetting& setting) {
  Cluster cluster = load_cluster(setting.cluster);
  cluster.rails = setting.rails;
  if (setting.flow_gbytes_per_s > 0) {
    cluster.flow_gbytes_per_s = {{cluster.nodes, setting.flow_gbytes_per_s}};
  }
  return cluster;
}

std::string study_text(const StudySetting& setting) {
  std::string text = fmt::format("{} {}K, {}, on {}", setting.dataset, setting.tokens / kTokens,
                                 setting.mask, setting.cluster);
  if (setting.flow_gbytes_per_s > 0) {
    text += fmt::format(" with flows of {} GB/s", setting.flow_gbytes_per_s);
  }
  return setting.rails ? text + " with rails" : text;
}

std::int64_t num_study_plans(const StudyOptions& options) {
  return std::ssize(chosen_settings(options)) * std::ssize(parse_strategies(choices_of(options)));
}

void StudiedOrders::add(const StudiedOrders& others) {
  for (OrderChanges StudiedOrders::*orders :
       {&StudiedOrders::chunks, &StudiedOrders::constants, &StudiedOrders::chunks_constants,
        &StudiedOrders::noise}) {
    (this->*orders).add(others.*orders);
  }
}

std::vector<StudiedSetting> study_network(const StudyOptions& options) {
  check_chunk_options(options.chunks);
  std::vector<StudiedSetting> studied;
  for (const StudySetting* setting : chosen_settings(options)) {
    studied.push_back(SettingStudy(options, *setting).run());
  }
  return studied;
}

}  // namespace contextile
