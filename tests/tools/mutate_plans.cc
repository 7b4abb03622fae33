// A test of the referee: plans of every strategy, each with one element changed, go through the
// plan file and `verify`. Mutants that both accept are executed and compared with attention in
// fp64. Ends with 1 if an accepted mutant has other results, or if something else failed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parse_number.h"
#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "support/plan_interpreter.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

constexpr const char* kUsage =
    "usage: mutate_plans [--count N] [--seed N] [--strategy NAME]\n"
    "  --count     mutants to make (100000)\n"
    "  --seed      of batches, plans and mutations (1)\n"
    "  --strategy  plans of that strategy alone; random: of random arrangements (all)\n";

struct Settings {
  std::int64_t count = 100000;
  std::int64_t seed = 1;
  std::string strategy;  // empty: every one
};

Settings settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) fail_argument("{}: expected a value, found none", name);
    if (name == "--count") {
      settings.count = parse_size(name, argv[i + 1], 1);
    } else if (name == "--seed") {
      settings.seed = parse_size(name, argv[i + 1], 0);
    } else if (name == "--strategy") {
      settings.strategy = argv[i + 1];
      if (settings.strategy != "random") static_cast<void>(find_strategy(settings.strategy));
    } else {
      fail_argument("expected --count, --seed or --strategy, found '{}'", name);
    }
  }
  return settings;
}

struct Tally {
  std::int64_t refused = 0;  // no file can hold it, or the loader says no
  std::int64_t flagged = 0;
  std::int64_t right = 0;
  std::int64_t other_batch = 0;  // a right plan, but of other names, positions or dtypes
  std::int64_t wrong = 0;

  [[nodiscard]] std::int64_t made() const {
    return refused + flagged + right + other_batch + wrong;
  }
  void add(const Tally& other) {
    refused += other.refused;
    flagged += other.flagged;
    right += other.right;
    other_batch += other.other_batch;
    wrong += other.wrong;
  }
};

// A folder of this process's own, removed with it.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / fmt::format("mutate_plans.{}", ::getpid())) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// One valid plan, and what its mutants are compared with.
class Original {
 public:
  Original(const NamedPlan& named, const RandomBatch& batch, std::uint64_t seed)
      : plan_(named.plan),
        toy_(plan_, seed),
        reference_(make_run_reference(batch.workload, options(),
                                      plan_.has_direction(Direction::kBackward)
                                          ? Passes::kForwardBackward
                                          : Passes::kForward)) {}

  // Returns nothing if the results are the original's, or if they are right for the mutant's own
  // batch (`other_batch`); else what went wrong.
  [[nodiscard]] std::optional<std::string> difference(const Plan& mutant, bool& other_batch) const {
    if (auto found = toy_.difference(mutant)) return found;
    const auto plan = std::make_shared<const Plan>(mutant);
    std::optional<RunReport> report;
    try {
      report = run_plan(plan, options(), reference_);
    } catch (const InvalidArgument&) {  // not a plan of the original's batch
      other_batch = true;
      report = run_plan(plan, options());
    }
    if (report->ok()) return std::nullopt;
    return "the executor's results are not the oracle's";
  }

 private:
  static RunOptions options() {
    RunOptions options;
    options.seed = 1;
    return options;
  }

  Plan plan_;
  ToyBatch toy_;
  RunReference reference_;
};

// Tries mutants of one plan after the other.
class Trial {
 public:
  explicit Trial(Settings settings) : settings_(std::move(settings)), left_(settings_.count) {}

  // Returns true if no mutant was wrong.
  bool run() {
    constexpr std::int64_t kMaxBatchesWithout = 1000;  // mutants: the strategy can do none of them
    std::int64_t without = 0;
    for (std::int64_t seed = settings_.seed; left_ > 0 && without < kMaxBatchesWithout; ++seed) {
      const std::int64_t before = left_;
      try_batch(static_cast<std::uint64_t>(seed));
      without = left_ == before ? without + 1 : 0;
    }
    print_table();
    return failures_ == 0;
  }

 private:
  void try_batch(std::uint64_t seed) {
    Chance chance(seed);
    const RandomBatch batch =
        random_batch_of(chance, {.max_tokens = 24, .ranks = {1, 2, 3, 4, 6}, .homes = true});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      if (!settings_.strategy.empty() && named.name != settings_.strategy) continue;
      if (left_ == 0) return;
      const Original original(named, batch, seed);
      ++plans_[named.name];
      for (const PlanMutation& mutation : all_mutations()) {
        if (left_ == 0) return;
        Plan mutant = named.plan;
        if (!mutation.apply(mutant, chance)) continue;
        --left_;
        Tally& tally = tallies_[mutation.name];
        const std::string problem = try_mutant(original, mutant, tally);
        if (problem.empty()) continue;
        ++tally.wrong;
        report(fmt::format("{} of {} (seed {}: {}): {}", mutation.name, named.name, seed,
                           batch.text, problem),
               mutant);
      }
    }
  }

  // Empty, and counted, unless the mutant was accepted wrongly or something failed that must not.
  std::string try_mutant(const Original& original, Plan& mutant, Tally& tally) const {
    try {
      Plan loaded;
      try {
        mutant.digest = compute_digest(mutant);
        const std::string file = folder_.file("mutant.plan");
        save_plan(mutant, file);
        loaded = load_plan(file);
      } catch (const InvalidPlan&) {
        ++tally.refused;
        return "";
      }
      if (!verify(loaded).ok()) {
        ++tally.flagged;
        return "";
      }
      bool other_batch = false;
      if (const auto difference = original.difference(loaded, other_batch)) return *difference;
      ++(other_batch ? tally.other_batch : tally.right);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  void report(const std::string& text, const Plan& mutant) {
    const std::string file = fmt::format("mutant-{}.plan", ++failures_);
    fmt::print("accepted and wrong: {}\n  ", text);
    try {
      save_plan(mutant, file);
      fmt::print("{}\n", file);
    } catch (const Error& error) {
      fmt::print("no file: {}\n", error.what());
    }
  }

  void print_table() const {
    fmt::print("{:26} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "mutation", "made", "refused",
               "flagged", "right", "other", "wrong");
    Tally total;
    const auto print_row = [](std::string_view name, const Tally& tally) {
      fmt::print("{:26} {:8} {:8} {:8} {:8} {:8} {:8}\n", name, tally.made(), tally.refused,
                 tally.flagged, tally.right, tally.other_batch, tally.wrong);
    };
    for (const PlanMutation& mutation : all_mutations()) {
      const auto at = tallies_.find(mutation.name);
      print_row(mutation.name, at == tallies_.end() ? Tally() : at->second);
      if (at != tallies_.end()) total.add(at->second);
    }
    print_row("all", total);
    std::int64_t num_plans = 0;
    for (const auto& [name, count] : plans_) num_plans += count;
    fmt::print("seed {}, {} plans of {} strategies\n", settings_.seed, num_plans, plans_.size());
  }

  Settings settings_;
  std::int64_t left_;
  Folder folder_;
  std::map<std::string_view, Tally> tallies_;
  std::map<std::string, std::int64_t> plans_;  // by strategy
  std::int64_t failures_ = 0;
};

int run(int argc, char** argv) {
  try {
    return Trial(settings_of(argc, argv)).run() ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "mutate_plans: {}\n{}", error.what(), kUsage);
    return 2;
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::run(argc, argv); }
