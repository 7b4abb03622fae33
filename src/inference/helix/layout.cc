#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/helix.h"
#include "inference/helix/weights.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostDevices = 1 << 16;

// The rule that a layout breaks, as "expected …, found …"; empty where it breaks none.
std::string broken_rule(const HelixModel& model, const HelixLayout& layout) {
  for (const std::int32_t size : {layout.kvp, layout.tpa, layout.tpf, layout.ep}) {
    if (size < 1 || size > kMostDevices) {
      return fmt::format("expected sizes of 1 to {}, found {}", kMostDevices, size);
    }
  }
  const std::int64_t devices = std::int64_t{layout.kvp} * layout.tpa;
  const std::int64_t ffn_devices = std::int64_t{layout.tpf} * layout.ep;
  if (ffn_devices != devices && ffn_devices != layout.tpa) {
    return fmt::format("expected TPF x EP of KVP x TPA = {} or of TPA = {}, found {}", devices,
                       layout.tpa, ffn_devices);
  }
  const ModelSpec& shape = model.shape;
  if (shape.q_heads % devices != 0) {
    return fmt::format("expected KVP x TPA that divides {} query heads, found {}", shape.q_heads,
                       devices);
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
      return "tensor_parallel";
    case HelixFamily::kContextParallel:
      return "context_parallel";
    case HelixFamily::kHelix:
      break;
  }
  return "helix";
}

HelixFamily family_of(const HelixLayout& layout) {
  if (layout.kvp == 1) return HelixFamily::kTensorParallel;
  return layout.ffn_devices() == layout.devices() ? HelixFamily::kHelix
                                                  : HelixFamily::kContextParallel;
}

std::string to_string(const HelixLayout& layout) {
  return fmt::format("KVP {} x TPA {}, TPF {}{}", layout.kvp, layout.tpa, layout.tpf,
                     layout.ep == 1 ? "" : fmt::format(" x EP {}", layout.ep));
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
    std::vector<std::int32_t> widths = {tpa};  // TPF x EP
    if (tpa != devices) widths.push_back(devices);
    for (std::int32_t tpf = 1; tpf <= devices; ++tpf) {
      for (const std::int32_t width : widths) {
        const HelixLayout layout = {devices / tpa, tpa, tpf, width / tpf};
        if (width % tpf == 0 && broken_rule(model, layout).empty()) layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

}  // namespace contextile
