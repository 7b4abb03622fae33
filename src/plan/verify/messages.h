// Pairs the launches of one direction: the n-th message from a to b with the n-th that b expects of
// a. Matching depends on program order alone, never on timing, so it happens before anything runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/plan.h"
#include "plan/verify/facts.h"
#include "plan/verify/findings.h"

namespace contextile {

// Everything that one launch sends to, or expects from, one peer.
struct MessageSide {
  std::int32_t launch = -1;   // index into MessagePlan::launches
  std::int32_t message = -1;  // index into MessagePlan::messages
  Rank rank;
  Rank peer;
  std::uint32_t count = 0;  // its units in MessagePlan::units, from `first` on
  bool is_send = false;
  std::size_t first = 0;
};

struct PlannedMessage {
  Rank src;
  Rank dst;
  std::int64_t number = 0;  // n-th from src to dst
  std::int32_t sent = -1;   // sides; -1: there is none
  std::int32_t expected = -1;
  bool agreed = false;  // both sides list the same transfers
};

struct PlannedLaunch {
  Rank rank;
  std::int32_t id = 0;
  std::int64_t instruction = 0;
  std::int32_t first_side = 0;  // its sides: [first_side, last_side)
  std::int32_t last_side = 0;
};

// A launch or wait instruction, in program order. launch < 0: it was reported and does nothing.
struct LaunchEvent {
  bool is_wait = false;
  std::int32_t launch = -1;
  std::int64_t instruction = 0;
};

struct MessagePlan {
  std::vector<const TransferEnd*> units;
  std::vector<MessageSide> sides;
  std::vector<PlannedMessage> messages;
  std::vector<PlannedLaunch> launches;           // by rank, then program order
  std::vector<std::vector<LaunchEvent>> events;  // by rank

  [[nodiscard]] std::span<const TransferEnd* const> units_of(const MessageSide& side) const {
    return {units.data() + side.first, side.count};
  }
  [[nodiscard]] std::span<const MessageSide> sides_of(const PlannedLaunch& launch) const {
    return {sides.data() + launch.first_side,
            static_cast<std::size_t>(launch.last_side - launch.first_side)};
  }
};

// Matches the messages. Reports peers that do not exist, ids used twice, launches never waited for,
// waits without a launch, messages without a partner and messages whose units, kinds or wires
// differ. O(transfers · log). Programs must pass check_program_structure and outlive the result.
[[nodiscard]] MessagePlan match_messages(const RoundFacts& facts, const DirectionPrograms& programs,
                                         const PlanPlace& place, Findings& findings);

// Returns true if two ends are the same transfer (slots may differ: each rank chooses its own).
[[nodiscard]] bool same_transfer(const TransferEnd& a, const TransferEnd& b);

// The stricter deadlock model: the launches of a device run strictly one after another, each until
// its peers' matching launches have begun. Returns the launches that never end, at most one for
// each rank. O(messages + events).
[[nodiscard]] std::vector<std::int32_t> stuck_grouped_launches(const MessagePlan& plan);

}  // namespace contextile
