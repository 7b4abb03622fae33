// FCP (flexible context parallelism, MLSys 2026), Fig. 10: the share of one GPU's MFU with
// documents of one length. The paper measured GPUs; here everything is simulated on a preset's
// constants.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/gpu_share.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

// Over all lengths, forward and backward.
std::vector<Finding> equal_length_findings(const Extent& fcp, const Extent& small,
                                           const Extent& ring) {
  constexpr double kFarLower = 0.1;
  std::vector<Finding> findings;
  if (fcp.any() && small.any()) {
    findings.push_back({"fcp: above 90% of one GPU's MFU",
                        fmt::format("{} to {} ({} to {} in blocks of 1024)",
                                    whole_percent(fcp.least), whole_percent(fcp.most),
                                    whole_percent(small.least), whole_percent(small.most)),
                        fcp.least > 0.9, "every length, forward and backward"});
  }
  if (fcp.any() && ring.any()) {
    findings.push_back(
        {"ring: far lower",
         fmt::format("{} to {}", whole_percent(ring.least), whole_percent(ring.most)),
         ring.most < fcp.least - kFarLower,
         "its largest share is 10 percentage points or more below FCP's smallest"});
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig10",
                   {"--heads", "--kv-heads", "--head-dim", "--block-size", "--wire"});
  constexpr std::int32_t kDevices = 64;
  constexpr std::array<std::int64_t, 4> kLengths = {32768, 65536, 131072, 262144};
  const auto choices = parse_strategies(fmt::format("fcp,{},ring", kFcpSmallBlocks));
  const PaperSetting setting = fcp_setting(overrides, kDevices);
  Table table({{"length", "tokens of a\ndocument"},
               {"strategy", "strategy"},
               {"forward_share", "forward\nshare"},
               {"backward_share", "backward\nshare"}});
  Progress progress(overrides, static_cast<std::int64_t>(kLengths.size() * choices.size()));
  std::vector<Extent> shares(choices.size());
  const MaskUse causal = parse_mask_use("causal");
  for (const std::int64_t length : kLengths) {
    const std::vector<std::int64_t> lengths(
        static_cast<std::size_t>(kFcpTokensPerDevice * kDevices / length), length);
    const Workload workload = make_workload(lengths, setting.shape, {&causal, 1});
    for (std::size_t i = 0; i < choices.size(); ++i) {
      progress.step(choice_text(choices[i]));
      const GpuShares of =
          predict_shares(choices[i], setting.input, {&workload, 1}, {&setting.input.cluster, 1})
              .front();
      if (!of.skipped.empty()) {
        table.add_row({length, choice_text(choices[i])}, skipped_note(choices[i], of.skipped));
        continue;
      }
      table.add_row({length, choice_text(choices[i]), of.forward.share, of.backward.share});
      shares[i].take(of.forward.share);
      shares[i].take(of.backward.share);
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.plots = {{.x = "length", .y = {"forward_share"}, .series = {"strategy"}},
                  {.x = "length", .y = {"backward_share"}, .series = {"strategy"}}};
  result.setting[0] = {"lengths", fmt::format("{} tokens in documents of one length",
                                              kFcpTokensPerDevice * kDevices)};
  result.setting.push_back(fcp_block_setting(overrides));
  result.findings = equal_length_findings(shares[0], shares[1], shares[2]);
  result.differences = {
      kTimesAreSimulated,
      "Shares: the time of one GPU that does a device's part in whole documents, over the plan's "
      "time.",
      fmt::format("The paper's lengths and GPU counts are not in its text: {} devices here.",
                  kDevices)};
  return result;
}

}  // namespace

PaperTable fcp_fig10() {
  return {"fcp-fig10", "FCP, Fig. 10", "share of one device's MFU with documents of one length",
          make};
}

}  // namespace contextile
