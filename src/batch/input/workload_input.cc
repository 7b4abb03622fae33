#include "base/check.h"
#include "contextile/data.h"

namespace contextile {

AttentionShape shape_of_rank(AttentionShape shape, std::int32_t tp) {
  check_shape(shape);
  if (tp < 1 || shape.q_heads % tp != 0 || shape.kv_heads % tp != 0) {
    fail_argument("--tp: expected a divisor of {} query heads and {} KV heads, found {}",
                  shape.q_heads, shape.kv_heads, tp);
  }
  shape.q_heads /= tp;
  shape.kv_heads /= tp;
  return shape;
}

void check_workload_input(const WorkloadInput& input) {
  if (!input.masks.empty() && !input.mask_path.empty()) {
    fail_argument("expected either --mask or --mask-file, found both");
  }
  static_cast<void>(shape_of_rank(input.shape, input.tp));
}

Workload load_workload(std::span<const std::int64_t> lengths, const WorkloadInput& input,
                       std::int32_t num_ranks) {
  check_workload_input(input);
  std::vector<MaskUse> masks = input.masks;
  if (masks.empty()) masks.emplace_back();
  Workload workload = make_workload(lengths, shape_of_rank(input.shape, input.tp), masks);
  if (!input.mask_path.empty()) {
    workload.masks = {{.name = "file",
                       .layers = 1,
                       .mask = read_mask_file(input.mask_path, workload.num_tokens())}};
  }
  if (!input.layout.empty()) {
    workload.home = load_layout(input.layout, workload.sequences, num_ranks);
  }
  check_workload(workload);
  return workload;
}

}  // namespace contextile
