#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contextile/serving/kv_cache.h"
#include "serving/cache/error_of.h"
#include "serving/vectors.h"

namespace contextile {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<PageId> table_of(const std::vector<std::int32_t>& pages) {
  return {pages.begin(), pages.end()};
}

TEST(KvLayout, PutsTheTokensOfAKnownTable) {
  const KvLayout layout = {.num_ranks = 2, .interleave = 2, .page_size = 4};
  const std::vector<PageId> table = table_of({5, 7, 11});
  EXPECT_THAT(slots_of(layout, table, Rank(0), {0, 8}),
              ElementsAre(20, 21, -1, -1, 22, 23, -1, -1));
  EXPECT_THAT(slots_of(layout, table, Rank(1), {0, 8}),
              ElementsAre(-1, -1, 20, 21, -1, -1, 22, 23));
}

TEST(KvLayout, FormulasAgree) {
  for (const std::int32_t num_ranks : {1, 2, 3, 4, 8}) {
    for (const std::int32_t page_size : {1, 4, 6, 16}) {
      for (std::int32_t interleave = 1; interleave <= page_size; ++interleave) {
        if (page_size % interleave != 0) continue;
        SCOPED_TRACE(fmt::format("N {} B {} s {}", num_ranks, page_size, interleave));
        const KvLayout layout = {num_ranks, interleave, page_size};
        check_kv_layout(layout);
        std::vector<std::int64_t> held(static_cast<std::size_t>(num_ranks), 0);
        for (std::int64_t length = 0; length < 3 * layout.block_tokens() + 2; ++length) {
          for (std::int32_t r = 0; r < num_ranks; ++r) {
            EXPECT_EQ(layout.local_length(Rank(r), length), held[static_cast<std::size_t>(r)]);
          }
          const auto [least, most] = std::minmax_element(held.begin(), held.end());
          EXPECT_LE(*most - *least, interleave);
          const Rank owner = layout.owner(length);
          EXPECT_EQ(layout.local(length), held[owner.index()]++);
          EXPECT_EQ(layout.global(owner, layout.local(length)), length);
        }
      }
    }
  }
}

TEST(KvLayout, EverySlotOfATableHoldsOneToken) {
  const KvLayout layout = {.num_ranks = 3, .interleave = 2, .page_size = 6};
  const std::vector<PageId> table = table_of({4, 0, 9});
  for (std::int32_t r = 0; r < 3; ++r) {
    std::vector<std::int64_t> slots = slots_of(layout, table, Rank(r), {0, 3 * 18});
    std::erase(slots, -1);
    std::sort(slots.begin(), slots.end());
    std::vector<std::int64_t> expected;
    for (const std::int64_t page : {0, 4, 9}) {
      for (std::int64_t i = 0; i < 6; ++i) expected.push_back(page * 6 + i);
    }
    EXPECT_EQ(slots, expected);
  }
}

TEST(KvLayout, RefusesWhatIsNone) {
  EXPECT_THAT(error_of([] { check_kv_layout({.num_ranks = 0}); }),
              HasSubstr("ranks: expected 1 to 1048576, found 0"));
  EXPECT_THAT(
      error_of([] { check_kv_layout({.num_ranks = 2, .interleave = 48, .page_size = 64}); }),
      HasSubstr("divides the page size 64, found 48"));
  const std::vector<PageId> table = table_of({1});
  EXPECT_THAT(error_of([&] {
                static_cast<void>(slots_of({}, table, Rank(0), {0, 17}));
              }),
              HasSubstr("1 blocks of 16 tokens, found [0, 17)"));
}

// ----------------------------------------------------------------------- beside the originals

TEST(KvLayout, LocalLengthsAreThoseOfVllm) {
  const json cases = vectors("vllm_local_seq_lens");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  for (const json& one : cases) {
    const KvLayout layout = {one["ranks"], one["interleave"], one["interleave"]};
    for (std::size_t i = 0; i < one["seq_lens"].size(); ++i) {
      for (std::int32_t r = 0; r < layout.num_ranks; ++r) {
        EXPECT_EQ(layout.local_length(Rank(r), one["seq_lens"][i].get<std::int64_t>()),
                  one["local_lens"][i][static_cast<std::size_t>(r)])
            << one["name"];
      }
    }
  }
}

TEST(KvLayout, SlotsAreThoseOfVllm) {
  const json cases = vectors("vllm_slot_mapping");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  for (const json& one : cases) {
    const KvLayout layout = {one["ranks"], one["interleave"], one["page"]};
    for (std::int32_t r = 0; r < layout.num_ranks; ++r) {
      std::vector<std::int64_t> slots;
      for (const json& request : one["requests"]) {
        const auto table = table_of(request["blocks"]);
        for (const std::int64_t position : request["positions"]) {
          slots.push_back(layout.slot(table, Rank(r), position));
        }
      }
      EXPECT_EQ(json(slots), one["slots"][static_cast<std::size_t>(r)]) << one["name"];
    }
  }
}

TEST(KvLayout, LengthsOfDraftsAreThoseOfSglang) {
  const json cases = vectors("sglang_dcp_layout");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  for (const json& one : cases) {
    const KvLayout layout = {one["ranks"], one["interleave"], one["interleave"]};
    const std::int64_t queries = one["queries"];
    for (std::size_t r = 0; r < one["local_lens"].size(); ++r) {
      const Rank rank(static_cast<std::int32_t>(r));
      for (std::size_t i = 0; i < one["lens"].size(); ++i) {
        const std::int64_t length = one["lens"][i];
        const std::int64_t start = one["starts"][i];
        EXPECT_EQ(layout.local_length(rank, length), one["local_lens"][r][i]);
        EXPECT_EQ(layout.local_length(rank, Range{start, start + length}),
                  one["local_lens_from_start"][r][i]);
        for (std::int64_t j = 0; j < queries; ++j) {
          const std::int64_t seen =
              length < queries ? 0 : layout.local_length(rank, length - queries + j + 1);
          EXPECT_EQ(seen, one["chain_lens"][r][i][static_cast<std::size_t>(j)]) << one["name"];
        }
      }
      for (std::size_t i = 0; i < one["indices"].size(); ++i) {
        const std::int64_t index = one["indices"][i];
        const bool is_mine = index >= 0 && layout.owner(index) == rank;
        EXPECT_EQ(is_mine ? layout.local(index) : -1, one["local_indices"][r][i]);
      }
    }
  }
}

// ------------------------------------------------------------------------------------- groups

TEST(KvGroups, AreThoseOfVllmExceptWhereItsMixHeads) {
  const json cases = vectors("vllm_group_layout");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  int num_mixed = 0;
  for (const json& one : cases) {
    SCOPED_TRACE(one.dump());
    const KvGroups groups = {one["tp"],      one["pcp"],      one["dcp"],
                             one["q_heads"], one["kv_heads"], one["mla"]};
    const std::string error = error_of([&] {
      check_kv_layout({groups.kv_ranks, one["interleave"], one["page"]});
      check_kv_groups(groups);
    });
    // KV heads and tp do not divide each other: the original fails only in a later part.
    const bool mixes =
        one.value("group_mixes_kv_heads", false) ||
        (!groups.mla && groups.tp % groups.kv_heads != 0 && groups.kv_heads % groups.tp != 0);
    num_mixed += mixes ? 1 : 0;
    EXPECT_EQ(error == "none", one["accepted"].get<bool>() && !mixes) << error;
    if (error != "none") continue;
    if (one.contains("dcp_groups")) {
      json found = json::array();
      for (const std::vector<Rank>& group : kv_groups(groups)) {
        json ranks = json::array();
        for (const Rank rank : group) ranks.push_back(rank.value);
        found.push_back(ranks);
      }
      EXPECT_EQ(found, one["dcp_groups"]);
    }
    if (one.contains("kv_head_of_rank")) {
      EXPECT_EQ(json(kv_head_of_ranks(groups)), one["kv_head_of_rank"]);
    }
  }
  EXPECT_GT(num_mixed, 0);
}

TEST(KvGroups, OfDifferentHeadsAreRefused) {
  for (const KvGroups& groups :
       {KvGroups{12, 1, 4, 48, 2}, KvGroups{12, 1, 2, 48, 4}, KvGroups{6, 1, 2, 48, 2}}) {
    EXPECT_THAT(error_of([&] { check_kv_groups(groups); }),
                HasSubstr("a group would hold different heads"));
  }
}

TEST(KvGroups, HoldTheSameHeads) {
  for (std::int32_t tp = 1; tp <= 16; ++tp) {
    for (std::int32_t n = 1; n <= tp; ++n) {
      for (const std::int32_t kv_heads : {1, 2, 4, 8}) {
        const KvGroups groups = {tp, 1, n, tp * 8, kv_heads};
        if (error_of([&] { check_kv_groups(groups); }) != "none") continue;
        const std::vector<std::int32_t> head = kv_head_of_ranks(groups);
        for (const std::vector<Rank>& group : kv_groups(groups)) {
          for (const Rank rank : group) EXPECT_EQ(head[rank.index()], head[group[0].index()]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace contextile
