// Who is left: ranks of a group that failed agree on the group that goes on without the lost ones.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/store.h"

namespace contextile {

struct MembershipOptions {
  // Ranks that have not come when none came for that long are left out.
  std::chrono::milliseconds settle{2'000};
  // For the whole call.
  std::chrono::milliseconds timeout{60'000};
};

struct Membership {
  std::vector<Rank> members;  // numbers in the old group, ascending
  Rank rank;                  // this process in the new one: its place among them

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(members.size()); }
};

// Every rank of a group of `num_ranks` that is left calls it, with its old number; all that come in
// time return the same members. `run` names the job, `generation` the group to come: 1 after the
// first failure, then 2, so that no key is used twice. The first decision that reaches the store
// counts, whoever made it, so that no two groups go on: a rank that is not in it (it was slow, or
// cut off) throws TransportError. Also throws InvalidArgument on numbers that cannot be, what the
// store throws, and TransportError after the timeout.
[[nodiscard]] Membership agree_on_members(Store& store, std::string_view run,
                                          std::int32_t generation, Rank rank,
                                          std::int32_t num_ranks,
                                          const MembershipOptions& options = {});

}  // namespace contextile
