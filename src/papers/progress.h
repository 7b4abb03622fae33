// How far a table has come.
#pragma once

#include <cstdint>
#include <string_view>

#include "papers/paper_table.h"

namespace contextile {

// Counts the steps of one table for BenchOverrides::notice.
class Progress {
 public:
  Progress(const BenchOverrides& overrides, std::int64_t total)
      : overrides_(overrides), total_(total) {}
  // Names the step that begins now.
  void step(std::string_view what) {
    if (overrides_.notice) overrides_.notice(done_, total_, what);
    ++done_;
  }

 private:
  const BenchOverrides& overrides_;
  std::int64_t total_;
  std::int64_t done_ = 0;
};

}  // namespace contextile
