// The lists that launches of attention to keys in pages read, from requests. By what a request asks
// alone: neither the device nor other requests change how its keys are cut, so its results are the
// same bits beside any others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "kernel/cuda/paged_launch.h"

namespace contextile::cuda {

// A work's keys, about: more are cut in runs.
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

// `heads` counts the query heads of a KV head. Requests fit (check_paged). Throws InvalidArgument
// where rows or keys are 2^31 or more.
[[nodiscard]] PagedTable paged_table(std::span<const PagedRequest> requests, std::int32_t heads);

}  // namespace contextile::cuda
