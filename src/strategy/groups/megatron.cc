#include "strategy/groups/megatron.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/strategies.h"
#include "strategy/groups/group_strategy.h"
#include "strategy/groups/megatron_balanced.h"
#include "strategy/groups/megatron_packing.h"

namespace contextile {
namespace {

constexpr std::int64_t kMaxRanks = 1 << 16;
constexpr std::int64_t kMaxSequences = 1 << 20;

// Source: Megatron-LM, --hybrid-context-parallel (BalancedCPScheduler). Steps: rounds of groups,
// with a barrier between rounds. In a round every rank attends its samples one after another, each
// a zigzag ring over the c ranks that share it. Bytes sent per rank and sample of L tokens: forward
// (c-1)·L/c·kv, backward twice that (dKV in the activation dtype). Memory: two KV buffers of the
// largest share. Loses where rounds are many, since each waits for its slowest rank. Nothing is
// packed, so short samples run as small kernels, and keys of the next sample do not travel under
// this one's compute.
class MegatronDynamicStrategy : public GroupStrategy<MegatronDynamicOptions> {
 public:
  MegatronDynamicStrategy()
      : GroupStrategy({"megatron_dynamic",
                       "Megatron-LM BalancedCPScheduler: rounds of groups, one sequence after "
                       "another",
                       PartialWire::kActivations},
                      option_table()) {}

 protected:
  [[nodiscard]] std::vector<ScheduleRound> rounds(const Workload& workload, std::int32_t num_ranks,
                                                  MegatronDynamicOptions& options) const override {
    const BalancedCpOptions schedule{
        .num_ranks = num_ranks,
        .cap_tokens = options.cap,
        .faults = options.match_original ? UpstreamFaults::kReproduced : UpstreamFaults::kRepaired};
    std::vector<ScheduleRound> result;
    for (const ScheduledRound& round : schedule_balanced_cp(lengths_of(workload), schedule)) {
      result.push_back(group_items(round.samples, SampleOrder::kOneByOne));
    }
    return result;
  }

 private:
  static OptionTable<MegatronDynamicOptions> option_table() {
    OptionTable<MegatronDynamicOptions> table;
    return table
        .integer("cap", &MegatronDynamicOptions::cap, 0, kMaxTokens,
                 "tokens of one rank and sequence; 0: tokens of the batch over ranks, rounded up")
        .on_off("match_original", &MegatronDynamicOptions::match_original,
                "on: fail where the original fails (mostly rank counts that are no power of two)");
  }
};

// Source: Megatron-LM dev, dynamic context parallelism with packing. Steps: rounds of groups; a
// group packs its samples (THD) and attends them in one zigzag ring; a barrier between rounds.
// Bytes sent per rank of a group of c ranks with L tokens: forward (c-1)·L/c·kv, backward twice
// that (dKV in the activation dtype). Memory: two KV buffers of at most cap tokens. Like
// megatron_dynamic it loses where rounds are many, and also on short samples that share a ring they
// do not need.
class MegatronPackedStrategy : public GroupStrategy<MegatronPackedOptions> {
 public:
  MegatronPackedStrategy()
      : GroupStrategy({"megatron_packed",
                       "Megatron-LM dev dynamic CP: rounds of groups, sequences of a group packed",
                       PartialWire::kActivations},
                      option_table()) {}

 protected:
  [[nodiscard]] std::vector<ScheduleRound> rounds(const Workload& workload, std::int32_t num_ranks,
                                                  MegatronPackedOptions& options) const override {
    check_scheduler_options(options);
    if (options.scheduler == PackedScheduler::kDpBalanced && options.cp == 0) {
      options.cp = num_ranks;
    }
    std::vector<ScheduleRound> result;
    for (const RankSamples& samples : schedule(lengths_of(workload), num_ranks, options)) {
      result.push_back(group_items(samples, SampleOrder::kPacked));
    }
    return result;
  }

 private:
  static OptionTable<MegatronPackedOptions> option_table() {
    OptionTable<MegatronPackedOptions> table;
    return table
        .choice("scheduler", &MegatronPackedOptions::scheduler, {"dynamic", "dp_balanced"},
                "dynamic: groups by length; dp_balanced: equal groups of cp ranks, bins in order")
        .integer("cap", &MegatronPackedOptions::cap, 0, kMaxTokens,
                 "tokens of one rank and round; 0: tokens of the batch over ranks, rounded up")
        .integer("min_cp", &MegatronPackedOptions::min_cp, 1, kMaxRanks,
                 "dynamic: least ranks of a group, a power of two")
        .integer("cp", &MegatronPackedOptions::cp, 0, kMaxRanks,
                 "dp_balanced: ranks of a group, divides the devices; 0: all")
        .integer("vpp_multiple", &MegatronPackedOptions::vpp_multiple, 1, 1 << 10,
                 "number of rounds is a multiple of it, as interleaved pipelines need")
        .integer("max_num_seqs", &MegatronPackedOptions::max_num_seqs, 0, kMaxSequences,
                 "dp_balanced: sequences of a group and round; 0: no limit");
  }

  // Options of the other scheduler would have no effect.
  static void check_scheduler_options(const MegatronPackedOptions& options) {
    if (options.scheduler == PackedScheduler::kDpBalanced) {
      CONTEXTILE_CHECK(options.min_cp == 1,
                       "option min_cp: expected scheduler=dynamic, found dp_balanced");
      return;
    }
    CONTEXTILE_CHECK(options.cp == 0, "option cp: expected scheduler=dp_balanced, found dynamic");
    CONTEXTILE_CHECK(options.max_num_seqs == 0,
                     "option max_num_seqs: expected scheduler=dp_balanced, found dynamic");
  }

  static std::vector<RankSamples> schedule(const std::vector<std::int64_t>& lengths,
                                           std::int32_t num_ranks,
                                           const MegatronPackedOptions& options) {
    if (options.scheduler == PackedScheduler::kDpBalanced) {
      CONTEXTILE_CHECK(num_ranks % options.cp == 0,
                       "expected groups of a divisor of {} devices (option cp), found {}",
                       num_ranks, options.cp);
      return schedule_dp_balanced(lengths, {.context_parallel = options.cp,
                                            .data_parallel = num_ranks / options.cp,
                                            .cap_tokens = options.cap,
                                            .multiple = options.vpp_multiple,
                                            .max_samples = options.max_num_seqs});
    }
    std::vector<RankSamples> rounds;
    for (ScheduledRound& round : schedule_dynamic_cp(
             lengths,
             {.num_ranks = num_ranks, .cap_tokens = options.cap, .min_ranks = options.min_cp})) {
      rounds.push_back(std::move(round.samples));
    }
    return align_rounds(std::move(rounds), options.vpp_multiple);
  }
};

const MegatronDynamicStrategy& megatron_dynamic() {
  static const MegatronDynamicStrategy kStrategy;
  return kStrategy;
}
const MegatronPackedStrategy& megatron_packed() {
  static const MegatronPackedStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& megatron_dynamic_strategy() { return megatron_dynamic(); }
const Strategy& megatron_packed_strategy() { return megatron_packed(); }

StrategyChoice choice_of(const MegatronDynamicOptions& options) {
  return megatron_dynamic().choice(options);
}
StrategyChoice choice_of(const MegatronPackedOptions& options) {
  return megatron_packed().choice(options);
}

}  // namespace contextile
