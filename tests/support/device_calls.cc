#include "support/device_calls.h"

#include <stdexcept>
#include <utility>

#include "base/rng.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"
#include "kernel/host_tensor.h"
#include "kernel/row_memory.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "runtime/executor/executor_testing.h"

namespace contextile {

struct DeviceCalls::OneRank {
  OneRank(Transport& transport, const AttentionKernel& kernel)
      : rank(transport.rank()), memory(kernel.memory()), executor(transport, kernel) {}

  void prepare(const std::shared_ptr<const Plan>& plan) {
    executor.prepare(plan);
    shape = plan->shape;
    tokens = num_local_tokens(*plan, rank);
  }

  void take_memory(std::int32_t more_heads) {
    all.clear();
    saved = RowBuffer(memory, executor.saved_bytes(0));
    const auto rows = [&](Dtype dtype, std::int32_t heads, std::int32_t dim) {
      all.emplace_back(memory, tokens * heads * dim * bytes_per_element(dtype));
      return contiguous(all.back().data(), dtype, tokens, heads, dim);
    };
    const auto input = [&](std::int32_t heads, std::int32_t dim) {
      return slice(rows(shape.dtype, heads + more_heads, dim), 0, tokens, 0, heads);
    };
    q = input(shape.q_heads, shape.head_dim);
    k = input(shape.kv_heads, shape.head_dim);
    v = input(shape.kv_heads, shape.value_dim);
    dout = input(shape.q_heads, shape.value_dim);
    const auto floats = [&] {
      if (!shape.sink) return std::span<float>{};
      all.emplace_back(memory, shape.q_heads * static_cast<std::int64_t>(sizeof(float)));
      return std::span(reinterpret_cast<float*>(all.back().data()),
                       static_cast<std::size_t>(shape.q_heads));
    };
    sink = floats();
    first_result = all.size();
    out = rows(shape.dtype, shape.q_heads, shape.value_dim);
    lse = rows(Dtype::kF32, shape.q_heads, 1);
    dq = rows(shape.dtype, shape.q_heads, shape.head_dim);
    dk = rows(shape.dtype, shape.kv_heads, shape.head_dim);
    dv = rows(shape.dtype, shape.kv_heads, shape.value_dim);
    dsink = floats();
  }

  void set_inputs(std::uint64_t seed) {
    Rng rng(seed * 64 + static_cast<std::uint64_t>(rank.value));
    for (const TensorView& view : {q, k, v, dout}) {
      HostTensor here = normal_tensor(rng, view.dtype, view.tokens, view.heads, view.dim);
      const auto heads = static_cast<std::int32_t>(view.token_stride / view.head_stride);
      HostTensor there(view.dtype, view.tokens, heads, view.dim);
      preferred_kernel(Dtype::kF32)
          .row_ops()
          .convert(slice(there.view(), 0, view.tokens, 0, view.heads), here.view());
      memory.write(static_cast<std::byte*>(view.data), there.bytes());
    }
    if (!sink.empty()) {
      Rng shared(seed);
      HostTensor here = normal_tensor(shared, Dtype::kF32, std::ssize(sink), 1, 1);
      memory.write(reinterpret_cast<std::byte*>(sink.data()), here.bytes());
    }
    for (std::size_t i = first_result; i < all.size(); ++i) {
      memory.poison(all[i].data(), all[i].size_bytes());
    }
    if (saved.size_bytes() > 0) memory.poison(saved.data(), saved.size_bytes());
  }

  void forward() {
    static_cast<void>(
        executor.forward(0, {q,
                             k,
                             v,
                             sink,
                             out,
                             as_stats(lse),
                             {saved.data(), static_cast<std::size_t>(saved.size_bytes())}}));
  }
  void backward() {
    executor.backward(0,
                      {q,
                       k,
                       v,
                       out,
                       as_stats(lse),
                       dout,
                       sink,
                       dq,
                       dk,
                       dv,
                       dsink,
                       {saved.data(), static_cast<std::size_t>(saved.size_bytes())}},
                      {});
  }

  const Rank rank;
  const RowMemory& memory;
  Executor executor;
  AttentionShape shape;
  std::int64_t tokens = 0;
  TensorView q, k, v, dout, out, lse, dq, dk, dv;
  std::span<float> sink, dsink;
  RowBuffer saved;
  std::vector<RowBuffer> all;
  std::size_t first_result = 0;
};

DeviceCalls::DeviceCalls(RankHost& host, std::shared_ptr<const Plan> plan)
    : group_(host.make_group(plan->num_devices())) {
  for (const std::unique_ptr<Transport>& transport : group_) {
    ranks_.push_back(std::make_unique<OneRank>(*transport, host.kernel(transport->rank())));
  }
  prepare(std::move(plan));
  move_tensors();
}
DeviceCalls::~DeviceCalls() = default;

template <typename Body>
void DeviceCalls::on_all_ranks(const Body& body) {
  run_inproc(group_, [&](Transport& transport) { body(*ranks_[transport.rank().index()]); });
}

void DeviceCalls::prepare(std::shared_ptr<const Plan> plan) {
  on_all_ranks([&](OneRank& rank) { rank.prepare(plan); });
}
void DeviceCalls::move_tensors(std::int32_t more_heads) {
  on_all_ranks([=](OneRank& rank) { rank.take_memory(more_heads); });
}
void DeviceCalls::set_inputs(std::uint64_t seed) {
  on_all_ranks([&](OneRank& rank) { rank.set_inputs(seed); });
}
void DeviceCalls::forward() {
  on_all_ranks([](OneRank& rank) { rank.forward(); });
}
void DeviceCalls::backward() {
  on_all_ranks([](OneRank& rank) { rank.backward(); });
}

std::vector<std::byte> DeviceCalls::results() {
  std::vector<std::byte> bits;
  for (const std::unique_ptr<OneRank>& rank : ranks_) {
    for (std::size_t i = rank->first_result; i < rank->all.size(); ++i) {
      const std::size_t begin = bits.size();
      bits.resize(begin + static_cast<std::size_t>(rank->all[i].size_bytes()));
      rank->memory.read(std::span(bits).subspan(begin), rank->all[i].data());
    }
  }
  return bits;
}

void DeviceCalls::fail_at_step(std::size_t rank, const std::string& op) {
  ExecutorTesting::before_step(ranks_.at(rank)->executor, [op](const RecordedStep& step) {
    if (step.op == op) throw std::runtime_error("given up");
  });
}

std::vector<ExecutionStats> DeviceCalls::stats() const {
  std::vector<ExecutionStats> all;
  all.reserve(ranks_.size());
  for (const auto& rank : ranks_) all.push_back(rank->executor.last_stats());
  return all;
}

std::vector<std::byte> results_of(DeviceCalls& calls, std::uint64_t seed) {
  calls.set_inputs(seed);
  calls.forward();
  calls.backward();
  return calls.results();
}

}  // namespace contextile
