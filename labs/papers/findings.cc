#include "labs/papers/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace contextile {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::string Spread::text() const { return range_text(p10, p90); }

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t skipped = values.size() / 10;
  return {values[skipped], values[values.size() - 1 - skipped]};
}

Spread spread_of_ratios(std::span<const double> values, std::span<const double> base) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / base[i]);
  return spread_of(std::move(ratios));
}

std::string Estimate::text() const {
  return fmt::format("{:+.1f}% ± {:.1f}%", 100 * mean, 100 * noise);
}

std::string Estimate::change_text() const {
  return text() + (std::abs(mean) <= noise ? " (within noise)" : "");
}

Estimate change_of(std::span<const double> values, std::span<const double> base) {
  const auto count = static_cast<double>(values.size());
  const double mean = mean_of(base);
  const double ratio = mean_of(values) / mean;
  if (values.size() < 2) return {.mean = ratio - 1};
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = (values[i] - ratio * base[i]) / mean;
    squares += off * off;
  }
  return {.mean = ratio - 1, .noise = 2 * std::sqrt(squares / (count - 1) / count)};
}

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

std::string range_text(double least, double most) {
  return fmt::format("{:.2f}x to {:.2f}x", least, most);
}

Finding gains_finding(const Extent& gains, std::string claim, double paper_least,
                      double paper_most) {
  constexpr double kSlack = 0.05;
  return {std::move(claim), range_text(gains.least, gains.most),
          gains.within(paper_least - kSlack, paper_most + kSlack),
          fmt::format("every gain lies in that range, give or take {}", kSlack)};
}

}  // namespace contextile
