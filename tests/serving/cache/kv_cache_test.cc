#include "contextile/serving/kv_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "serving/cache/cached_pages.h"
#include "serving/cache/error_of.h"
#include "serving/vectors.h"

namespace contextile {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<std::int32_t>;

KvCache small_cache(std::int32_t num_pages, std::int32_t page_size = 2, std::int32_t ranks = 2) {
  return KvCache({.layout = {ranks, 1, page_size}, .num_pages = num_pages});
}

TEST(KvCache, SharesPrefixesInWholeBlocks) {
  KvCache cache = small_cache(10);
  EXPECT_EQ(cache.add(RequestId(0), counting(10)), 0);
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(0, 1, 2));
  EXPECT_EQ(cache.add(RequestId(1), counting(10)), 8);
  EXPECT_THAT(pages_of(cache, 1), ElementsAre(0, 1, 3));
  EXPECT_EQ(cache.free_pages(), 6);
  // The last token has to be computed, so its block is.
  EXPECT_EQ(cache.cached_tokens(counting(8)), 4);
  EXPECT_EQ(cache.cached_tokens(counting(9)), 8);
  EXPECT_EQ(cache.cached_tokens(counting(9, 1)), 0);
  cache.check_consistency();
}

TEST(KvCache, RemembersUntilTheRoomIsNeeded) {
  KvCache cache = small_cache(4);
  ASSERT_EQ(cache.add(RequestId(0), counting(12)), 0);
  cache.free(RequestId(0));
  EXPECT_EQ(cache.free_pages(), 4);
  EXPECT_EQ(cache.unused_prefix_pages(), 3);
  EXPECT_EQ(cache.cached_tokens(counting(13)), 12);
  // Page 3 comes first, because it was never used, then the end of the request before its
  // beginning.
  ASSERT_EQ(cache.add(RequestId(1), counting(5, 100)), 0);
  EXPECT_THAT(pages_of(cache, 1), ElementsAre(3, 2));
  EXPECT_EQ(cache.cached_tokens(counting(13)), 8);
  cache.clear_prefixes();
  EXPECT_EQ(cache.cached_tokens(counting(13)), 0);
  cache.check_consistency();
}

TEST(KvCache, ChangesNothingWhenPagesAreShort) {
  KvCache cache = small_cache(3);
  ASSERT_EQ(cache.add(RequestId(0), counting(8)), 0);
  const std::uint64_t before = cache.digest();
  EXPECT_EQ(cache.add(RequestId(1), counting(9, 50)), std::nullopt);
  EXPECT_FALSE(cache.contains(RequestId(1)));
  EXPECT_FALSE(cache.append(RequestId(0), counting(5)));
  EXPECT_EQ(cache.digest(), before);
  EXPECT_TRUE(cache.append(RequestId(0), counting(4)));
  EXPECT_EQ(cache.length(RequestId(0)), 12);
  cache.check_consistency();
}

TEST(KvCache, AHitCountsAsRoomOnlyWhereItIsInUse) {
  KvCache cache = small_cache(3);
  ASSERT_EQ(cache.add(RequestId(0), counting(12)), 0);
  cache.free(RequestId(0));
  // Two blocks are there, unused; with them three are needed, and all three are free.
  EXPECT_EQ(cache.add(RequestId(1), counting(10)), 8);
  EXPECT_EQ(cache.free_pages(), 0);
}

TEST(KvCache, ForksCopyTheBlockTheyWriteTo) {
  KvCache cache = small_cache(10);
  ASSERT_EQ(cache.add(RequestId(0), counting(6)), 0);
  cache.fork(RequestId(0), RequestId(1));
  EXPECT_EQ(pages_of(cache, 0), pages_of(cache, 1));
  EXPECT_EQ(cache.free_pages(), 8);
  EXPECT_TRUE(cache.append(RequestId(1), counting(1, 7)));
  EXPECT_THAT(cache.take_copies(), ElementsAre(PageCopy{PageId(1), PageId(2)}));
  EXPECT_THAT(pages_of(cache, 1), ElementsAre(0, 2));
  // The other is alone with its block now.
  EXPECT_TRUE(cache.append(RequestId(0), counting(1, 8)));
  EXPECT_TRUE(cache.take_copies().empty());
  cache.check_consistency();
}

