// Checks that ranks are in the same call: only sizes distinguish the messages of plans.
#pragma once

#include <array>
#include <cstdint>

#include "contextile/extend/transport.h"

namespace contextile {

// A call as it travels between ranks.
struct CallTag {
  std::uint64_t plan = 0;  // digest
  std::int64_t mask = 0;
  std::int64_t number = 0;  // 0: unknown, matches any
  std::int64_t direction = 0;
};

// Compares a rank's call with that of the previous rank on the ring of ranks: if all neighbours
// agree, all ranks do. Stays where it is from its construction to wait(), because messages move
// into and out of it.
class CallCheck {
 public:
  // Sends this rank's call to its neighbour, and returns at once.
  CallCheck(Transport& transport, const CallTag& mine);
  CallCheck(const CallCheck&) = delete;
  CallCheck& operator=(const CallCheck&) = delete;

  // Waits for the neighbour's call. Throws InvalidArgument naming both ranks and their calls if
  // they differ.
  void wait();

 private:
  Transport& transport_;
  CallTag mine_;
  CallTag theirs_;
  std::int64_t ticket_ = 0;
};

}  // namespace contextile
