#include "kernel/paged/paged_tasks.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace contextile {
namespace {

// Largest number of runs of keys that a request is cut into.
constexpr std::int64_t kMostRuns = 64;

// Returns the keys that any of the rows sees.
std::vector<Range> keys_of_rows(const PagedRequest& request, std::int64_t begin, std::int64_t end) {
  std::vector<Range> all;
  for (std::int64_t row = begin; row < end; ++row) {
    for (const Range& keys : keys_of_row(request, row)) {
      if (!keys.empty()) all.push_back(keys);
    }
  }
  std::sort(all.begin(), all.end());
  std::vector<Range> merged;
  for (const Range& keys : all) {
    if (!merged.empty() && keys.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, keys.end);
    } else {
      merged.push_back(keys);
    }
  }
  return merged;
}

// Cuts the keys of rows [begin, end) into runs of nearly equal length, each a task.
void add_tasks(std::size_t index, const PagedRequest& request, std::int64_t begin, std::int64_t end,
               std::vector<PagedTask>& tasks) {
  const std::vector<Range> keys = keys_of_rows(request, begin, end);
  std::int64_t total = 0;
  for (const Range& range : keys) total += range.size();
  const std::int64_t runs =
      std::clamp<std::int64_t>(total / PagedKernel::kKeysOfTask, 1, kMostRuns);
  const std::int64_t most = (total + runs - 1) / runs;
  PagedTask task = {index, begin, end - begin, {}, runs == 1};
  std::int64_t room = most;
  for (Range rest : keys) {
    while (!rest.empty()) {
      const std::int64_t taken = std::min(room, rest.size());
      task.keys.push_back({rest.begin, rest.begin + taken});
      rest.begin += taken;
      room -= taken;
      if (room == 0) {
        tasks.push_back(task);
        task.keys.clear();
        room = most;
      }
    }
  }
  if (!task.keys.empty() || total == 0) tasks.push_back(task);
}

void check_tensor(const char* name, const PagedTensor& tensor, const PagedKv& kv) {
  CONTEXTILE_CHECK(tensor.dim >= 1 && tensor.dim <= 4096,
                   "{}: expected a dim of 1 to 4096, found {}", name, tensor.dim);
  CONTEXTILE_CHECK(
      tensor.scale_H.empty() || tensor.scale_H.size() == static_cast<std::size_t>(kv.kv_heads),
      "{}: expected a scale for each of {} heads, found {}", name, kv.kv_heads,
      tensor.scale_H.size());
}

void check_keys(const PagedKv& kv, const PagedRequest& request, std::size_t index) {
  const std::int64_t room = static_cast<std::int64_t>(request.table.size()) * kv.page_size;
  for (std::int64_t row = 0; row < request.num_rows; ++row) {
    std::int64_t behind = 0;
    for (const Range& keys : keys_of_row(request, row)) {
      CONTEXTILE_CHECK(
          keys.begin >= behind && keys.end >= keys.begin && keys.end <= room,
          "request {} row {}: expected ascending keys of a table of {} tokens, found [{}, {})",
          index, row, room, keys.begin, keys.end);
      behind = keys.end;
      for (std::int64_t page = keys.begin / kv.page_size; page * kv.page_size < keys.end; ++page) {
        CONTEXTILE_CHECK(request.table[static_cast<std::size_t>(page)].valid(),
                         "request {} row {}: expected a page for keys [{}, {}), found "
                         "none at {} of the table",
                         index, row, keys.begin, keys.end, page);
      }
    }
  }
}

}  // namespace

std::span<const Range> keys_of_row(const PagedRequest& request, std::int64_t row) {
  const auto at = static_cast<std::size_t>(row);
  if (request.row_splits.empty()) return request.keys.subspan(at, 1);
  const auto begin = static_cast<std::size_t>(request.row_splits[at]);
  return request.keys.subspan(begin, static_cast<std::size_t>(request.row_splits[at + 1]) - begin);
}

void check_paged(const PagedKv& kv, const TensorView& q_NHD, std::span<const PagedRequest> requests,
                 const PartialOutput& out) {
  CONTEXTILE_CHECK(kv.kv_heads >= 1 && kv.page_size >= 1,
                   "cache: expected heads and tokens a page of at least 1, found {} and {}",
                   kv.kv_heads, kv.page_size);
  check_tensor("keys", kv.k, kv);
  check_tensor("values", kv.v, kv);
  CONTEXTILE_CHECK(q_NHD.heads >= 1 && q_NHD.heads % kv.kv_heads == 0 && q_NHD.dim == kv.k.dim,
                   "q: expected a multiple of {} heads of dim {}, found {} of {}", kv.kv_heads,
                   kv.k.dim, q_NHD.heads, q_NHD.dim);
  const TensorView& o = out.o_NHD;
  CONTEXTILE_CHECK(o.dtype == Dtype::kF32 && o.tokens == q_NHD.tokens && o.heads == q_NHD.heads &&
                       o.dim == kv.v.dim,
                   "out: expected f32 [{}, {}, {}], found {} [{}, {}, {}]", q_NHD.tokens,
                   q_NHD.heads, kv.v.dim, to_string(o.dtype), o.tokens, o.heads, o.dim);
  std::vector<bool> is_taken(static_cast<std::size_t>(q_NHD.tokens), false);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const PagedRequest& request = requests[i];
    CONTEXTILE_CHECK(request.first_row >= 0 && request.num_rows >= 1 &&
                         request.num_rows <= q_NHD.tokens - request.first_row,
                     "request {}: expected rows of q's {}, found {} from {}", i, q_NHD.tokens,
                     request.num_rows, request.first_row);
    const auto rows = static_cast<std::size_t>(request.num_rows);
    const bool has_splits = !request.row_splits.empty();
    CONTEXTILE_CHECK(
        has_splits ? request.row_splits.size() == rows + 1 && request.row_splits.front() == 0 &&
                         std::is_sorted(request.row_splits.begin(), request.row_splits.end()) &&
                         static_cast<std::size_t>(request.row_splits.back()) == request.keys.size()
                   : request.keys.size() == rows,
        "request {}: expected keys for {} rows, found {} ranges and {} splits", i, rows,
        request.keys.size(), request.row_splits.size());
    for (std::int64_t row = request.first_row; row < request.first_row + request.num_rows; ++row) {
      CONTEXTILE_CHECK(!is_taken[static_cast<std::size_t>(row)],
                       "request {}: expected rows of its own, found row {} taken", i, row);
      is_taken[static_cast<std::size_t>(row)] = true;
    }
    check_keys(kv, request, i);
  }
  const auto untaken = std::find(is_taken.begin(), is_taken.end(), false);
  CONTEXTILE_CHECK(untaken == is_taken.end(), "rows: expected a request for row {}, found none",
                   untaken - is_taken.begin());
}

std::vector<PagedTask> paged_tasks(std::span<const PagedRequest> requests) {
  std::vector<PagedTask> tasks;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::int64_t row = 0; row < requests[i].num_rows; row += kPagedRowsOfTask) {
      add_tasks(i, requests[i], row, std::min(row + kPagedRowsOfTask, requests[i].num_rows), tasks);
    }
  }
  return tasks;
}

}  // namespace contextile