TEST(KvCache, RejectedDraftsLeaveNothingBehind) {
  KvCache cache = small_cache(10);
  ASSERT_EQ(cache.add(RequestId(0), counting(6)), 0);
  ASSERT_TRUE(cache.append(RequestId(0), counting(4, 90)));
  EXPECT_EQ(cache.cached_tokens(cache.tokens(RequestId(0))), 8);
  cache.truncate(RequestId(0), 7);
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(0, 1));
  // Rejected tokens are remembered as long as nothing else is written there …
  Tokens rejected = counting(6);
  rejected.insert(rejected.end(), {90, 91, 1});
  EXPECT_EQ(cache.cached_tokens(rejected), 8);
  ASSERT_TRUE(cache.append(RequestId(0), counting(2, 70)));
  // … and no longer.
  EXPECT_EQ(cache.cached_tokens(rejected), 4);
  EXPECT_EQ(cache.cached_tokens(cache.tokens(RequestId(0))), 8);
  EXPECT_TRUE(cache.take_copies().empty());
  cache.check_consistency();
}

TEST(KvCache, ABlockThatOthersReadIsCopiedBeforeItIsWrittenAnew) {
  KvCache cache = small_cache(10);
  ASSERT_EQ(cache.add(RequestId(0), counting(8)), 0);
  ASSERT_EQ(cache.add(RequestId(1), counting(9)), 8);
  cache.truncate(RequestId(0), 7);
  ASSERT_TRUE(cache.append(RequestId(0), counting(1, 99)));
  EXPECT_THAT(cache.take_copies(), ElementsAre(PageCopy{PageId(1), PageId(3)}));
  EXPECT_EQ(cache.cached_tokens(counting(9)), 8);
  cache.check_consistency();
}

TEST(KvCache, SaysWhatIsWrong) {
  KvCache cache = small_cache(3);
  ASSERT_EQ(cache.add(RequestId(0), counting(3)), 0);
  EXPECT_THAT(error_of([&] { static_cast<void>(cache.add(RequestId(0), counting(1))); }),
              HasSubstr("found 0, which is under way"));
  EXPECT_THAT(error_of([&] { static_cast<void>(cache.add(RequestId(-1), counting(1))); }),
              HasSubstr("at least 0, found -1"));
  EXPECT_THAT(error_of([&] { static_cast<void>(cache.add(RequestId(1), Tokens())); }),
              HasSubstr("a prompt of at least 1 token"));
  EXPECT_THAT(error_of([&] { cache.free(RequestId(5)); }), HasSubstr("was added, found 5"));
  EXPECT_THAT(error_of([&] { cache.truncate(RequestId(0), 4); }),
              HasSubstr("1 to 3 tokens, found 4"));
  EXPECT_THAT(error_of([&] { cache.truncate(RequestId(0), 0); }), HasSubstr("found 0"));
  EXPECT_THAT(error_of([&] { cache.fork(RequestId(0), RequestId(0)); }), HasSubstr("under way"));
  EXPECT_THAT(error_of([] { KvCache({.layout = {}, .num_pages = 0}); }),
              HasSubstr("at least 1 page"));
  cache.check_consistency();
}

// ------------------------------------------------------------------------- beside the original

