// contextile/schedule.h: batches as micro-batches of groups of ranks.
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>

#include "bind.h"
#include "contextile/schedule.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

// One micro-batch, with its plan.
struct MicroBatchObject {
  GroupBatch group;
  PlanObject plan;
};
struct RoundObject {
  std::vector<MicroBatchObject> micro_batches;
};

class ScheduleObject {
 public:
  explicit ScheduleObject(PlannedSchedule schedule) : schedule_(std::move(schedule)) {
    for (std::size_t i = 0; i < schedule_.plans.size(); ++i) {
      plans_.push_back(object_of(schedule_.plans[i].planned, schedule_.plans[i].cluster,
                                 schedule_.strategy + ", " + micro_batch_text(schedule_, i)));
    }
  }

  [[nodiscard]] const PlannedSchedule& schedule() const { return schedule_; }
  [[nodiscard]] const std::vector<PlanObject>& plans() const { return plans_; }

  [[nodiscard]] std::vector<RoundObject> rounds() const {
    std::vector<RoundObject> rounds;
    for (const auto& round : schedule_.rounds) {
      RoundObject& of_round = rounds.emplace_back();
      for (const ScheduledMicroBatch& micro_batch : round) {
        of_round.micro_batches.push_back({micro_batch.group, plans_[micro_batch.plan]});
      }
    }
    return rounds;
  }

  [[nodiscard]] std::vector<std::vector<MicroBatchObject>> of(RankArgument rank) const {
    std::vector<std::vector<MicroBatchObject>> own;
    for (const auto& round : schedule_.of(rank)) {
      std::vector<MicroBatchObject>& of_round = own.emplace_back();
      for (const ScheduledMicroBatch* micro_batch : round) {
        of_round.push_back({micro_batch->group, plans_[micro_batch->plan]});
      }
    }
    return own;
  }

 private:
  PlannedSchedule schedule_;
  std::vector<PlanObject> plans_;
};

void bind_micro_batches(nb::module_& module) {
  nb::class_<MicroBatchObject>(
      module, "ScheduledMicroBatch",
      "The sequences of one forward and backward, packed in this order, and the ranks that run "
      "it.")
      .def_prop_ro(
          "sequences",
          [](const MicroBatchObject& self) { return nb::tuple(nb::cast(self.group.sequences)); },
          "Indices of the sequences in the batch.")
      .def_prop_ro(
          "ranks",
          [](const MicroBatchObject& self) {
            std::vector<std::int32_t> ranks(static_cast<std::size_t>(self.group.size));
            std::iota(ranks.begin(), ranks.end(), self.group.first);
            return nb::tuple(nb::cast(ranks));
          },
          "Consecutive ranks. Rank d of the plan is ranks[d].")
      .def_ro("plan", &MicroBatchObject::plan,
              "The plan of these sequences, end to end, for these ranks. Micro-batches with equal "
              "sequences and groups have equal plans.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "ScheduledMicroBatch", {"sequences", "ranks"});
      });
  nb::class_<RoundObject>(module, "ScheduleRound",
                          "Micro-batches between two barriers. A rank runs its own one after "
                          "another, in this order.")
      .def_ro("micro_batches", &RoundObject::micro_batches)
      .def("__repr__",
           [](nb::handle self) { return repr_of(self, "ScheduleRound", {"micro_batches"}); });
}

void bind_prediction(nb::module_& module) {
  nb::class_<ScheduledRank>(module, "ScheduledRank", "What one rank of a schedule does and holds.")
      .def_ro("micro_batches", &ScheduledRank::micro_batches)
      .def_ro("tokens", &ScheduledRank::tokens, "Tokens of all its micro-batches.")
      .def_ro("most_tokens", &ScheduledRank::most_tokens,
              "Tokens of its largest share of a micro-batch: it holds their activations at a time.")
      .def_ro("memory_bytes", &ScheduledRank::memory_bytes, "Peak memory of attention.")
      .def_ro("busy_us", &ScheduledRank::busy_us);
  nb::class_<SchedulePrediction>(module, "SchedulePrediction",
                                 "The predicted times of a schedule, µs, for one layer of every "
                                 "mask and all directions of its plans.")
      .def_ro("time_us", &SchedulePrediction::time_us)
      .def_ro("rounds_us", &SchedulePrediction::rounds_us)
      .def_ro("idle_share", &SchedulePrediction::idle_share,
              "Share of the ranks' time in which they wait for barriers and groups.")
      .def_ro("ranks", &SchedulePrediction::ranks)
      .def_prop_ro("most_tokens", &SchedulePrediction::most_tokens)
      .def_prop_ro("memory_bytes", &SchedulePrediction::memory_bytes)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "SchedulePrediction", {"time_us", "idle_share", "most_tokens"});
      });
}

}  // namespace

void bind_schedules(nb::module_& module) {
  const auto release = nb::call_guard<WithoutGil>();
  bind_micro_batches(module);
  bind_prediction(module);
  nb::class_<ScheduleObject>(module, "Schedule",
                             "A batch as micro-batches of groups of ranks, from schedule().")
      .def_prop_ro("strategy", [](const ScheduleObject& self) { return self.schedule().strategy; })
      .def_prop_ro("options", [](const ScheduleObject& self) { return self.schedule().options; })
      .def_prop_ro("num_ranks",
                   [](const ScheduleObject& self) { return self.schedule().num_ranks; })
      .def_prop_ro("num_micro_batches",
                   [](const ScheduleObject& self) { return self.schedule().num_micro_batches(); })
      .def_prop_ro("rounds", &ScheduleObject::rounds,
                   "List of ScheduleRound, in the order in which they run.")
      .def_prop_ro("plans", &ScheduleObject::plans, "List of the plans, all different.")
      .def("of", &ScheduleObject::of, "rank"_a,
           "Returns the micro-batches of a rank: for every round a list of ScheduledMicroBatch, "
           "in the order in which it runs them. Raises InvalidArgument if there is no such rank.")
      .def(
          "predict",
          [](const ScheduleObject& self, double linear_us_per_token) {
            return predict_schedule(self.schedule(), linear_us_per_token);
          },
          nb::kw_only(), "linear_us_per_token"_a = 0.0, release,
          "Returns a SchedulePrediction. linear_us_per_token: time of the linear layers of one "
          "layer per token of a rank, µs. Groups that run at the same time are predicted as if "
          "none slowed the others down.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Schedule", {"strategy", "num_ranks", "num_micro_batches"});
      });
  module.def(
      "plan_schedule",
      [](const Workload& workload, const Cluster& cluster, const StrategyChoice& choice,
         const PlanOptions& options, const std::optional<StrategyChoice>& group_strategy) {
        return ScheduleObject(plan_schedule(workload, cluster, choice, options, group_strategy));
      },
      "workload"_a, "cluster"_a, "choice"_a, "options"_a, "group_strategy"_a = nb::none(), release);
}

}  // namespace contextile::python
