#include "base/check.h"
#include "batch/mask/assemble_workload.h"
#include "contextile/data.h"

namespace contextile {

namespace {

// Divides the heads of a shape that need not be valid otherwise.
AttentionShape divided(AttentionShape shape, std::int32_t tp) {
  if (tp < 1 || shape.q_heads % tp != 0 || shape.kv_heads % tp != 0) {
    fail_argument("--tp: expected a divisor of {} query heads and {} KV heads, found {}",
                  shape.q_heads, shape.kv_heads, tp);
  }
  shape.q_heads /= tp;
  shape.kv_heads /= tp;
  return shape;
}

void check_mask_source(const WorkloadInput& input) {
  if (!input.masks.empty() && !input.mask_path.empty()) {
    fail_argument("expected either --mask or --mask-file, found both");
  }
}

}  // namespace

AttentionShape shape_of_rank(AttentionShape shape, std::int32_t tp) {
  check_shape(shape);
  return divided(shape, tp);
}

void check_workload_input(const WorkloadInput& input) {
  check_mask_source(input);
  static_cast<void>(shape_of_rank(input.shape, input.tp));
}

Workload load_workload(std::span<const std::int64_t> lengths, const WorkloadInput& input,
                       std::int32_t num_ranks) {
  check_mask_source(input);
  std::vector<MaskUse> masks = input.masks;
  if (masks.empty()) masks.emplace_back();
  Workload workload = assemble_workload(lengths, divided(input.shape, input.tp), masks);
  if (!input.mask_path.empty()) {
    workload.masks = {{.name = "file",
                       .layers = 1,
                       .mask = read_mask_file(input.mask_path, workload.num_tokens())}};
    const Mask* const mask = &workload.masks.front().mask;
    workload.positions = infer_positions({&mask, 1}, workload.sequences);
  }
  if (!input.layout.empty()) {
    workload.home = load_layout(input.layout, workload.sequences, num_ranks);
  }
  // This is the only check of the whole workload, its shape included.
  check_workload(workload);
  return workload;
}

}  // namespace contextile
