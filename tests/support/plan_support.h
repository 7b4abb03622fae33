// Random workloads and the plans of every strategy for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/oracle.h"
#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {

// Choices for test inputs, the same on every platform.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : rng_(seed) {}

  // Uniform in [low, high].
  [[nodiscard]] std::int64_t between(std::int64_t low, std::int64_t high) {
    return low +
           static_cast<std::int64_t>(rng_.next() % static_cast<std::uint64_t>(high - low + 1));
  }
  // Uniform in [0, size). Throws std::out_of_range if there is nothing to choose from.
  [[nodiscard]] std::size_t below(std::size_t size) {
    if (size == 0) throw std::out_of_range("nothing to choose from");
    return rng_.next() % size;
  }
  [[nodiscard]] bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <typename Items>
  [[nodiscard]] auto& pick(Items& items) {
    return items[below(items.size())];
  }

 private:
  Rng rng_;
};

struct BatchLimits {
  std::int64_t max_tokens = 48;
  std::int64_t max_sequences = 4;
  std::int64_t max_masks = 2;
  std::vector<std::int32_t> ranks = {1, 2, 3, 4, 6, 8};
  bool homes = false;  // sometimes with a home layout
};

struct RandomBatch {
  Workload workload;
  Cluster cluster;
  std::string text;  // for SCOPED_TRACE
};

// Odd lengths, one-token sequences, any mask rules, small heads.
[[nodiscard]] RandomBatch random_batch_of(Chance& chance, const BatchLimits& limits = {});

// Random owners, tile devices, stages, relays, merge points and retained inputs: legal, but not
// what a sensible strategy would do.
[[nodiscard]] Arrangement random_arrangement(Chance& chance, const RandomBatch& batch);

struct NamedPlan {
  std::string name;  // strategy and options
  Plan plan;
};

// The plan of every strategy that supports the batch, and of one random arrangement.
[[nodiscard]] std::vector<NamedPlan> plans_of_every_strategy(Chance& chance,
                                                             const RandomBatch& batch);

// Two ranks, two sequences, three blocks, a query that travels and is retained: written by hand.
[[nodiscard]] Plan example_plan();

// The violations of a report, for failure messages.
[[nodiscard]] std::string violations_text(const VerifyReport& report);

}  // namespace contextile
