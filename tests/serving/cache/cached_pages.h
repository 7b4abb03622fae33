// Tokens for caches of tests, and the pages that a request has.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/serving/kv_cache.h"

namespace contextile {

// The tokens first, first + 1, …
inline std::vector<std::int32_t> counting(std::int32_t count, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

inline std::vector<std::int32_t> pages_of(const KvCache& cache, std::int32_t request) {
  std::vector<std::int32_t> pages;
  for (const PageId page : cache.table(RequestId(request))) pages.push_back(page.value);
  return pages;
}

}  // namespace contextile
