#include <algorithm>
#include <iterator>
#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/serving/helix.h"
#include "serving/forecast/helix_weights.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostDevices = 1 << 16;

// Describes the rule that a layout breaks, as "expected …, found …"; empty if it breaks none.
std::string broken_rule(const HelixModel& model, const HelixLayout& layout) {
  for (const std::int32_t size : {layout.kvp, layout.tpa, layout.tpf, layout.ep, layout.dp}) {
    if (size < 1 || size > kMostDevices) {
      return fmt::format("expected sizes of 1 to {}, found {}", kMostDevices, size);
    }
  }
  const std::int64_t group = std::int64_t{layout.kvp} * layout.tpa;
  const std::int64_t ffn_devices = std::int64_t{layout.tpf} * layout.ep;
  if (group * layout.dp > kMostDevices || ffn_devices > kMostDevices) {
    return fmt::format("expected at most {} devices, found {}", kMostDevices,
                       std::max(group * layout.dp, ffn_devices));
  }
  if (layout.dp > 1 && layout.kvp > 1) {
    return fmt::format("expected DP 1 with KVP {}, found {}", layout.kvp, layout.dp);
  }
  if (layout.prompts == HelixPrompts::kOwnRows && layout.kvp == 1) {
    return "expected KVP above 1 for groups that compute their own rows of prompts, found 1";
  }
  if (layout.dp > 1 && ffn_devices != group * layout.dp) {
    return fmt::format("expected TPF x EP of all {} devices, found {}", group * layout.dp,
                       ffn_devices);
  }
  if (layout.dp == 1 && ffn_devices != group && ffn_devices != layout.tpa) {
    return fmt::format("expected TPF x EP of KVP x TPA = {} or of TPA = {}, found {}", group,
                       layout.tpa, ffn_devices);
  }
  const ModelSpec& shape = model.shape;
  if (shape.q_heads % group != 0) {
    return fmt::format("expected KVP x TPA that divides {} query heads, found {}", shape.q_heads,
                       group);
  }
  const bool repeats_heads = layout.kvp == 1 && layout.tpa % shape.kv_heads == 0;
  if (shape.kv_heads % layout.tpa != 0 && !repeats_heads) {
    return fmt::format("expected TPA that divides {} KV heads{}, found {}", shape.kv_heads,
                       layout.kvp == 1 ? " or is a multiple of them" : "", layout.tpa);
  }
  if (num_dense_layers(model) > 0 && shape.ffn % ffn_devices != 0) {
    return fmt::format("expected TPF x EP that divides the feed-forward of {}, found {}", shape.ffn,
                       ffn_devices);
  }
  if (!model.experts) {
    return layout.ep == 1 ? "" : fmt::format("expected EP 1 without experts, found {}", layout.ep);
  }
  const HelixExperts& experts = *model.experts;
  if (experts.routed % layout.ep != 0) {
    return fmt::format("expected EP that divides {} experts, found {}", experts.routed, layout.ep);
  }
  if (experts.ffn % (experts.shared > 0 ? ffn_devices : layout.tpf) != 0) {
    return fmt::format("expected {} that divides an expert's feed-forward of {}, found {}",
                       experts.shared > 0 ? "TPF x EP" : "TPF", experts.ffn,
                       experts.shared > 0 ? ffn_devices : layout.tpf);
  }
  return "";
}

}  // namespace

std::string_view to_string(HelixFamily family) {
  switch (family) {
    case HelixFamily::kTensorParallel:
      return "TP";
    case HelixFamily::kDataParallel:
      return "DP";
    case HelixFamily::kContextParallel:
      return "CP";
    case HelixFamily::kHelix:
      break;
  }
  return "Helix";
}

HelixFamily family_of(const HelixLayout& layout) {
  if (layout.dp > 1) return HelixFamily::kDataParallel;
  if (layout.kvp == 1) return HelixFamily::kTensorParallel;
  return layout.ffn_devices() == layout.devices() ? HelixFamily::kHelix
                                                  : HelixFamily::kContextParallel;
}

std::string to_string(const HelixLayout& layout) {
  return fmt::format(
      "{}KVP {} x TPA {}, TPF {}{}{}", layout.dp == 1 ? "" : fmt::format("DP {} x ", layout.dp),
      layout.kvp, layout.tpa, layout.tpf, layout.ep == 1 ? "" : fmt::format(" x EP {}", layout.ep),
      layout.prompts == HelixPrompts::kOwnRows ? ", own rows" : "");
}

void check_helix_layout(const HelixModel& model, const HelixLayout& layout) {
  check_helix_model(model);
  const std::string problem = broken_rule(model, layout);
  CONTEXTILE_CHECK(problem.empty(), "layout {} of model {}: {}", to_string(layout),
                   quote(model.shape.name), problem);
}

std::vector<HelixLayout> helix_layouts(const HelixModel& model, std::int32_t devices) {
  check_helix_model(model);
  CONTEXTILE_CHECK(devices >= 1 && devices <= kMostDevices,
                   "layouts: expected 1 to {} devices, found {}", kMostDevices, devices);
  std::vector<HelixLayout> layouts;
  for (std::int32_t tpa = 1; tpa <= devices; ++tpa) {
    if (devices % tpa != 0) continue;
    const std::int32_t rest = devices / tpa;
    for (std::int32_t tpf = 1; tpf <= devices; ++tpf) {
      if (devices % tpf != 0) continue;
      std::vector<HelixLayout> candidates = {{rest, tpa, tpf, devices / tpf, 1}};
      if (rest > 1 && tpa % tpf == 0) candidates.push_back({rest, tpa, tpf, tpa / tpf, 1});
      if (rest > 1) candidates.push_back({1, tpa, tpf, devices / tpf, rest});
      std::ranges::copy_if(candidates, std::back_inserter(layouts), [&](const HelixLayout& layout) {
        return broken_rule(model, layout).empty();
      });
    }
  }
  return layouts;
}

}  // namespace contextile
