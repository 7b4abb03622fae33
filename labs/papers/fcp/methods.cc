#include "labs/papers/fcp/methods.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "labs/papers/findings.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

// Per batch: how many times as long `other` takes.
std::vector<double> gains_over(const GpuShares& other, const GpuShares& fcp) {
  std::vector<double> gains;
  for (std::size_t b = 0; b < fcp.total_s.size(); ++b) {
    gains.push_back(other.total_s[b] / fcp.total_s[b]);
  }
  return gains;
}

double geometric_mean(std::span<const double> values) {
  double logs = 0;
  for (const double value : values) logs += std::log(value);
  return std::exp(logs / static_cast<double>(values.size()));
}

std::vector<Column> joined(std::vector<Column> first, const std::vector<Column>& others) {
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

}  // namespace

std::vector<Column> method_columns(std::vector<Column> first) {
  return joined(std::move(first), {{"forward_mfu", "fwd\nMFU", Format::kPercent},
                                   {"forward_spread", "+-", Format::kPercent},
                                   {"backward_mfu", "bwd\nMFU", Format::kPercent},
                                   {"backward_spread", "+-", Format::kPercent},
                                   {"gain", "gain"},
                                   {"memory_bytes", "GB", Format::kGigabytes}});
}

std::vector<Column> forward_method_columns(std::vector<Column> first) {
  return joined(std::move(first), {{"forward_mfu", "fwd\nMFU", Format::kPercent},
                                   {"forward_spread", "+-", Format::kPercent},
                                   {"forward_share", "of one\nGPU", Format::kPercent},
                                   {"gain", "gain"},
                                   {"memory_bytes", "GB", Format::kGigabytes}});
}

std::string ComparedMethods::text() const {
  return fmt::format("{:.2f}x {} ({:.2f} to {:.2f})", gain, fastest, least_gain, most_gain);
}

ComparedMethods add_methods(std::span<const StrategyChoice> choices, const PlanInput& input,
                            std::span<const Workload> batches, const std::vector<Cell>& labels,
                            Progress& progress, Table& table) {
  ComparedMethods compared;
  for (const StrategyChoice& choice : choices) {
    progress.step(choice_text(choice));
    const GpuShares shares = predict_shares(choice, input, batches);
    std::vector<Cell> cells = labels;
    cells.emplace_back(choice_text(choice));
    if (!shares.skipped.empty()) {
      table.add_row(std::move(cells), skipped_note(choice, shares.skipped));
      continue;
    }
    cells.emplace_back(shares.forward.mfu);
    cells.emplace_back(shares.forward.mfu_spread);
    if (input.options.backward) {
      cells.emplace_back(shares.backward.mfu);
      cells.emplace_back(shares.backward.mfu_spread);
    } else {
      cells.emplace_back(shares.forward.share);
    }
    if (&choice == &choices.front()) compared.fcp = shares;
    Cell gain;
    if (compared.fcp) {
      const std::vector<double> gains = gains_over(shares, *compared.fcp);
      const double mean = geometric_mean(gains);
      gain = mean;
      if (choice.name != "fcp" && (compared.fastest.empty() || mean < compared.gain)) {
        Extent extent;
        for (const double one : gains) extent.take(one);
        compared.gain = mean;
        compared.least_gain = extent.least;
        compared.most_gain = extent.most;
        compared.fastest = choice_text(choice);
      }
    }
    cells.push_back(std::move(gain));
    cells.emplace_back(shares.memory_bytes);
    table.add_row(std::move(cells));
  }
  return compared;
}

}  // namespace contextile
