#include "kernel/paged/task_keys.h"

#include <algorithm>
#include <span>

namespace contextile {
namespace {

// Returns what two lists of ascending, disjoint ranges have in common.
std::vector<Range> common_of(std::span<const Range> a, std::span<const Range> b) {
  std::vector<Range> common;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Range both = intersect(a[i], b[j]);
    if (!both.empty()) common.push_back(both);
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

}  // namespace

TaskKeys::TaskKeys(const PagedKv& kv, const PagedRequest& request, const PagedTask& task)
    : kv_(kv), request_(request), task_(task) {
  std::vector<Range> common = task.keys;
  for (std::int64_t row = 0; row < task.num_rows && task.num_rows > 1; ++row) {
    common = common_of(common, keys_of_row(request, task.first_row + row));
  }
  std::size_t i = 0;
  for (Range rest : task.keys) {
    for (; i < common.size() && common[i].begin < rest.end; ++i) {
      if (rest.begin < common[i].begin) pieces_.push_back({{rest.begin, common[i].begin}, false});
      pieces_.push_back({common[i], true});
      rest.begin = common[i].end;
    }
    if (!rest.empty()) pieces_.push_back({rest, false});
  }
}

bool TaskKeys::next(KeyChunk& chunk) {
  chunk.keys.count = 0;
  chunk.seen.clear();
  if (piece_ == pieces_.size()) return false;
  const bool is_common = pieces_[piece_].is_common;
  std::vector<Range> taken;
  while (piece_ < pieces_.size() && pieces_[piece_].is_common == is_common) {
    Range& rest = pieces_[piece_].keys;
    const std::int64_t room = kPagedChunk - chunk.keys.count;
    const Range some = {rest.begin, std::min(rest.end, rest.begin + room)};
    if (some.empty()) break;
    add(some, chunk.keys);
    taken.push_back(some);
    rest.begin = some.end;
    if (rest.empty()) ++piece_;
  }
  if (!is_common) note_seen(taken, chunk);
  return true;
}

// Adds the addresses of keys and of their values.
void TaskKeys::add(const Range& keys, PagedKeys& to) const {
  const std::int64_t bytes = bytes_per_element(kv_.dtype);
  for (std::int64_t key = keys.begin; key < keys.end;) {
    const std::int64_t page = key / kv_.page_size;
    const std::int64_t end = std::min(keys.end, (page + 1) * kv_.page_size);
    const std::int64_t place = request_.table[static_cast<std::size_t>(page)].value;
    const std::int64_t token = key - page * kv_.page_size;
    const auto at = [&](const PagedTensor& t) {
      return static_cast<const std::byte*>(t.data) +
             (place * t.page_stride + token * t.token_stride) * bytes;
    };
    const std::byte* k = at(kv_.k);
    const std::byte* v = at(kv_.v);
    for (; key < end; ++key, ++to.count) {
      to.k[to.count] = k;
      to.v[to.count] = v;
      k += kv_.k.token_stride * bytes;
      v += kv_.v.token_stride * bytes;
    }
  }
}

void TaskKeys::note_seen(const std::vector<Range>& taken, KeyChunk& chunk) const {
  const auto rows = static_cast<std::size_t>(task_.num_rows);
  chunk.seen.assign(static_cast<std::size_t>(chunk.keys.count) * rows, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    std::int64_t before = 0;  // keys of the chunk before the range
    for (const Range& range : taken) {
      for (const Range& keys :
           keys_of_row(request_, task_.first_row + static_cast<std::int64_t>(row))) {
        const Range both = intersect(keys, range);
        for (std::int64_t key = both.begin; key < both.end; ++key) {
          chunk.seen[static_cast<std::size_t>(before + key - range.begin) * rows + row] = 1;
        }
      }
      before += range.size();
    }
  }
}

}  // namespace contextile
