// Tasks, which are computed independently: some queries of a request and some of the keys they see.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/paged_attention.h"

namespace contextile {

struct PagedTask {
  std::size_t request = 0;
  std::int64_t first_row = 0;  // of the request
  std::int64_t num_rows = 0;
  std::vector<Range> keys;  // ascending, disjoint: keys that any of the rows sees
  bool is_alone = false;    // no other task has keys of these rows
};

// Largest number of queries in one task.
inline constexpr std::int64_t kPagedRowsOfTask = 16;

// Returns the key ranges of a row of a request.
[[nodiscard]] std::span<const Range> keys_of_row(const PagedRequest& request, std::int64_t row);

// Throws InvalidArgument naming request and row if a call is invalid.
void check_paged(const PagedKv& kv, const TensorView& q_NHD, std::span<const PagedRequest> requests,
                 const PartialOutput& out);

// Returns the tasks of every request. Tasks of the same rows follow each other in the order of
// their keys. The result depends only on the requests, not on the machine.
[[nodiscard]] std::vector<PagedTask> paged_tasks(std::span<const PagedRequest> requests);

}  // namespace contextile
