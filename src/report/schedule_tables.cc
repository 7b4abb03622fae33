#include "report/schedule_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "report/json.h"
#include "report/plan_tables.h"

namespace contextile {
namespace {

// "2 x 4, 8 x 1": how many micro-batches have groups of how many ranks, the largest first.
std::string group_sizes(const std::vector<ScheduledMicroBatch>& round) {
  std::map<std::int32_t, std::int64_t, std::greater<>> of_size;
  for (const ScheduledMicroBatch& micro_batch : round) ++of_size[micro_batch.group.size];
  std::string text;
  for (const auto& [size, times] : of_size) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", times, size);
  }
  return text;
}

}  // namespace

Table rounds_table(const PlannedSchedule& schedule, const SchedulePrediction& prediction) {
  Table table({{"round", "round"},
               {"micro_batches", "micro-\nbatches"},
               {"sequences", "sequences"},
               {"tokens", "tokens"},
               {"groups", "groups\nx ranks"},
               {"time_s", "ms", Format::kMilliseconds}});
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    const std::vector<ScheduledMicroBatch>& round = schedule.rounds[r];
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;
    for (const ScheduledMicroBatch& micro_batch : round) {
      sequences += std::ssize(micro_batch.group.sequences);
      tokens += schedule.plans[micro_batch.plan].planned.plan->num_tokens();
    }
    table.add_row({fmt::format("{}", r), static_cast<std::int64_t>(round.size()), sequences, tokens,
                   group_sizes(round), 1e-6 * prediction.rounds_us[r]});
  }
  return table;
}

std::string schedule_text(const PlannedSchedule& schedule, const SchedulePrediction& prediction,
                          std::int64_t tokens) {
  const auto micro_batches = static_cast<std::int64_t>(schedule.num_micro_batches());
  std::int64_t widest = 0;  // what a rank holds of all rounds together
  for (const ScheduledRank& rank : prediction.ranks) widest = std::max(widest, rank.tokens);
  std::string text =
      fmt::format("schedule  {}, {}, {}, {} on {}\n", schedule.strategy,
                  count(static_cast<std::int64_t>(schedule.rounds.size()), "round"),
                  count(micro_batches, "micro-batch"),
                  count(static_cast<std::int64_t>(schedule.plans.size()), "different plan"),
                  count(schedule.num_ranks, "rank"));
  text += '\n' + rounds_table(schedule, prediction).text();
  text += fmt::format(
      "\nA rank holds at most {} tokens at a time, of at most {} in all rounds;\n"
      "an even share of the batch is {}. Attention needs at most {} of a rank.\n",
      prediction.most_tokens(), widest, (tokens + schedule.num_ranks - 1) / schedule.num_ranks,
      megabytes(prediction.memory_bytes()));
  text += fmt::format("Predicted: {} ms for one layer of every mask; ranks wait for {} of it.\n",
                      format_number(1e-3 * prediction.time_us), percent(prediction.idle_share));
  return text;
}

Json schedule_json(const PlannedSchedule& schedule, std::span<const std::string> plan_files) {
  Json rounds = Json::array();
  for (const std::vector<ScheduledMicroBatch>& round : schedule.rounds) {
    Json micro_batches = Json::array();
    for (const auto& [group, plan] : round) {
      micro_batches.push_back({{"first_rank", group.first},
                               {"num_ranks", group.size},
                               {"sequences", group.sequences},
                               {"plan", plan}});
    }
    rounds.push_back(std::move(micro_batches));
  }
  Json plans = Json::array();
  for (std::size_t i = 0; i < schedule.plans.size(); ++i) {
    const Plan& plan = *schedule.plans[i].planned.plan;
    plans.push_back({{"file", plan_files[i]},
                     {"digest", digest_text(plan.digest)},
                     {"num_ranks", plan.num_devices()},
                     {"num_tokens", plan.num_tokens()}});
  }
  return {{"format", "contextile schedule"}, {"version", 1},
          {"strategy", schedule.strategy},   {"options", schedule.options},
          {"num_ranks", schedule.num_ranks}, {"rounds", std::move(rounds)},
          {"plans", std::move(plans)}};
}

Json schedule_prediction_json(const SchedulePrediction& prediction) {
  Json rounds = Json::array();
  for (const double us : prediction.rounds_us) rounds.push_back(1e-6 * us);
  Json ranks = Json::array();
  for (const ScheduledRank& rank : prediction.ranks) {
    ranks.push_back({{"micro_batches", rank.micro_batches},
                     {"tokens", rank.tokens},
                     {"most_tokens", rank.most_tokens},
                     {"memory_bytes", rank.memory_bytes},
                     {"busy_s", 1e-6 * rank.busy_us}});
  }
  return {{"time_s", 1e-6 * prediction.time_us},       {"rounds_s", std::move(rounds)},
          {"idle_share", prediction.idle_share},       {"most_tokens", prediction.most_tokens()},
          {"memory_bytes", prediction.memory_bytes()}, {"ranks", std::move(ranks)}};
}

}  // namespace contextile
