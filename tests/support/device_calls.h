// A plan on a device whose tensors stay in place: the same call, again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/plan.h"

namespace contextile {

// Every rank is a thread with tensors of its own in its kernel's memory.
class DeviceCalls {
 public:
  // Prepares the plan, which has one mask. `host` must outlive it.
  DeviceCalls(RankHost& host, std::shared_ptr<const Plan> plan);
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  // Writes inputs of another seed into the same tensors, and NaN into all results.
  void set_inputs(std::uint64_t seed);
  // Moves the same tensors somewhere else; their contents are lost. The distance between the tokens
  // of an input grows by `more_heads` heads.
  void move_tensors(std::int32_t more_heads = 0);
  void prepare(std::shared_ptr<const Plan> plan);
  void forward();
  void backward();
  // The bits of all results, rank by rank.
  [[nodiscard]] std::vector<std::byte> results();
  // Makes the rank throw "given up" (std::runtime_error) before the next step of that name.
  void fail_at_step(std::size_t rank, const std::string& op);
  // The way in which the last call went, by rank.
  [[nodiscard]] std::vector<ExecutionStats> stats() const;

 private:
  struct OneRank;
  template <typename Body>
  void on_all_ranks(const Body& body);

  std::vector<std::unique_ptr<Transport>> group_;
  std::vector<std::unique_ptr<OneRank>> ranks_;
};

// Runs both directions on inputs of a seed. Returns the bits of the results.
[[nodiscard]] std::vector<std::byte> results_of(DeviceCalls& calls, std::uint64_t seed);

}  // namespace contextile
