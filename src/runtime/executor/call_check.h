// Checks that ranks are in the same call: only sizes distinguish the messages of plans.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "contextile/advanced/executor.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"

namespace contextile {

// A call as it travels between ranks. A rank in prepare sends one, too, so that ranks in prepare
// and in calls recognize each other.
struct CallTag {
  static constexpr std::int64_t kPrepare = -1;

  std::uint64_t plan = 0;  // digest
  std::int64_t mask = 0;
  std::int64_t number = 0;     // 0: unknown, matches any
  std::int64_t direction = 0;  // kPrepare: in prepare, of any plan
  std::uint64_t terms = 0;     // digest of its bias and dropout; 0: it has none
  std::uint64_t sinks = 0;     // digest of its sinks; 0: it has none, or they are not compared
  // For later versions, whose messages must be as long: prepare names versions that differ.
  std::array<std::uint64_t, 2> unused{};
};

[[nodiscard]] CallTag call_tag(const SharedCall& call, const Plan& plan);
// Returns "backward 7 of plan 0x…, mask 0", or "prepare of plan 0x…".
[[nodiscard]] std::string text_of(const CallTag& tag);

// Compares a rank's call with that of the previous rank on the ring of ranks: if all neighbours
// agree, all ranks do. Stays where it is from its construction to wait(), because messages move
// into and out of it.
class CallCheck {
 public:
  // Sends this rank's call to its neighbour, and returns at once.
  CallCheck(Transport& transport, const CallTag& mine);
  CallCheck(const CallCheck&) = delete;
  CallCheck& operator=(const CallCheck&) = delete;

  // Waits for the neighbour's call. Throws InvalidArgument naming both ranks and their calls
  // if they differ.
  void wait();

  // Returns the text of that error if the neighbour's call has come and differs. Waits for nothing.
  [[nodiscard]] std::optional<std::string> difference() const;

 private:
  [[nodiscard]] bool has_come() const;

  Transport& transport_;
  CallTag mine_;
  CallTag theirs_;
  std::int64_t ticket_ = 0;
};

}  // namespace contextile
