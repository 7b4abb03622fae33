#include "report/held_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "report/measured_steps.h"

namespace contextile {
namespace {

// The documents of a row, in a few characters.
std::string documents_text(const MeasuredRow& row) {
  constexpr std::size_t kWidest = 24;
  if (row.lengths_text.size() <= kWidest) return row.lengths_text;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  for (const DocumentBatch& batch : row.batches) {
    for (const DocumentRun& run : batch) {
      documents += run.count;
      tokens += run.count * run.tokens;
    }
  }
  const auto batches = static_cast<std::int64_t>(row.batches.size());
  return batches == 1 ? fmt::format("{} documents, {}", documents, tokens)
                      : fmt::format("{} batches of {}", batches, tokens / batches);
}

}  // namespace

double factor_of(double ratio) { return std::max(ratio, 1 / ratio); }

RatioSummary summary_of(std::vector<double> ratios) {
  RatioSummary summary{.rows = ratios.size()};
  if (ratios.empty()) return summary;
  std::ranges::sort(ratios);
  const std::size_t middle = ratios.size() / 2;
  summary.median =
      ratios.size() % 2 == 1 ? ratios[middle] : 0.5 * (ratios[middle - 1] + ratios[middle]);
  summary.furthest =
      factor_of(ratios.front()) > factor_of(ratios.back()) ? ratios.front() : ratios.back();
  return summary;
}

std::string batch_text(const MeasuredRow& row) {
  std::string text = fmt::format("{}, {} {}, {}", row.cluster_text, documents_text(row),
                                 row.mask_text, to_string(row.direction));
  if (!row.experiment.empty()) text += ", " + row.experiment;
  return text;
}

std::string shape_text(const MeasuredRow& row) {
  if (row.step) return step_text(*row.step);
  return fmt::format("{}/{} heads of {}, {}", row.shape.q_heads, row.shape.kv_heads,
                     row.shape.head_dim, to_string(row.shape.dtype));
}

std::string setting_text(const MeasuredRow& row) {
  return fmt::format("{}, {}", batch_text(row), shape_text(row));
}

}  // namespace contextile
