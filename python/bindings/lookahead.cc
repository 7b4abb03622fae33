// contextile/advanced/lookahead.h: planning ahead of the steps that are executed.
#include "contextile/advanced/lookahead.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  const std::shared_ptr<nb::object> shared(new nb::object(std::move(function)), DeleteWithGil());
  return [shared, what = std::move(what)](std::int64_t step) {
    const WithGil gil;
    try {
      return nb::cast<Result>((*shared)(step));
    } catch (nb::python_error& error) {
      fail(one_line(error));
    } catch (const nb::cast_error&) {
      fail(what + " of step " + std::to_string(step) + ": expected another type");
    }
  };
}

// Lines that planning threads log, kept until Python takes them: the threads have no need of the
// GIL for it. The oldest go if there are too many.
class LogLines {
 public:
  void add(std::string_view line) {
    constexpr std::size_t kMaxLines = 100;
    const std::scoped_lock lock(mutex_);
    if (lines_.size() == kMaxLines) lines_.erase(lines_.begin());
    lines_.emplace_back(line);
  }
  [[nodiscard]] std::vector<std::string> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// The open planners of this process. Their threads call Python, so all of them are stopped when the
// interpreter is about to end (atexit: after its own threads have ended).
class OpenPlanners {
 public:
  // Throws InvalidArgument if the interpreter is about to end.
  void check_running() {
    const std::scoped_lock lock(mutex_);
    if (is_ending_) fail("planner: expected a running interpreter, found one that ends");
  }
  void add(const std::shared_ptr<LookaheadPlanner>& planner) {
    const std::scoped_lock lock(mutex_);
    open_.insert(planner);
  }
  void remove(const std::shared_ptr<LookaheadPlanner>& planner) {
    const std::scoped_lock lock(mutex_);
    open_.erase(planner);
  }
  void stop_all() {
    std::set<std::shared_ptr<LookaheadPlanner>> open;
    {
      const std::scoped_lock lock(mutex_);
      is_ending_ = true;
      open = open_;
    }
    const WithoutGil release;
    const InterruptScope none([] {});  // a second Ctrl-C leaves none of them running
    for (const auto& planner : open) {
      try {
        planner->stop();
      } catch (const Error&) {  // a child made by fork has no part in its parent's
      }
    }
  }

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<LookaheadPlanner>> open_;
  bool is_ending_ = false;
};

// NOTE: global, as the interpreter's end is; never destroyed, because objects of Python may be
// destroyed after it would be.
OpenPlanners& open_planners() {
  static auto* const planners = new OpenPlanners();
  return *planners;
}

// Owns a planner, whose threads may need the GIL in order to end.
class Planner {
 public:
  Planner(const PlanJob& job, LookaheadOptions options, std::shared_ptr<Store> store) {
    open_planners().check_running();
    options.log = [lines = lines_](std::string_view line) { lines->add(line); };
    planner_ = std::make_shared<LookaheadPlanner>(job, std::move(options), std::move(store));
    open_planners().add(planner_);
  }
  ~Planner() {
    open_planners().remove(planner_);
    if (const auto planner = take()) {
      const WithoutGil release;
      const InterruptScope none([] {});  // nothing may leave a destructor
      planner->stop();
    }
  }
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  void close() {
    if (const auto planner = own()) {
      const WithoutGil release;
      planner->stop();
    }
    open_planners().remove(planner_);
    planner_ = nullptr;
  }
  // Returns the planner, which lives as long as the result, also if it is closed meanwhile.
  [[nodiscard]] std::shared_ptr<LookaheadPlanner> open() const {
    if (!planner_) fail("planner: expected an open one, found it closed");
    return planner_;
  }
  [[nodiscard]] std::vector<std::string> log_lines() const { return lines_->take(); }

 private:
  // Returns the planner if this process has its threads. In the child of a fork it stays as it is,
  // for its threads cannot be joined.
  [[nodiscard]] std::shared_ptr<LookaheadPlanner> own() {
    if (planner_ != nullptr && ::getpid() != process_) {
      static_cast<void>(new std::shared_ptr<LookaheadPlanner>(std::move(planner_)));
      planner_ = nullptr;
    }
    return planner_;
  }
  [[nodiscard]] std::shared_ptr<LookaheadPlanner> take() {
    static_cast<void>(own());
    return std::exchange(planner_, nullptr);
  }

  const std::shared_ptr<LogLines> lines_ = std::make_shared<LogLines>();
  const pid_t process_ = ::getpid();
  std::shared_ptr<LookaheadPlanner> planner_;
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
             std::int32_t steps_ahead, std::int32_t threads, double store_patience) {
            LookaheadOptions options;
            options.run_id = std::move(run_id);
            options.first_step = first_step;
            if (end_step) options.end_step = *end_step;
            options.steps_ahead = steps_ahead;
            options.threads = threads;
            options.store_patience = milliseconds_of(store_patience, "store_patience");
            new (self) Planner(job, options, std::move(store));
          },
          "job"_a, "store"_a, nb::kw_only(), "run_id"_a, "first_step"_a, "end_step"_a.none(),
          "steps_ahead"_a, "threads"_a, "store_patience"_a)
      .def("statistics",
           [](const Planner& self) {
             const auto planner = self.open();
             const WithoutGil release;
             return planner->statistics();
           })
      .def(
          "wait_for",
          [](const Planner& self, double timeout) {
            const auto most = milliseconds_of(timeout, "timeout");
            const auto planner = self.open();
            const WithoutGil release;
            return planner->wait_for(most);
          },
          nb::kw_only(), "timeout"_a,
          "Waits until every rank has acknowledged all steps, or the timeout has passed. Returns "
          "whether they have.")
      .def("log_lines", &Planner::log_lines,
           "Returns the lines that were logged since the last call: that the store fails, that it "
           "answers again, that planning has ended.")
      .def("close", &Planner::close, "Ends planning and releases the steps that it has claimed.");
}

}  // namespace

void bind_lookahead(nb::module_& module) {
  bind_job(module);
  bind_planner(module);
  const nb::object stop_all = nb::cpp_function([] { open_planners().stop_all(); });
  static_cast<void>(nb::module_::import_("atexit").attr("register")(stop_all));
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
          "step"_a, nb::call_guard<WithoutGil>(),
          "Returns this rank's slice of the plan of a step that is not acknowledged yet; waits for "
          "it if necessary. Raises PlanningFailed, TransportError and IoError.")
      .def("acknowledge", &PlanFeed::acknowledge, "step"_a, nb::call_guard<WithoutGil>(),
           "Declares that this rank no longer needs this step or earlier ones.")
      .def(
          "watch",
          [](PlanFeed& self, const Planner& planner) { self.watch(planner.open()->health()); },
          "planner"_a, "Names the troubles of a planner of this process in the errors of take.")
      .def("statistics", &PlanFeed::statistics);
}

}  // namespace contextile::python
