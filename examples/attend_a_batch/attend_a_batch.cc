#include <cstdio>
#include <numeric>

#include "contextile/inproc_attention.h"
#include "contextile/planner.h"

using namespace contextile;

int main() {
  const std::vector<std::int64_t> lengths = {700, 260, 64};  // tokens of each document, 1024 in all
  const AttentionShape shape = {.q_heads = 8, .kv_heads = 2, .dtype = Dtype::kF32};
  const Workload batch = make_workload(lengths, shape, parse_mask_use("causal"));
  const PlannedBatch planned = plan_batch(batch, load_cluster("local:2x2"), {"auto"});

  std::vector<float> q(1024 * 8 * 128, 0.5F), k(1024 * 2 * 128), v(k), dout(q);  // yours
  std::iota(v.begin(), v.end(), 1.0F);
  const AttentionInputs inputs = {view_of(q, 1024, 8, 128), view_of(k, 1024, 2, 128),
                                  view_of(v, 1024, 2, 128)};
  InprocAttention attention(planned.plan);  // proves the plan; a thread for each of its 4 devices
  const AttentionOutput output = attention.forward(inputs);
  const AttentionGradients gradients =
      attention.backward(inputs, output, view_of(dout, 1024, 8, 128));
  // All scores are 0: a row is the mean of v so far, lse the log of how many tokens that are.
  std::printf("out %.0f, lse %.4f, dv %.4f\n", output.out_THD.values<float>()[699 * 8 * 128],
              output.lse_TH[699 * 8], gradients.dv_THD.values<float>()[699 * 2 * 128]);
}
