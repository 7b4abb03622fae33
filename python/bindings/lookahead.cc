// contextile/lookahead.h: planning ahead of the steps that are executed.
#include "contextile/lookahead.h"

#include <exception>
#include <string>

#include "bind.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

// Returns an error and its place on one line.
std::string one_line(const nb::python_error& error) {
  const nb::object describe = nb::module_::import_("contextile._display").attr("error_text");
  return nb::cast<std::string>(describe(error.value()));
}

// Wraps a Python function of a step, for threads that are not Python's. An error that it raises
// becomes the failure of that step. `what` names its result.
template <typename Result>
std::function<Result(std::int64_t)> function_of_step(nb::object function, std::string what) {
  const std::shared_ptr<nb::object> shared(new nb::object(std::move(function)),
                                           [](nb::object* owned) {
                                             const nb::gil_scoped_acquire gil;
                                             delete owned;
                                           });
  return [shared, what = std::move(what)](std::int64_t step) {
    const nb::gil_scoped_acquire gil;
    try {
      return nb::cast<Result>((*shared)(step));
    } catch (nb::python_error& error) {
      fail(one_line(error));
    } catch (const nb::cast_error&) {
      fail(what + " of step " + std::to_string(step) + ": expected another type");
    }
  };
}

// Owns a planner, whose threads may need the GIL in order to end.
class Planner {
 public:
  Planner(const PlanJob& job, const LookaheadOptions& options, std::shared_ptr<Store> store)
      : planner_(std::make_unique<LookaheadPlanner>(job, options, std::move(store))) {}
  ~Planner() { close(); }
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  void close() {
    const nb::gil_scoped_release release;
    planner_.reset();
  }
  [[nodiscard]] LookaheadPlanner& open() const {
    if (!planner_) fail("planner: expected an open one, found it closed");
    return *planner_;
  }

 private:
  std::unique_ptr<LookaheadPlanner> planner_;
};

void bind_job(nb::module_& module) {
  nb::class_<PlanJob>(module, "PlanJob",
                      "The description of a run's plans, the same in every process of the run.")
      .def(
          "__init__",
          [](PlanJob* self, const BatchSampler& sampler, const AttentionShape& shape,
             const Cluster& cluster, const StrategyChoice& choice, const PlanOptions& options,
             nb::object workload, nb::object lengths) {
            PlanJob job = {.sampler = sampler,
                           .input = {},
                           .cluster = cluster,
                           .choice = choice,
                           .plan = options,
                           .workload = function_of_step<Workload>(std::move(workload), "workload")};
            if (!lengths.is_none()) {
              job.lengths_tokens =
                  function_of_step<std::vector<std::int64_t>>(std::move(lengths), "lengths");
            }
            job.input.shape = shape;
            new (self) PlanJob(std::move(job));
          },
          nb::kw_only(), "sampler"_a, "shape"_a, "cluster"_a, "choice"_a, "options"_a, "workload"_a,
          "lengths"_a = nb::none());
}

void bind_planner(nb::module_& module) {
  nb::class_<LookaheadStatistics>(module, "LookaheadStatistics", "Work of one process so far.")
      .def_ro("planned_steps", &LookaheadStatistics::planned_steps)
      .def_ro("failed_steps", &LookaheadStatistics::failed_steps)
      .def_ro("planning_s", &LookaheadStatistics::planning_s, "Seconds of all threads.")
      .def_ro("idle_s", &LookaheadStatistics::idle_s)
      .def_ro("published_bytes", &LookaheadStatistics::published_bytes)
      .def_ro("ready_steps", &LookaheadStatistics::ready_steps);
  nb::class_<Planner>(module, "LookaheadPlanner",
                      "Plans steps in order until it is closed, and puts every rank's slice into a "
                      "store. Any number of planners, on any machines, share the steps of a run.")
      .def(
          "__init__",
          [](Planner* self, const PlanJob& job, std::shared_ptr<Store> store, std::string run_id,
             std::int64_t first_step, std::optional<std::int64_t> end_step,
             std::int32_t steps_ahead, std::int32_t threads) {
            LookaheadOptions options;
            options.run_id = std::move(run_id);
            options.first_step = first_step;
            if (end_step) options.end_step = *end_step;
            options.steps_ahead = steps_ahead;
            options.threads = threads;
            new (self) Planner(job, options, std::move(store));
          },
          "job"_a, "store"_a, nb::kw_only(), "run_id"_a, "first_step"_a, "end_step"_a.none(),
          "steps_ahead"_a, "threads"_a)
      .def("statistics", [](const Planner& self) { return self.open().statistics(); })
      .def(
          "wait_for",
          [](const Planner& self, double timeout) {
            const auto most = milliseconds_of(timeout, "timeout");
            const nb::gil_scoped_release release;
            return self.open().wait_for(most);
          },
          nb::kw_only(), "timeout"_a,
          "Waits until every rank has acknowledged all steps, or the timeout has passed. Returns "
          "whether they have.")
      .def("close", &Planner::close, "Ends planning and releases the steps that it has claimed.");
}

}  // namespace

void bind_lookahead(nb::module_& module) {
  bind_job(module);
  bind_planner(module);
  nb::class_<FeedStatistics>(module, "FeedStatistics", "Plans of one rank so far.")
      .def_ro("steps", &FeedStatistics::steps)
      .def_ro("planning_s", &FeedStatistics::planning_s,
              "Seconds that planning took, in any process.")
      .def_ro("exposed_s", &FeedStatistics::exposed_s, "Seconds that this rank waited for plans.")
      .def_prop_ro("hidden_s", &FeedStatistics::hidden_s,
                   "Seconds of planning that the rank did not wait for.")
      .def_ro("bytes", &FeedStatistics::bytes);
  nb::class_<PlanFeed>(module, "PlanFeed", "Delivers one rank's plans, step by step.")
      .def(
          "__init__",
          [](PlanFeed* self, std::shared_ptr<Store> store, const PlanJob& job, Rank rank,
             std::string run_id, std::int64_t first_step, double timeout) {
            FeedOptions options;
            options.run_id = std::move(run_id);
            options.first_step = first_step;
            options.timeout = milliseconds_of(timeout, "timeout");
            new (self) PlanFeed(std::move(store), job, rank, options);
          },
          "store"_a, "job"_a, nb::kw_only(), "rank"_a, "run_id"_a, "first_step"_a, "timeout"_a)
      .def(
          "take",
          [](PlanFeed& self, std::int64_t step) { return PlanObject{self.take(step).plan}; },
          "step"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Returns this rank's slice of the plan of a step that is not acknowledged yet; waits for "
          "it if necessary. Raises PlanningFailed, TransportError and IoError.")
      .def("acknowledge", &PlanFeed::acknowledge, "step"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Declares that this rank no longer needs this step or earlier ones.")
      .def("statistics", &PlanFeed::statistics);
}

}  // namespace contextile::python
