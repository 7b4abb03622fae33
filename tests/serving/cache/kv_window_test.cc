// Caches of models whose layers all have windows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "contextile/serving/kv_cache.h"
#include "serving/cache/cached_pages.h"
#include "serving/cache/error_of.h"

namespace contextile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Blocks of 4 tokens.
KvCache cache_of(std::int32_t num_pages, std::int64_t window) {
  return KvCache({.layout = {2, 1, 2}, .num_pages = num_pages, .window = window});
}

TEST(KvWindow, PagesBehindItAreGivenBack) {
  KvCache cache = cache_of(4, 6);
  ASSERT_EQ(cache.add(RequestId(0), counting(10)), 0);
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(0, 1, 2));
  // Token 10 sees tokens 5 to 10.
  ASSERT_TRUE(cache.append(RequestId(0), counting(1, 10)));
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(-1, 1, 2));
  ASSERT_TRUE(cache.append(RequestId(0), counting(2, 11)));
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(-1, 1, 2, 3));
  ASSERT_TRUE(cache.append(RequestId(0), counting(4, 13)));
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(-1, -1, 2, 3, 0));
  EXPECT_EQ(cache.num_pages(RequestId(0)), 3);
  cache.check_consistency();
  cache.free(RequestId(0));
  EXPECT_EQ(cache.free_pages(), 4);
}

// Drafts are appended one by one behind token 10, which is computed with them.
TEST(KvWindow, PagesStayThatAnEarlierTokenSees) {
  for (const bool keeps : {false, true}) {
    KvCache cache = cache_of(5, 6);
    ASSERT_EQ(cache.add(RequestId(0), counting(14)), 0);
    const auto oldest = keeps ? std::optional<std::int64_t>(10) : std::nullopt;
    ASSERT_TRUE(cache.append(RequestId(0), counting(1, 14), oldest));
    EXPECT_THAT(pages_of(cache, 0), ElementsAre(-1, keeps ? 1 : -1, 2, 3));
    if (keeps) {
      cache.truncate(RequestId(0), 11);
      EXPECT_EQ(cache.length(RequestId(0)), 11);
    } else {
      EXPECT_THROW(cache.truncate(RequestId(0), 11), InvalidArgument);
    }
    cache.check_consistency();
  }
}

TEST(KvWindow, ARequestNeverHoldsMoreThanItsBound) {
  std::mt19937 random(3);
  for (const std::int64_t window : {1, 3, 4, 5, 9, 30}) {
    for (const std::int32_t step : {1, 2, 5, 11}) {
      const KvCacheOptions options = {.layout = {2, 1, 2}, .num_pages = 12, .window = window};
      KvCache cache(options);
      const std::int64_t bound = most_pages(options, 200, step);
      EXPECT_LE(bound, 12);
      std::int32_t length = step;
      ASSERT_TRUE(cache.add(RequestId(0), counting(length)));
      std::int64_t most = 0;
      while (length < 200) {
        const auto count = std::min<std::int32_t>(
            200 - length, 1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(step)));
        const std::int64_t first = std::max<std::int64_t>(0, length + 1 - window);
        ASSERT_TRUE(cache.append(RequestId(0), counting(count, length)));
        length += count;
        const auto table = cache.table(RequestId(0));
        for (std::int64_t at = first; at < length; ++at) {
          ASSERT_TRUE(table[static_cast<std::size_t>(at / 4)].valid()) << at << " of " << length;
        }
        most = std::max<std::int64_t>(most, cache.num_pages(RequestId(0)));
        cache.check_consistency();
      }
      EXPECT_LE(most, bound);
    }
  }
}

TEST(KvWindow, PromptsThatWereThereNeedOnlyThePagesTheySee) {
  KvCache cache = cache_of(10, 6);
  ASSERT_EQ(cache.add(RequestId(0), counting(21)), 0);
  cache.free(RequestId(0));
  // 20 tokens are there, and token 20 sees 15 to 20.
  ASSERT_EQ(cache.add(RequestId(1), counting(22)), 20);
  EXPECT_EQ(cache.num_pages(RequestId(1)), 3);
  EXPECT_EQ(pages_of(cache, 1)[2], -1);
  EXPECT_TRUE(cache.table(RequestId(1))[3].valid());
  cache.check_consistency();
}

TEST(KvWindow, PagesThatOthersReadStay) {
  KvCache cache = cache_of(10, 4);
  ASSERT_EQ(cache.add(RequestId(0), counting(12)), 0);
  cache.fork(RequestId(0), RequestId(1));
  ASSERT_TRUE(cache.append(RequestId(0), counting(9, 12)));
  EXPECT_THAT(pages_of(cache, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(pages_of(cache, 0), ElementsAre(-1, -1, 2, 3, 4, 5));
  cache.check_consistency();
}

TEST(KvWindow, DraftsCanBeTakenBackAsFarAsTheirWindowIsThere) {
  KvCache cache = cache_of(10, 6);
  ASSERT_EQ(cache.add(RequestId(0), counting(16)), 0);
  ASSERT_TRUE(cache.append(RequestId(0), counting(5, 16)));
  cache.truncate(RequestId(0), 17);  // token 17 sees 12 to 17
  EXPECT_THAT(error_of([&] { cache.truncate(RequestId(0), 12); }),
              HasSubstr("window of 6 tokens is still there, found 12"));
  ASSERT_TRUE(cache.append(RequestId(0), counting(3, 17)));
  cache.check_consistency();
  EXPECT_THAT(error_of([] { cache_of(2, -1); }), HasSubstr("a window of 0 or more, found -1"));
}

}  // namespace
}  // namespace contextile
