#include "contextile/advanced/training_setup.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/parse_name.h"

namespace contextile {
namespace {

constexpr std::array kExchanges = {CpExchange::kP2p, CpExchange::kA2a, CpExchange::kAllGather,
                                   CpExchange::kHybrid};
constexpr std::array kPackings = {DocumentPacking::kSequential, DocumentPacking::kWlb,
                                  DocumentPacking::kDynamic};

std::string exchange_text(const TrainingSetup& setup) {
  if (!setup.strategy.empty()) return setup.strategy;
  if (setup.exchange != CpExchange::kHybrid) return std::string(to_string(setup.exchange));
  const std::int32_t rings = setup.a2a_ranks > 0 ? setup.sizes.cp / setup.a2a_ranks : 0;
  return fmt::format("{}, {} x {}", to_string(setup.exchange), setup.a2a_ranks, rings);
}

}  // namespace

std::string_view to_string(CpExchange exchange) {
  switch (exchange) {
    case CpExchange::kP2p:
      return "p2p";
    case CpExchange::kA2a:
      return "a2a";
    case CpExchange::kAllGather:
      return "all_gather";
    case CpExchange::kHybrid:
      return "a2a+p2p";
  }
  fail_argument("exchange: expected p2p, a2a, all_gather or a2a+p2p, found {}",
                static_cast<int>(exchange));
}

CpExchange parse_cp_exchange(std::string_view text) {
  return parse_name<CpExchange>("exchange", kExchanges, text);
}

std::string_view to_string(DocumentPacking packing) {
  switch (packing) {
    case DocumentPacking::kSequential:
      return "sequential";
    case DocumentPacking::kWlb:
      return "wlb";
    case DocumentPacking::kDynamic:
      return "dynamic";
  }
  fail_argument("packing: expected sequential, wlb or dynamic, found {}",
                static_cast<int>(packing));
}

DocumentPacking parse_document_packing(std::string_view text) {
  return parse_name<DocumentPacking>("packing", kPackings, text);
}

std::string setup_text(const TrainingSetup& setup) {
  const std::int32_t tp = setup.sizes.tp;
  const std::int32_t cp = setup.sizes.cp;
  std::string text = fmt::format("TP {}, CP {}", tp, cp);
  if (cp > 1 || !setup.strategy.empty()) text += fmt::format(" ({})", exchange_text(setup));
  text += fmt::format(", DP {}, PP {}", setup.sizes.dp, setup.sizes.pp);
  if (setup.sizes.ep > 1) text += fmt::format(", EP {}", setup.sizes.ep);
  if (setup.schedule == PipelineSchedule::kSamePhase) text += ", same-phase pipeline";
  if (setup.chunks > 1) text += fmt::format(", {} chunks a stage", setup.chunks);
  if (setup.packing == DocumentPacking::kWlb) text += ", WLB packing";
  if (setup.packing == DocumentPacking::kDynamic) text += ", dynamic CP";
  if (setup.recompute != Recompute::kNone) {
    text += fmt::format(", {} recompute", to_string(setup.recompute));
  }
  if (setup.optimizer == OptimizerShards::kNone) text += ", replicated optimizer";
  if (setup.optimizer == OptimizerShards::kFsdp) text += ", FSDP";
  return text;
}

}  // namespace contextile
