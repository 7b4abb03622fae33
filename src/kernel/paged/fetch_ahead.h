// Fetches what is read later into the cache. Include this only from the file of an instruction set.
#pragma once

#include <cstddef>

#include "kernel/cpu/inline.h"

namespace contextile {

// Fetches keys, or values, head by head and token by token. They usually lie in memory in this
// order. The processor then foresees some of them itself, but never the next page.
struct FetchAhead {
  const std::byte* const* tokens = nullptr;  // at the elements of head 0
  std::ptrdiff_t head_bytes = 0;             // from one head to the next
  std::ptrdiff_t row_bytes = 0;
  int heads = 1;
  int head = 0;

  CONTEXTILE_INLINE void fetch_row() {
    const std::byte* row = *tokens + head * head_bytes;
    for (std::ptrdiff_t byte = 0; byte < row_bytes; byte += 64) {
      __builtin_prefetch(row + byte, 0, 3);
    }
    if (++head == heads) {
      head = 0;
      ++tokens;
    }
  }
};

}  // namespace contextile