TEST(KvCache, SharesWhatVllmShares) {
  const json cases = vectors("vllm_prefix_cache");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  for (const json& one : cases) {
    const KvLayout layout = {one["dcp"], 1, one["page"]};
    ASSERT_EQ(layout.block_tokens(), one["block_tokens"].get<std::int64_t>());
    // Its first page is a place for values that are never read.
    KvCache cache({.layout = layout, .num_pages = one["num_blocks"].get<std::int32_t>() - 1});
    std::map<std::string, RequestId> ids;
    for (std::size_t i = 0; i < one["ops"].size(); ++i) {
      const json& op = one["ops"][i];
      SCOPED_TRACE(
          fmt::format("case {} operation {}: {}", one["name"].get<std::string>(), i, op.dump()));
      const std::string name = op["id"];
      const auto [known, is_new] = ids.try_emplace(name, static_cast<std::int32_t>(ids.size()));
      const RequestId id = known->second;
      if (op["op"] == "add") {
        const Tokens tokens = op["tokens"];
        EXPECT_EQ(cache.cached_tokens(tokens), op["hit_tokens"].get<std::int64_t>());
        EXPECT_EQ(cache.add(id, tokens).has_value(), op["ok"].get<bool>());
      } else if (op["op"] == "append") {
        EXPECT_EQ(cache.append(id, op["tokens"].get<Tokens>()), op["ok"].get<bool>());
      } else {
        cache.free(id);
      }
      EXPECT_EQ(cache.free_pages(), op["free_blocks"].get<std::int32_t>());
      cache.check_consistency();
    }
  }
}

TEST(KvCache, GivesOutPagesFirstThatNoPromptCanFind) {
  const auto tokens = [](std::int32_t first, std::int32_t count) {
    Tokens all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), first);
    return all;
  };
  KvCache cache({.layout = {.page_size = 8}, .num_pages = 7});
  const Tokens one = tokens(100, 25);  // three pages and a part of one
  const Tokens two = tokens(200, 19);  // two pages and a part
  ASSERT_EQ(cache.add(RequestId(1), one), 0);
  ASSERT_EQ(cache.add(RequestId(2), two), 0);
  cache.free(RequestId(1));
  cache.free(RequestId(2));
  EXPECT_EQ(cache.unused_prefix_pages(), 5);
  // Two short requests fit where the parts were, and both beginnings stay.
  ASSERT_EQ(cache.add(RequestId(3), tokens(300, 3)), 0);
  ASSERT_EQ(cache.add(RequestId(4), tokens(400, 3)), 0);
  EXPECT_EQ(cache.cached_tokens(one), 24);
  EXPECT_EQ(cache.cached_tokens(two), 16);
  // A third one takes the page that was unused for longest: the end of the first prompt.
  ASSERT_EQ(cache.add(RequestId(5), tokens(500, 3)), 0);
  EXPECT_EQ(cache.cached_tokens(one), 16);
  EXPECT_EQ(cache.cached_tokens(two), 16);
  cache.check_consistency();
}

TEST(KvCache, KeepsOneCopyOfAPrefix) {
  // Both requests compute the same block before either is found: their second tokens complete it.
  KvCache cache({.layout = {.page_size = 2}, .num_pages = 3});
  ASSERT_EQ(cache.add(RequestId(1), Tokens{7}), 0);
  ASSERT_EQ(cache.add(RequestId(2), Tokens{7}), 0);
  ASSERT_TRUE(cache.append(RequestId(1), Tokens{8}));
  ASSERT_TRUE(cache.append(RequestId(2), Tokens{8}));
  cache.free(RequestId(1));
  EXPECT_EQ(cache.unused_prefix_pages(), 0);  // the second request has it
  cache.free(RequestId(2));
  EXPECT_EQ(cache.unused_prefix_pages(), 1);
  ASSERT_EQ(cache.add(RequestId(3), Tokens{1, 2, 3}), 0);  // takes the two others
  EXPECT_EQ(cache.cached_tokens(Tokens{7, 8, 9}), 2);
  cache.check_consistency();
}

