// What is computed on its own: some queries of a request and some of the keys they see.
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
  std::vector<Range> keys;  // ascending, disjoint: what any of the rows sees
  bool is_alone = false;    // nobody else has keys of these rows
};

// Queries of one task, at most.
inline constexpr std::int64_t kPagedRowsOfTask = 16;

// The ranges of a row of a request.
[[nodiscard]] std::span<const Range> keys_of_row(const PagedRequest& request, std::int64_t row);

// Throws InvalidArgument naming request and row.
void check_paged(const PagedKv& kv, const TensorView& q_NHD, std::span<const PagedRequest> requests,
                 const PartialOutput& out);

// Tasks of every request, those of the same rows one after another, in the order of their keys. By
// what is asked alone, not by the machine.
[[nodiscard]] std::vector<PagedTask> paged_tasks(std::span<const PagedRequest> requests);

}  // namespace contextile
