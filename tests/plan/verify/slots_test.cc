#include "plan/verify/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(SlotPool, PushesOutTheSlotsInUseThatOverlap) {
  constexpr std::int32_t kOwned = 2;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    // Small arenas have slots that overlap, large ones have slots that lie apart.
    const std::int64_t arena = random_between(rng, 10, 400);
    std::vector<StagingSlot> staging;
    for (int s = 0; s < 12; ++s) {
      staging.push_back({random_between(rng, 0, arena), random_between(rng, 1, 9)});
    }
    SlotPool pool(kOwned, staging);
    std::vector<SlotId> in_use;
    for (int step = 0; step < 100; ++step) {
      const SlotId slot{kOwned + static_cast<std::int32_t>(random_between(rng, 0, 11))};
      std::vector<SlotId> expected;
      for (const SlotId other : in_use) {
        if (other != slot && pool.overlap(slot, other)) expected.push_back(other);
      }
      std::vector<SlotId> found;
      pool.occupy(slot, found);
      std::ranges::sort(expected);
      std::ranges::sort(found);
      ASSERT_EQ(found, expected);
      std::erase_if(in_use,
                    [&](SlotId other) { return other == slot || pool.overlap(slot, other); });
      in_use.push_back(slot);
    }
  }
}

}  // namespace
}  // namespace contextile
