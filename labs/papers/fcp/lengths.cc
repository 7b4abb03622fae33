// FCP (flexible context parallelism, MLSys 2026): speed with lengths of other distributions. The
// paper measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/fcp/methods.h"
#include "labs/papers/fcp/setting.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

// Documents of 128K (of half the batch, if that is less) and documents of 2K, with as many tokens
// each.
std::vector<std::int64_t> two_lengths(std::int64_t tokens) {
  const std::int64_t longer = std::clamp<std::int64_t>(tokens / 2, 1, 131072);
  const std::int64_t shorter = std::min<std::int64_t>(2048, longer);
  std::vector<std::int64_t> lengths;
  for (std::int64_t pair = 0; pair < std::max<std::int64_t>(1, tokens / (2 * longer)); ++pair) {
    lengths.push_back(longer);
    lengths.insert(lengths.end(), static_cast<std::size_t>(longer / shorter), shorter);
  }
  return lengths;
}

struct LengthsKind {
  std::string name;
  std::vector<Workload> batches;
};

std::vector<LengthsKind> kinds_of_lengths(const PaperSetting& setting) {
  constexpr std::int64_t kWeakTail = 65536;
  const MaskUse causal = parse_mask_use("causal");
  PaperSetting weak = setting;
  weak.batch.max_length = std::min(setting.batch.max_length, kWeakTail);
  const std::vector<std::int64_t> bimodal = two_lengths(setting.batch.tokens);
  return {{"long tail", setting.batches(kFcpLengths, "causal")},
          {"heavier tail", setting.batches(kFcpHeavierLengths, "causal")},
          {"weak tail", weak.batches(kFcpLengths, "causal")},
          {"bimodal", {make_workload(bimodal, setting.shape, {&causal, 1})}}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-lengths",
                   {"--tokens", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--cluster", "--block-size", "--wire"});
  constexpr double kAhead = 1.02;
  const auto choices = parse_strategies(fmt::format("{},{}", kFcpMethods, kFcpSmallBlocks));
  const PaperSetting setting = fcp_setting(overrides, 64);
  const std::vector<LengthsKind> kinds = kinds_of_lengths(setting);
  Table table(method_columns({{"lengths", "lengths"}, {"strategy", "strategy"}}));
  Progress progress(overrides, static_cast<std::int64_t>(kinds.size() * choices.size()));
  std::vector<std::string> gains;
  bool ahead = true;
  for (const LengthsKind& kind : kinds) {
    const ComparedMethods compared =
        add_methods(choices, setting.input, kind.batches, {kind.name}, progress, table);
    if (compared.fastest.empty()) continue;
    gains.push_back(fmt::format("{} {}", kind.name, compared.text()));
    ahead = ahead && compared.gain > kAhead;
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting[0].second +=
      ", cut at 64K (weak tail); mixture512k (heavier tail); as many tokens in documents of two "
      "lengths (bimodal)";
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {{.x = "lengths", .y = {"forward_mfu"}, .series = {"strategy"}}};
  if (gains.size() == kinds.size()) {
    result.findings.push_back({"FCP is ahead of the baselines on other lengths, too",
                               fmt::format("over the fastest of them: {}", fmt::join(gains, ", ")),
                               ahead, "more than 2% faster than the fastest on each of the four"});
  }
  result.differences.emplace_back(kFcpMachinesAre);
  result.differences.emplace_back(kFcpSmsAre);
  result.differences.push_back(
      "The paper's synthetic lengths are not known to us. Ours: the same samples cut at 64K; and "
      "long documents (128K, or half the batch) and short ones (2K) with as many tokens each.");
  return result;
}

}  // namespace

PaperTable fcp_lengths() {
  return {"fcp-lengths", "FCP, evaluation", "speed with lengths of other distributions", make};
}

}  // namespace contextile
