// The least traffic of a mask, compared with every way to share out tiny documents.
#include "predict/bounds/traffic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "contextile/workload.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// A kernel that computes pairs at peak, whatever the tile.
AttentionProfile ideal_profile() {
  AttentionProfile profile;
  profile.q_rows = profile.kv_rows = {1};
  profile.forward = profile.backward = {1};
  profile.call_us = 0;
  profile.kernel_tile_rows = 0;
  return profile;
}

struct Pair {
  int query = 0;
  int key = 0;
};

// Shares out all pairs of all head groups to parts one by one, and counts the moved bytes on the
// way.
class EverySharing {
 public:
  EverySharing(std::vector<Pair> pairs, int tokens, int groups, int parts, int most_pairs,
               TokenBytes bytes)
      : pairs_(std::move(pairs)),
        tokens_(tokens),
        groups_(groups),
        most_pairs_(most_pairs),
        bytes_(bytes),
        load_(static_cast<std::size_t>(parts)),
        uses_(static_cast<std::size_t>(parts * groups * 2 * tokens)) {}

  // Owners such that no part owns more than `most_owned` tokens. Infinite if there are none.
  double least_bytes(int most_owned) {
    std::vector<int> owned(load_.size());
    own(0, most_owned, owned);
    return least_;
  }

 private:
  void own(int token, int most_owned, std::vector<int>& owned) {
    if (token == tokens_) return compute(0, 0);
    for (std::size_t part = 0; part < owned.size(); ++part) {
      if (owned[part] == most_owned) continue;
      ++owned[part];
      owners_.push_back(part);
      own(token + 1, most_owned, owned);
      owners_.pop_back();
      --owned[part];
    }
  }

  void compute(std::size_t next, double bytes) {
    if (bytes >= least_) return;
    if (next == pairs_.size() * static_cast<std::size_t>(groups_)) {
      least_ = bytes;
      return;
    }
    const Pair pair = pairs_[next / static_cast<std::size_t>(groups_)];
    const auto group = static_cast<int>(next % static_cast<std::size_t>(groups_));
    for (std::size_t part = 0; part < load_.size(); ++part) {
      if (load_[part] == most_pairs_) continue;
      ++load_[part];
      const double moved =
          use(part, group, 0, pair.query, bytes_.row) + use(part, group, 1, pair.key, bytes_.key);
      compute(next + 1, bytes + moved);
      --uses(part, group, 0, pair.query);
      --uses(part, group, 1, pair.key);
      --load_[part];
    }
  }

  int& uses(std::size_t part, int group, int role, int token) {
    const auto row = (static_cast<int>(part) * groups_ + group) * 2 + role;
    return uses_[static_cast<std::size_t>(row * tokens_ + token)];
  }

  double use(std::size_t part, int group, int role, int token, double bytes) {
    const bool is_first = uses(part, group, role, token)++ == 0;
    return is_first && owners_[static_cast<std::size_t>(token)] != part ? bytes : 0;
  }

  std::vector<Pair> pairs_;
  int tokens_;
  int groups_;
  int most_pairs_;
  TokenBytes bytes_;
  std::vector<int> load_;
  std::vector<int> uses_;
  std::vector<std::size_t> owners_;
  double least_ = std::numeric_limits<double>::infinity();
};

std::vector<Pair> pairs_of(const Mask& mask) {
  std::vector<Pair> pairs;
  for (const Band& band : mask.bands) {
    for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
      for (std::int64_t k = band.k.begin; k < band.k.end; ++k) {
        if (band.lo <= k - q && k - q <= band.hi) {
          pairs.push_back({static_cast<int>(q), static_cast<int>(k)});
        }
      }
    }
  }
  return pairs;
}

TEST(TrafficBound, IsNeverAboveAnyWayToShareOutATinyBatch) {
  int moved = 0;
  int close = 0;
  int bicliques = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed);
    const auto groups = static_cast<int>(random_between(rng, 1, 2));
    const std::int64_t longest = groups == 1 ? 5 : 3;
    const MaskUse use{.name = "mask", .spec = random_mask_spec(rng, longest)};
    const std::vector<std::int64_t> lengths =
        random_chance(rng, 0.7) ? std::vector<std::int64_t>{random_between(rng, 2, longest)}
                                : std::vector<std::int64_t>{2, 2};
    const Mask mask = make_workload(lengths, grouped_heads(), {&use, 1}).masks[0].mask;
    const std::vector<Pair> pairs = pairs_of(mask);
    if (pairs.empty() || pairs.size() * static_cast<std::size_t>(groups) > 15) continue;
    const int parts = groups == 1 ? static_cast<int>(random_between(rng, 2, 3)) : 2;
    const auto tokens = static_cast<int>(laid_end_to_end(lengths).back().end);
    const auto work = static_cast<int>(pairs.size()) * groups;
    const int most_owned =
        static_cast<int>(random_between(rng, (tokens + parts - 1) / parts, tokens));
    const int most_pairs = static_cast<int>(random_between(rng, (work + parts - 1) / parts, work));
    const TokenBytes bytes{1 + 9 * rng.uniform(), 1 + 9 * rng.uniform()};
    SCOPED_TRACE(
        fmt::format("seed {}: {} tokens, {} pairs, {} groups, {} parts of {} tokens and {} "
                    "pairs",
                    seed, tokens, pairs.size(), groups, parts, most_owned, most_pairs));
    const double least =
        EverySharing(pairs, tokens, groups, parts, most_pairs, bytes).least_bytes(most_owned);
    const KernelPrice price(ideal_profile(), Direction::kForward);
    const PartLevel level{.parts = static_cast<double>(parts),
                          .owned_tokens = static_cast<double>(most_owned),
                          .bytes_per_us = 1e9,
                          .part_bytes_per_us = 1e9};
    const WorkRates rates{.head_groups = static_cast<double>(groups), .pairs_per_us = 1};
    TrafficBound traffic(components_of(mask), price, level, rates, bytes, most_pairs);
    const double bound = traffic.least_bytes(most_pairs);
    ASSERT_LE(bound, least * (1 + 1e-9) + 1e-9);
    TrafficBound of_biclique(components_of(mask), price, level, rates, bytes, most_pairs,
                             CountedPairs::kBiclique);
    const double biclique_bound = of_biclique.least_bytes(most_pairs);
    ASSERT_LE(biclique_bound, least * (1 + 1e-9) + 1e-9);
    bicliques += biclique_bound > 0 ? 1 : 0;
    if (least == 0) continue;
    ++moved;
    close += bound > 0.5 * least ? 1 : 0;
  }
  EXPECT_GT(moved, 50);
  EXPECT_GT(close, moved / 5);  // else a bound of nothing would do
  EXPECT_GT(bicliques, 5);
}

