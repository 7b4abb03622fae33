// Dropout of attention weights by a counter: a weight's fate depends on the seed, the query head
// and the two tokens alone, and on no plan, rank, tile or kernel.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the key is
// the seed, the counter (key token / 4, query token, query head, 0). Word `key token % 4` of the
// result decides; a weight stays if it is at least dropout_threshold.
#pragma once

#include <cstdint>

#include "kernel/cpu/inline.h"

namespace contextile {

struct PhiloxWords {
  std::uint32_t word[4];
};

CONTEXTILE_INLINE PhiloxWords philox(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  std::uint32_t a = counter.word[0];
  std::uint32_t b = counter.word[1];
  std::uint32_t c = counter.word[2];
  std::uint32_t d = counter.word[3];
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = kMultiplier0 * a;
    const std::uint64_t second = kMultiplier1 * c;
    a = static_cast<std::uint32_t>(second >> 32) ^ b ^ key0;
    c = static_cast<std::uint32_t>(first >> 32) ^ d ^ key1;
    b = static_cast<std::uint32_t>(second);
    d = static_cast<std::uint32_t>(first);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {{a, b, c, d}};
}

// Everything that the fate of a weight depends on beyond its place.
struct Dropout {
  std::uint32_t seed0 = 0;
  std::uint32_t seed1 = 0;
  std::uint32_t threshold = 0;  // a word below it drops the weight
  float kept = 1;               // factor of a weight that stays: 1 / (1 - probability)
};

CONTEXTILE_INLINE Dropout make_dropout(double probability, std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
          static_cast<std::uint32_t>(probability * 4294967296.0),
          static_cast<float>(1 / (1 - probability))};
}

// Returns the words of the four weights of key tokens 4·key_group … 4·key_group + 3.
CONTEXTILE_INLINE PhiloxWords dropout_words(const Dropout& dropout, std::int32_t head,
                                            std::int32_t query, std::int32_t key_group) {
  return philox({{static_cast<std::uint32_t>(key_group), static_cast<std::uint32_t>(query),
                  static_cast<std::uint32_t>(head), 0}},
                dropout.seed0, dropout.seed1);
}

// Returns the factor of one weight: 0 or `kept`.
CONTEXTILE_INLINE float dropout_factor(const Dropout& dropout, std::int32_t head,
                                       std::int32_t query, std::int32_t key) {
  const PhiloxWords words = dropout_words(dropout, head, query, key / 4);
  return words.word[key % 4] < dropout.threshold ? 0.0F : dropout.kept;
}

}  // namespace contextile