// A cache that gives out its blocks as vLLM does: the one that was unused for longest first,
// whatever it holds. It finds whole blocks, and never the last token of a prompt.
class LongestUnusedFirst {
 public:
  LongestUnusedFirst(std::int32_t num_blocks, std::size_t block_tokens)
      : block_tokens_(block_tokens), blocks_(static_cast<std::size_t>(num_blocks)) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) unused_.push_back(i);
  }

  // Returns the number of tokens found.
  std::int64_t add(std::int32_t id, const Tokens& tokens) {
    Request& request = requests_[id];
    while ((request.blocks.size() + 1) * block_tokens_ < tokens.size()) {
      const auto block = holder_of(prefix(tokens, request.blocks.size() + 1));
      if (!block) break;
      use(*block);
      request.blocks.push_back(*block);
    }
    const std::size_t found = request.blocks.size() * block_tokens_;
    append(id, tokens);
    return static_cast<std::int64_t>(found);
  }
  void append(std::int32_t id, const Tokens& tokens) {
    Request& request = requests_[id];
    request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
    while (request.blocks.size() * block_tokens_ < request.tokens.size()) {
      const std::size_t block = unused_.front();
      blocks_[block].prefix.clear();
      use(block);
      request.blocks.push_back(block);
    }
    for (std::size_t i = 0; (i + 1) * block_tokens_ <= request.tokens.size(); ++i) {
      blocks_[request.blocks[i]].prefix = prefix(request.tokens, i + 1);
    }
  }
  void free(std::int32_t id) {
    const std::vector<std::size_t> blocks = requests_[id].blocks;
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      if (--blocks_[*block].users == 0) unused_.push_back(*block);
    }
    requests_.erase(id);
  }

 private:
  struct Block {
    Tokens prefix;  // up to its end; empty if it is not whole
    int users = 0;
  };
  struct Request {
    Tokens tokens;
    std::vector<std::size_t> blocks;
  };

  [[nodiscard]] Tokens prefix(const Tokens& tokens, std::size_t num_blocks) const {
    return {tokens.begin(),
            tokens.begin() + static_cast<std::ptrdiff_t>(num_blocks * block_tokens_)};
  }
  [[nodiscard]] std::optional<std::size_t> holder_of(const Tokens& prefix) const {
    const auto found = std::ranges::find(blocks_, prefix, &Block::prefix);
    if (found == blocks_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - blocks_.begin());
  }
  void use(std::size_t block) {
    if (blocks_[block].users++ == 0) unused_.erase(std::ranges::find(unused_, block));
  }

  std::size_t block_tokens_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> unused_;  // the longest first
  std::map<std::int32_t, Request> requests_;
};

TEST(KvCache, FindsAtLeastWhatIsFoundWherePartsOfBlocksAreKept) {
  std::int64_t found = 0;
  std::int64_t found_with_parts = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    KvCache cache({.layout = {.page_size = 8}, .num_pages = 7});
    LongestUnusedFirst other(7, 8);
    for (std::int32_t id = 0; id < 40; ++id) {
      // Prompts of three families, of which most end with a part of a block.
      const Tokens prompt = counting(static_cast<std::int32_t>(1 + random() % 28),
                                     static_cast<std::int32_t>(random() % 3 * 100));
      const Tokens output = counting(static_cast<std::int32_t>(random() % 10), 1000 + id * 10);
      const auto hit = cache.add(RequestId(id), prompt);
      ASSERT_TRUE(hit);
      found += *hit;
      found_with_parts += other.add(id, prompt);
      ASSERT_TRUE(cache.append(RequestId(id), output));
      other.append(id, output);
      cache.free(RequestId(id));
      other.free(id);
    }
    cache.check_consistency();
  }
  RecordProperty("found", std::to_string(found));
  RecordProperty("found_with_parts", std::to_string(found_with_parts));
  EXPECT_GT(found, found_with_parts);
}

// --------------------------------------------------------------------------------- any history

// The pages as they would be filled: what a request reads must be what it wrote.
class FilledPages {
 public:
  FilledPages(const KvLayout& layout, std::int32_t num_pages)
      : layout_(layout),
        slots_(
            static_cast<std::size_t>(layout.num_ranks),
            std::vector<std::uint64_t>(static_cast<std::size_t>(num_pages * layout.page_size), 0)) {
  }

  void copy(const std::vector<PageCopy>& copies) {
    for (const PageCopy& one : copies) {
      for (auto& slots : slots_) {
        const auto size = static_cast<std::size_t>(layout_.page_size);
        std::copy_n(slots.begin() + static_cast<std::ptrdiff_t>(one.from.index() * size), size,
                    slots.begin() + static_cast<std::ptrdiff_t>(one.to.index() * size));
      }
    }
  }
  // A key depends on all tokens up to its own.
  void write(const KvCache& cache, RequestId id, std::int64_t begin) {
    each(cache, id, begin, [](std::uint64_t& slot, std::uint64_t key) { slot = key; });
  }
  void check(const KvCache& cache, RequestId id) {
    each(cache, id, 0, [](std::uint64_t& slot, std::uint64_t key) { EXPECT_EQ(slot, key); });
  }

