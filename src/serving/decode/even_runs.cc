#include "serving/decode/even_runs.h"

#include <cstddef>

namespace contextile {

std::vector<Range> even_runs(std::span<const std::int64_t> sizes, std::int64_t total,
                             std::int32_t num_runs) {
  std::vector<Range> runs;
  Range run;
  std::int64_t sum = 0;
  std::int64_t sum_before = 0;  // of the run
  for (const std::int64_t size : sizes) {
    sum += size;
    ++run.end;
    const std::int64_t done = std::ssize(runs) + 1;
    const bool is_full = sum > sum_before && sum >= total * done / num_runs;
    if (run.end == std::ssize(sizes) || (done < num_runs && is_full)) {
      runs.push_back(run);
      run = {run.end, run.end};
      sum_before = sum;
    }
  }
  return runs;
}

}  // namespace contextile
