// The last steps of one rank, kept while it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/flight_record.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"

namespace contextile {

// Like FlightStep, with only those fields that cost nothing to keep.
struct RecordedStep {
  std::string_view op;  // of static storage
  std::int64_t call = 0;
  std::optional<Direction> direction{};
  std::size_t mask = 0;
  std::size_t round = 0;
  std::int64_t instruction = -1;
  std::int64_t ticket = -1;
  const LaunchOp* launch = nullptr;  // of a launch, while its plan is the executor's
};

// The steps of one thread, which follow one another. Reads the time twice per step.
class FlightRecorder {
 public:
  // `folder` is where `write` leaves records; empty: nowhere. A record of this rank that is already
  // there is removed: it is of an earlier run.
  FlightRecorder(const Transport& transport, std::string folder);

  // Runs work() as a step; the step stays unfinished if work throws.
  template <typename Work>
  auto step(const RecordedStep& what, const Work& work) {
    begin(what);
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      end();
    } else {
      auto result = work();
      end();
      return result;
    }
  }
  // Sets the launch that the current step is about, once it is known.
  void note_ticket(std::int64_t ticket) { newest().step.ticket = ticket; }
  // Call this when another plan comes and the launches of this one are about to go. An error of the
  // last plan that left the group intact (plans that differ) does not prevent a later one from
  // being written.
  void forget_plan();

  [[nodiscard]] FlightRecord record(const Plan* plan, const std::exception& error) const;
  // Writes the record of the current error to the folder, if there is one; of the first error only.
  // Never throws: the error matters more.
  void write(const Plan* plan, const std::exception& error) noexcept;

  // For tests: called before every step.
  std::function<void(const RecordedStep&)> before_step;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kCapacity = 512;

  struct Entry {
    RecordedStep step;
    Clock::time_point began;
    std::optional<Clock::time_point> ended;
  };

  void begin(const RecordedStep& what);
  void end() { newest().ended = Clock::now(); }
  [[nodiscard]] Entry& newest() {
    return entries_[static_cast<std::size_t>(num_steps_ - 1) % kCapacity];
  }
  [[nodiscard]] const Entry& newest() const {
    return entries_[static_cast<std::size_t>(num_steps_ - 1) % kCapacity];
  }
  [[nodiscard]] std::vector<FlightTransfer> transfers() const;

  const Transport& transport_;
  const std::string folder_;
  std::vector<Entry> entries_;  // a ring
  std::int64_t num_steps_ = 0;
  bool written_ = false;
};

}  // namespace contextile