 private:
  void each(const KvCache& cache, RequestId id, std::int64_t begin, const auto& act) {
    std::uint64_t key = 1;
    const auto tokens = cache.tokens(id);
    for (std::int64_t p = 0; p < static_cast<std::int64_t>(tokens.size()); ++p) {
      key = key * 6364136223846793005U +
            static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(p)]) + 1;
      if (p < begin) continue;
      for (std::int32_t r = 0; r < layout_.num_ranks; ++r) {
        const std::int64_t slot = layout_.slot(cache.table(id), Rank(r), p);
        if (slot >= 0)
          act(slots_[static_cast<std::size_t>(r)][static_cast<std::size_t>(slot)], key);
      }
    }
  }

  KvLayout layout_;
  std::vector<std::vector<std::uint64_t>> slots_;
};

TEST(KvCache, RequestsReadWhatTheyWroteWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](std::int64_t count) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
    };
    const KvLayout layout = {static_cast<std::int32_t>(1 + draw(3)), 1,
                             static_cast<std::int32_t>(1 + draw(3))};
    const auto num_pages = static_cast<std::int32_t>(6 + draw(20));
    KvCache cache({.layout = layout, .num_pages = num_pages, .share_prefixes = draw(8) != 0});
    FilledPages filled(layout, num_pages);
    std::vector<RequestId> open;
    std::int32_t next = 0;
    const auto some = [&](std::int64_t most) {
      Tokens tokens(static_cast<std::size_t>(1 + draw(most)));
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(draw(2));
      return tokens;
    };
    for (int step = 0; step < 300; ++step) {
      const std::int64_t kind = draw(6);
      if (kind == 0 || open.empty()) {
        if (const auto hit = cache.add(RequestId(next), some(14))) {
          open.push_back(RequestId(next));
          filled.write(cache, RequestId(next), *hit);
        }
        ++next;
      } else {
        const auto at = static_cast<std::size_t>(draw(static_cast<std::int64_t>(open.size())));
        const RequestId id = open[at];
        if (kind <= 2) {
          const std::int64_t length = cache.length(id);
          if (cache.append(id, some(5))) {
            filled.copy(cache.take_copies());
            filled.write(cache, id, length);
          }
        } else if (kind == 3) {
          cache.truncate(id, 1 + draw(cache.length(id)));
        } else if (kind == 4 && open.size() < 5) {
          cache.fork(id, RequestId(next));
          open.push_back(RequestId(next++));
        } else {
          cache.free(id);
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      cache.check_consistency();
      for (const RequestId id : open) filled.check(cache, id);
      ASSERT_FALSE(HasFailure()) << "step " << step;
    }
  }
}

TEST(KvCache, RanksThatDoTheSameAgree) {
  KvCache one = small_cache(20);
  KvCache other = small_cache(20);
  for (KvCache* cache : {&one, &other}) {
    ASSERT_EQ(cache->add(RequestId(0), counting(9)), 0);
    ASSERT_TRUE(cache->append(RequestId(0), counting(3)));
  }
  EXPECT_EQ(one.digest(), other.digest());
  ASSERT_TRUE(other.append(RequestId(0), counting(1)));
  EXPECT_NE(one.digest(), other.digest());
}

TEST(KvCache, TakesLongPrompts) {
  KvCache cache({.layout = {4, 1, 1}, .num_pages = 300'000});
  const Tokens prompt = counting(1'000'000);
  ASSERT_EQ(cache.add(RequestId(0), prompt), 0);
  ASSERT_EQ(cache.add(RequestId(1), prompt), 999'996);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(cache.append(RequestId(1), counting(1, i)));
  cache.free(RequestId(0));
  cache.free(RequestId(1));
  EXPECT_EQ(cache.free_pages(), 300'000);
}

}  // namespace
}  // namespace contextile
