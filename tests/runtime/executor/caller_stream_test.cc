// Tensors of a stream that is not the executor's, like PyTorch's: calls run after the work that
// wrote them, and work that reads results runs after the calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/executor.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "kernel/host_tensor.h"
#include "kernel/tensor.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/host_driver.h"

namespace contextile {
namespace {

using cuda::DeviceRanks;
using cuda::HostDriver;
using ::testing::IsEmpty;
using ::testing::Not;

struct Guards {
  bool begin = true;
  bool end = true;
};

std::shared_ptr<const Plan> ring_plan() {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 64;
  shape.dtype = Dtype::kBf16;
  return plan_and_check(batch_of({300, 37, 190}, "causal", shape), cluster_of(1, 2),
                        parse_strategies("ring").at(0), {})
      .plan;
}

// One rank of a framework: tensors are taken, written, read and released in the order of its own
// stream.
class Framework {
 public:
  Framework(HostDriver& driver, DeviceRanks& ranks, Transport& transport, const Plan& plan)
      : driver_(driver),
        ranks_(ranks),
        rank_(transport.rank()),
        shape_(plan.shape),
        tokens_(num_local_tokens(plan, rank_)),
        stream_(driver.create_stream()),
        executor_(transport, ranks.kernel(rank_)) {}

  // Two layers of forward. Returns the bits of both outputs.
  std::vector<std::vector<std::byte>> run(const std::shared_ptr<const Plan>& plan, Guards guards) {
    executor_.prepare(plan);
    std::vector<std::vector<std::byte>> outputs;
    for (std::uint64_t layer = 0; layer < 2; ++layer) {
      ForwardTensors tensors;
      tensors.q_THD = input(shape_.q_heads, 3 * layer);
      tensors.k_THD = input(shape_.kv_heads, 3 * layer + 1);
      tensors.v_THD = input(shape_.kv_heads, 3 * layer + 2);
      tensors.out_THD = rows(shape_.dtype, shape_.q_heads, shape_.value_dim);
      tensors.lse_TH = as_stats(rows(Dtype::kF32, shape_.q_heads, 1));
      void* const mine = driver_.native(stream_);
      if (guards.begin) ranks_.begin_behind(rank_, mine);
      executor_.forward(0, tensors);
      if (guards.end) ranks_.end_before(rank_, mine);
      const TensorView kept = rows(shape_.dtype, shape_.q_heads, shape_.value_dim);
      driver_.copy(stream_, all(kept).data, all(tensors.out_THD).data, all(kept).row_bytes);
      for (const TensorView& view : {tensors.q_THD, tensors.k_THD, tensors.v_THD, tensors.out_THD})
        driver_.free_on(stream_, static_cast<std::byte*>(view.data));
      driver_.free_on(stream_, reinterpret_cast<std::byte*>(tensors.lse_TH.data));
      std::vector<std::byte> bytes(static_cast<std::size_t>(all(kept).row_bytes));
      driver_.read(stream_, bytes, all(kept).data);
      driver_.free_on(stream_, all(kept).data);
      outputs.push_back(std::move(bytes));
    }
    return outputs;
  }

 private:
  TensorView rows(Dtype dtype, std::int32_t heads, std::int32_t dim) {
    const std::int64_t bytes = tokens_ * heads * dim * bytes_per_element(dtype);
    return contiguous(driver_.allocate_on(stream_, bytes), dtype, tokens_, heads, dim);
  }
  TensorView input(std::int32_t heads, std::uint64_t seed) {
    Rng rng(seed * 16 + static_cast<std::uint64_t>(rank_.value));
    HostTensor here = normal_tensor(rng, shape_.dtype, tokens_, heads, shape_.head_dim);
    const TensorView there = rows(shape_.dtype, heads, shape_.head_dim);
    driver_.write(stream_, static_cast<std::byte*>(there.data),
                  std::span(static_cast<const std::byte*>(here.view().data),
                            static_cast<std::size_t>(all(there).row_bytes)));
    return there;
  }
  static cuda::Rows all(const TensorView& view) {
    const std::int64_t bytes = view.tokens * view.heads * view.dim * bytes_per_element(view.dtype);
    return {static_cast<std::byte*>(view.data), bytes, 1, bytes};
  }

  HostDriver& driver_;
  DeviceRanks& ranks_;
  Rank rank_;
  AttentionShape shape_;
  std::int64_t tokens_;
  cuda::Stream stream_;
  Executor executor_;
};

// The outputs of both ranks.
std::vector<std::vector<std::vector<std::byte>>> run(HostDriver& driver, Guards guards) {
  const std::shared_ptr<const Plan> plan = ring_plan();
  DeviceRanks ranks(driver);
  const auto group = ranks.make_group(2);
  std::vector<std::vector<std::vector<std::byte>>> outputs(2);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back(
        [&, r] { outputs[r] = Framework(driver, ranks, *group[r], *plan).run(plan, guards); });
  }
  threads.clear();
  return outputs;
}

TEST(StreamOfTheCaller, OrdersItsTensorsWithTheRanks) {
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  const auto expected = run(at_once, {});
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    HostDriver driver(HostDriver::Mode::kRecorded, seed);
    EXPECT_EQ(run(driver, {}), expected) << seed;
    EXPECT_THAT(driver.races(), IsEmpty());
  }
}

TEST(StreamOfTheCaller, EachSideIsNeeded) {
  for (const Guards guards : {Guards{.begin = false}, Guards{.end = false}}) {
    HostDriver driver(HostDriver::Mode::kRecorded);
    static_cast<void>(run(driver, guards));
    EXPECT_THAT(driver.races(), Not(IsEmpty())) << guards.begin << guards.end;
  }
}

// The default stream has no handle, and is one stream all the same.
TEST(StreamOfTheCaller, OfOneHandleIsOneStream) {
  HostDriver driver(HostDriver::Mode::kAtOnce);
  const cuda::Stream stream = driver.create_stream();
  EXPECT_EQ(driver.adopt_stream(driver.native(stream)), stream);
  const cuda::Stream other = driver.adopt_stream(nullptr);
  EXPECT_NE(other, stream);
  EXPECT_EQ(driver.adopt_stream(nullptr), other);
}

}  // namespace
}  // namespace contextile
