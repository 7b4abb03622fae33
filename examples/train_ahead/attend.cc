#include "attend.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

using namespace contextile;

namespace {

// This rank's rows of an array of the whole batch.
HostTensor rows_of(const Plan& plan, Rank rank, const std::vector<double>& batch,
                   std::int32_t heads, std::int32_t dim) {
  const std::vector<float> narrow(batch.begin(), batch.end());
  HostTensor local(Dtype::kF32, num_local_tokens(plan, rank), heads, dim);
  scatter(plan, rank, view_of(narrow, plan.num_tokens(), heads, dim), local.view());
  return local;
}

double error_of(const Plan& plan, Rank rank, const std::vector<double>& truth,
                const HostTensor& found) {
  const HostTensor expected = rows_of(plan, rank, truth, found.heads(), found.dim());
  const auto x = found.values<float>();
  const auto y = expected.values<float>();
  double largest = 1e-30;
  for (const double value : truth) largest = std::max(largest, std::abs(value));
  double error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    error = std::max(error, std::isnan(difference) ? 1.0 : difference / largest);
  }
  return error;
}

}  // namespace

Attended attend(Executor& executor, const Plan& plan, Rank rank, const Workload& workload,
                std::uint64_t seed, bool check) {
  const AttentionShape& shape = plan.shape;
  const BatchTensors batch = random_batch(workload, seed);  // the same on every rank
  const HostTensor q = rows_of(plan, rank, batch.q, shape.q_heads, shape.head_dim);
  const HostTensor k = rows_of(plan, rank, batch.k, shape.kv_heads, shape.head_dim);
  const HostTensor v = rows_of(plan, rank, batch.v, shape.kv_heads, shape.value_dim);
  const HostTensor dout = rows_of(plan, rank, batch.dout, shape.q_heads, shape.value_dim);
  HostTensor out(Dtype::kF32, q.tokens(), shape.q_heads, shape.value_dim);
  HostTensor lse(Dtype::kF32, q.tokens(), shape.q_heads, 1);
  HostTensor dq(Dtype::kF32, q.tokens(), shape.q_heads, shape.head_dim);
  HostTensor dk(Dtype::kF32, q.tokens(), shape.kv_heads, shape.head_dim);
  HostTensor dv(Dtype::kF32, q.tokens(), shape.kv_heads, shape.value_dim);

  const auto started = std::chrono::steady_clock::now();
  const Saved saved =
      executor.forward(0, {q.view(), k.view(), v.view(), {}, out.view(), lse.stats()});
  executor.backward(0,
                    {q.view(),
                     k.view(),
                     v.view(),
                     out.view(),
                     lse.stats(),
                     dout.view(),
                     {},
                     dq.view(),
                     dk.view(),
                     dv.view(),
                     {}},
                    saved);
  Attended attended;
  attended.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (!check) return attended;
  const OracleResult truth = oracle(batch, shape, workload.masks[0].mask, Passes::kForwardBackward);
  attended.max_error =
      std::max({error_of(plan, rank, truth.out, out), error_of(plan, rank, truth.dq, dq),
                error_of(plan, rank, truth.dk, dk), error_of(plan, rank, truth.dv, dv)});
  return attended;
}
