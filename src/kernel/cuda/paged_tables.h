// Makes the lists that launches of attention to keys in pages read, from requests. They depend only
// on the requests themselves: neither the device nor other requests change how the keys of a
// request are cut. So a request has the same bits whatever others it runs with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "kernel/cuda/paged_launch.h"

namespace contextile::cuda {

// Approximate number of a work's keys; more keys are cut into runs.
inline constexpr std::int64_t kPagedRunKeys = 512;

struct PagedTable {
  std::vector<PagedWork> works;
  std::vector<PagedMerge> merges;
  std::vector<PagedPiece> pieces;
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> splits;
  std::vector<KeyRange> ranges;
  std::int32_t num_parts = 0;  // rows of parts
};

// `heads` counts the query heads of a KV head. Requests must be valid (check_paged). Throws
// InvalidArgument if there are 2^31 or more rows or keys.
[[nodiscard]] PagedTable paged_table(std::span<const PagedRequest> requests, std::int32_t heads);

}  // namespace contextile::cuda
