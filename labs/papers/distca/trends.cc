#include "labs/papers/distca/trends.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "labs/papers/findings.h"

namespace contextile {
namespace {

std::vector<DistcaOutcome> of_model(std::span<const DistcaOutcome> outcomes,
                                    std::string_view model) {
  std::vector<DistcaOutcome> chosen;
  for (const DistcaOutcome& one : outcomes) {
    if (one.model == model) chosen.push_back(one);
  }
  return chosen;
}

std::int64_t num_faster(std::span<const DistcaOutcome> outcomes) {
  return std::ranges::count_if(outcomes, [](const DistcaOutcome& one) { return one.gain() > 1; });
}

std::string faster_text(std::span<const DistcaOutcome> outcomes) {
  return fmt::format("in {} of {} settings", num_faster(outcomes), outcomes.size());
}

// Throughputs of a device on the most devices over those on the fewest, of one method.
using Scaling = std::function<double(const DistcaOutcome&)>;
std::vector<double> scaling_of(std::span<const DistcaOutcome> outcomes, const Scaling& step_us) {
  std::map<std::tuple<std::string_view, std::string, std::int64_t>, std::map<std::int32_t, double>>
      rates;
  for (const DistcaOutcome& one : outcomes) {
    rates[{one.model, one.dataset, one.max_length}][one.devices] =
        one.tokens / one.devices / step_us(one);
  }
  std::vector<double> kept;
  for (const auto& [setting, by_devices] : rates) {
    if (by_devices.size() < 2) continue;
    kept.push_back(by_devices.rbegin()->second / by_devices.begin()->second);
  }
  return kept;
}

}  // namespace

Finding faster_everywhere(std::span<const DistcaOutcome> outcomes) {
  return {"consistently faster than WLB", faster_text(outcomes),
          num_faster(outcomes) == std::ssize(outcomes), "in every setting"};
}

Finding faster_in_most(std::span<const DistcaOutcome> outcomes, std::string_view model) {
  const std::vector<DistcaOutcome> chosen = of_model(outcomes, model);
  return {fmt::format("{}: faster than WLB in most settings", model), faster_text(chosen),
          2 * num_faster(chosen) > std::ssize(chosen), "in more than half of them"};
}

std::vector<Finding> more_on_pretrain(std::span<const DistcaOutcome> outcomes) {
  std::map<std::string, std::vector<double>> gains;
  for (const DistcaOutcome& one : outcomes) gains[one.dataset].push_back(one.gain());
  const std::vector<double>& pretrain = gains["pretrain"];
  const std::vector<double>& prolong = gains["prolong"];
  if (pretrain.empty() || pretrain.size() != prolong.size()) return {};
  std::int64_t more = 0;
  for (std::size_t i = 0; i < pretrain.size(); ++i) more += pretrain[i] > prolong[i] ? 1 : 0;
  return {{"more on pretrain than on prolong",
           fmt::format("{:.2f}x and {:.2f}x on average; more in {} of {} settings",
                       mean_of(pretrain), mean_of(prolong), more, pretrain.size()),
           mean_of(pretrain) > mean_of(prolong), "on average over the settings"}};
}

Finding length_finding(std::span<const DistcaOutcome> outcomes, const LengthClaim& claim) {
  std::map<std::int64_t, std::vector<double>> gains;
  for (const DistcaOutcome& one : of_model(outcomes, claim.model)) {
    gains[one.max_length].push_back(one.gain());
  }
  std::vector<double> means;
  std::vector<std::string> texts;
  for (const auto& [length, of_length] : gains) {
    means.push_back(mean_of(of_length));
    texts.push_back(fmt::format("{:.2f}x at {}K", means.back(), length / 1024));
  }
  const bool rises = claim.trend == LengthTrend::kRises;
  return {fmt::format("{}: more with {} documents", claim.model, rises ? "longer" : "shorter"),
          fmt::format("{}", fmt::join(texts, ", ")),
          rises ? std::ranges::is_sorted(means) : std::ranges::is_sorted(means, std::greater<>()),
          fmt::format("the mean over datasets and devices {} with every longest length",
                      rises ? "rises" : "falls")};
}

std::vector<Finding> scaling_findings(std::span<const DistcaOutcome> outcomes) {
  constexpr double kNearLinear = 0.9;
  const auto distca = scaling_of(outcomes, [](const DistcaOutcome& one) { return one.distca_us; });
  const auto wlb = scaling_of(outcomes, [](const DistcaOutcome& one) { return one.wlb_us; });
  if (distca.empty()) return {};
  const std::string ours = fmt::format(
      "on the most devices one keeps {} of its tokens/s on the fewest on average ({} to {})",
      whole_percent(mean_of(distca)), whole_percent(std::ranges::min(distca)),
      whole_percent(std::ranges::max(distca)));
  return {
      {"scales better than WLB", fmt::format("{}; WLB's {}", ours, whole_percent(mean_of(wlb))),
       mean_of(distca) > mean_of(wlb), "it keeps more on average over lengths and datasets"},
      {"near-linear weak scaling", ours, std::ranges::min(distca) >= kNearLinear,
       fmt::format("at least {} at every length of every dataset", whole_percent(kNearLinear))}};
}

}  // namespace contextile
