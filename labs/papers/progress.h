// The progress of a table.
#pragma once

#include <cstdint>
#include <string_view>

#include "labs/papers/paper_table.h"

namespace contextile {

// Counts the steps of one table for TableOverrides::progress.
class Progress {
 public:
  Progress(const TableOverrides& overrides, std::int64_t total)
      : overrides_(overrides), total_(total) {}
  // Names the step that begins now.
  void step(std::string_view what) {
    if (overrides_.progress) overrides_.progress(what, done_, total_);
    ++done_;
  }

 private:
  const TableOverrides& overrides_;
  std::int64_t total_;
  std::int64_t done_ = 0;
};

}  // namespace contextile
