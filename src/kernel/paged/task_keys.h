// The keys of a task, one chunk after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "kernel/paged/paged_target.h"
#include "kernel/paged/paged_tasks.h"

namespace contextile {

// Up to kPagedChunk keys. Either all rows of the task see all of them, or `seen` says for each key
// and row whether the row sees it.
struct KeyChunk {
  PagedKeys keys;
  std::vector<std::uint8_t> seen;  // [count][rows]; empty if all rows see all keys
};

class TaskKeys {
 public:
  TaskKeys(const PagedKv& kv, const PagedRequest& request, const PagedTask& task);

  // Fills the next chunk. Returns false if there are no more keys.
  bool next(KeyChunk& chunk);

 private:
  struct Piece {
    Range keys;
    bool is_common = false;  // all rows see them
  };

  void add(const Range& keys, PagedKeys& to) const;
  void note_seen(const std::vector<Range>& taken, KeyChunk& chunk) const;

  const PagedKv& kv_;
  const PagedRequest& request_;
  const PagedTask& task_;
  std::vector<Piece> pieces_;
  std::size_t piece_ = 0;
};

}  // namespace contextile