// Eight parts own equal shares of a causal document and do equal work. With eight head groups and
// more, each part may take whole groups, and gets all other tokens for an eighth of them. The free
// pairs in the other groups and the corners of the triangle save some of that. Fewer groups move
// more.
TEST(TrafficBound, OfManyHeadGroupsIsNearlyThatOfWholeOnes) {
  for (const std::int64_t length : {4000, 60000}) {
    const Mask mask = batch_of({length}, "causal").masks[0].mask;
    const KernelPrice price(ideal_profile(), Direction::kForward);
    for (const double groups : {1, 2, 8, 32, 1024}) {
      const double work = groups * 0.5 * static_cast<double>(length * (length + 1));
      const PartLevel level{.parts = 8,
                            .owned_tokens = static_cast<double>(length) / 8,
                            .bytes_per_us = 1e9,
                            .part_bytes_per_us = 1e9};
      const WorkRates rates{.head_groups = groups, .pairs_per_us = work / 8};
      // All groups together have the same bytes.
      TrafficBound traffic(components_of(mask), price, level, rates, {1024 / groups, 1024 / groups},
                           1.0);
      const double bytes = traffic.least_bytes(1.0);
      SCOPED_TRACE(fmt::format("{} tokens, {} groups: {} bytes", length, groups, bytes));
      const double whole_heads = 8 * 2 * 1024.0 / 8 * 7 / 8 * static_cast<double>(length);
      if (groups >= 8) {
        EXPECT_LE(bytes, whole_heads);
        EXPECT_GE(bytes, 0.7 * whole_heads);
      } else {
        EXPECT_GE(bytes, whole_heads);
      }
    }
  }
}

// A question of 1000 tokens with four answers of as many. A part owns the question and three
// answers, another the fourth. Each row attends the question, so its keys or the rows move.
TEST(TrafficBound, OfASharedQuestionMovesTheQuestion) {
  const Mask mask = batch_of({5000}, "shared_question:0.2,4").masks[0].mask;
  const KernelPrice price(ideal_profile(), Direction::kForward);
  const PartLevel level{
      .parts = 2, .owned_tokens = 4000, .bytes_per_us = 1e9, .part_bytes_per_us = 1e9};
  const WorkRates rates{.head_groups = 1, .pairs_per_us = 1e9};
  const auto least_bytes = [&](CountedPairs counted) {
    return TrafficBound(components_of(mask), price, level, rates, {4, 1}, 1.0, counted)
        .least_bytes(1.0);
  };
  EXPECT_LT(least_bytes(CountedPairs::kAll), 1);
  EXPECT_LE(least_bytes(CountedPairs::kBiclique), 1000);
  EXPECT_GE(least_bytes(CountedPairs::kBiclique), 780);
}

// One part owns 750 of 1000 tokens, so no other owns more than 250: one of the two moves 250 rows
// or keys. Parts that own half of the document each would move less.
TEST(TrafficBound, KnowsThatOthersOwnTheRestOfADocument) {
  const Mask mask = batch_of({1000}, "full").masks[0].mask;
  const KernelPrice price(ideal_profile(), Direction::kForward);
  const PartLevel level{
      .parts = 4, .owned_tokens = 750, .bytes_per_us = 1e9, .part_bytes_per_us = 1e9};
  TrafficBound traffic(components_of(mask), price, level, {.pairs_per_us = 1e9}, {1, 1}, 1.0);
  const double bytes = traffic.least_bytes(1.0);
  EXPECT_LE(bytes, 500);
  EXPECT_GE(bytes, 230);
}

// A device takes at most the bytes that its own port moves in time, however many ports there are.
TEST(TrafficBound, KnowsThatADeviceHasOnePort) {
  const Mask mask = batch_of({1000}, "causal").masks[0].mask;
  const KernelPrice price(ideal_profile(), Direction::kForward);
  PartLevel level{.parts = 64, .owned_tokens = 990, .bytes_per_us = 64, .part_bytes_per_us = 1};
  const auto least_us = [&] {
    return TrafficBound(components_of(mask), price, level, {.pairs_per_us = 1e9}, {1000, 1}, 1e-3)
        .least_us();
  };
  const double one_port_us = least_us();
  level.part_bytes_per_us = 64;
  EXPECT_GT(one_port_us, 2 * least_us());
}

}  // namespace
}  // namespace contextile
