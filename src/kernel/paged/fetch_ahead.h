// Fetches what is read later into the cache. Include this only from the file of an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/cpu/inline.h"
#include "kernel/paged/paged_target.h"

namespace contextile {

// Fetches the keys of tokens, or their values, in the order of memory: the heads of a token and
// then the next token. The caller allows a number of lines and fetches few at a time, spread over
// its arithmetic. A processor drops fetches while too many are on their way.
class FetchAhead {
 public:
  static constexpr std::ptrdiff_t kLine = 64;  // bytes

  FetchAhead() = default;  // fetches nothing
  // Fetches rows of `row_bytes`, head_bytes apart, of `heads` heads, of `tokens` up to `last`. They
  // are at the elements of head 0.
  FetchAhead(const std::byte* const* tokens, const std::byte* const* last, std::int32_t heads,
             std::ptrdiff_t head_bytes, std::ptrdiff_t row_bytes)
      : token_(tokens), last_(last), head_bytes_(head_bytes), run_bytes_(row_bytes) {
    // Heads side by side are one run.
    const bool is_one = heads == 1 || head_bytes == row_bytes;
    if (is_one) run_bytes_ *= heads;
    runs_ = is_one ? 1 : heads;
    at_ = *tokens;
    end_ = at_ + run_bytes_;
  }

  void allow(std::ptrdiff_t bytes) { left_ += bytes; }

  template <int n>
  CONTEXTILE_INLINE void fetch_lines() {
    if (left_ <= 0) return;
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) __builtin_prefetch(at_ + i * kLine, 0, 3);
    advance(n * kLine);
  }

  // Returns a row that the caller must fetch, or, if nothing is left, the row at which it stands.
  CONTEXTILE_INLINE const std::byte* take_row(std::ptrdiff_t row_bytes) {
    const std::byte* const row = at_;
    if (left_ > 0) advance(row_bytes);
    return row;
  }

 private:
  CONTEXTILE_INLINE void advance(std::ptrdiff_t bytes) {
    left_ -= bytes;
    at_ += bytes;
    if (__builtin_expect(at_ >= end_, 0)) begin_run();
  }

  CONTEXTILE_INLINE void begin_run() {
    if (++run_ == runs_) {
      run_ = 0;
      if (token_ == last_) {
        left_ = 0;
      } else {
        ++token_;
        // Finds out early where a page of memory lies.
        if (last_ - token_ > kPagedWarm) __builtin_prefetch(token_[kPagedWarm], 0, 3);
      }
    }
    at_ = *token_ + run_ * head_bytes_;
    end_ = at_ + run_bytes_;
  }

  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;  // of the run
  std::ptrdiff_t left_ = 0;         // bytes that may be fetched
  const std::byte* const* token_ = nullptr;
  const std::byte* const* last_ = nullptr;
  std::ptrdiff_t head_bytes_ = 0;
  std::ptrdiff_t run_bytes_ = 0;
  std::int32_t run_ = 0;
  std::int32_t runs_ = 1;  // of a token
};

}  // namespace contextile
