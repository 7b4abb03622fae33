// DCP (Jiang et al., SOSP 2025), Fig. 7: the transfers of a ring that no device needs.
#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "dcp-fig7",
                   {"--tokens", "--heads", "--kv-heads", "--head-dim", "--wire"});
  constexpr std::int64_t kBlocks = 16;
  PaperSetting setting;
  setting.cluster_name = "p4de:1x4";
  setting.batch.tokens = kBlocks * 256;
  apply_overrides(overrides, setting);
  if (setting.batch.tokens % kBlocks != 0) {
    fail_argument("--tokens: expected a multiple of {} tokens, one for each block, found {}",
                  kBlocks, setting.batch.tokens);
  }
  const std::int64_t block = setting.batch.tokens / kBlocks;
  MaskUse mask;
  mask.spec.rule = MaskSpec::Rule::kSharedQuestion;
  mask.spec.lengths = {3 * block, 5 * block, 4 * block, 4 * block};
  const Workload workload =
      make_workload(std::vector<std::int64_t>{setting.batch.tokens}, setting.shape, {&mask, 1});
  setting.input.options.block_size = block;
  Table table({{"strategy", "strategy"},
               {"transfers", "forward\ntransfers"},
               {"redundant_transfers", "redundant\ntransfers"},
               {"transfer_bytes", "moved\nMB", Format::kMegabytes},
               {"redundant_bytes", "redundant\nMB", Format::kMegabytes}});
  DataMovement ring;
  for (const StrategyChoice& choice :
       {StrategyChoice{"ring", {}}, StrategyChoice{"zigzag", {}}, StrategyChoice{"magi", {}},
        StrategyChoice{"dcp", {{"head_groups", "1"}}}}) {
    const PlannedBatch planned =
        plan_and_check(workload, setting.input.cluster, choice, setting.input.options);
    const DataMovement& movement = planned.verified.movement[0];
    if (choice.name == "ring") ring = movement;
    table.add_row({choice_text(choice), movement.transfers, movement.redundant_transfers,
                   planned.statistics.forward->total_bytes(), movement.redundant_bytes});
  }
  PaperResult result{.setting = setting.description(),
                     .table = std::move(table),
                     .differences = {"The lengths of question and answers are our reading of the "
                                     "drawing; its count of transfers "
                                     "is the paper's.",
                                     "A transfer moves one block's unit of any kind: keys for the "
                                     "rings and magi, also queries "
                                     "and outputs for dcp."}};
  result.setting.push_back(kDcpIs);
  result.setting[0] = {"batch", fmt::format("one sequence of {} blocks of {} tokens: a question of "
                                            "3 blocks, answers of 5, 4 and 4",
                                            kBlocks, block)};
  result.findings.push_back({"38 of the ring's 48 KV block transfers are redundant",
                             fmt::format("{} of {}", ring.redundant_transfers, ring.transfers),
                             ring.transfers == 48 && ring.redundant_transfers == 38});
  result.plots = {{.x = "strategy", .y = {"transfers", "redundant_transfers"}}};
  return result;
}

}  // namespace

PaperTable dcp_fig7() {
  return {"dcp-fig7", "DCP (SOSP 2025), Fig. 7",
          "block transfers of a ring that no device needs, under a shared-question mask", make};
}

}  // namespace contextile
