// Random batches, masks and machines for tests of dcp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {

struct MachineSize {
  std::int32_t nodes;
  std::int32_t devices;
};
inline constexpr MachineSize kMachines[] = {{1, 8}, {2, 8}, {4, 8}, {3, 4}, {4, 1}};
inline constexpr const char* kMasks[] = {"causal", "sliding_window:3000", "lambda:64,4096",
                                         "causal_blockwise:256,4,1", "shared_question:0.2,4"};
inline constexpr std::int64_t kBlockSizes[] = {512, 1024, 2048, 4096};

// Returns few long documents, many short ones, or both, with tails of any length.
inline std::vector<std::int64_t> batch_lengths(Rng& rng, std::int64_t tokens) {
  std::vector<std::int64_t> lengths;
  const std::int64_t longest = std::int64_t{1} << random_between(rng, 10, 17);
  while (tokens > 0) {
    const std::int64_t most = std::min(tokens, random_chance(rng, 0.3) ? longest : longest / 8);
    lengths.push_back(random_between(rng, std::max<std::int64_t>(1, most / 4), most));
    tokens -= lengths.back();
  }
  return lengths;
}

template <typename T, std::size_t N>
T any_of(Rng& rng, const T (&values)[N]) {
  return values[random_between(rng, 0, N - 1)];
}

}  // namespace contextile
